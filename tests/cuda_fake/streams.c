/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Streams are lists of items. The host runs them when it waits: a random number picks the stream
 * whose first item is next. An item that waits for an event holds up its stream until the record
 * that it means has run.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cuda_runtime_api.h>

#include "tests/cuda_emulator/emulator.h"
#include "tests/cuda_fake/fake.h"
#include "tests/cuda_fake/items.h"

#define STREAMS_MAX 256
#define WAIT_NS     200000
#define RUN_MAX     64   /* items that run between two looks at an event */
#define ITEMS_MAX   4096 /* of all streams: more are not left lying */

static struct CUstream_st *streams[STREAMS_MAX];
static int stream_count, item_count, event_count;
static uint64_t numbers, newest_run, random_state;
static long overtakings, waits;
static bool is_started;

static uint64_t draw(void)
{
    uint64_t x = random_state += 0x9e3779b97f4a7c15u;

    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* ---- running --------------------------------------------------------------------------------- */

struct CUevent_st *fake_event_new(bool has_time)
{
    struct CUevent_st *event = calloc(1, sizeof(*event));

    if (!event)
        fake_die("no memory");
    event->users = 1;
    event->has_time = has_time;
    event_count++;
    return event;
}

void fake_event_drop(struct CUevent_st *event)
{
    if (--event->users > 0)
        return;
    event_count--;
    free(event);
}

static void run_kernel(const struct item *item)
{
    if (emulator_run(item->kernel.name, item->kernel.body, item->kernel.arguments,
                     item->kernel.grid, item->kernel.block, item->kernel.dynamic_bytes) == 0)
        return;
    (void)fprintf(stderr, "fake CUDA: %s\n", emulator_failure());
    fake_calls_break(cudaErrorLaunchFailure);
}

static void run_item(struct item *item)
{
    switch (item->kind) {
    case ITEM_KERNEL:
        run_kernel(item);
        free(item->kernel.arguments);
        break;
    case ITEM_COPY:
        memmove(item->copy.to, item->copy.from, item->copy.bytes);
        break;
    case ITEM_FILL:
        fake_memory_fill(item->copy.to, item->copy.value, item->copy.bytes);
        break;
    case ITEM_RECORD:
        item->event.event->happened = item->event.record;
        (void)clock_gettime(CLOCK_MONOTONIC, &item->event.event->at);
        fake_event_drop(item->event.event);
        break;
    case ITEM_WAIT:
        fake_event_drop(item->event.event);
        break;
    case ITEM_EXTERNAL: /* it has ended */
        break;
    }
}

static bool can_run(const struct CUstream_st *stream)
{
    struct item *item = stream->first;

    if (item && item->kind == ITEM_EXTERNAL) {
        if (!item->external.has_ended)
            item->external.has_ended = item->external.work->advance(item->external.context);
        return item->external.has_ended;
    }
    return item && (item->kind != ITEM_WAIT || item->event.event->happened >= item->event.record);
}

/* Run one item of any stream. False: there is none, or all wait for each other. */
static bool run_one(void)
{
    int ready[STREAMS_MAX], count = 0;
    struct CUstream_st *stream;
    struct item *item;

    for (int i = 0; i < stream_count; i++)
        if (can_run(streams[i]))
            ready[count++] = i;
    if (count == 0)
        return false;
    stream = streams[ready[draw() % (uint64_t)count]];
    item = stream->first;
    stream->first = item->next;
    if (!stream->first)
        stream->last = &stream->first;
    item_count--;
    overtakings += item->number < newest_run;
    newest_run = item->number > newest_run ? item->number : newest_run;
    run_item(item);
    if (item->origin)
        fake_graph_ran(item->origin);
    free(item);
    return true;
}

static bool waits_for_others(void)
{
    for (int i = 0; i < stream_count; i++)
        if (streams[i]->first && streams[i]->first->kind == ITEM_EXTERNAL)
            return true;
    return false;
}

/* Run one item, or let go of the lock for a moment, because another process or thread must act.
 * False: nothing will ever run. */
static bool run_or_wait(void)
{
    if (run_one())
        return true;
    if (!waits_for_others())
        return false;
    fake_memory_close();
    fake_unlock();
    (void)nanosleep(&(struct timespec){.tv_nsec = WAIT_NS}, NULL);
    fake_lock();
    fake_memory_open();
    return true;
}

void fake_run_all(void)
{
    fake_memory_open();
    while (run_or_wait())
        ;
    fake_memory_close();
    if (item_count > 0)
        fake_die("streams wait for events that nothing records");
}

/* Until `stream` has nothing left that was put before now. */
static void run_until(const struct CUstream_st *stream)
{
    uint64_t last = stream->put;

    fake_memory_open();
    while (stream->first && stream->first->number <= last)
        if (!run_or_wait())
            fake_die("a stream waits for an event that nothing records");
    fake_memory_close();
}

static void start(void)
{
    if (is_started)
        return;
    is_started = true;
    random_state = (uint64_t)fake_setting("FAKE_CUDA_SEED", 1);
    emulator_submit = fake_put_kernel;
}

struct item *fake_put(struct CUstream_st *stream, enum item_kind kind)
{
    struct item *item = calloc(1, sizeof(*item));

    if (!item)
        fake_die("no memory");
    if (!stream)
        fake_die("work for the default stream");
    item->kind = kind;
    if (stream->graph) {
        fake_graph_add(stream, item);
        return item;
    }
    item->number = stream->put = ++numbers;
    *stream->last = item;
    stream->last = &item->next;
    item_count++;
    return item;
}

void fake_let_run(void)
{
    int count = item_count > ITEMS_MAX ? item_count / 2 : draw() % 16 == 0 ? (int)(draw() % 8) : 0;

    if (count == 0)
        return;
    fake_memory_open();
    while (count-- > 0 && run_one())
        ;
    fake_memory_close();
}

struct item *fake_put_record(struct CUstream_st *stream, struct CUevent_st *event)
{
    struct item *item = fake_put(stream, ITEM_RECORD);

    item->event.event = event;
    item->event.record = ++event->recorded;
    event->users++;
    event->graph = stream->graph;
    event->branch = stream->branch;
    return item;
}

struct item *fake_put_wait(struct CUstream_st *stream, struct CUevent_st *event)
{
    struct item *item = fake_put(stream, ITEM_WAIT);

    item->event.event = event;
    item->event.record = event->recorded;
    event->users++;
    return item;
}

static bool is_captured(const struct CUstream_st *stream)
{
    return stream->graph != NULL;
}

struct CUstream_st *fake_stream_new(void)
{
    struct CUstream_st *made = calloc(1, sizeof(*made));

    if (!made)
        fake_die("no memory");
    if (stream_count == STREAMS_MAX)
        fake_die("more than %d streams", STREAMS_MAX);
    made->external.put = fake_put_external;
    made->external.is_captured = is_captured;
    made->external.launch = fake_put_kernel;
    made->last = &made->first;
    streams[stream_count++] = made;
    return made;
}

void fake_stream_free(struct CUstream_st *stream)
{
    int at = 0;

    while (at < stream_count && streams[at] != stream)
        at++;
    if (at == stream_count)
        fake_die("destroy a stream that does not exist");
    streams[at] = streams[--stream_count];
    free(stream);
}

/* ---- streams --------------------------------------------------------------------------------- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags)
{
    int status;

    fake_lock();
    start();
    status = fake_call("cudaStreamCreateWithFlags");
    if (status == 0 && flags != cudaStreamNonBlocking)
        fake_die("a stream that the default stream holds up");
    if (status == 0)
        *stream = fake_stream_new();
    fake_unlock();
    return (cudaError_t)status;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    int status;

    fake_lock();
    status = fake_call("cudaStreamDestroy");
    run_until(stream);
    fake_stream_free(stream);
    fake_unlock();
    return (cudaError_t)status;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    int status;

    fake_lock();
    status = fake_call("cudaStreamSynchronize");
    waits++;
    if (status == 0)
        status = fake_graph_forbids(stream);
    if (status == 0) {
        run_until(stream);
        status = fake_calls_broken(); /* by one of these kernels */
    }
    fake_unlock();
    return (cudaError_t)status;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags)
{
    int status;

    (void)flags;
    fake_lock();
    status = fake_call("cudaStreamWaitEvent");
    if (status == 0 && event->graph)
        fake_graph_wait(stream, event);
    else if (status == 0 && stream->graph)
        fake_die("a captured stream waits for an event that is not in its graph");
    else if (status == 0 && event->recorded > event->happened) /* a fresh event holds nothing up */
        (void)fake_put_wait(stream, event);
    fake_unlock();
    return (cudaError_t)status;
}

/* ---- events ---------------------------------------------------------------------------------- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags)
{
    int status;

    fake_lock();
    status = fake_call("cudaEventCreateWithFlags");
    if (status == 0)
        *event = fake_event_new(!(flags & cudaEventDisableTiming));
    fake_unlock();
    return (cudaError_t)status;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    int status;

    fake_lock();
    status = fake_call("cudaEventDestroy");
    fake_event_drop(event);
    fake_unlock();
    return (cudaError_t)status;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    int status;

    fake_lock();
    status = fake_call("cudaEventRecord");
    if (status == 0)
        (void)fake_put_record(stream, event);
    fake_unlock();
    return (cudaError_t)status;
}

/* The device goes on a little each time that the host looks. */
cudaError_t cudaEventQuery(cudaEvent_t event)
{
    int status;

    fake_lock();
    status = fake_call("cudaEventQuery");
    if (status == 0)
        status = fake_graph_forbids(NULL);
    if (status == 0 && event->happened < event->recorded) {
        uint64_t count = draw() % RUN_MAX;
        fake_memory_open();
        while (count-- > 0 && event->happened < event->recorded && run_one())
            ;
        fake_memory_close();
    }
    if (status == 0 && event->happened < event->recorded)
        status = cudaErrorNotReady;
    fake_unlock();
    return (cudaError_t)status;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    uint64_t wanted;
    int status;

    fake_lock();
    status = fake_call("cudaEventSynchronize");
    waits++;
    if (status == 0)
        status = fake_graph_forbids(NULL);
    wanted = event->recorded;
    fake_memory_open();
    while (status == 0 && event->happened < wanted)
        if (!run_or_wait())
            fake_die("wait for an event that nothing records");
    fake_memory_close();
    fake_unlock();
    return (cudaError_t)status;
}

/* Of the emulator, so it says nothing about a device. */
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t first, cudaEvent_t last)
{
    int status;

    fake_lock();
    status = fake_call("cudaEventElapsedTime");
    if (status == 0 && (!first->has_time || !last->has_time || !first->recorded || !last->recorded))
        status = cudaErrorInvalidResourceHandle;
    if (status == 0 && (first->happened < first->recorded || last->happened < last->recorded))
        status = cudaErrorNotReady;
    if (status == 0)
        *ms = (float)((double)(last->at.tv_sec - first->at.tv_sec) * 1e3 +
                      (double)(last->at.tv_nsec - first->at.tv_nsec) * 1e-6);
    fake_unlock();
    return (cudaError_t)status;
}

/* ---- for tests ------------------------------------------------------------------------------- */

void fake_cuda_reset(uint64_t seed)
{
    fake_lock();
    start();
    fake_calls_reset();
    random_state = seed;
    overtakings = 0;
    newest_run = numbers;
    fake_unlock();
}

long fake_cuda_overtakings(void)
{
    return overtakings;
}

long fake_cuda_waits(void)
{
    return waits;
}

int fake_cuda_held(void)
{
    return fake_memory_held() + stream_count + event_count + fake_graphs_held();
}

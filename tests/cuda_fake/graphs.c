/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Graphs: while a stream is captured, its items join a list and do not run. Another stream that
 * waits for an event of the capture becomes a branch of it. Each launch puts copies of the items
 * into streams, one for each branch, where they run late and between those of other streams, as any
 * others; only the events of the capture order the branches.
 *
 * One capture at a time in a process, by one thread. The first branch must wait for all others
 * before the end. Calls that CUDA forbids the capturing thread return its error, and the graph is
 * lost.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cuda_runtime_api.h>

#include "tests/cuda_fake/fake.h"
#include "tests/cuda_fake/items.h"

#define BRANCHES_MAX 4

struct CUgraph_st {
    struct item *first, **last;
    bool is_invalid;
    int users; /* the program, executables */
    int branches;
    struct CUstream_st *streams[BRANCHES_MAX]; /* while it is captured */
    struct item *ends[BRANCHES_MAX];           /* the last item of each */
};

/* An executable has an event of its own for each record of its graph. */
struct own_event {
    struct own_event *next;
    const struct CUevent_st *of;
    uint64_t record;
    struct CUevent_st *event;
};

/* Freed by the program; nothing of it may be in a stream then. */
struct CUgraphExec_st {
    struct CUgraph_st *graph;
    long waiting;                               /* items in streams */
    struct CUstream_st *branches[BRANCHES_MAX]; /* the first one is that of the launch */
    struct CUevent_st *start;
    struct own_event *events;
};

static struct CUgraph_st *captured;
static pthread_t captor;
static int held;
static long launches;

static void drop(struct CUgraph_st *graph)
{
    if (--graph->users > 0)
        return;
    while (graph->first) {
        struct item *item = graph->first;
        graph->first = item->next;
        if (item->kind == ITEM_KERNEL)
            free(item->kernel.arguments);
        else if (item->kind == ITEM_RECORD || item->kind == ITEM_WAIT)
            fake_event_drop(item->event.event);
        else if (item->kind == ITEM_EXTERNAL)
            item->external.work->drop(item->external.context);
        free(item);
    }
    free(graph);
    held--;
}

void fake_graph_add(struct CUstream_st *stream, struct item *item)
{
    struct CUgraph_st *graph = stream->graph;

    if (!pthread_equal(captor, pthread_self()))
        fake_die("another thread's work in a stream that is captured");
    item->branch = stream->branch;
    stream->is_joined = false;
    graph->ends[item->branch] = item;
    *graph->last = item;
    graph->last = &item->next;
}

static void add_stream(struct CUgraph_st *graph, struct CUstream_st *stream)
{
    if (graph->branches == BRANCHES_MAX)
        fake_die("more than %d streams in one capture", BRANCHES_MAX);
    stream->graph = graph;
    stream->branch = graph->branches;
    stream->is_joined = false;
    graph->streams[graph->branches++] = stream;
}

void fake_graph_wait(struct CUstream_st *stream, struct CUevent_st *event)
{
    const struct item *end;

    if (event->graph != captured || !pthread_equal(captor, pthread_self()))
        fake_die("wait for an event that another capture has recorded");
    if (!stream->graph)
        add_stream(captured, stream);
    end = captured->ends[event->branch];
    if (stream->branch == 0 && end->kind == ITEM_RECORD && end->event.event == event &&
        end->event.record == event->recorded)
        captured->streams[event->branch]->is_joined = true;
    (void)fake_put_wait(stream, event);
}

/* All streams leave the capture. Returns the error of one that the first branch does not wait
 * for. */
static int release_streams(struct CUgraph_st *graph)
{
    int status = 0;

    for (int b = 0; b < graph->branches; b++) {
        if (b > 0 && !graph->streams[b]->is_joined)
            status = cudaErrorStreamCaptureUnjoined;
        graph->streams[b]->graph = NULL;
        graph->streams[b]->branch = 0;
    }
    return status;
}

void fake_graph_ran(struct CUgraphExec_st *executable)
{
    executable->waiting--;
}

int fake_graph_forbids(const struct CUstream_st *stream)
{
    bool is_this = stream && stream->graph; /* whose wait is an error in any thread */

    if (!captured || (!is_this && !pthread_equal(captor, pthread_self())))
        return 0;
    captured->is_invalid = true;
    return cudaErrorStreamCaptureUnsupported;
}

int fake_graphs_held(void)
{
    return held;
}

long fake_cuda_graph_launches(void)
{
    return launches;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    int status;

    fake_lock();
    status = fake_call("cudaStreamBeginCapture");
    if (status == 0 && (captured || mode != cudaStreamCaptureModeThreadLocal))
        fake_die("a second capture at once, or one that other threads may disturb");
    if (status == 0) {
        struct CUgraph_st *graph = calloc(1, sizeof(*graph));
        if (!graph)
            fake_die("no memory");
        graph->last = &graph->first;
        graph->users = 1;
        captured = graph;
        add_stream(graph, stream);
        captor = pthread_self();
        held++;
    }
    fake_unlock();
    return (cudaError_t)status;
}

/* The capture ends even where the call reports an error. */
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    int status, unjoined;

    fake_lock();
    status = fake_call("cudaStreamEndCapture");
    if (!captured || stream->graph != captured || stream->branch != 0 ||
        !pthread_equal(captor, pthread_self()))
        fake_die("end a capture that this thread has not begun");
    unjoined = release_streams(captured);
    if (status == 0 && captured->is_invalid)
        status = cudaErrorStreamCaptureInvalidated;
    if (status == 0)
        status = unjoined;
    if (status == 0)
        *graph = captured;
    else
        drop(captured);
    captured = NULL;
    fake_unlock();
    return (cudaError_t)status;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *executable, cudaGraph_t graph,
                                 unsigned long long flags)
{
    int status;

    fake_lock();
    status = fake_call("cudaGraphInstantiate");
    if (status == 0 && flags != 0)
        fake_die("a graph with flags");
    if (status == 0) {
        *executable = calloc(1, sizeof(**executable));
        if (!*executable)
            fake_die("no memory");
        (*executable)->graph = graph;
        for (int b = 1; b < graph->branches; b++)
            (*executable)->branches[b] = fake_stream_new();
        (*executable)->start = fake_event_new(false);
        graph->users++;
        held++;
    }
    fake_unlock();
    return (cudaError_t)status;
}

static void leave_mark(const char *variable)
{
    const char *path = getenv(variable);
    int file = path && path[0] ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644) : -1;

    if (file < 0)
        return;
    if (write(file, "x", 1) != 1)
        fake_die("cannot write to %s", path);
    (void)close(file);
}

static struct CUevent_st *event_of(struct CUgraphExec_st *executable, const struct item *from)
{
    struct own_event *own = executable->events;

    while (own && (own->of != from->event.event || own->record != from->event.record))
        own = own->next;
    if (!own) {
        own = malloc(sizeof(*own));
        if (!own)
            fake_die("no memory");
        *own = (struct own_event){executable->events, from->event.event, from->event.record,
                                  fake_event_new(false)};
        executable->events = own;
    }
    return own->event;
}

static struct item *put_copy(struct CUstream_st *stream, const struct item *from)
{
    struct item *item = fake_put(stream, from->kind), *next = item->next;
    uint64_t number = item->number;

    *item = *from;
    item->next = next;
    item->number = number;
    if (item->kind == ITEM_KERNEL) {
        item->kernel.arguments = malloc(from->kernel.argument_bytes);
        if (!item->kernel.arguments)
            fake_die("no memory");
        memcpy(item->kernel.arguments, from->kernel.arguments, from->kernel.argument_bytes);
    } else if (item->kind == ITEM_EXTERNAL) {
        item->external.context = from->external.work->again(from->external.context);
    }
    fake_check_item(item);
    return item;
}

static void count_item(struct CUgraphExec_st *executable, struct item *item)
{
    item->origin = executable;
    executable->waiting++;
}

static void launch(struct CUgraphExec_st *executable, struct CUstream_st *stream)
{
    bool has_other = false;

    executable->branches[0] = stream;
    count_item(executable, fake_put_record(stream, executable->start));
    for (int b = 1; b < executable->graph->branches; b++)
        count_item(executable, fake_put_wait(executable->branches[b], executable->start));
    for (const struct item *from = executable->graph->first; from; from = from->next) {
        struct CUstream_st *to = executable->branches[from->branch];

        count_item(executable,
                   from->kind == ITEM_RECORD ? fake_put_record(to, event_of(executable, from))
                   : from->kind == ITEM_WAIT ? fake_put_wait(to, event_of(executable, from))
                                             : put_copy(to, from));
        has_other |= from->kind == ITEM_EXTERNAL;
    }
    if (has_other)
        leave_mark("FAKE_CUDA_GRAPHED_OTHER");
    if (launches++ == 0)
        leave_mark("FAKE_CUDA_GRAPHED");
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream)
{
    int status;

    fake_lock();
    status = fake_call("cudaGraphLaunch");
    if (status == 0 && stream->graph)
        fake_die("a graph in a stream that is captured");
    if (status == 0) {
        launch(executable, stream);
        fake_let_run();
    }
    fake_unlock();
    return (cudaError_t)status;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    int status;

    fake_lock();
    status = fake_call("cudaGraphDestroy");
    drop(graph);
    fake_unlock();
    return (cudaError_t)status;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable)
{
    int status;

    fake_lock();
    status = fake_call("cudaGraphExecDestroy");
    if (status == 0 && executable->waiting > 0)
        fake_die("destroy a graph that is at work");
    for (int b = 1; b < executable->graph->branches; b++)
        fake_stream_free(executable->branches[b]);
    while (executable->events) {
        struct own_event *own = executable->events;
        executable->events = own->next;
        fake_event_drop(own->event);
        free(own);
    }
    fake_event_drop(executable->start);
    drop(executable->graph);
    free(executable);
    held--;
    fake_unlock();
    return (cudaError_t)status;
}

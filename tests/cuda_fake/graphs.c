/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Graphs: while a stream is captured, its items join a list and do not run. Each launch puts copies
 * of them into a stream, where they run late and between those of other streams, as any others.
 *
 * One capture at a time in a process. A captured stream takes kernels, copies between device
 * memory, and fills; events and other libraries' work end the process, as the fake does not know
 * them. Calls that CUDA forbids the capturing thread return its error, and the graph is lost.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cuda_runtime_api.h>

#include "tests/cuda_fake/fake.h"
#include "tests/cuda_fake/items.h"

struct CUgraph_st {
    struct item *first, **last;
    bool is_invalid;
    int users; /* the program, executables */
};

/* Freed by the program; nothing of it may be in a stream then. */
struct CUgraphExec_st {
    struct CUgraph_st *graph;
    long waiting; /* items in streams */
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
        free(item);
    }
    free(graph);
    held--;
}

void fake_graph_add(struct CUgraph_st *graph, struct item *item)
{
    if (item->kind != ITEM_KERNEL && item->kind != ITEM_COPY && item->kind != ITEM_FILL)
        fake_die("an event or another library's work in a stream that is captured");
    if (!pthread_equal(captor, pthread_self()))
        fake_die("another thread's work in a stream that is captured");
    *graph->last = item;
    graph->last = &item->next;
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
        captured = stream->graph = graph;
        captor = pthread_self();
        held++;
    }
    fake_unlock();
    return (cudaError_t)status;
}

/* The capture ends even where the call reports an error. */
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    int status;

    fake_lock();
    status = fake_call("cudaStreamEndCapture");
    if (!stream->graph || !pthread_equal(captor, pthread_self()))
        fake_die("end a capture that this thread has not begun");
    if (status == 0 && stream->graph->is_invalid)
        status = cudaErrorStreamCaptureInvalidated;
    if (status == 0)
        *graph = stream->graph;
    else
        drop(stream->graph);
    captured = stream->graph = NULL;
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
        graph->users++;
        held++;
    }
    fake_unlock();
    return (cudaError_t)status;
}

static void leave_mark(void)
{
    const char *path = getenv("FAKE_CUDA_GRAPHED");
    int fd = path ? open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600) : -1;

    if (fd >= 0)
        (void)close(fd);
}

static void launch(struct CUgraphExec_st *executable, struct CUstream_st *stream)
{
    for (const struct item *from = executable->graph->first; from; from = from->next) {
        struct item *item = fake_put(stream, from->kind), *next = item->next;
        uint64_t number = item->number;

        *item = *from;
        item->next = next;
        item->number = number;
        item->origin = executable;
        if (item->kind == ITEM_KERNEL) {
            item->kernel.arguments = malloc(from->kernel.argument_bytes);
            if (!item->kernel.arguments)
                fake_die("no memory");
            memcpy(item->kernel.arguments, from->kernel.arguments, from->kernel.argument_bytes);
        }
        fake_check_item(item);
        executable->waiting++;
    }
    if (launches++ == 0)
        leave_mark();
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
    drop(executable->graph);
    free(executable);
    held--;
    fake_unlock();
    return (cudaError_t)status;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/graph.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/base/log.h"

struct backend_graph {
    cudaGraphExec_t executable;
    const void *scratch, *gradients; /* the device's, when it was captured */
};

bool graph_is_wanted(void)
{
    const char *text = getenv(GRAPH_ENV);

    return !text || strcmp(text, "0") != 0;
}

enum comm_device_captures graph_wants_communication(void)
{
    const char *text = getenv(GRAPH_ENV);

    if (!graph_is_wanted() || (text && strcmp(text, "kernels") == 0))
        return COMM_DEVICE_CAPTURES_NONE;
    return text && strcmp(text, "all") == 0 ? COMM_DEVICE_CAPTURES_ALL : COMM_DEVICE_CAPTURES_TRIED;
}

/* What is captured can run without a graph, unless the device is lost. */
static int refuse(struct cuda_device *device, cudaError_t status, struct fleet_error *err)
{
    static bool has_said;
    int rc = device_fail(device, status, "make a graph", err);

    if (rc == -EIO)
        return rc;
    if (!has_said)
        fleet_log_warning("Some kernels run without a CUDA graph",
                          FLEET_STR("err", cudaGetErrorString(status)));
    has_said = true;
    return fleet_error(err, -ENOTSUP, "make a CUDA graph: %s", cudaGetErrorString(status));
}

int graph_begin(struct cuda_device *device, cudaStream_t stream, struct fleet_error *err)
{
    cudaError_t status;

    pthread_mutex_lock(&device->first_use);
    status = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    if (status != cudaSuccess) {
        pthread_mutex_unlock(&device->first_use);
        return refuse(device, status, err);
    }
    device->is_capturing = true;
    return 0;
}

int graph_end(struct cuda_device *device, cudaStream_t stream, struct backend_graph **out,
              struct fleet_error *err)
{
    struct backend_graph *made;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t executable = NULL;
    cudaError_t status = cudaStreamEndCapture(stream, &graph);

    device->is_capturing = false;
    pthread_mutex_unlock(&device->first_use);
    if (status == cudaSuccess && out)
        status = cudaGraphInstantiate(&executable, graph, 0);
    if (graph)
        (void)cudaGraphDestroy(graph);
    if (status != cudaSuccess)
        return refuse(device, status, err);
    if (!out)
        return 0;
    made = calloc(1, sizeof(*made));
    fleet_assert(made != NULL);
    *made = (struct backend_graph){executable, device->scratch, device->gradients};
    *out = made;
    return 0;
}

int graph_launch(struct cuda_device *device, cudaStream_t stream, const struct backend_graph *graph,
                 struct fleet_error *err)
{
    cudaError_t status;

    if (graph->scratch != device->scratch || graph->gradients != device->gradients)
        return fleet_error(err, -ESTALE, "the working memory of kernels has moved");
    status = cudaGraphLaunch(graph->executable, stream);
    return status == cudaSuccess ? 0 : device_fail(device, status, "start a graph", err);
}

void graph_free(cudaStream_t stream, struct backend_graph *graph)
{
    (void)cudaStreamSynchronize(stream); /* a lost device has nothing left to run */
    (void)cudaGraphExecDestroy(graph->executable);
    free(graph);
}

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDA_GRAPH_H
#define CUDA_GRAPH_H

/*
 * CUDA graphs of the first queue (backend.h, "A graph is …"). While one is captured, the calling
 * thread makes no call of CUDA but launches, copies and fills in that queue. Other threads do what
 * they want with other queues; a copy in this one waits (device.h, first_use). The second queue
 * joins the capture when it waits for an event of the first one, and the first one must wait for
 * it before the end. Environment: FLEET_CUDA_GRAPH=0 does without graphs; with "kernels" they end
 * where ranks communicate; with "all" they hold communication that no GPU has run in a graph, too.
 *
 * -ENOTSUP: CUDA does not capture such work, or has no memory for the graph. It is logged once.
 */

#include <stdbool.h>

#include "agent/runtime/comm/device.h"
#include "cuda/device.h"

#define GRAPH_ENV "FLEET_CUDA_GRAPH"

struct backend_graph;

bool graph_is_wanted(void);
enum comm_device_captures graph_wants_communication(void);

int graph_begin(struct cuda_device *device, cudaStream_t stream, struct fleet_error *err);
int graph_end(struct cuda_device *device, cudaStream_t stream, struct backend_graph **out,
              struct fleet_error *err);

/* Put it into the stream. -ESTALE: the working memory of kernels has moved since. */
int graph_launch(struct cuda_device *device, cudaStream_t stream, const struct backend_graph *graph,
                 struct fleet_error *err);

/* Waits for the stream. */
void graph_free(cudaStream_t stream, struct backend_graph *graph);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_EXECUTOR_GRAPHS_H
#define AGENT_RUNTIME_EXECUTOR_GRAPHS_H

/*
 * Parts of a section that the device can start as one piece of work (backend.h). A part is a row of
 * launches that call kernels; its key is all that a graph of it depends on.
 *
 * A key's first run calls the kernels, so that what they load or measure once is done. The second
 * run captures them. That run and all later ones replay the graph. A part that cannot be captured
 * goes on as it was.
 *
 * One thread calls. Memory is allocated in the first two runs of a key only.
 */

#include <stdbool.h>
#include <stdint.h>

#include "agent/runtime/executor/executor.h"

#define GRAPHS_MAX 1024 /* parts with more keys run without a graph */

struct graphs;

struct graph_key {
    int first, end; /* launches of the executor */
    struct executor_bases bases;
    uint64_t seed;
    bool evaluation;
};

/* NULL: the back end captures nothing. */
struct graphs *graphs_new(struct backend *backend);
void graphs_free(struct graphs *graphs);

/* Free all graphs: what they hold has changed, or may be gone. */
void graphs_forget(struct graphs *graphs);

/* Run the part `key`, whose kernels `run` calls with `context`. Errors of `run` and
 * backend_replay(). */
typedef int (*graphs_kernels)(void *context, struct fleet_error *err);
int graphs_run(struct graphs *graphs, const struct graph_key *key,
               const struct run_scalars *scalars, graphs_kernels run, void *context,
               struct fleet_error *err);

/* Graphs that exist. */
int graphs_count(const struct graphs *graphs);

#endif

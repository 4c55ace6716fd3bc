/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_EXECUTOR_GRAPHS_H
#define AGENT_RUNTIME_EXECUTOR_GRAPHS_H

/*
 * Parts of a section that the device can start as one piece of work (backend.h). A part is a row of
 * launches; its key is all that a graph of it depends on.
 *
 * A key's first run is a plain one, so that what kernels load or measure once is done. The second
 * run captures it. That run and all later ones replay the graph. A part that cannot be captured
 * goes on as it was. If ranks communicate in it, that holds for all of them or for none: they agree
 * after the capture, and a rank whose graph is stale captures it again at once.
 *
 * One thread calls. Memory is allocated in the first two runs of a key only.
 */

#include <stdbool.h>
#include <stdint.h>

#include "agent/runtime/executor/executor.h"

#define GRAPHS_MAX 1024 /* parts with more keys run without a graph */

struct graphs;

struct graph_key {
    int first, end;                     /* launches of the executor */
    struct executor_bases bases, ahead; /* `ahead`: of the exchange that starts in it */
    int64_t round;                      /* communication_round() */
    uint64_t seed;
    bool evaluation;
};

/* NULL: the back end captures nothing. */
struct graphs *graphs_new(struct backend *backend);
void graphs_free(struct graphs *graphs);

/* Free all graphs: what they hold has changed, or may be gone. */
void graphs_forget(struct graphs *graphs);

/* The functions of a part: they run it, capture it, and let its ranks agree whether all have
 * captured it (NULL: no other rank takes part). */
struct graphs_part {
    int (*run)(void *context, struct fleet_error *err);
    int (*capture)(void *context, struct fleet_error *err);
    int (*agree)(void *context, bool is_ready, bool *out, struct fleet_error *err);
    void *context;
};

/* Run the part `key`. Errors of its functions and of backend_replay(). */
int graphs_run(struct graphs *graphs, const struct graph_key *key,
               const struct run_scalars *scalars, const struct graphs_part *part,
               struct fleet_error *err);

/* Graphs that exist. */
int graphs_count(const struct graphs *graphs);

#endif

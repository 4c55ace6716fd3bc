/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_STEP_SAMPLE_LOG_H
#define AGENT_RUNTIME_STEP_SAMPLE_LOG_H

/*
 * For tests: the samples that each update was computed from. If FLEET_SAMPLE_LOG names a folder, a
 * trainer appends lines of JSON to FOLDER/PID.jsonl, each with one write, so they outlive a kill.
 * Without the variable nothing is written or allocated.
 *
 *   {"read": U, "leaf": L, "first": K, "samples": [S, …], "epoch": E, "generation": G,
 *    "replica": R, "cell": C}
 *       For update U this rank has read micro-batch L: the samples S, numbers K, K + 1 … of the
 *       endless sequence (data/sampler.h).
 *   {"commit": U, "epoch": E, "generation": G}
 *       It has applied update U, whose gradient it voted for in generation (E, G). It may apply it
 *       in a later one.
 *
 * So the reads of (U, E, G) for which a commit exists are the samples of update U. Each micro-batch
 * is read in one replica, there by the cells that need it.
 */

#include <stdbool.h>
#include <stdint.h>

#include "libfleet/base/generation.h"

struct trainer;

struct sample_log {
    int fd;
    bool is_open;
    struct fleet_generation voted_in; /* of the newest vote */
};

/* A folder that cannot be written is reported in the log, and is no error. */
void sample_log_open(struct sample_log *log);
void sample_log_close(struct sample_log *log);

/* The samples of a micro-batch were read, from number `first` on. */
void sample_log_read(struct trainer *trainer, int64_t update, int64_t leaf, int64_t first);
/* This rank is about to vote for an update of its generation. */
void sample_log_vote(struct trainer *trainer);
/* The update was applied. */
void sample_log_commit(struct trainer *trainer, int64_t update);

#endif

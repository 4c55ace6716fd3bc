/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FLEET_FLEET_JOB_H
#define FLEET_FLEET_JOB_H

/*
 * A trainer of one's own under a FleetJob: generations that it joins in process, checkpoints and
 * reports. When a worker is lost, is replaced or is added, the ranks that are left keep their
 * memory and go on with the next generation:
 *
 *     fleet_wait_generation(&err);                    the first generation
 *     fleet_resume(state, count, &step, &err);
 *     while (step < steps) {
 *         rc = …                                      operations of the world
 *         if (rc == FLEET_RANK_LOST || rc == FLEET_GENERATION_ENDED) { … both calls again … }
 *         else { … change the state …; step++; fleet_checkpoint_save(…); }
 *     }
 *
 * Without an agent (FLEET_GENERATION_PIPE is not set) there is one generation, that of the
 * variables.
 *
 * Every function that can fail returns 0 or a negative errno value, and then fills *err (the last
 * argument, NULL is fine) with one sentence. Threads: one at a time calls these functions and those
 * of fleet.h.
 */

#include "fleet.h"
#include "fleet_ddp.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Results of an operation after which fleet_wait_generation() may be called. */
#define FLEET_RANK_LOST        (-104) /* -ECONNRESET */
#define FLEET_GENERATION_ENDED (-125) /* -ECANCELED: also if a worker leaves or is added */

/*
 * Join the newest generation: the first call in place of fleet_env_init(), each later one after an
 * operation has failed. A later call ends the world and its groups, waits for the next generation
 * without a time limit, sets the variables of the process to those of the new generation, and
 * connects its ranks. If a rank is lost meanwhile, it waits for the generation after that. No other
 * thread may read the environment at that time.
 *
 * From the first call on the agent does not end this process for a new generation. When the
 * generation ends, operations fail with FLEET_GENERATION_ENDED or FLEET_RANK_LOST, also those in
 * progress, and the process must call this function within 60 seconds, or the agent kills it. It
 * may call it by itself only if a rank was lost: a process that leaves a generation which goes on
 * is killed after 60 seconds. SIGTERM still means that the worker leaves.
 *
 * -EINVAL: a variable is wrong, as in fleet_env_init(). -ENOTSUP: a later call without an agent.
 * -EPIPE: the agent is gone.
 */
int fleet_wait_generation(struct fleet_error *err);

/*
 * Give all ranks of the world the newest state: after each fleet_wait_generation(). *step: in: the
 * step that this rank's state has, 0: none; out: the step of all ranks, 0: the job begins, and the
 * tensors are those of rank 0. If a rank has a newer step than the checkpoint that the job reported
 * last (FLEET_RESUME_PATH), the first such rank sends its state; else rank 0 reads the checkpoint
 * and sends it. Rank 0 reports the step. `state` has the same names, types and shapes on all ranks.
 *
 * Each error is that of all ranks: -EINVAL names a tensor that the checkpoint lacks or has with
 * another type or shape, or that has no data; -errno with the path. Else as fleet_broadcast().
 */
int fleet_resume(const struct fleet_state_entry *state, int count, int64_t *step,
                 struct fleet_error *err);

/*
 * Rank 0 writes FOLDER/step-STEP.safetensors, which appears whole or not at all, removes the one
 * before the last, and reports step and path to the agent, so that fleet_resume() finds it. The
 * other ranks return 0 at once. `folder` is one that all workers share. Every type but complex.
 * -EINVAL: an argument. -errno with the path; training may go on, and the file before stays.
 */
int fleet_checkpoint_save(const char *folder, int64_t step, const struct fleet_state_entry *state,
                          int count, struct fleet_error *err);

/* Report `step` of `steps` (0: not known) and its loss (NAN: not known), on rank 0; the other ranks
 * return 0. -EINVAL: a negative number. Without an agent it does nothing. */
int fleet_report(int64_t step, int64_t steps, double loss, struct fleet_error *err);

#ifdef __cplusplus
}
#endif

#endif

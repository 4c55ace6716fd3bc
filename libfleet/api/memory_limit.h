/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_API_MEMORY_LIMIT_H
#define LIBFLEET_API_MEMORY_LIMIT_H

/*
 * Does a worker of a job fit into its memory? The plan knows what its trainers take, to the byte. A
 * job that needs more than its limit is refused before it runs. Otherwise the kernel would kill it.
 */

#include <stdbool.h>
#include <stdint.h>

#include "libfleet/api/fleetjob.h"
#include "libfleet/plan/plan.h"

struct fleet_errors;

/* Bytes of an agent or a trainer that the plan does not count: code, stacks, the program
 * itself. */
#define MEMORY_LIMIT_PROCESS_BYTES ((int64_t)12 << 20)

/* What the template's first container sets a variable to; NULL: it has no such value. */
const char *memory_limit_variable(const struct fleetjob *job, const char *name);

/* Does it set FLEET_BACKEND to cuda? */
bool memory_limit_is_on_gpu(const struct fleetjob *job);

/* Bytes that one worker of the job needs at most: its trainers, a checkpoint, the processes. On a
 * GPU only what they need of the host, without the libraries of CUDA. */
int64_t memory_limit_needed(const struct fleetjob *job, const struct plan *plan);

/* "2.6 GB (parameters 498.0 MB, gradients 995.9 MB, …)": the parts of memory_limit_needed(). */
void memory_limit_explain(const struct fleetjob *job, const struct plan *plan,
                          struct fleet_strbuf *out);

/*
 * The limits.memory that the job gives its workers in spec.worker.resources, or in the first
 * container of spec.worker.template. Returns 0 and *out = -1 if there is none; -EINVAL with an
 * error appended if it is not a quantity. *out_path: the field.
 */
int memory_limit_of(const struct fleetjob *job, int64_t *out, const char **out_path,
                    struct fleet_errors *errors);

/* Bytes of that limit for one trainer, without the processes; 0 if there is none, or it is no
 * quantity, or the trainers compute on a GPU. */
double memory_limit_of_rank(const struct fleetjob *job);

/* Compute threads of a trainer by the worker's limits.cpu; 0 if there is none. */
int memory_limit_threads(const struct fleetjob *job);

/* 0, or -EINVAL with an error that shows the table if a worker needs more than its limits.memory.
 * `workers`: the plan is that of an elastic job which has so many workers now; 0: of the job as it
 * is written. */
int memory_limit_check(const struct fleetjob *job, const struct plan *plan, int64_t workers,
                       struct fleet_errors *errors);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_PREPARE_H
#define CONTROLLER_FLEETJOB_PREPARE_H

/* The preparation before the first pods of a spec (the head of prepare.c). */

#include <stdbool.h>

struct reconciler_job;
struct reconciler_pass;

/* prepare_run() makes Secret and Service, and checks that the API server accepts the pods. Then it
 * ends the pass, and the next pass decides. *wait_ms: when a preparation may be needed next, -1 =
 * when something changes. */
bool prepare_is_needed(struct reconciler_pass *pass, double *wait_ms);
void prepare_run(struct reconciler_pass *pass);

/* The spec of this generation is wrong, because its pods or their group cannot be made: pod_errors
 * says why. */
void prepare_refuse_pods(struct reconciler_job *job);

#endif

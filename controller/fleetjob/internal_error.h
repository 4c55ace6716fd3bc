/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_INTERNAL_ERROR_H
#define CONTROLLER_FLEETJOB_INTERNAL_ERROR_H

/* A broken invariant of one job ends its pass or its hub, and nothing else (the head of
 * internal_error.c). */

struct reconciler_job;
struct reconciler_pass;

/* An invariant broke (`text`) while this pass decided about its job. The pass ends and its data are
 * not read any more; then manager_done(). */
void internal_error_end(struct reconciler_pass *pass, const char *text);

/* An invariant broke in the hub of the job (hub_host_defect()): it is dropped, and made again by
 * the pass that follows when it is time; then manager_done(). Only between two passes, with the
 * cache as new as what was written. */
void internal_error_drop_hub(struct reconciler_job *job);

#endif

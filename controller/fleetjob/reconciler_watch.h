/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_RECONCILER_WATCH_H
#define CONTROLLER_FLEETJOB_RECONCILER_WATCH_H

/*
 * Handlers of the informers: to which job a changed object belongs, and what is remembered of the
 * change. A pass over that job follows. `user` is the struct reconciler; `before` is NULL for a new
 * object, `after` for one that is gone.
 */

void reconciler_job_changed(void *user, const char *key, const void *before, const void *after);
void reconciler_pod_changed(void *user, const char *key, const void *before, const void *after);
/* A Service that was deleted by hand is made again. */
void reconciler_service_changed(void *user, const char *key, const void *before, const void *after);

#endif

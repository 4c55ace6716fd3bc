/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_LOCAL_JOB_INTERNAL_H
#define CLI_LOCAL_JOB_INTERNAL_H

/* What the files of local_job.h share, for them alone. */

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "cli/launcher.h"
#include "cli/local_job.h"
#include "controller/fleetjob/reconcile.h"
#include "libfleet/base/map.h"
#include "libfleet/base/strbuf.h"

#define LOCAL_JOB_KEY_SIZE 32
#define LOCAL_JOB_SIGNALS  4

struct local_job {
    struct local_job_config config;
    struct fleetjob *job;
    char uid[2 * 16 + 1];
    uint8_t install_key[LOCAL_JOB_KEY_SIZE];
    uv_loop_t loop;
    uv_signal_t signals[LOCAL_JOB_SIGNALS];
    uv_timer_t reconcile_timer; /* when the next pass is due: soon, or when reconcile() asked for
                                 * it */
    uv_timer_t state_timer;     /* the state file is due */
    struct launcher *launcher;
    struct hub_server *server;
    struct hub_host *host; /* of the job's hub */
    bool is_stopping, was_stopped;
    int64_t step_since_wall_ms; /* start of the current step or generation; 0 = none */
    int64_t long_step_ms;       /* when to report that the step still runs */
    struct fleet_strbuf shown;  /* errors of trainers since the last restart, one per line */
    /* UIDs of pods that have connected to the hub, or were reported as missing */
    struct fleet_map known;
    bool state_file_fails; /* since the last warning */
};

/* ---- local_job.c ----------------------------------------------------------------------------- */

/* A line for the user. */
__attribute__((format(printf, 2, 3))) void local_job_note(struct local_job *lj, const char *format,
                                                          ...);

/* The next pass comes in `ms` at the latest. */
void local_job_reconcile_after(struct local_job *lj, uint64_t ms);

/* The state file must be written. */
void local_job_state_changed(struct local_job *lj);

/* ---- local_job_pods.c ------------------------------------------------------------------------ */

/* The launcher's callbacks. */
void local_job_on_pod_ended(void *user, const struct launcher_pod *pod);
void local_job_on_pod_line(void *user, const struct launcher_pod *pod, bool is_error,
                           const char *text);

struct observed_pod local_job_observe_pod(const struct launcher_pod *pod);

/* Report a worker that does not connect to the hub, because all others wait for it. */
void local_job_report_missing(struct local_job *lj);

/* Report a step that takes minutes, because silence looks like a hang; each further time after
 * twice as long. */
void local_job_report_long_step(struct local_job *lj);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/local_job.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

#include "cli/launcher.h"
#include "cli/local_job_internal.h"
#include "cli/state_file.h"
#include "controller/fleetjob/hub_host.h"
#include "controller/fleetjob/reconcile.h"
#include "controller/fleetjob/status.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/digest.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/base/map.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/rendezvous/hub_server.h"
#include "libfleet/rendezvous/tls_identity.h"

#define HUB_ADDRESS      "127.0.0.1"
#define CERTIFICATE_DAYS 3650 /* validity of a CA that only this run uses */
#define GRACE_MS         30000.0
#define STATE_FILE_MS    100 /* minimum time between two writes of the state file */
#define CLOSE_MS_MAX     10000.0
#define LONG_STEP_MS     10000 /* longer steps are reported */

void local_job_note(struct local_job *lj, const char *format, ...)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    va_list args;

    va_start(args, format);
    fleet_strbuf_appendv(&text, format, args);
    va_end(args);
    lj->config.note(lj->config.user, text.text);
}

/* ---- when to look ---------------------------------------------------------------------------- */

static void on_reconcile_due(uv_timer_t *timer);

void local_job_reconcile_after(struct local_job *lj, uint64_t ms)
{
    if (!uv_is_active((uv_handle_t *)&lj->reconcile_timer) ||
        uv_timer_get_due_in(&lj->reconcile_timer) > ms)
        (void)uv_timer_start(&lj->reconcile_timer, on_reconcile_due, ms, 0);
}

static void on_state_due(uv_timer_t *timer)
{
    struct local_job *lj = timer->data;
    const struct hub_view *view = hub_host_view(lj->host);
    struct fleet_error err;

    if (state_file_write(lj->config.state_file, lj->job->metadata.name, view->generation.counter,
                         view->progress.step, lj->launcher, &err) == 0)
        lj->state_file_fails = false;
    else if (!lj->state_file_fails) { /* reported once */
        lj->state_file_fails = true;
        local_job_note(lj, "warning: --state-file: %s", err.text);
    }
}

void local_job_state_changed(struct local_job *lj)
{
    if (lj->config.state_file && !uv_is_active((uv_handle_t *)&lj->state_timer))
        (void)uv_timer_start(&lj->state_timer, on_state_due, STATE_FILE_MS, 0);
}

/* ---- the hub --------------------------------------------------------------------------------- */

/* No other process can host this job, so a record is complete at once. */
static bool on_record(void *user, const struct hub_record *record)
{
    struct local_job *lj = user;
    struct fleetjob_rendezvous *rendezvous = &lj->job->status.rendezvous;

    rendezvous->newest = record->generation;
    return true;
}

static void on_hub_event(void *user, const struct hub_event *event, bool is_step)
{
    struct local_job *lj = user;

    if (hub_host_defect(lj->host)) { /* this process has only this job */
        (void)fprintf(stderr, "BUG: %s\n", hub_host_defect(lj->host));
        abort();
    }
    lj->config.event(lj->config.user, event);
    if (event->type == HUB_EVENT_STEP || event->type == HUB_EVENT_ASSIGNED) {
        lj->step_since_wall_ms = fleet_wall_ms();
        lj->long_step_ms = LONG_STEP_MS;
    }
    if (event->type == HUB_EVENT_RESTART)
        fleet_strbuf_clear(&lj->shown);
    local_job_state_changed(lj);
    if (!is_step)
        local_job_reconcile_after(lj, 0);
}

static void on_refused(void *user, const struct hub_server_refusal *refusal)
{
    local_job_note(user, "warning: refused a connection of %s: %s", refusal->peer, refusal->reason);
}

/* ---- observe, reconcile, apply --------------------------------------------------------------- */

static bool is_at_rest(const struct local_job *lj)
{
    for (size_t i = 0; i < launcher_count(lj->launcher); i++)
        if (launcher_at(lj->launcher, i)->pid > 0)
            return false;
    return status_at_rest(&lj->job->status) != NULL;
}

static void apply(struct local_job *lj, struct actions *actions)
{
    struct fleet_error err;

    for (size_t i = 0; i < actions->event_count; i++)
        if (lj->config.is_verbose)
            local_job_note(lj, "%s: %s", actions->events[i].reason, actions->events[i].message);
    fleetjob_status_release(&lj->job->status);
    lj->job->status = actions->status; /* before the hub asks to record a generation in it */
    if (hub_host_apply(lj->host, actions, lj->config.plan_digest, &err) < 0)
        local_job_note(lj, "error: %s", err.text);
    actions->status = (struct fleetjob_status){0};
    for (size_t i = 0; i < actions->delete_count; i++)
        launcher_delete(lj->launcher, actions->deletes[i].name, actions->deletes[i].at_once);
    for (size_t i = 0; i < actions->create_count; i++)
        launcher_create(lj->launcher, actions->creates[i].index, actions->creates[i].attempt);
    if (actions->requeue_after_ms >= 0)
        local_job_reconcile_after(lj, (uint64_t)actions->requeue_after_ms);
}

static void reconcile_now(struct local_job *lj)
{
    size_t count = launcher_count(lj->launcher);
    FLEET_AUTO_FREE struct observed_pod *pods = calloc(count + 1, sizeof(*pods));
    struct observed observed = {.now_wall_ms = fleet_wall_ms(),
                                .job = lj->job,
                                .pods = pods,
                                .pod_count = count,
                                .has_all_pods = true};
    struct actions actions;

    fleet_assert(pods);
    for (size_t i = 0; i < count; i++)
        pods[i] = local_job_observe_pod(launcher_at(lj->launcher, i));
    observed.hub = *hub_host_view(lj->host);
    reconcile(&observed, &actions);
    apply(lj, &actions);
    actions_release(&actions);
    local_job_report_missing(lj);
    local_job_report_long_step(lj);
    local_job_state_changed(lj);
    if (is_at_rest(lj))
        uv_stop(&lj->loop);
}

static void on_reconcile_due(uv_timer_t *timer)
{
    reconcile_now(timer->data);
}

/* ---- stopping -------------------------------------------------------------------------------- */

void local_job_stop(struct local_job *lj)
{
    lj->is_stopping = lj->was_stopped = true;
    lj->job->spec.run_policy.suspend = true;
    lj->job->metadata.generation++;
    local_job_reconcile_after(lj, 0);
}

/* A signal from the user: save a checkpoint now and continue. */
static void save_now(struct local_job *lj)
{
    if (!lj->is_stopping)
        hub_host_checkpoint(lj->host);
}

static void on_signal(uv_signal_t *handle, int signal_number)
{
    struct local_job *lj = handle->data;

    if (signal_number == SIGUSR1)
        save_now(lj);
    else if (lj->is_stopping)
        launcher_kill_all(lj->launcher);
    else {
        local_job_note(lj, "asked the workers to end; Ctrl-C again stops at once");
        local_job_stop(lj);
    }
}

bool local_job_was_stopped(const struct local_job *lj)
{
    return lj->was_stopped;
}

/* ---- life ------------------------------------------------------------------------------------ */

static int write_secret(const char *folder, const char *name, const char *text,
                        struct fleet_error *err)
{
    FLEET_AUTO_FREE char *path = fleet_file_join(folder, name);
    FLEET_AUTO_CLOSE int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    int rc;

    if (fd < 0)
        return fleet_error(err, -errno, "create %s: %s", path, strerror(errno));
    rc = fleet_file_write_all(fd, text, strlen(text));
    return rc < 0 ? fleet_error(err, rc, "write %s: %s", path, strerror(-rc)) : 0;
}

/* Make a CA for this run alone, the hub's certificate, and the job's token. */
static int open_server(struct local_job *lj, struct fleet_error *err)
{
    struct tls_identity ca = {0}, leaf = {0};
    struct hub_server_config config = {.loop = &lj->loop,
                                       .address = HUB_ADDRESS,
                                       .install_key = lj->install_key,
                                       .install_key_size = sizeof(lj->install_key),
                                       .refused = on_refused,
                                       .user = lj};
    char token[FLEET_SHA256_HEX_SIZE];
    int rc;

    fleet_random_bytes(lj->install_key, sizeof(lj->install_key));
    hub_server_token(lj->install_key, sizeof(lj->install_key), lj->uid, token);
    if ((rc = tls_identity_make_ca("fleetjob run", CERTIFICATE_DAYS, &ca, err)) == 0 &&
        (rc = tls_identity_sign(&ca, TLS_IDENTITY_HUB_NAME, CERTIFICATE_DAYS, &leaf, err)) == 0 &&
        (rc = write_secret(lj->config.folder, "ca.pem", ca.certificate_pem, err)) == 0 &&
        (rc = write_secret(lj->config.folder, "token", token, err)) == 0) {
        config.certificate_pem = leaf.certificate_pem;
        config.key_pem = leaf.key_pem;
        rc = hub_server_new(&config, &lj->server, err);
    }
    tls_identity_release(&ca);
    tls_identity_release(&leaf);
    return rc < 0 ? fleet_error_wrap(err, "start the hub") : 0;
}

/* Begin in an epoch that is greater than that of any earlier run with the same checkpoints. */
static void open_host(struct local_job *lj)
{
    struct hub_network network = hub_host_server_network(lj->server);
    struct hub_host_handlers handlers = {.record = on_record, .event = on_hub_event, .user = lj};

    network.is_local = true;
    lj->host = hub_host_new(&network, lj->uid, fleet_wall_ms(), &handlers);
}

static int open_launcher(struct local_job *lj, struct fleet_error *err)
{
    struct launcher_config config = {.loop = &lj->loop,
                                     .agent_path = lj->config.agent_path,
                                     .folder = lj->config.folder,
                                     .job_name = lj->job->metadata.name,
                                     .job_uid = lj->uid,
                                     .processes = (int)lj->job->spec.worker.processes_per_pod,
                                     .threads = lj->config.threads,
                                     .grace_ms = GRACE_MS,
                                     .command = lj->config.command,
                                     .environment = lj->config.environment,
                                     .is_verbose = lj->config.is_verbose,
                                     .ended = local_job_on_pod_ended,
                                     .line = local_job_on_pod_line,
                                     .user = lj};

    return launcher_new(&config, hub_server_port(lj->server), &lj->launcher, err);
}

static void open_handles(struct local_job *lj)
{
    static const int numbers[LOCAL_JOB_SIGNALS] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};

    (void)uv_loop_init(&lj->loop);
    (void)uv_timer_init(&lj->loop, &lj->reconcile_timer);
    (void)uv_timer_init(&lj->loop, &lj->state_timer);
    lj->reconcile_timer.data = lj->state_timer.data = lj;
    for (int i = 0; i < LOCAL_JOB_SIGNALS; i++) {
        (void)uv_signal_init(&lj->loop, &lj->signals[i]);
        lj->signals[i].data = lj;
        (void)uv_signal_start(&lj->signals[i], on_signal, numbers[i]);
    }
}

int local_job_new(const struct local_job_config *config, struct local_job **out,
                  struct fleet_error *err)
{
    struct local_job *lj = calloc(1, sizeof(*lj));
    uint8_t uid[16];
    int rc;

    fleet_assert(lj);
    lj->config = *config;
    lj->job = config->job;
    fleet_random_bytes(uid, sizeof(uid));
    fleet_hex_encode(uid, sizeof(uid), lj->uid);
    open_handles(lj);
    rc = open_server(lj, err);
    if (rc == 0) {
        open_host(lj);
        rc = open_launcher(lj, err);
    }
    if (rc < 0) {
        local_job_free(lj);
        return rc;
    }
    *out = lj;
    return 0;
}

void local_job_run(struct local_job *lj)
{
    local_job_reconcile_after(lj, 0);
    (void)uv_run(&lj->loop, UV_RUN_DEFAULT);
}

/* Run close callbacks, which takes milliseconds where processors are free. If a handle does not
 * close in time, give it up with the loop's memory, because the process ends next. */
static void finish_loop(struct local_job *lj)
{
    double give_up_ms = fleet_monotonic_ms() + CLOSE_MS_MAX;

    while (uv_run(&lj->loop, UV_RUN_ONCE) != 0 && fleet_monotonic_ms() < give_up_ms)
        continue;
    (void)uv_loop_close(&lj->loop);
}

void local_job_free(struct local_job *lj)
{
    if (!lj)
        return;
    launcher_free(lj->launcher);
    hub_host_free(lj->host);
    hub_server_free(lj->server);
    uv_close((uv_handle_t *)&lj->reconcile_timer, NULL);
    uv_close((uv_handle_t *)&lj->state_timer, NULL);
    for (int i = 0; i < LOCAL_JOB_SIGNALS; i++)
        uv_close((uv_handle_t *)&lj->signals[i], NULL);
    finish_loop(lj);
    if (lj->config.state_file)
        (void)unlink(lj->config.state_file);
    fleet_strbuf_release(&lj->shown);
    fleet_map_release(&lj->known);
    free(lj);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/local_job.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

#include "cli/launcher.h"
#include "cli/state_file.h"
#include "controller/fleetjob/hub_host.h"
#include "controller/fleetjob/reconcile.h"
#include "controller/fleetjob/status.h"
#include "libfleet/api/wellknown.h"
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
#define CERTIFICATE_DAYS 3650 /* validity of a CA that is used for this run alone */
#define GRACE_MS         30000.0
#define STATE_FILE_MS    100 /* least time between two writes of the state file */
#define CLOSE_MS_MAX     500.0
#define KEY_SIZE         32
#define SIGNALS          4
#define SHOWN_MAX        65536 /* bytes of errors that are remembered */
#define LONG_STEP_MS     10000 /* longer steps are reported */
#define COME_MS          10000 /* workers that come to the hub later are reported */

struct local_job {
    struct local_job_config config;
    struct fleetjob *job;
    char uid[2 * 16 + 1];
    uint8_t install_key[KEY_SIZE];
    uv_loop_t loop;
    uv_signal_t signals[SIGNALS];
    uv_timer_t reconcile_timer; /* the next pass: soon, or when reconcile() asked for it */
    uv_timer_t state_timer;     /* the state file is due */
    struct launcher *launcher;
    struct hub_server *server;
    struct hub_host *host; /* of the job's hub */
    bool is_stopping, was_stopped;
    int64_t step_since_wall_ms; /* start of the current step or generation; 0 = none */
    int64_t long_step_ms;       /* when to report that the step still runs */
    struct fleet_strbuf shown;  /* errors of trainers since the last restart, a line each */
    /* UIDs of pods that have come to the hub, or were reported as missing */
    struct fleet_map known;
    bool state_file_fails; /* since the last warning */
};

static void note(struct local_job *lj, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void note(struct local_job *lj, const char *format, ...)
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

static void reconcile_after(struct local_job *lj, uint64_t ms)
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
        note(lj, "warning: --state-file: %s", err.text);
    }
}

static void state_changed(struct local_job *lj)
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

    if (hub_host_defect(lj->host))
        abort(); /* this process has one job; the refusal was logged */
    lj->config.event(lj->config.user, event);
    if (event->type == HUB_EVENT_STEP || event->type == HUB_EVENT_ASSIGNED) {
        lj->step_since_wall_ms = fleet_wall_ms();
        lj->long_step_ms = LONG_STEP_MS;
    }
    if (event->type == HUB_EVENT_RESTART)
        fleet_strbuf_clear(&lj->shown);
    state_changed(lj);
    if (!is_step)
        reconcile_after(lj, 0);
}

static void on_refused(void *user, const struct hub_server_refusal *refusal)
{
    note(user, "warning: refused a connection of %s: %s", refusal->peer, refusal->reason);
}

/* ---- the pods -------------------------------------------------------------------------------- */

static void on_pod_ended(void *user, const struct launcher_pod *pod)
{
    struct local_job *lj = user;

    hub_host_gone(lj->host, pod->uid);
    reconcile_after(lj, 0);
    state_changed(lj);
}

/* Has a trainer printed this already? All trainers find the same bad file. */
static bool is_shown(struct local_job *lj, const char *text)
{
    const char *error = lj->job->spec.has_training ? strstr(text, " err=") : NULL;
    FLEET_AUTO_STRBUF struct fleet_strbuf line = {0};

    if (!error)
        return false;
    if (strstr(text, " Training failed "))
        return true; /* the hub gets it, too, and its event has the text */
    fleet_strbuf_appendf(&line, "%s\n", error);
    if (strstr(fleet_strbuf_text(&lj->shown), line.text))
        return true;
    if (lj->shown.length > SHOWN_MAX)
        fleet_strbuf_clear(&lj->shown);
    fleet_strbuf_append(&lj->shown, line.text);
    return false;
}

/* In JSON ($FLEET_LOG_FORMAT) a line of the log begins with its time. */
static bool is_json_log(const char *text)
{
    return strncmp(text, "{\"ts\":\"", 7) == 0;
}

/* As text, the lines of an own trainer begin with its rank in brackets. As JSON, they have a
 * stream, or they are the trainer's own objects. */
static bool is_of_trainer(const char *text)
{
    return text[0] == '[' ||
           (text[0] == '{' && (!is_json_log(text) || strstr(text, "\"stream\":\"")));
}

static bool is_information(const char *text)
{
    return (text[0] == 'I' && text[1] >= '0' && text[1] <= '9') ||
           (is_json_log(text) && strstr(text, "\"level\":\"info\""));
}

/*
 * A line that a pod prints. Only --verbose shows an agent's information and the standard output
 * (the log) of the built-in trainer. Other lines are always shown, and an error that all workers
 * report is shown once. All lines of an own trainer are shown.
 */
static void on_pod_line(void *user, const struct launcher_pod *pod, bool is_error, const char *text)
{
    struct local_job *lj = user;

    (void)pod;
    if (!lj->job->spec.has_training && is_of_trainer(text))
        lj->config.output(lj->config.user, is_error, text);
    else if (lj->config.is_verbose ||
             (is_error && !is_information(text) && !lj->is_stopping && !is_shown(lj, text)))
        note(lj, "%s", text);
}

static struct observed_pod observe_pod(const struct launcher_pod *pod)
{
    return (struct observed_pod){.name = pod->name,
                                 .uid = pod->uid,
                                 .index = pod->index,
                                 .attempt = pod->attempt,
                                 .phase = pod->pid > 0          ? OBSERVED_RUNNING
                                          : pod->exit_code == 0 ? OBSERVED_SUCCEEDED
                                                                : OBSERVED_FAILED,
                                 .is_scheduled = true,
                                 .is_deleting = pod->is_deleting,
                                 .exit_code = pod->exit_code,
                                 .reason = "",
                                 .message = pod->message,
                                 .waiting = "",
                                 .cause = "",
                                 .memory_limit = "",
                                 .topology = "",
                                 .node = "",
                                 .started_wall_ms = pod->started_wall_ms,
                                 .finished_wall_ms = pod->finished_wall_ms};
}

static void note_members(struct local_job *lj)
{
    const struct hub *hub = hub_host_hub(lj->host);
    size_t count = hub ? hub_members(hub, NULL, 0) : 0;
    FLEET_AUTO_FREE struct hub_member *members = calloc(count + 1, sizeof(*members));

    fleet_assert(members);
    if (count > 0)
        (void)hub_members(hub, members, count);
    for (size_t i = 0; i < count; i++)
        (void)fleet_map_set(&lj->known, members[i].pod_uid, lj);
}

/* Report the worker that does not come to the hub: all others wait for it. */
static void report_missing(struct local_job *lj)
{
    note_members(lj);
    for (size_t i = 0; !lj->is_stopping && i < launcher_count(lj->launcher); i++) {
        const struct launcher_pod *pod = launcher_at(lj->launcher, i);
        int64_t due_ms = pod->started_wall_ms + COME_MS - fleet_wall_ms();
        if (pod->pid == 0 || pod->is_deleting || fleet_map_get(&lj->known, pod->uid))
            continue;
        if (due_ms > 0) {
            reconcile_after(lj, (uint64_t)due_ms);
            continue;
        }
        (void)fleet_map_set(&lj->known, pod->uid, lj);
        note(lj, "waiting for worker %d: its agent (process %d) has not come to the hub for %d s",
             pod->index, (int)pod->pid, COME_MS / 1000);
    }
}

/* Report a step that takes minutes, because silence looks like a hang; each time after twice as
 * long. */
static void report_long_step(struct local_job *lj)
{
    const struct training_config *training = &lj->job->spec.training;
    const struct hub_view *view = hub_host_view(lj->host);
    int64_t now_ms = fleet_wall_ms(), since_ms = lj->step_since_wall_ms;
    int64_t micro = training->micro_batch_size > 0 ? training->micro_batch_size : 1;
    FLEET_AUTO_STRBUF struct fleet_strbuf step = {0};

    if (!lj->job->spec.has_training || lj->is_stopping || !hub_host_is_active(lj->host) ||
        since_ms == 0 || view->progress.step >= training->steps)
        return;
    if (now_ms < since_ms + lj->long_step_ms) {
        reconcile_after(lj, (uint64_t)(since_ms + lj->long_step_ms - now_ms));
        return;
    }
    if (view->has_progress)
        fleet_strbuf_appendf(&step, "step %lld", (long long)view->progress.step + 1);
    else
        fleet_strbuf_append(&step, "the first step of this run");
    note(lj, "%s is under way for %lld s: %lld micro-batches of %lld samples on %d worker%s",
         step.text, (long long)(now_ms - since_ms) / 1000,
         (long long)(training->global_batch_size / micro), (long long)micro, view->members,
         view->members == 1 ? "" : "s");
    lj->long_step_ms = 2 * (now_ms - since_ms);
    reconcile_after(lj, (uint64_t)(since_ms + lj->long_step_ms - now_ms));
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
            note(lj, "%s: %s", actions->events[i].reason, actions->events[i].message);
    fleetjob_status_release(&lj->job->status);
    lj->job->status = actions->status; /* before the hub asks to record a generation in it */
    if (hub_host_apply(lj->host, actions, lj->config.plan_digest, &err) < 0)
        note(lj, "error: %s", err.text);
    actions->status = (struct fleetjob_status){0};
    for (size_t i = 0; i < actions->delete_count; i++)
        launcher_delete(lj->launcher, actions->deletes[i].name, actions->deletes[i].at_once);
    for (size_t i = 0; i < actions->create_count; i++)
        launcher_create(lj->launcher, actions->creates[i].index, actions->creates[i].attempt);
    if (actions->requeue_after_ms >= 0)
        reconcile_after(lj, (uint64_t)actions->requeue_after_ms);
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
        pods[i] = observe_pod(launcher_at(lj->launcher, i));
    observed.hub = *hub_host_view(lj->host);
    reconcile(&observed, &actions);
    apply(lj, &actions);
    actions_release(&actions);
    report_missing(lj);
    report_long_step(lj);
    state_changed(lj);
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
    reconcile_after(lj, 0);
}

/* A signal of the user: save a checkpoint now and go on. */
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
        note(lj, "asked the workers to end; Ctrl-C again stops at once");
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

/* A CA for this run alone, the hub's certificate, and the job's token. */
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

/* In an epoch that is newer than any earlier run with the same checkpoints. */
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
                                     .ended = on_pod_ended,
                                     .line = on_pod_line,
                                     .user = lj};

    return launcher_new(&config, hub_server_port(lj->server), &lj->launcher, err);
}

static void open_handles(struct local_job *lj)
{
    static const int numbers[SIGNALS] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};

    (void)uv_loop_init(&lj->loop);
    (void)uv_timer_init(&lj->loop, &lj->reconcile_timer);
    (void)uv_timer_init(&lj->loop, &lj->state_timer);
    lj->reconcile_timer.data = lj->state_timer.data = lj;
    for (int i = 0; i < SIGNALS; i++) {
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
    reconcile_after(lj, 0);
    (void)uv_run(&lj->loop, UV_RUN_DEFAULT);
}

/* Run close callbacks. A handle that does not close in time is given up, because the process ends
 * next. */
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
    for (int i = 0; i < SIGNALS; i++)
        uv_close((uv_handle_t *)&lj->signals[i], NULL);
    finish_loop(lj);
    if (lj->config.state_file)
        (void)unlink(lj->config.state_file);
    fleet_strbuf_release(&lj->shown);
    fleet_map_release(&lj->known);
    free(lj);
}

/* SPDX-License-Identifier: Apache-2.0 */

/*
 * `fleetjob run`: run a job on this machine. Read and check the file, print the plan, make a
 * private folder, let local_job.c run the job, and report its end.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/curves/curve.h"
#include "cli/curves/picture.h"
#include "cli/job_check.h"
#include "cli/job_file.h"
#include "cli/local_job.h"
#include "cli/plan_table.h"
#include "cli/progress.h"
#include "cli/run_internal.h"
#include "cli/system/private_folder.h"
#include "cli/system/processors.h"
#include "controller/fleetjob/job_secret.h"
#include "controller/fleetjob/status.h"
#include "libfleet/api/wellknown.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json_build.h"
#include "libfleet/base/log.h"

#define RECORD_MS_MIN    10e3 /* between two writes of the losses */
#define EXIT_GOOD        0
#define EXIT_NO          1
#define EXIT_USAGE       2
#define EXIT_INTERRUPTED 130
#define WORKERS_MAX      256 /* most processes on one machine */

static const char usage[] =
    "Usage: fleetjob run JOB.yaml [OPTIONS]\n"
    "\n"
    "Trains a job on this machine: the same job file, hub, agents and trainers as in a cluster, "
    "with\n"
    "processes for pods. Ctrl-C saves a checkpoint (if the job has them) and stops; the second "
    "one\n"
    "stops at once. SIGUSR1 saves a checkpoint and goes on.\n"
    "\n"
    "  --workers N        instead of spec.worker.replicas\n"
    "  --steps N          instead of spec.training.steps\n"
    "  --data PATH        instead of spec.training.data.path\n"
    "  --checkpoint PATH  instead of spec.training.checkpoint.path\n"
    "  --calibrate        measure this machine first, in seconds, and let autoParallel.search: "
    "full\n"
    "                     use these rates; stored as by fleetjob plan --calibrate\n"
    "  --json             one JSON object a line on standard output, nothing else\n"
    "  --curve FILE       draw the losses (.svg or .png), instead of spec.training.log.curve\n"
    "  --state-file FILE  list the running processes there, for scripts\n"
    "  -v, --verbose      show the logs of agents and trainers, too\n"
    "  -h, --help         this text\n"
    "\n"
    "Exit codes: 0 Succeeded, 1 Failed or refused, 2 wrong usage, 130 interrupted.\n";

/* Returns the exit code, or -1 to continue. */
static int parse_arguments(int argc, char **argv, struct run_arguments *out)
{
    long long workers = 0, steps = 0;
    const struct arguments_option options[] = {
        {.name = "workers",
         .kind = ARGUMENTS_NUMBER,
         .out = &workers,
         .min = 1,
         .max = WORKERS_MAX},
        {.name = "steps", .kind = ARGUMENTS_NUMBER, .out = &steps, .min = 1, .max = INT32_MAX},
        {.name = "data", .kind = ARGUMENTS_TEXT, .out = &out->changes.data_path},
        {.name = "checkpoint", .kind = ARGUMENTS_TEXT, .out = &out->changes.checkpoint_path},
        {.name = "calibrate", .kind = ARGUMENTS_FLAG, .out = &out->calibrates},
        {.name = "json", .kind = ARGUMENTS_FLAG, .out = &out->is_json},
        {.name = "curve", .kind = ARGUMENTS_TEXT, .out = &out->curve},
        {.name = "state-file", .kind = ARGUMENTS_TEXT, .out = &out->state_file},
        {.name = "verbose", .kind = ARGUMENTS_FLAG, .out = &out->is_verbose, .letter = 'v'},
        {0},
    };
    int code = arguments_parse(argc, argv, usage, options, 1, &out->file);

    out->changes.workers = workers;
    out->changes.steps = steps;
    return code;
}

/* ---- before it runs -------------------------------------------------------------------------- */

static void print_errors(const char *word, const struct fleet_errors *errors)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    char *line, *rest = NULL;

    fleet_errors_print(errors, &text);
    for (line = text.text ? strtok_r(text.text, "\n", &rest) : NULL; line;
         line = strtok_r(NULL, "\n", &rest))
        (void)fprintf(stderr, "%s%s\n", word, line);
}

static void check_output(const char *path, const char *field, struct fleet_errors *errors)
{
    const char *slash = path ? strrchr(path, '/') : NULL;
    struct fleet_error err;

    if (path && strcmp(slash ? slash + 1 : path, "-") == 0)
        fleet_errors_add(errors, field,
                         "\"-\" is standard output, where the lines of the run go; name a file");
    else if (path && fleet_file_prepare(path, &err) < 0)
        fleet_errors_add(errors, field, "%s", err.text);
}

/* Check at the start that a file which is written at the end is writable. */
static void check_outputs(const struct run *run, struct fleet_errors *errors)
{
    const char *field = run->arguments.curve ? "--curve" : "spec.training.log.curve";
    FLEET_AUTO_FREE char *curve = run_curve_path(run);
    enum canvas_format format;
    struct fleet_error err;

    if (curve && strcmp(curve, "-") != 0 && picture_format(curve, &format, &err) < 0)
        fleet_errors_add(errors, field, "%s", err.text);
    else
        check_output(curve, field, errors);
    check_output(run->arguments.state_file, "--state-file", errors);
}

static void check_job(struct run *run, struct job_check *check)
{
    struct job_check_options options = {.command = JOB_CHECK_RUN, .file = run->arguments.file};

    if (job_file_read(run->arguments.file, &run->arguments.changes, &run->job, &check->errors) == 0)
        job_check(&run->job, &options, check);
    if (check->errors.count == 0 && job_file_world(&run->job) > WORKERS_MAX)
        fleet_errors_add(&check->errors, "spec.worker.replicas",
                         "%d trainers are more than one machine is asked to run (%d)",
                         job_file_world(&run->job), WORKERS_MAX);
    if (check->errors.count == 0)
        check_outputs(run, &check->errors);
}

/* Read, check and plan. Returns 0, or the exit code. */
static int read_job(struct run *run)
{
    struct job_check check = {0};
    int code;

    check_job(run, &check);
    if (run->arguments.calibrates && check.errors.count == 0 &&
        run_calibrate(run, &check.errors) == 0) {
        job_check_release(&check);
        fleetjob_release(&run->job);
        check = (struct job_check){0};
        check_job(run, &check);
    }
    print_errors("warning: ", &check.warnings);
    print_errors("", &check.errors);
    code = check.errors.count > 0 ? EXIT_NO : 0;
    if (code == 0 && check.has_plan) {
        run->plan = check.plan; /* moved */
        check.has_plan = false;
    }
    job_check_release(&check);
    return code;
}

/* Columns of the terminal on standard output; 0 = unknown. */
static int column_count(void)
{
    struct winsize size;

    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

static void open_progress(struct run *run)
{
    const struct training_config *training = &run->job.spec.training;
    struct progress_config config = {.is_json = run->arguments.is_json,
                                     .is_terminal =
                                         isatty(STDOUT_FILENO) && !run->arguments.is_json,
                                     .columns = column_count(),
                                     .out = stdout,
                                     .notes = stderr,
                                     .own_trainer = !run->job.spec.has_training,
                                     .steps = run->job.spec.has_training ? training->steps : 0,
                                     .every_steps = training->log.every_steps};

    run->progress = progress_new(&config);
}

static void print_plan(struct run *run)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    FLEET_AUTO_JSON cJSON *json = NULL;

    if (run->job.spec.has_training) {
        json = plan_encode(&run->plan);
        fleet_strbuf_appendf(&text, "%s: ", run->job.metadata.name);
        plan_table_headline(&run->job, &run->plan, &text);
        plan_table_print(&run->plan, &text);
    } else {
        json = fleet_json_new_object();
        fleet_strbuf_appendf(&text, "%s: %d trainers of its own command\n", run->job.metadata.name,
                             job_file_world(&run->job));
    }
    fleet_strbuf_append_char(&text, '\n');
    progress_plan(run->progress, json, text.text);
}

/* Make job.json, which the trainer reads: the blocks as given, and the folder for relative
 * paths. */
static int write_job_file(const struct run *run, const char *private, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *path = fleet_file_join(private, "job.json");
    FLEET_AUTO_FREE char *text = job_secret_trainer_file(&run->job, run->folder, false);

    return fleet_file_write(path, text, strlen(text), err);
}

/* The agent is in the same folder as this program, and the trainer in the same folder as the
 * agent. */
static int find_agent(char **out, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *folder = NULL;
    FLEET_AUTO_FREE char *trainer = NULL;
    int rc = fleet_file_own_folder(&folder, err);

    if (rc < 0)
        return rc;
    *out = fleet_file_join(folder, "fleetjob-agent");
    trainer = fleet_file_join(folder, "fleetjob-train");
    if (access(*out, X_OK) < 0)
        return fleet_error(err, -errno, "%s: %s", *out, strerror(errno));
    if (access(trainer, X_OK) < 0)
        return fleet_error(err, -errno, "%s: %s", trainer, strerror(errno));
    return 0;
}

/* ---- while it runs --------------------------------------------------------------------------- */

static void on_event(void *user, const struct hub_event *event)
{
    struct run *run = user;

    if (event->type == HUB_EVENT_STEP)
        run_curve_note_step(run, &event->step);
    if (event->type == HUB_EVENT_EVALUATION)
        curve_add_evaluation(&run->curve, event->step.step, event->step.loss);
    if (event->type == HUB_EVENT_FINISHED && !run->has_stepped)
        run_curve_take_earlier(run, event->step.step); /* the job was complete already */
    if (event->type == HUB_EVENT_CHECKPOINT &&
        fleet_monotonic_ms() - run->recorded_ms >= RECORD_MS_MIN)
        run_curve_keep(run);
    if (event->type == HUB_EVENT_RESTART) {
        curve_add_mark(&run->curve, CURVE_RESTART,
                       run->has_stepped ? progress_step(run->progress) : -1);
        run->restarts += event->counted;
    }
    progress_event(run->progress, event, fleet_monotonic_ms());
    if (!progress_is_heard(run->progress) && !local_job_was_stopped(run->local))
        local_job_stop(run->local);
}

static void on_note(void *user, const char *text)
{
    progress_note(((struct run *)user)->progress, "%s", text);
}

/* Output of an own trainer, which the user wants to see. */
static void on_output(void *user, bool is_error, const char *text)
{
    progress_output(((struct run *)user)->progress, is_error, text);
}

/* ---- after it has run ------------------------------------------------------------------------ */

static void print_hints(const struct run *run, bool has_succeeded, bool has_failed)
{
    const char *file = run->arguments.file, *self = program_invocation_name;
    const struct training_config *training = &run->job.spec.training;
    int other = job_file_world(&run->job) > 1 ? job_file_world(&run->job) / 2 : 2;
    bool would_resume =
        training->has_checkpoint && training->checkpoint.resume != TRAINING_RESUME_NEVER;
    char steps[40] = ""; /* the option, if it was given */

    if (run->arguments.is_json || !run->job.spec.has_training)
        return;
    (void)printf("\nTry next:\n");
    if (run->arguments.changes.steps > 0)
        (void)snprintf(steps, sizeof(steps), " --steps %" PRId64, run->arguments.changes.steps);
    if (has_succeeded && run->plan.selection.depends_on_workers.count == 0)
        (void)printf("  %s run %s --workers %d%s%s    # the same weights, bit for bit\n", self,
                     file, other, steps, would_resume ? " --checkpoint again" : "");
    if (has_succeeded)
        (void)printf("  %s plan %s --program     # what each rank runs\n", self, file);
    if (has_succeeded && run->job.status.has_checkpoint && run->job.status.checkpoint.path &&
        !fleet_path_is_remote(run->job.status.checkpoint.path))
        (void)printf("  %s export %s exported    # weights, also for transformers\n", self,
                     run->job.status.checkpoint.path);
    if (!has_succeeded && !has_failed && run->job.spec.training.has_checkpoint)
        (void)printf("  the same command again    # it goes on from the newest checkpoint\n");
    else if (!has_succeeded)
        (void)printf("  %s run %s --verbose      # with the logs of all workers\n", self, file);
}

static int finish(struct run *run)
{
    const struct fleetjob_status *status = &run->job.status;
    const struct fleetjob_condition *condition = status_at_rest(status);
    FLEET_AUTO_FREE char *curve = run_curve_path(run);
    struct progress_end end = {
        .state = condition ? condition->type : WELLKNOWN_CONDITION_SUSPENDED,
        .message = "",
        .weights_sha256 = status->has_result && status->result.weights_sha256
                              ? status->result.weights_sha256
                              : "",
        .curve_path = run_curve_draw(run, curve) ? curve : "",
        .restarts = run->restarts,
        .seconds = (fleet_monotonic_ms() - run->started_ms) / 1e3,
    };
    bool has_succeeded = end.has_succeeded = status_is_true(status, WELLKNOWN_CONDITION_SUCCEEDED);
    bool has_failed = status_is_true(status, WELLKNOWN_CONDITION_FAILED);

    run_curve_keep(run);
    if (has_failed && condition->message) {
        end.message = condition->message;
        if (run->arguments.is_json)
            progress_note(run->progress, "error: %s", condition->message);
    }
    progress_finish(run->progress, &end);
    print_hints(run, has_succeeded, has_failed);
    return has_succeeded ? EXIT_GOOD : has_failed ? EXIT_NO : EXIT_INTERRUPTED;
}

/* Block stop signals between making the private folder and installing a handler, so that the folder
 * is removed. */
static void mask_stop_signals(int how)
{
    sigset_t signals;

    (void)sigemptyset(&signals);
    (void)sigaddset(&signals, SIGINT);
    (void)sigaddset(&signals, SIGTERM);
    (void)sigaddset(&signals, SIGHUP);
    (void)sigaddset(&signals, SIGUSR1); /* it does not stop the job, and must not kill this
                                         * process */
    (void)sigprocmask(how, &signals, NULL);
}

/* Returns 0 if the job has run, or -errno if it could not begin. */
static int run_job(struct run *run, const char *private, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *agent = NULL;
    char **command, **environment;
    struct local_job_config config = {.job = &run->job,
                                      .folder = private,
                                      .threads = processors_per_trainer(job_file_world(&run->job)),
                                      .is_verbose = run->arguments.is_verbose,
                                      .state_file = run->arguments.state_file,
                                      .event = on_event,
                                      .note = on_note,
                                      .output = on_output,
                                      .user = run};
    int rc;

    if ((rc = find_agent(&agent, err)) < 0 || (rc = write_job_file(run, private, err)) < 0)
        return rc;
    command = job_file_command(&run->job);
    environment = job_file_environment(&run->job);
    config.agent_path = agent;
    config.command = command;
    config.environment = environment;
    config.plan_digest = run->job.spec.has_training ? run->plan.digest : NULL;
    rc = local_job_new(&config, &run->local, err);
    if (rc == 0) {
        mask_stop_signals(SIG_UNBLOCK);
        local_job_run(run->local);
        mask_stop_signals(SIG_BLOCK);
        local_job_free(run->local);
    }
    job_file_free_command(command);
    job_file_free_command(environment);
    return rc;
}

static int run_in_private_folder(struct run *run)
{
    FLEET_AUTO_FREE char *private = NULL;
    struct fleet_error err;
    int rc;

    mask_stop_signals(SIG_BLOCK);
    if ((rc = private_folder_make(&private, &err)) == 0) {
        rc = run_job(run, private, &err);
        private_folder_remove(private);
    }
    mask_stop_signals(SIG_UNBLOCK);
    if (rc < 0) {
        progress_note(run->progress, "fleetjob run: %s", err.text);
        return EXIT_NO;
    }
    return finish(run);
}

int cli_run(int argc, char **argv)
{
    struct run run = {.started_ms = fleet_monotonic_ms()};
    int code = parse_arguments(argc, argv, &run.arguments);

    if (code >= 0)
        return code;
    (void)signal(SIGPIPE, SIG_IGN);
    fleet_log_setup(FLEET_LOG_TEXT, 0);
    run.folder = job_file_folder(run.arguments.file);
    code = read_job(&run);
    if (code == 0 && run.job.spec.has_server) {
        code = run_servers(&run);
        plan_release(&run.plan);
    } else if (code == 0) {
        open_progress(&run);
        print_plan(&run);
        run_curve_describe(&run);
        code = run_in_private_folder(&run);
        progress_free(run.progress);
        plan_release(&run.plan); /* an own trainer has a plan, too: of its strategy */
    }
    curve_release(&run.curve);
    free(run.folder);
    fleetjob_release(&run.job);
    cJSON_Delete(run.links);
    return code;
}

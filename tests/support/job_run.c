/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/job_run.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "tests/support/child_process.h"

#define ARGUMENTS_MAX 32

static struct child_process start(const char *program, const char *const *arguments)
{
    const char *folder = getenv("FLEET_BIN");
    FLEET_AUTO_FREE char *path = fleet_file_join(folder ? folder : "build/bin", program);
    const char *argv[ARGUMENTS_MAX + 2] = {path};

    for (int count = 1; arguments[count - 1]; count++) {
        fleet_assert(count < ARGUMENTS_MAX);
        argv[count] = arguments[count - 1];
    }
    return child_process_start(path, argv);
}

static double number_or_nan(const cJSON *event, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(event, key);

    return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}

static void take_step(struct job_run *run, const cJSON *event)
{
    struct job_step step = {.loss = number_or_nan(event, "loss"),
                            .grad_norm = number_or_nan(event, "gradNorm"),
                            .learning_rate = number_or_nan(event, "learningRate")};

    (void)fleet_json_opt_int(event, "step", &step.step, NULL);
    (void)fleet_json_opt_int(event, "generation", &step.generation, NULL);
    (void)fleet_json_opt_int(event, "tokens", &step.tokens, NULL);
    if (run->step_count > 0 && step.step != run->steps[run->step_count - 1].step + 1)
        (void)snprintf(run->problem, sizeof(run->problem), "step %lld follows step %lld",
                       (long long)step.step, (long long)run->steps[run->step_count - 1].step);
    fleet_assert(run->step_count < JOB_RUN_STEPS_MAX);
    run->steps[run->step_count++] = step;
}

static void take_end(struct job_run *run, const cJSON *event)
{
    const char *text = "";

    run->end = cJSON_Duplicate(event, 1);
    (void)fleet_json_opt_string(event, "state", &text, NULL);
    (void)snprintf(run->state, sizeof(run->state), "%s", text);
    text = "";
    (void)fleet_json_opt_string(event, "weightsSha256", &text, NULL);
    (void)snprintf(run->sha256, sizeof(run->sha256), "%s", text);
    run->loss = number_or_nan(event, "loss");
}

bool job_run_may_lose_state;

/* All ranks write a checkpoint. If one of them is killed meanwhile, it is made again. */
static bool is_save_lost_with_its_rank(const char *name, const cJSON *event)
{
    const char *message = "";

    (void)fleet_json_opt_string(event, "message", &message, NULL);
    return strcmp(name, "checkpointFailed") == 0 &&
           strstr(message, "the generation that wrote it has ended");
}

static void take_event(struct job_run *run, const cJSON *event)
{
    const char *name = "";

    (void)fleet_json_opt_string(event, "event", &name, NULL);
    if (run->end)
        (void)snprintf(run->problem, sizeof(run->problem), "event %.40s after the end", name);
    if (strcmp(name, "step") == 0) {
        take_step(run, event);
    } else if (strcmp(name, "plan") == 0) {
        cJSON_Delete(run->plan);
        run->plan = cJSON_Duplicate(event, 1);
    } else if (strcmp(name, "restart") == 0) {
        cJSON_Delete(run->last_restart);
        run->last_restart = cJSON_Duplicate(event, 1);
        run->restart_count++;
    } else if (strcmp(name, "checkpoint") == 0) {
        run->checkpoint_count++;
    } else if (strcmp(name, "evaluation") == 0) {
        run->evaluation_count++;
    } else if (strcmp(name, "end") == 0) {
        take_end(run, event);
    } else if (strcmp(name, "waiting") != 0 && /* which a busy machine may make it say */
               !is_save_lost_with_its_rank(name, event) &&
               !(job_run_may_lose_state && strcmp(name, "stateLost") == 0)) {
        (void)snprintf(run->problem, sizeof(run->problem), "unknown event %.100s", name);
    }
}

/* Hand out the whole lines of `text` and drop them. */
static void take_lines(struct job_run *run, struct fleet_strbuf *text, job_run_watch watch,
                       void *context)
{
    char *newline;

    while (text->length > 0 && (newline = memchr(text->text, '\n', text->length))) {
        size_t size = (size_t)(newline - text->text);
        FLEET_AUTO_JSON cJSON *event = NULL;
        if (fleet_json_parse(text->text, size, 1 << 20, &event, NULL) < 0) {
            (void)snprintf(run->problem, sizeof(run->problem), "not JSON: %.*s",
                           (int)(size < 200 ? size : 200), text->text);
        } else {
            take_event(run, event);
            if (watch)
                watch(context, run, event);
        }
        fleet_strbuf_consume(text, size + 1);
    }
}

void job_run(const char *const *arguments, double limit_s, job_run_watch watch, void *context,
             struct job_run *out)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf lines = {0};
    struct fleet_strbuf errors = {0};
    const char *argv[ARGUMENTS_MAX] = {"run", "--json"};
    double end_ms = fleet_monotonic_ms() + limit_s * 1e3;
    struct child_process child;
    double left_ms = limit_s * 1e3;

    *out = (struct job_run){.steps = calloc(JOB_RUN_STEPS_MAX, sizeof(*out->steps))};
    fleet_assert(out->steps != NULL);
    for (int i = 0; arguments[i]; i++)
        argv[i + 2] = arguments[i];
    child = start("fleetjob", argv);
    out->pid = child.pid;
    while (left_ms > 0 && child_process_read(&child, (int)fmin(left_ms, 1000), &lines, &errors)) {
        take_lines(out, &lines, watch, context);
        left_ms = end_ms - fleet_monotonic_ms();
    }
    if (left_ms <= 0) {
        (void)snprintf(out->problem, sizeof(out->problem), "still running after %.0f s", limit_s);
        out->exit_code = child_process_kill(child.pid);
    } else {
        out->exit_code = child_process_wait(child.pid);
    }
    child.pid = 0;
    child_process_release(&child);
    out->errors = fleet_strbuf_take(&errors);
}

void job_run_release(struct job_run *run)
{
    cJSON_Delete(run->plan);
    cJSON_Delete(run->end);
    cJSON_Delete(run->last_restart);
    free(run->steps);
    free(run->errors);
    *run = (struct job_run){0};
}

int job_run_command(const char *program, const char *const *arguments, char **out_text,
                    char **out_errors)
{
    struct fleet_strbuf text = {0}, errors = {0};
    struct child_process child = start(program, arguments);
    int exit_code = child_process_finish(&child, &text, &errors);

    if (out_text)
        *out_text = fleet_strbuf_take(&text);
    if (out_errors)
        *out_errors = fleet_strbuf_take(&errors);
    fleet_strbuf_release(&text);
    fleet_strbuf_release(&errors);
    return exit_code;
}

/* Parent and name of a process; false if there is none (or it is a zombie). */
static bool look_at(pid_t pid, pid_t *out_parent, char name[32])
{
    FLEET_AUTO_FREE char *text = NULL;
    char path[64], state;
    size_t size;
    char *open, *close;
    long parent;

    (void)snprintf(path, sizeof(path), "/proc/%ld/stat", (long)pid);
    if (fleet_file_read(path, 4096, &text, &size, NULL) < 0)
        return false;
    open = strchr(text, '(');
    close = strrchr(text, ')');
    if (!open || !close || sscanf(close + 1, " %c %ld", &state, &parent) != 2 || state == 'Z')
        return false;
    *close = '\0';
    (void)snprintf(name, 32, "%s", open + 1);
    *out_parent = (pid_t)parent;
    return true;
}

int job_run_children(pid_t parent, const char *name, pid_t *out, int capacity)
{
    DIR *proc = opendir("/proc");
    struct dirent *entry;
    int count = 0;

    fleet_assert(proc != NULL);
    while ((entry = readdir(proc)) && count < capacity) {
        char comm[32];
        pid_t pid = (pid_t)atol(entry->d_name), its_parent;
        /* The kernel cuts names at 15 bytes. */
        if (isdigit((unsigned char)entry->d_name[0]) && look_at(pid, &its_parent, comm) &&
            its_parent == parent && strncmp(comm, name, 15) == 0)
            out[count++] = pid;
    }
    (void)closedir(proc);
    return count;
}

int job_run_agents(pid_t pid, pid_t *out, int capacity)
{
    return job_run_children(pid, "fleetjob-agent", out, capacity);
}

int job_run_trainers(pid_t pid, pid_t *out, int capacity)
{
    pid_t agents[64];
    int agent_count = job_run_agents(pid, agents, 64), count = 0;

    for (int i = 0; i < agent_count; i++)
        count += job_run_children(agents[i], "fleetjob-train", out + count, capacity - count);
    return count;
}

int job_run_left(const pid_t *pids, int count, double wait_s)
{
    double end_ms = fleet_monotonic_ms() + wait_s * 1e3;
    int left;

    do {
        char name[32];
        pid_t parent;
        left = 0;
        for (int i = 0; i < count; i++)
            left += look_at(pids[i], &parent, name) && strncmp(name, "fleetjob", 8) == 0;
        if (left > 0)
            (void)poll(NULL, 0, 20);
    } while (left > 0 && fleet_monotonic_ms() < end_ms);
    return left;
}

char *job_run_folder(void)
{
    const char *base = getenv("TMPDIR");
    char *path = fleet_file_join(base && base[0] ? base : "/tmp", "fleetjob-test-XXXXXX");

    fleet_assert(mkdtemp(path) != NULL);
    return path;
}

void job_run_remove(const char *folder)
{
    const char *const arguments[] = {"rm", "-rf", "--", folder, NULL};
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    struct child_process rm = child_process_start("rm", arguments);

    (void)child_process_finish(&rm, &text, &text);
}

/* SPDX-License-Identifier: Apache-2.0 */

/*
 * `fleetjob run` as a user meets it: the real programs, on small jobs. What it prints, with which code
 * it exits, that faults at any moment change neither the order of the steps nor the weights, and that
 * nothing is left behind whoever is killed.
 *
 * Each run carries an environment variable of its own, by which its processes are found in /proc.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"

#define PATIENCE_MS 120000.0 /* sanitizers on a busy machine */
#define STEPS       60

extern char **environ;

static char program[4096]; /* build/…/bin/fleetjob */
static char folder[64];    /* of this test, removed at its end */

/* Steps of the jobs that are struck; sanitizers make each of them ten times as long. */
static const char *few_steps = "300", *many_steps = "1500";

/* ---- running ---------------------------------------------------------------------------------- */

struct run {
    pid_t pid; /* 0 = has ended */
    int out_fd, err_fd;
    struct fleet_strbuf out, err;
    int exit_code;        /* 128 + signal if one ended it */
    char mark[64];        /* "FLEET_TEST_RUN=…" in the environment of all its processes */
    char state_file[128]; /* "" = none */
};

static void start_program(struct run *run, const char *path, char *const *arguments)
{
    static int count;
    int out[2], err[2];

    *run = (struct run){0};
    (void)snprintf(run->mark, sizeof(run->mark), "TEST_RUN=%d-%d", (int)getpid(), ++count);
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    assert_int_equal(pipe2(err, O_CLOEXEC), 0);
    run->pid = fork();
    if (run->pid == 0) {
        char *name = strdup(run->mark);
        (void)putenv(name);
        (void)dup2(out[1], STDOUT_FILENO);
        (void)dup2(err[1], STDERR_FILENO);
        (void)execv(path, arguments);
        _exit(126);
    }
    (void)close(out[1]);
    (void)close(err[1]);
    run->out_fd = out[0];
    run->err_fd = err[0];
}

static void start(struct run *run, char *const *arguments)
{
    start_program(run, program, arguments);
}

static void read_some(int *fd, struct fleet_strbuf *into)
{
    char chunk[65536];
    ssize_t size = read(*fd, chunk, sizeof(chunk));

    if (size > 0) {
        fleet_strbuf_append_bytes(into, chunk, (size_t)size);
    } else if (size == 0) {
        (void)close(*fd);
        *fd = -1;
    }
}

/* Take what was printed, waiting at most `ms`. */
static void listen_to(struct run *run, int ms)
{
    struct pollfd fds[2] = {{.fd = run->out_fd, .events = POLLIN},
                            {.fd = run->err_fd, .events = POLLIN}};

    if (poll(fds, 2, ms) <= 0)
        return;
    if (fds[0].revents)
        read_some(&run->out_fd, &run->out);
    if (fds[1].revents)
        read_some(&run->err_fd, &run->err);
}

static void wait_for_end(struct run *run)
{
    double give_up_ms = fleet_monotonic_ms() + PATIENCE_MS;
    int status;

    while (run->out_fd >= 0 || run->err_fd >= 0) {
        listen_to(run, 1000);
        if (fleet_monotonic_ms() > give_up_ms) {
            (void)kill(run->pid, SIGKILL);
            fail_msg("it did not end in %.0f s; its output:\n%s\n%s", PATIENCE_MS / 1e3,
                     fleet_strbuf_text(&run->out), fleet_strbuf_text(&run->err));
        }
    }
    assert_int_equal(waitpid(run->pid, &status, 0), run->pid);
    run->exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    run->pid = 0;
}

static void release(struct run *run)
{
    if (run->pid > 0) {
        (void)kill(run->pid, SIGKILL);
        (void)waitpid(run->pid, NULL, 0);
    }
    if (run->out_fd > 0)
        (void)close(run->out_fd);
    if (run->err_fd > 0)
        (void)close(run->err_fd);
    fleet_strbuf_release(&run->out);
    fleet_strbuf_release(&run->err);
}

/* Run `fleetjob` with these words to its end. */
static void run_words(struct run *run, const char *first, ...)
{
    char *arguments[16] = {program};
    size_t count = 1;
    va_list args;

    va_start(args, first);
    for (const char *word = first; word; word = va_arg(args, const char *))
        arguments[count++] = (char *)word;
    va_end(args);
    start(run, arguments);
    wait_for_end(run);
}

static void expect_exit(const struct run *run, int code)
{
    if (run->exit_code != code)
        fail_msg("expected exit code %d, got %d; it said:\n%s\n%s", code, run->exit_code,
                 fleet_strbuf_text(&run->out), fleet_strbuf_text(&run->err));
}

static void expect_words(const struct fleet_strbuf *text, const char *words)
{
    if (!strstr(fleet_strbuf_text(text), words))
        fail_msg("expected \"%s\" in:\n%s", words, fleet_strbuf_text(text));
}

/* ---- what is left behind ---------------------------------------------------------------------- */

static bool carries_mark(const char *pid, const char *mark)
{
    FLEET_AUTO_FREE char *text = NULL;
    char path[64];
    size_t size = 0, length = strlen(mark);

    (void)snprintf(path, sizeof(path), "/proc/%.20s/environ", pid);
    if (fleet_file_read(path, 1 << 20, &text, &size, NULL) < 0)
        return false;
    for (size_t i = 0; i + length <= size; i += strlen(text + i) + 1)
        if (strcmp(text + i, mark) == 0)
            return true;
    return false;
}

static int count_processes(const struct run *run)
{
    DIR *proc = opendir("/proc");
    const struct dirent *entry;
    int count = 0;

    while (proc && (entry = readdir(proc)))
        if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9' && atoi(entry->d_name) != getpid())
            count += carries_mark(entry->d_name, run->mark);
    if (proc)
        (void)closedir(proc);
    return count;
}

/* The kernel may need a moment to end what it has killed. */
static void expect_nothing_left(const struct run *run)
{
    double give_up_ms = fleet_monotonic_ms() + PATIENCE_MS;
    int count;

    while ((count = count_processes(run)) > 0 && fleet_monotonic_ms() < give_up_ms)
        (void)usleep(20000);
    if (count > 0)
        fail_msg("%d processes are left behind", count);
    if (run->state_file[0] && run->exit_code < 128)
        assert_int_not_equal(access(run->state_file, F_OK), 0);
}

/* ---- jobs ------------------------------------------------------------------------------------- */

/* A small job in `folder`; `extra` lines go below spec (indented by two). Borrowed until the next. */
static const char *write_job(const char *name, const char *training, const char *extra)
{
    static char path[128];
    FILE *file;

    (void)snprintf(path, sizeof(path), "%s/%s.yaml", folder, name);
    file = fopen(path, "w");
    assert_non_null(file);
    (void)fprintf(file,
                  "apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\nmetadata: {name: %s}\nspec:\n"
                  "  training:\n"
                  "    model: {name: gpt, layers: 2, heads: 2, width: 32, context: 32}\n"
                  "    data: {path: text}\n"
                  "    optimizer: {name: adamw, learningRate: 1.0e-3, clip: {globalNorm: 1}}\n"
                  "    schedule: {name: cosine, warmupSteps: 10}\n"
                  "    globalBatchSize: 12\n    microBatchSize: 1\n    steps: %d\n"
                  "%s  worker: {replicas: 3}\n%s",
                  name, STEPS, training, extra);
    (void)fclose(file);
    return path;
}

static void start_small_job(struct run *run, const char *path, const char *workers,
                            const char *steps)
{
    static int count;
    char state_file[128];
    char *arguments[] = {program,
                         (char *)"run",
                         (char *)path,
                         (char *)"--json",
                         (char *)"--workers",
                         (char *)workers,
                         (char *)"--steps",
                         (char *)steps,
                         (char *)"--state-file",
                         state_file,
                         NULL};

    (void)snprintf(state_file, sizeof(state_file), "%s/run-%d.json", folder, ++count);
    start(run, arguments);
    strcpy(run->state_file, state_file);
}

/* ---- what it prints --------------------------------------------------------------------------- */

/* What the lines of a --json run amount to. */
struct story {
    int64_t steps;      /* events, which were 1, 2, 3 … */
    int64_t first_step; /* 1, but of a job that goes on from a checkpoint */
    int64_t lost_steps; /* by restarts, together */
    int restarts, checkpoints;
    char state[32], sha256[80];
    double first_loss, last_loss;
};

static void read_step(const cJSON *json, struct story *story)
{
    int64_t step;
    double loss;

    assert_int_equal(fleet_json_get_int(json, "step", &step, NULL), 0);
    assert_int_equal(fleet_json_get_number(json, "loss", &loss, NULL), 0);
    if (story->steps == 0)
        story->first_step = step;
    else if (step != story->steps + 1)
        fail_msg("step %lld was printed after step %lld", (long long)step, (long long)story->steps);
    story->steps = step;
    story->first_loss = step == 1 ? loss : story->first_loss;
    story->last_loss = loss;
}

static void read_line(const char *line, size_t size, struct story *story)
{
    FLEET_AUTO_JSON cJSON *json = NULL;
    struct fleet_error err;
    const char *event = "", *text = "";

    if (fleet_json_parse(line, size, 1 << 20, &json, &err) < 0)
        fail_msg("not a JSON object: %.*s (%s)", (int)size, line, err.text);
    assert_int_equal(fleet_json_get_string(json, "event", &event, NULL), 0);
    assert_string_equal(story->state, ""); /* nothing follows the end */
    if (strcmp(event, "step") == 0)
        read_step(json, story);
    story->restarts += strcmp(event, "restart") == 0;
    if (strcmp(event, "restart") == 0) {
        int64_t lost = -1;
        assert_int_equal(fleet_json_get_int(json, "lostSteps", &lost, NULL), 0);
        story->lost_steps += lost;
    }
    story->checkpoints += strcmp(event, "checkpoint") == 0;
    if (strcmp(event, "end") == 0) {
        assert_int_equal(fleet_json_get_string(json, "state", &text, NULL), 0);
        (void)snprintf(story->state, sizeof(story->state), "%s", text);
        text = "";
        (void)fleet_json_opt_string(json, "weightsSha256", &text, NULL);
        (void)snprintf(story->sha256, sizeof(story->sha256), "%s", text);
    }
}

static struct story read_story(const struct run *run)
{
    const char *line = fleet_strbuf_text(&run->out);
    struct story story = {0};

    assert_int_equal(strncmp(line, "{\"event\":\"plan\",", 16), 0);
    while (*line) {
        size_t size = strcspn(line, "\n");
        read_line(line, size, &story);
        line += size + (line[size] == '\n');
    }
    return story;
}

static struct story expect_success(const struct run *run, int64_t steps)
{
    struct story story;

    expect_exit(run, 0);
    story = read_story(run);
    assert_int_equal(story.first_step, 1);
    assert_string_equal(story.state, "Succeeded");
    assert_int_equal(story.steps, steps);
    assert_int_equal(strlen(story.sha256), 64);
    expect_nothing_left(run);
    return story;
}

/* The weights of the small job after `steps` steps, undisturbed; the same for all tests. */
static const char *undisturbed_weights(const char *steps)
{
    static char known[8][2][80];

    for (int i = 0; i < 8; i++) {
        struct run run;
        if (strcmp(known[i][0], steps) == 0)
            return known[i][1];
        if (known[i][0][0])
            continue;
        start_small_job(&run, write_job("undisturbed", "", ""), "1", steps);
        wait_for_end(&run);
        strcpy(known[i][1], expect_success(&run, atoi(steps)).sha256);
        strcpy(known[i][0], steps);
        release(&run);
        return known[i][1];
    }
    return "";
}

static void expect_undisturbed(const struct story *story, const char *steps)
{
    const char *expected = undisturbed_weights(steps);

    if (strcmp(story->sha256, expected) != 0)
        fail_msg("the weights differ: expected %s, got %s", expected, story->sha256);
}

/* ---- the command line ------------------------------------------------------------------------- */

static void test_run__wrong_usage_exits_2(void **state)
{
    static const struct {
        const char *words[5], *says;
    } cases[] = {
        {{NULL}, "Usage: fleetjob COMMAND"},
        {{"rnu"}, "did you mean \"run\"?"},
        {{"run"}, "a file is missing"},
        {{"run", "a.yaml", "b.yaml"}, "\"b.yaml\" is one word too many"},
        {{"run", "--nonsense", "a.yaml"}, "Usage: fleetjob run"},
        {{"run", "--workers", "0", "a.yaml"}, "--workers must be in [1, 256], not \"0\""},
        {{"run", "--workers", "two", "a.yaml"}, "--workers must be in [1, 256], not \"two\""},
        {{"run", "--steps", "-3", "a.yaml"}, "--steps must be in"},
        {{"plan", "--output", "xml", "a.yaml"}, "--output must be table or json, not \"xml\""},
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(cases); i++) {
        const char *const *w = cases[i].words;
        struct run run;
        run_words(&run, w[0], w[0] ? w[1] : NULL, w[0] && w[1] ? w[2] : NULL,
                  w[0] && w[1] && w[2] ? w[3] : NULL, NULL);
        expect_exit(&run, 2);
        expect_words(&run.err, cases[i].says);
        assert_int_equal(run.out.length, 0);
        release(&run);
    }
}

static void test_run__help_and_version_exit_0(void **state)
{
    static const char *const commands[] = {"run", "plan", "validate", "select", "convert"};
    struct run run;

    (void)state;
    run_words(&run, "--version", NULL);
    expect_exit(&run, 0);
    expect_words(&run.out, "fleetjob 0.");
    release(&run);
    for (size_t i = 0; i < FLEET_COUNT(commands); i++) {
        run_words(&run, commands[i], "--help", NULL);
        expect_exit(&run, 0);
        expect_words(&run.out, "Usage: fleetjob");
        release(&run);
        run_words(&run, "help", commands[i], NULL);
        expect_exit(&run, 0);
        expect_words(&run.out, "Usage: fleetjob");
        release(&run);
    }
}

/* ---- bad jobs --------------------------------------------------------------------------------- */

static void test_run__refuses_a_bad_job_with_all_its_errors(void **state)
{
    static const struct {
        const char *training, *extra, *says[3];
    } cases[] = {
        {"    evaluation: {everySteps: 0}\n    seed: -1\n",
         "  strategy: {amp: true, gradient_mrege: true}\n",
         {"spec.training.evaluation.everySteps", "spec.training.seed", "gradient_merge"}},
        {"", "  runPolicy: {cleanPodPolicy: Sometimes}\n", {"spec.runPolicy.cleanPodPolicy"}},
    };
    struct run run;
    FILE *file;
    char path[128];

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(cases); i++) {
        run_words(&run, "run", write_job("bad", cases[i].training, cases[i].extra), NULL);
        expect_exit(&run, 1);
        for (int s = 0; s < 3 && cases[i].says[s]; s++)
            expect_words(&run.err, cases[i].says[s]);
        assert_int_equal(run.out.length, 0);
        expect_nothing_left(&run);
        release(&run);
    }
    (void)snprintf(path, sizeof(path), "%s/broken.yaml", folder);
    file = fopen(path, "w");
    (void)fputs("spec: {worker: [\n", file);
    (void)fclose(file);
    run_words(&run, "run", path, NULL);
    expect_exit(&run, 1);
    expect_words(&run.err, "broken.yaml: line ");
    release(&run);
    run_words(&run, "run", "/nowhere/job.yaml", NULL);
    expect_exit(&run, 1);
    expect_words(&run.err, "/nowhere/job.yaml");
    release(&run);
}

static void test_run__refuses_more_workers_than_micro_batches(void **state)
{
    struct run run;

    (void)state;
    run_words(&run, "run", write_job("wide", "", ""), "--workers", "13", NULL);
    expect_exit(&run, 1);
    expect_words(&run.err, "spec.worker.replicas");
    release(&run);
}

static void test_run__what_the_command_line_changes_is_checked_like_the_file(void **state)
{
    struct run run;

    (void)state;
    run_words(&run, "run", write_job("gif", "", ""), "--curve", "loss.gif", NULL);
    expect_exit(&run, 1);
    expect_words(&run.err, "spec.training.log.curve: must be a path that ends in .svg or .png");
    release(&run);
}

static void test_run__bad_data_fails_with_the_path_and_no_restart(void **state)
{
    static const char *const paths[] = {"/nowhere/at/all", "empty", "short"};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(paths); i++) {
        struct run run;
        struct story story;
        const char *words;
        char path[128];
        (void)snprintf(path, sizeof(path), "%s%s%s", i ? folder : "", i ? "/" : "", paths[i]);
        run_words(&run, "run", write_job("nodata", "", ""), "--json", "--data", path, NULL);
        expect_exit(&run, 1);
        expect_words(&run.err, paths[i]);
        words = strstr(run.err.text, "err=\"spec.training.data.path");
        assert_non_null(words);
        /* Once, though every worker met it. */
        assert_null(strstr(words + 1, "err=\"spec.training.data.path"));
        story = read_story(&run);
        assert_string_equal(story.state, "Failed");
        assert_int_equal(story.restarts, 0);
        assert_int_equal(story.steps, 0);
        expect_nothing_left(&run);
        release(&run);
    }
}

/* ---- good jobs -------------------------------------------------------------------------------- */

static void test_run__the_weights_are_the_same_on_any_number_of_workers(void **state)
{
    static const char *const workers[] = {"2", "3", "4"};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(workers); i++) {
        struct run run;
        struct story story;
        start_small_job(&run, write_job("equal", "", ""), workers[i], "60");
        wait_for_end(&run);
        story = expect_success(&run, STEPS);
        assert_int_equal(story.restarts, 0);
        assert_true(story.last_loss < story.first_loss - 1.0);
        expect_undisturbed(&story, "60");
        release(&run);
    }
}

static void test_run__text_is_for_people(void **state)
{
    struct run run;
    char curve[128];

    (void)state;
    (void)snprintf(curve, sizeof(curve), "%s/loss.svg", folder);
    run_words(&run, "run", write_job("text", "", ""), "--curve", curve, NULL);
    expect_exit(&run, 0);
    expect_words(&run.out, "text: gpt of 2 layers, width 32, 2 heads, context 32");
    expect_words(&run.out, "step 60/60  loss ");
    expect_words(&run.out, "Succeeded after ");
    expect_words(&run.out, undisturbed_weights("60"));
    expect_words(&run.out, curve);
    assert_null(strchr(run.out.text, '\r'));
    assert_int_equal(access(curve, R_OK), 0);
    release(&run);
}

static void test_run__the_command_line_says_where_checkpoints_go(void **state)
{
    struct run run;
    char path[128];

    (void)state;
    (void)snprintf(path, sizeof(path), "%s/elsewhere", folder);
    run_words(&run, "run",
              write_job("place", "    checkpoint: {path: /proc/nowhere, everySteps: 30}\n", ""),
              "--checkpoint", path, NULL);
    expect_exit(&run, 0);
    expect_words(&run.out, path);
    assert_int_equal(access(path, R_OK), 0);
    release(&run);
}

static void test_run__a_reader_that_leaves_stops_the_run(void **state)
{
    struct run run;

    (void)state;
    start_small_job(&run, write_job("pipe", "", ""), "2", "100000");
    while (run.out.length == 0)
        listen_to(&run, 1000);
    (void)close(run.out_fd);
    run.out_fd = -1;
    wait_for_end(&run);
    expect_exit(&run, 130);
    expect_nothing_left(&run);
    release(&run);
}

/* ---- faults ----------------------------------------------------------------------------------- */

/* Listen until these words were printed. */
static void wait_for_words(struct run *run, const char *words)
{
    double give_up_ms = fleet_monotonic_ms() + PATIENCE_MS;

    while (!strstr(fleet_strbuf_text(&run->out), words)) {
        if (run->out_fd < 0 || fleet_monotonic_ms() > give_up_ms)
            fail_msg("%s never came; it said:\n%s\n%s", words, fleet_strbuf_text(&run->out),
                     fleet_strbuf_text(&run->err));
        listen_to(run, 100);
    }
}

/* Listen until step `step` was printed. */
static void wait_for_step(struct run *run, int step)
{
    char words[40];

    (void)snprintf(words, sizeof(words), "\"step\",\"step\":%d,", step);
    wait_for_words(run, words);
}

/* The state file as it is now; the caller frees it. NULL = there is none. */
static cJSON *read_state(const struct run *run)
{
    FLEET_AUTO_FREE char *text = NULL;
    cJSON *json = NULL;
    size_t size;

    if (fleet_file_read(run->state_file, 1 << 20, &text, &size, NULL) < 0 ||
        fleet_json_parse(text, size, 1 << 20, &json, NULL) < 0)
        return NULL;
    return json;
}

/* A process of member number `i` of the state file: its trainer, or its agent. 0 = none. */
static pid_t find_process(const struct run *run, int i, bool agent)
{
    FLEET_AUTO_JSON cJSON *json = read_state(run);
    int64_t pid = 0;
    char path[64];

    (void)snprintf(path, sizeof(path),
                   agent ? "members[%d].agentPid" : "members[%d].trainerPids[0]", i);
    if (json)
        (void)fleet_json_opt_int(json, path, &pid, NULL);
    return (pid_t)pid;
}

/* Whether it runs: one that was killed answers signals until its parent has taken note. */
static bool is_alive(pid_t pid)
{
    FLEET_AUTO_FREE char *text = NULL;
    char path[64];
    const char *name_end;
    size_t size;

    (void)snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    if (pid == 0 || fleet_file_read(path, 4096, &text, &size, NULL) < 0)
        return false;
    name_end = strrchr(text, ')');
    return name_end && name_end[1] && name_end[2] != 'Z' && name_end[2] != 'X';
}

/* Signal it, waiting for the state file to name it. False: the run ended before. */
static bool strike_if_running(struct run *run, int i, bool agent, int signal_number)
{
    double give_up_ms = fleet_monotonic_ms() + PATIENCE_MS;
    pid_t pid;

    while (!is_alive(pid = find_process(run, i, agent)) || kill(pid, signal_number) < 0) {
        if (run->out_fd < 0)
            return false;
        if (fleet_monotonic_ms() > give_up_ms)
            fail_msg("member %d was never there", i);
        listen_to(run, 20);
    }
    return true;
}

static void strike(struct run *run, int i, bool agent, int signal_number)
{
    if (!strike_if_running(run, i, agent, signal_number))
        fail_msg("the job was over before member %d was struck", i);
}

static void test_run__a_killed_trainer_changes_nothing(void **state)
{
    (void)state;
    for (int member = 0; member < 3; member++) { /* the one with rank 0, too */
        struct run run;
        struct story story;
        start_small_job(&run, write_job("kill", "", ""), "3", few_steps);
        wait_for_step(&run, 10 + 7 * member);
        strike(&run, member, false, SIGKILL);
        wait_for_end(&run);
        story = expect_success(&run, atoi(few_steps));
        assert_in_range(story.restarts, 1, 2); /* the others may go on before its end is known */
        expect_undisturbed(&story, few_steps);
        release(&run);
    }
}

static void test_run__two_killed_trainers_change_nothing(void **state)
{
    struct run run;
    struct story story;

    (void)state;
    start_small_job(&run, write_job("two", "", ""), "3", few_steps);
    wait_for_step(&run, 20);
    strike(&run, 0, false, SIGKILL);
    strike(&run, 2, false, SIGKILL);
    wait_for_end(&run);
    story = expect_success(&run, atoi(few_steps));
    assert_in_range(story.restarts, 1, 2);
    expect_undisturbed(&story, few_steps);
    release(&run);
}

static void test_run__a_killed_agent_changes_nothing(void **state)
{
    struct run run;
    struct story story;

    (void)state;
    start_small_job(&run, write_job("agent", "", ""), "3", few_steps);
    wait_for_step(&run, 15);
    strike(&run, 1, true, SIGKILL);
    wait_for_end(&run);
    story = expect_success(&run, atoi(few_steps));
    assert_in_range(story.restarts, 1, 2); /* the replacement may come after the others went on */
    expect_undisturbed(&story, few_steps);
    release(&run);
}

static void test_run__a_stopped_trainer_is_replaced(void **state)
{
    struct run run;
    struct story story;

    (void)state;
    start_small_job(&run, write_job("stopped", "", ""), "2", few_steps);
    wait_for_step(&run, 15);
    strike(&run, 1, false, SIGSTOP);
    wait_for_end(&run);
    story = expect_success(&run, atoi(few_steps));
    assert_int_equal(story.restarts, 1);
    expect_undisturbed(&story, few_steps);
    release(&run);
}

/* The hub misses its heartbeats. A short job is over by then, since its trainer goes on; in a long one
 * the pod is replaced. */
static void test_run__a_stopped_agent_holds_nobody_up(void **state)
{
    const char *const steps[] = {few_steps, many_steps};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(steps); i++) {
        struct run run;
        struct story story;
        start_small_job(&run, write_job("frozen", "", ""), "2", steps[i]);
        wait_for_step(&run, 15);
        strike(&run, 1, true, SIGSTOP);
        wait_for_end(&run);
        story = expect_success(&run, atoi(steps[i]));
        expect_undisturbed(&story, steps[i]);
        release(&run);
    }
}

/* Six kills at moments that the seed chooses, of trainers and agents alike. */
static void test_run__kills_at_random_moments_change_nothing(void **state)
{
    unsigned int seed = (unsigned int)time(NULL);
    struct run run;
    struct story story;

    (void)state;
    (void)printf("seed %u\n", seed);
    start_small_job(&run, write_job("storm", "", "  runPolicy: {restart: {maxRestarts: 100}}\n"),
                    "3", many_steps);
    wait_for_step(&run, 5);
    for (int i = 0; i < 6 && run.out_fd >= 0; i++) {
        double until_ms = fleet_monotonic_ms() + (double)(rand_r(&seed) % 400);
        if (!strike_if_running(&run, (int)(rand_r(&seed) % 3), rand_r(&seed) % 4 == 0, SIGKILL))
            break;
        while (fleet_monotonic_ms() < until_ms)
            listen_to(&run, 10);
    }
    wait_for_end(&run);
    story = expect_success(&run, atoi(many_steps));
    assert_true(story.restarts >= 1);
    expect_undisturbed(&story, many_steps);
    release(&run);
}

static void test_run__too_many_restarts_fail_with_the_cause(void **state)
{
    struct run run;
    struct story story;

    (void)state;
    start_small_job(&run, write_job("limit", "", "  runPolicy: {restart: {maxRestarts: 1}}\n"), "2",
                    "100000");
    wait_for_step(&run, 5);
    strike(&run, 0, false, SIGKILL);
    wait_for_words(&run, "\"event\":\"restart\"");
    strike(&run, 0, false, SIGKILL);
    wait_for_end(&run);
    expect_exit(&run, 1);
    story = read_story(&run);
    assert_string_equal(story.state, "Failed");
    expect_words(&run.out, "restarts are used up");
    expect_nothing_left(&run);
    release(&run);
}

/* ---- stopping --------------------------------------------------------------------------------- */

static void test_run__an_interrupt_saves_and_a_later_run_goes_on(void **state)
{
    const char *training = "    checkpoint: {path: saved, everySteps: 1000}\n";
    struct run run;
    struct story story, later;

    (void)state;
    start_small_job(&run, write_job("resume", training, ""), "3", many_steps);
    wait_for_step(&run, 40);
    (void)kill(run.pid, SIGINT);
    wait_for_end(&run);
    expect_exit(&run, 130);
    story = read_story(&run);
    assert_string_equal(story.state, "Suspended");
    assert_in_range(story.steps, 40, atoi(many_steps) - 1);
    expect_nothing_left(&run);
    release(&run);

    start_small_job(&run, write_job("resume", training, ""), "2", many_steps);
    wait_for_end(&run);
    expect_exit(&run, 0);
    later = read_story(&run);
    assert_int_equal(later.first_step, story.steps + 1); /* none is lost, none is made twice */
    expect_words(&run.out, undisturbed_weights(many_steps));
    expect_nothing_left(&run);
    release(&run);
}

/* A terminal interrupts the whole group, and the script tells the run: that is one Ctrl-C, not two. */
static void test_run__an_interrupted_demo_saves_and_leaves_nothing(void **state)
{
    double give_up_ms = fleet_monotonic_ms() + PATIENCE_MS;
    char command[128], *arguments[] = {(char *)"sh", (char *)"-c", command, NULL};
    struct run run;

    (void)state;
    if (access("build/bin/fleetjob", X_OK) < 0)
        skip(); /* the script runs the release build */
    (void)snprintf(command, sizeof(command), "TMPDIR=%s exec setsid tools/demo-local.sh", folder);
    start_program(&run, "/bin/sh", arguments);
    while (run.out_fd >= 0 && !strstr(fleet_strbuf_text(&run.out), "step 1/300") &&
           fleet_monotonic_ms() < give_up_ms)
        listen_to(&run, 1000);
    (void)kill(-run.pid, SIGINT);
    wait_for_end(&run);
    expect_exit(&run, 130);
    expect_words(&run.out, "checkpoint of step ");
    expect_words(&run.out, "Suspended after ");
    expect_nothing_left(&run);
    release(&run);
}

/* Its pod is drained, twice between two checkpoints: what it saves as it leaves is known each time. */
static void test_run__a_sole_worker_that_is_stopped_twice_loses_no_step(void **state)
{
    const char *training = "    checkpoint: {path: drained, everySteps: 1000}\n";
    struct run run;
    struct story story;

    (void)state;
    start_small_job(&run, write_job("drained", training, ""), "1", many_steps);
    wait_for_step(&run, 10);
    strike(&run, 0, true, SIGTERM);
    wait_for_words(&run, "\"event\":\"restart\""); /* its replacement steps */
    strike(&run, 0, true, SIGTERM);
    wait_for_end(&run);
    story = expect_success(&run, atoi(many_steps));
    assert_int_equal(story.lost_steps, 0);
    assert_int_equal(story.restarts, 2);
    expect_undisturbed(&story, many_steps);
    release(&run);
}

/* Nobody else holds what it holds, and there is no checkpoint: it is not killed for being stopped. */
static void test_run__a_sole_worker_that_is_frozen_comes_back_with_its_state(void **state)
{
    struct run run;
    struct story story;

    (void)state;
    start_small_job(&run, write_job("frozen", "", ""), "1", few_steps);
    wait_for_step(&run, 10);
    strike(&run, 0, false, SIGSTOP);
    for (double end_ms = fleet_monotonic_ms() + 6000; fleet_monotonic_ms() < end_ms;)
        listen_to(&run, 100);
    strike(&run, 0, false, SIGCONT);
    wait_for_end(&run);
    story = expect_success(&run, atoi(few_steps));
    assert_int_equal(story.lost_steps, 0);
    assert_int_equal(story.restarts, 1);
    expect_undisturbed(&story, few_steps);
    release(&run);
}

/* Until the state file says that its members were asked to end. */
static void wait_until_leaving(struct run *run)
{
    double give_up_ms = fleet_monotonic_ms() + PATIENCE_MS;
    bool leaving = false;

    while (!leaving) {
        FLEET_AUTO_JSON cJSON *json = read_state(run);
        if (fleet_monotonic_ms() > give_up_ms)
            fail_msg("nobody was asked to end");
        leaving = json && cJSON_IsTrue(fleet_json_at(json, "members[0].deleting"));
        listen_to(run, 20);
    }
}

static void test_run__the_second_interrupt_does_not_wait(void **state)
{
    struct run run;
    double second_ms;

    (void)state;
    start_small_job(&run, write_job("twice", "", ""), "2", "100000");
    wait_for_step(&run, 5);
    strike(&run, 0, false, SIGSTOP); /* it cannot leave */
    (void)kill(run.pid, SIGTERM);
    wait_until_leaving(&run); /* two at once are one signal */
    second_ms = fleet_monotonic_ms();
    (void)kill(run.pid, SIGTERM);
    wait_for_end(&run);
    expect_exit(&run, 130);
    assert_true(fleet_monotonic_ms() - second_ms < 25000); /* less than the grace of 30 s */
    expect_nothing_left(&run);
    release(&run);
}

static void test_run__nothing_is_left_when_it_is_stopped_as_it_starts(void **state)
{
    char command[512], *arguments[] = {(char *)"sh", (char *)"-c", command, NULL}, place[128];

    (void)state;
    (void)snprintf(place, sizeof(place), "%s/temporary", folder);
    assert_int_equal(mkdir(place, 0700), 0);
    (void)snprintf(command, sizeof(command), "TMPDIR=%s exec %.300s run %s", place, program,
                   write_job("early", "", ""));
    for (useconds_t us = 0; us < 60000; us += 3000) {
        struct run run;
        start_program(&run, "/bin/sh", arguments);
        (void)usleep(us);
        (void)kill(run.pid, SIGTERM);
        wait_for_end(&run);
        expect_nothing_left(&run);
        release(&run);
    }
    assert_int_equal(rmdir(place), 0); /* as empty as it was */
}

static void test_run__nothing_is_left_when_it_is_killed(void **state)
{
    (void)state;
    for (int moment = 0; moment < 4; moment++) {
        struct run run;
        start_small_job(&run, write_job("killed", "", ""), "3", "100000");
        if (moment < 2) /* while agents and trainers are being started */
            (void)usleep(30000 + 60000 * (useconds_t)moment);
        else
            wait_for_step(&run, moment * 5);
        (void)kill(run.pid, SIGKILL);
        wait_for_end(&run);
        expect_exit(&run, 137);
        expect_nothing_left(&run);
        release(&run);
    }
}

/* ---- other people's trainers ------------------------------------------------------------------ */

static const char *write_foreign_job(const char *command)
{
    static char path[128];
    FILE *file;

    (void)snprintf(path, sizeof(path), "%s/foreign.yaml", folder);
    file = fopen(path, "w");
    (void)fprintf(file,
                  "apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\nmetadata: {name: own}\n"
                  "spec:\n  worker:\n    replicas: 2\n    processesPerPod: 2\n    template:\n"
                  "      spec:\n        containers:\n          - name: trainer\n"
                  "            env: [{name: WHERE, value: %s}]\n"
                  "            command: [sh, -c, '%s']\n"
                  "  runPolicy: {restart: {maxRestarts: 1}}\n",
                  folder, command);
    (void)fclose(file);
    return path;
}

static void test_run__a_command_of_ones_own_finds_its_rank(void **state)
{
    struct run run;

    (void)state;
    run_words(
        &run, "run",
        write_foreign_job("test -f $FLEET_STRATEGY_FILE && grep -q rank_id.*3 $RANK_TABLE_FILE && "
                          "echo $WORLD_SIZE $PADDLE_TRAINERS_NUM > $WHERE/rank-$RANK"),
        NULL);
    expect_exit(&run, 0);
    for (int rank = 0; rank < 4; rank++) {
        FLEET_AUTO_FREE char *text = NULL;
        char path[128];
        size_t size;
        (void)snprintf(path, sizeof(path), "%s/rank-%d", folder, rank);
        assert_int_equal(fleet_file_read(path, 100, &text, &size, NULL), 0);
        assert_string_equal(text, "4 4\n");
    }
    expect_nothing_left(&run);
    release(&run);
}

static void test_run__a_command_that_fails_fails_the_job(void **state)
{
    struct run run;

    (void)state;
    run_words(&run, "run", write_foreign_job("sleep 1000 & echo it broke; exit 3"), NULL);
    expect_exit(&run, 1);
    expect_words(&run.out, "1 restarts are used up; the last cause was TrainerFailed: it broke");
    expect_nothing_left(&run);
    release(&run);
}

/* ---- main ------------------------------------------------------------------------------------- */

/* build/release/tests/integration/test_run -> build/bin, build/asan/tests/… -> build/asan/bin. */
static bool find_program(void)
{
    char path[4000];
    ssize_t size = readlink("/proc/self/exe", path, sizeof(path) - 1);
    char *tests;

    path[size > 0 ? size : 0] = '\0';
    tests = strstr(path, "/tests/integration/");
    if (!tests)
        return false;
    *tests = '\0';
    if (strlen(path) > 8 && strcmp(path + strlen(path) - 8, "/release") == 0)
        path[strlen(path) - 8] = '\0';
    (void)snprintf(program, sizeof(program), "%s/bin/fleetjob", path);
    return access(program, X_OK) == 0;
}

static void write_text(const char *name, size_t size)
{
    char path[128];
    FILE *file;

    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    file = fopen(path, "w");
    for (size_t i = 0; i < size; i++) /* something to learn */
        (void)fputc("the quick brown fox jumps over the lazy dog. "[(i * 7 / 5) % 45], file);
    (void)fclose(file);
}

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/test-run-XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    write_text("text", 20000);
    write_text("empty", 0);
    write_text("short", 10);
    return 0;
}

static int remove_folder(void **state)
{
    char command[128];

    (void)state;
    (void)snprintf(command, sizeof(command), "rm -rf %s", folder);
    return system(command);
}

int main(int argc, char **argv)
{
    const char *variant = getenv("FLEET_TEST_VARIANT");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_run__wrong_usage_exits_2),
        cmocka_unit_test(test_run__help_and_version_exit_0),
        cmocka_unit_test(test_run__refuses_a_bad_job_with_all_its_errors),
        cmocka_unit_test(test_run__refuses_more_workers_than_micro_batches),
        cmocka_unit_test(test_run__what_the_command_line_changes_is_checked_like_the_file),
        cmocka_unit_test(test_run__bad_data_fails_with_the_path_and_no_restart),
        cmocka_unit_test(test_run__the_weights_are_the_same_on_any_number_of_workers),
        cmocka_unit_test(test_run__text_is_for_people),
        cmocka_unit_test(test_run__the_command_line_says_where_checkpoints_go),
        cmocka_unit_test(test_run__a_reader_that_leaves_stops_the_run),
        cmocka_unit_test(test_run__a_killed_trainer_changes_nothing),
        cmocka_unit_test(test_run__two_killed_trainers_change_nothing),
        cmocka_unit_test(test_run__a_killed_agent_changes_nothing),
        cmocka_unit_test(test_run__a_stopped_trainer_is_replaced),
        cmocka_unit_test(test_run__a_stopped_agent_holds_nobody_up),
        cmocka_unit_test(test_run__kills_at_random_moments_change_nothing),
        cmocka_unit_test(test_run__too_many_restarts_fail_with_the_cause),
        cmocka_unit_test(test_run__an_interrupt_saves_and_a_later_run_goes_on),
        cmocka_unit_test(test_run__an_interrupted_demo_saves_and_leaves_nothing),
        cmocka_unit_test(test_run__a_sole_worker_that_is_stopped_twice_loses_no_step),
        cmocka_unit_test(test_run__a_sole_worker_that_is_frozen_comes_back_with_its_state),
        cmocka_unit_test(test_run__the_second_interrupt_does_not_wait),
        cmocka_unit_test(test_run__nothing_is_left_when_it_is_stopped_as_it_starts),
        cmocka_unit_test(test_run__nothing_is_left_when_it_is_killed),
        cmocka_unit_test(test_run__a_command_of_ones_own_finds_its_rank),
        cmocka_unit_test(test_run__a_command_that_fails_fails_the_job),
    };

    if (variant && strcmp(variant, "release") != 0)
        few_steps = "120", many_steps = "300";
    if (argc > 1) /* only the tests whose names match */
        cmocka_set_test_filter(argv[1]);
    if (!find_program()) {
        (void)fprintf(stderr, "%s is not built: make tests\n", program);
        return 1;
    }
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

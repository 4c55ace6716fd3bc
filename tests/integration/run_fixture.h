/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_INTEGRATION_RUN_FIXTURE_H
#define TESTS_INTEGRATION_RUN_FIXTURE_H

/*
 * `fleetjob run` as a user runs it: starts the real programs on small jobs, reads their output,
 * kills processes, and checks the files that they leave. For test_run*.c. Each of them has a folder
 * of its own with a text to train on.
 */
#include <errno.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "tests/integration/run_program.h"
#include "tests/integration/run_story.h"
#include "tests/support/job_killer.h"

#define STEPS 60

static char folder[64]; /* of this test, removed at its end */

/* Steps of the jobs that are struck; sanitizers make each of them ten times as long. */
#define ENDLESS_STEPS "1000000000" /* of a job that ends by what the test does */

static const char *few_steps = "300", *many_steps = "1500";

/* ---- jobs ------------------------------------------------------------------------------------ */

/* A small job in `folder`; `extra` lines go below spec (indented by two). Borrowed until the
 * next. */
static inline const char *write_job(const char *name, const char *training, const char *extra)
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

/* A number of steps as an argument. Borrowed until the next. */
static inline const char *steps_text(int steps)
{
    static char text[16];

    (void)snprintf(text, sizeof(text), "%d", steps);
    return text;
}

static inline void start_small_job(struct run *run, const char *path, const char *workers,
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

/* ---- how it ended --------------------------------------------------------------------------- */

/* The weights of `story` are those of the newest checkpoint in folder `name`. */
static inline void expect_exported(const char *name, const struct story *story)
{
    char path[128], out[128];
    struct run run;

    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    (void)snprintf(out, sizeof(out), "%s/%s.safetensors", folder, name);
    run_words(&run, "export", path, out, NULL);
    expect_exit(&run, 0);
    expect_words(&run.out, story->sha256);
    release(&run);
}

static inline struct story expect_success(const struct run *run, int64_t steps)
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
static inline const char *undisturbed_weights(const char *steps)
{
    static char known[24][2][80];

    for (size_t i = 0; i < FLEET_COUNT(known); i++) {
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

static inline void expect_undisturbed(const struct story *story, const char *steps)
{
    const char *expected = undisturbed_weights(steps);

    if (strcmp(story->sha256, expected) != 0)
        fail_msg("the weights differ: expected %s, got %s", expected, story->sha256);
}

/* ---- listening and striking ------------------------------------------------------------------ */

/* Listen until these words were printed. False: the job ended without them. */
static inline bool listen_for_words(struct run *run, const char *words)
{
    double give_up_ms = fleet_monotonic_ms() + PATIENCE_MS;

    while (!strstr(fleet_strbuf_text(&run->out), words)) {
        if (run->process.out_fd < 0 || fleet_monotonic_ms() > give_up_ms)
            return false;
        listen_to(run, 100);
    }
    return true;
}

static inline void wait_for_words(struct run *run, const char *words)
{
    if (!listen_for_words(run, words))
        fail_msg("%s never came; it said:\n%s\n%s", words, fleet_strbuf_text(&run->out),
                 fleet_strbuf_text(&run->err));
}

/* Listen until step `step` was printed. */
static inline void wait_for_step(struct run *run, int step)
{
    char words[40];

    (void)snprintf(words, sizeof(words), "\"step\",\"step\":%d,", step);
    wait_for_words(run, words);
}

/* The state file as it is now; the caller frees it. NULL = there is none. */
static inline cJSON *read_state(const struct run *run)
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
static inline pid_t find_process(const struct run *run, int i, bool agent)
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
static inline bool is_alive(pid_t pid)
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
static inline bool strike_if_running(struct run *run, int i, bool agent, int signal_number)
{
    double give_up_ms = fleet_monotonic_ms() + PATIENCE_MS;
    pid_t pid;

    while (!is_alive(pid = find_process(run, i, agent)) || kill(pid, signal_number) < 0) {
        if (run->process.out_fd < 0)
            return false;
        if (fleet_monotonic_ms() > give_up_ms)
            fail_msg("member %d was never there", i);
        listen_to(run, 20);
    }
    return true;
}

/* Strike a job that lasts longer than any delay of this reader. */
static inline void strike(struct run *run, int i, bool agent, int signal_number)
{
    if (!strike_if_running(run, i, agent, signal_number))
        fail_msg("the job was over before member %d was struck", i);
}

/* Strike jobs, each with twice the steps of the last one, until one is hit while it runs. A strike
 * may also refuse a job with more restarts than it explains: on a busy machine the hub misses
 * workers that nobody has struck. */
static inline void strike_until_hit(job_strike_of strike_job, const void *context,
                                    const char *steps)
{
    if (!job_strike_until_hit(strike_job, context, atoi(steps)))
        fail_msg("each job was over before it was struck, or had too many restarts");
}

/* ---- the group of tests ---------------------------------------------------------------------- */

/* build/release/tests/integration/test_run -> build/bin, build/asan/tests/… -> build/asan/bin. */
static inline bool find_program(void)
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

static inline void write_text(const char *name, size_t size)
{
    char path[128];
    FILE *file;

    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    file = fopen(path, "w");
    for (size_t i = 0; i < size; i++) /* something to learn */
        (void)fputc("the quick brown fox jumps over the lazy dog. "[(i * 7 / 5) % 45], file);
    (void)fclose(file);
}

static inline int make_folder(void **state)
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

static inline int remove_folder(void **state)
{
    char command[128];

    (void)state;
    (void)snprintf(command, sizeof(command), "rm -rf %s", folder);
    return system(command);
}

/* Before the tests: false = the programs are not built. An argument: only the tests whose names
 * match. */
static inline bool find_everything(int argc, char **argv)
{
    const char *variant = getenv("FLEET_TEST_VARIANT");

    if (variant && strcmp(variant, "release") != 0)
        few_steps = "120", many_steps = "300";
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    (void)signal(SIGINT, SIG_DFL); /* a shell ignores it for what it runs in the background */
    if (!find_program()) {
        (void)fprintf(stderr, "%s is not built: make tests\n", program);
        return false;
    }
    return true;
}

#endif

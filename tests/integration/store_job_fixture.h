/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_INTEGRATION_STORE_JOB_FIXTURE_H
#define TESTS_INTEGRATION_STORE_JOB_FIXTURE_H

/*
 * Jobs whose data and checkpoints lie in a store. Each worker has a cache of its own, as workers on
 * different machines have.
 */

#include <dlfcn.h>

/* error.h comes first: fleet.h defines the same structure where error.h is absent. */
/* clang-format off */
#include "libfleet/base/error.h"
#include "include/fleet/fleet_fs.h"
/* clang-format on */
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "tests/integration/s3_fixture.h"

#define LIMIT_S 600.0
#define DATA    "s3://fleet/words"
#define SAVED   "s3://fleet/saved"

static const char *words_folder = "data/fleet/words"; /* the same data, below home */

/* A folder with our programs in which the trainer is a script: it gives each pod its own cache. */
static inline void make_programs(void)
{
    const char *built = getenv("FLEET_BIN");
    FLEET_AUTO_FREE char *bin = realpath(built ? built : "build/bin", NULL);
    FLEET_AUTO_FREE char *library = realpath("build/lib/libfleet.so.0", NULL);
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    assert_non_null(bin);
    assert_non_null(library);
    (void)setenv("FLEET_LIBRARY", library, 1);
    assert_int_equal(mkdir(at_home("bin"), 0777), 0);
    fleet_strbuf_appendf(&text, "cp '%s/fleetjob' '%s/fleetjob-agent' '%s'", bin, bin,
                         at_home("bin"));
    assert_int_equal(system(text.text), 0); // NOLINT(cert-env33-c): paths of this test
    fleet_strbuf_clear(&text);
    fleet_strbuf_appendf(&text,
                         "#!/bin/sh\nFLEET_CACHE='%s'/$FLEET_POD_NAME\nexport FLEET_CACHE\n"
                         "exec '%s/fleetjob-train' \"$@\"\n",
                         at_home("caches"), bin);
    write_text(at_home("bin/fleetjob-train"), text.text);
    assert_int_equal(chmod(at_home("bin/fleetjob-train"), 0777), 0);
    (void)setenv("FLEET_BIN", at_home("bin"), 1);
}

/* The data: files a.txt and b.txt. */
static inline void make_words(void)
{
    FLEET_AUTO_FREE char *folder = fleet_dup_text(at_home(words_folder));
    FLEET_AUTO_FREE char *a = fleet_file_join(folder, "a.txt");
    FLEET_AUTO_FREE char *b = fleet_file_join(folder, "b.txt");
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    for (int i = 0; i < 400; i++)
        fleet_strbuf_appendf(&text, "line %d of some text to learn\n", i);
    assert_int_equal(mkdir(folder, 0777), 0);
    write_text(a, text.text);
    write_text(b, text.text + text.length / 2);
}

/* Copy them to `data`, by the library that trainers open. */
static inline void send_words(const char *data)
{
    const struct fleet_fs_options options = {.attempts = 4000, .pause_ms = 50};
    void *library = dlopen("build/lib/libfleet.so.0", RTLD_NOW | RTLD_LOCAL);
    __typeof__(&fleet_fs_open) open_fs = dlsym(library, "fleet_fs_open");
    __typeof__(&fleet_fs_upload) upload = dlsym(library, "fleet_fs_upload");
    __typeof__(&fleet_fs_free) free_fs = dlsym(library, "fleet_fs_free");
    struct fleet_error err;
    struct fleet_fs *fs = NULL;

    if (open_fs(data, &options, &fs, &err) < 0 ||
        upload(fs, at_home(words_folder), data, false, &err) < 0)
        fail_msg("%s", err.text);
    free_fs(fs);
    (void)dlclose(library);
}

struct wishes {
    const char *data, *saved, *more; /* more: of checkpoint, after its path */
    const char *strategy;            /* or NULL */
    int steps, workers;
    job_run_watch watch;
    void *context;
};

static inline void run_job(const struct wishes *w, struct job_run *out)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    const char *arguments[] = {at_home("job.yaml"), "--verbose", NULL};

    fleet_strbuf_appendf(
        &text,
        "apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\nmetadata: {name: stored}\nspec:\n"
        "  worker: {replicas: %d}\n  strategy: {%s}\n  training:\n"
        "    model: {name: gpt, layers: 1, heads: 2, width: 32, context: 32}\n"
        "    data: {path: \"%s\"}\n    optimizer: {name: adamw, learningRate: 0.001}\n"
        "    globalBatchSize: 4\n    microBatchSize: 1\n    steps: %d\n"
        "    checkpoint: {path: \"%s\"%s}\n",
        w->workers, w->strategy ? w->strategy : "", w->data, w->steps, w->saved, w->more);
    write_text(arguments[0], text.text);
    job_run(arguments, LIMIT_S, w->watch, w->context, out);
}

static inline void expect_success(const struct job_run *run)
{
    if (run->exit_code != 0)
        fail_msg("exit code %d: %s %s", run->exit_code, run->errors, run->problem);
}

/* One failure with one message and its reason, and no other try. */
static inline void expect_refused_once(const char *data, const char *saved,
                                       const char *const *texts)
{
    const struct wishes w = {.data = data, .saved = saved, .more = "", .steps = 4, .workers = 1};
    struct job_run run;

    run_job(&w, &run);
    assert_int_equal(run.exit_code, 1);
    assert_int_equal(run.restart_count, 0);
    assert_non_null(strstr(run.errors, "cause=\"StoreRefused\"")); /* in the agent's log */
    for (; *texts; texts++)
        if (!strstr(run.errors, *texts))
            fail_msg("no \"%s\" in: %s", *texts, run.errors);
    job_run_release(&run);
}

/* The weights of the same job with local folders. */
static inline void expect_local_weights(const char *sha256, int steps)
{
    const struct wishes w = {.data = at_home(words_folder),
                             .saved = at_home("local"),
                             .more = ", resume: never",
                             .steps = steps,
                             .workers = 1};
    struct job_run run;

    run_job(&w, &run);
    expect_success(&run);
    assert_string_equal(sha256, run.sha256);
    job_run_release(&run);
}

struct strike {
    pid_t agents[32];
    int agent_count;
    int64_t saved; /* step of the newest checkpoint that was reported */
};

static inline void kill_all(void *context, struct job_run *run, const cJSON *event)
{
    struct strike *strike = context;
    const char *name = "";

    (void)fleet_json_opt_string(event, "event", &name, NULL);
    if (strcmp(name, "checkpoint") != 0 || strike->agent_count > 0)
        return;
    (void)fleet_json_opt_int(event, "step", &strike->saved, NULL);
    strike->agent_count = job_run_agents(run->pid, strike->agents, 32);
    (void)kill(run->pid, SIGKILL);
}

/* Kill a job of two workers while it trains, longer ones until it was not over first; then go on.
 * Its checkpoints lie at a place that begins with `name`. */
static inline void expect_to_go_on(const char *name, const char *strategy,
                                   void (*go_on)(int steps, const struct strike *strike,
                                                 const char *saved))
{
    bool is_hit = false;

    for (int steps = 100; !is_hit; steps *= 2) {
        struct strike strike = {0};
        char saved[64];
        const struct wishes w = {.data = DATA,
                                 .saved = saved,
                                 .more = ", everySteps: 5",
                                 .strategy = strategy,
                                 .steps = steps,
                                 .workers = 2,
                                 .watch = kill_all,
                                 .context = &strike};
        struct job_run run;
        assert_true(steps < 10000);
        (void)snprintf(saved, sizeof(saved), "%s-%d", name, steps);
        run_job(&w, &run);
        is_hit = run.exit_code == 128 + SIGKILL && !run.end; /* else the job was over first */
        if (is_hit)
            go_on(steps, &strike, saved);
        job_run_release(&run);
    }
}

#endif

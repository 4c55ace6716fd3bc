/* SPDX-License-Identifier: Apache-2.0 */

/* Jobs whose data and checkpoints lie in S3 (tests/fake/s3.py). */
#include <dirent.h>

#include "tests/integration/store_job_fixture.h"

/* ---- jobs ------------------------------------------------------------------------------------ */

static int start_all(void **state)
{
    if (s3_start(state) != 0)
        return -1;
    make_programs();
    make_words();
    write_text(at_home("data/fleet/words/.hidden"), "not read");
    return 0;
}

/* Checkpoints of the bucket; every one must be complete, with nothing else in it. */
static int count_checkpoints(const char *prefix)
{
    FLEET_AUTO_FREE char *folder = fleet_file_join(at_home("data/fleet"), prefix);
    DIR *dir = opendir(folder);
    struct dirent *entry;
    int count = 0;

    while (dir && (entry = readdir(dir))) {
        FLEET_AUTO_STRBUF struct fleet_strbuf path = {0};
        if (entry->d_name[0] == '.')
            continue;
        fleet_strbuf_appendf(&path, "%s/%s/manifest.json", folder, entry->d_name);
        if (access(path.text, F_OK) != 0)
            fail_msg("%s is torn", entry->d_name);
        count++;
    }
    if (dir)
        (void)closedir(dir);
    return count;
}

/* How many files below `folder` end in `suffix`. */
static int count_files(const char *folder, const char *suffix)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf command = {0};
    char line[32] = "";
    FILE *pipe;

    fleet_strbuf_appendf(&command, "find '%s' -name '*%s' 2>/dev/null | wc -l", folder, suffix);
    pipe = popen(command.text, "r"); // NOLINT(cert-env33-c): paths of this test
    assert_non_null(pipe);
    assert_non_null(fgets(line, sizeof(line), pipe));
    (void)pclose(pipe);
    return atoi(line);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void test_store_run__trains_from_a_store_and_saves_there(void **state)
{
    const struct wishes w = {.data = DATA,
                             .saved = SAVED,
                             .more = ", everySteps: 5, keep: 2",
                             .steps = 20,
                             .workers = 2};
    FLEET_AUTO_FREE char *log = NULL;
    struct job_run run;

    (void)state;
    run_job(&w, &run);
    expect_success(&run);
    assert_string_equal(run.problem, "");
    assert_int_equal(run.checkpoint_count, 4);
    expect_local_weights(run.sha256, 20);
    assert_int_equal(count_checkpoints("saved"), 2);
    assert_int_equal(count_files(at_home("data/fleet/saved"), ".safetensors"), 8);
    assert_int_equal(count_files(at_home("data/fleet/saved"), ".note"), 0);
    assert_int_equal(count_files(at_home("caches"), ".safetensors"), 0);
    assert_int_equal(count_files(at_home("caches"), "a.txt"), 2); /* once a pod */
    assert_int_equal(count_files(at_home("caches"), ".hidden"), 0);
    log = read_home("log");
    assert_null(strstr(log, "fleet/words/.hidden"));
    job_run_release(&run);
}

/* Another machine goes on: the caches are empty. */
static void go_on(int steps, const struct strike *strike, const char *saved)
{
    const struct wishes w = {
        .data = DATA, .saved = saved, .more = ", everySteps: 5", .steps = steps, .workers = 1};
    struct job_run run;

    assert_int_equal(job_run_left(strike->agents, strike->agent_count, 120), 0);
    assert_int_equal(rename(at_home("caches"), at_home("caches-of-the-first")), 0);
    run_job(&w, &run);
    expect_success(&run);
    assert_true(run.step_count > 0 && run.steps[0].step > strike->saved);
    expect_local_weights(run.sha256, steps);
    job_run_release(&run);
}

static void test_store_run__goes_on_after_fleetjob_was_killed(void **state)
{
    (void)state;
    expect_to_go_on(SAVED, NULL, go_on);
}

/* The message of a save that failed; NULL: this is another event. */
static const char *failed_save(const cJSON *event)
{
    const char *name = "", *message = "";

    (void)fleet_json_opt_string(event, "event", &name, NULL);
    (void)fleet_json_opt_string(event, "message", &message, NULL);
    return strcmp(name, "checkpointFailed") == 0 ? message : NULL;
}

static void count_failures(void *context, struct job_run *run, const cJSON *event)
{
    const char *message = failed_save(event);

    (void)run;
    if (!message)
        return;
    ++*(int *)context;
    if (!strstr(message, "spec.training.checkpoint.path " SAVED) ||
        !strstr(message, "saved-faults/step-"))
        fail_msg("it does not say where: %s", message);
}

static void count_refusals(void *context, struct job_run *run, const cJSON *event)
{
    const char *message = failed_save(event);

    (void)run;
    if (!message)
        return;
    ++*(int *)context;
    if (!strstr(message, "status 403"))
        fail_msg("it does not say why: %s", message);
}

static void test_store_run__uploads_that_fail_are_tried_again(void **state)
{
    int failures = 0;
    const struct wishes w = {.data = DATA,
                             .saved = SAVED "-faults",
                             .more = ", everySteps: 10",
                             .steps = 20,
                             .workers = 2,
                             .watch = count_failures,
                             .context = &failures};
    struct job_run run;

    (void)state;
    set_faults("PUT model-00001 4 0\nPUT optimizer-00002 4 0\nPUT manifest.json 4 503\n");
    run_job(&w, &run);
    set_faults("");
    expect_success(&run);
    assert_true(failures > 0);
    expect_local_weights(run.sha256, 20);
    assert_in_range(count_checkpoints("saved-faults"), 1, 2);
    job_run_release(&run);
}

static void test_store_run__a_lost_last_checkpoint_fails_the_job(void **state)
{
    const struct wishes w = {
        .data = DATA, .saved = SAVED "-lost", .more = "", .steps = 4, .workers = 1};
    struct job_run run;

    (void)state;
    set_faults("PUT manifest.json 1000000 403\n");
    (void)setenv("FLEET_SAVE_PATIENCE_SECONDS", "1", 1);
    run_job(&w, &run);
    (void)unsetenv("FLEET_SAVE_PATIENCE_SECONDS");
    set_faults("");
    assert_int_equal(run.exit_code, 1);
    assert_string_equal(run.state, "Failed");
    for (const char *const *texts =
             (const char *const[]){SAVED "-lost", "manifest.json", "a fault of the test", NULL};
         *texts; texts++)
        if (!strstr(run.errors, *texts))
            fail_msg("no \"%s\" in: %s", *texts, run.errors);
    assert_int_equal(count_checkpoints("saved-lost"), 0);
    job_run_release(&run);
}

/* At the start, not after hours of work. */
static void test_store_run__keys_that_may_only_read_end_the_job_once(void **state)
{
    (void)state;
    set_faults("PUT .fleetjob-try 1 403\n");
    expect_refused_once(DATA, SAVED,
                        (const char *const[]){"spec.training.checkpoint.path: " SAVED,
                                              "cannot be written", "status 403", NULL});
    set_faults("");
}

static void test_store_run__says_what_is_wrong_with_the_data(void **state)
{
    (void)state;
    expect_refused_once(
        "s3://fleet/none", SAVED,
        (const char *const[]){"spec.training.data.path", "s3://fleet/none does not exist", NULL});
    (void)setenv("AWS_ACCESS_KEY_ID", "other", 1);
    expect_refused_once(
        DATA, SAVED, (const char *const[]){"spec.training.data.path: " DATA, "status 403", NULL});
    (void)unsetenv("AWS_ACCESS_KEY_ID");
    expect_refused_once(DATA, SAVED,
                        (const char *const[]){"spec.training.data.path: " DATA,
                                              "AWS_ACCESS_KEY_ID is not set", NULL});
    (void)setenv("AWS_ACCESS_KEY_ID", "fleetuser", 1);
}

/* Every write but that of the start: both workers say so, and none waits for the other's note. How
 * many restarts did it cost? */
static int refuse_writes(const char *strategy, const char *saved)
{
    int failures = 0, restarts;
    const struct wishes w = {.data = DATA,
                             .saved = saved,
                             .more = ", everySteps: 10",
                             .strategy = strategy,
                             .steps = 20,
                             .workers = 2,
                             .watch = count_refusals,
                             .context = &failures};
    struct job_run run;

    run_job(&w, &run);
    assert_int_equal(run.exit_code, 1);
    assert_string_equal(run.state, "Failed");
    assert_true(failures > 0);
    for (const char *const *texts =
             (const char *const[]){"the last checkpoint, of step 20", saved, "status 403", NULL};
         *texts; texts++)
        if (!strstr(run.errors, *texts))
            fail_msg("no \"%s\" in: %s", *texts, run.errors);
    restarts = run.restart_count;
    job_run_release(&run);
    return restarts;
}

/* On a busy machine the hub may miss a worker, but not each time. */
static void refuse_without_a_restart(const char *strategy, const char *saved)
{
    int tries = 1;

    while (refuse_writes(strategy, saved) > 0)
        assert_true(tries++ < 5);
}

static void test_store_run__a_store_that_refuses_later_fails_a_job_of_two(void **state)
{
    (void)state;
    set_faults("PUT model- 1000000 403\nPUT optimizer- 1000000 403\nPUT shard- 1000000 403\n"
               "PUT manifest.json 1000000 403\n");
    (void)setenv("FLEET_SAVE_PATIENCE_SECONDS", "1", 1);
    refuse_without_a_restart(NULL, SAVED "-refused");
    refuse_without_a_restart("sharding: true, sharding_configs: {stage: 2}",
                             SAVED "-refused-parts");
    (void)unsetenv("FLEET_SAVE_PATIENCE_SECONDS");
    set_faults("");
    assert_int_equal(count_checkpoints("saved-refused"), 0);
    assert_int_equal(count_checkpoints("saved-refused-parts"), 0);
}

/* The place of the checkpoint of the bucket whose name begins so; heap. */
static char *newest_checkpoint(const char *place, const char *prefix)
{
    FLEET_AUTO_FREE char *folder = fleet_file_join(at_home("data/fleet"), place);
    FLEET_AUTO_STRBUF struct fleet_strbuf url = {0};
    DIR *dir = opendir(folder);
    struct dirent *entry;

    assert_non_null(dir);
    while ((entry = readdir(dir)) && url.length == 0)
        if (strncmp(entry->d_name, prefix, strlen(prefix)) == 0)
            fleet_strbuf_appendf(&url, "s3://fleet/%s/%s", place, entry->d_name);
    (void)closedir(dir);
    return fleet_strbuf_take(&url);
}

/* `fleetjob NAME FROM TO`: what it prints, heap. */
static char *use_weights(const char *name, const char *from, const char *to)
{
    const char *const line[] = {name, from, to, NULL};
    FLEET_AUTO_FREE char *errors = NULL;
    char *out = NULL;

    if (job_run_command("fleetjob", line, &out, &errors) != 0)
        fail_msg("%s %s: %s", name, from, errors);
    return out;
}

static void test_store_run__weights_come_out_of_the_store(void **state)
{
    const struct wishes w = {.data = DATA,
                             .saved = SAVED "-weights",
                             .more = ", everySteps: 5",
                             .steps = 10,
                             .workers = 2};
    const char *const nothing[] = {"export", "s3://fleet/words", at_home("none"), NULL};
    FLEET_AUTO_FREE char *newest = NULL, *exported = NULL, *one = NULL, *evaluated = NULL,
                         *errors = NULL;
    struct job_run run;

    (void)state;
    run_job(&w, &run);
    expect_success(&run);
    exported = use_weights("export", SAVED "-weights", at_home("all.safetensors"));
    assert_non_null(strstr(exported, "of step 10 "));
    assert_non_null(strstr(exported, run.sha256));
    newest = newest_checkpoint("saved-weights", "step-00000010-");
    one = use_weights("export", newest, at_home("one.safetensors"));
    assert_non_null(strstr(one, run.sha256));
    evaluated = use_weights("eval", SAVED "-weights", at_home("data/fleet/words"));
    assert_non_null(strstr(evaluated, "loss"));
    assert_int_equal(job_run_command("fleetjob", nothing, NULL, &errors), 1);
    assert_non_null(strstr(errors, "s3://fleet/words: there is no checkpoint"));
    job_run_release(&run);
}

/* The weights after three steps of a job whose vocabulary, merges and first weights lie below
 * `place`. */
static void run_bpe(const char *place, const char *weights, char sha256[65])
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    const char *arguments[] = {at_home("job.yaml"), NULL};
    struct job_run run;

    fleet_strbuf_appendf(
        &text,
        "apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\nmetadata: {name: pieces}\nspec:\n"
        "  worker: {replicas: 2}\n  training:\n"
        "    model: {name: gpt, layers: 1, heads: 2, width: 32, context: 32, vocabulary: 700%s%s}\n"
        "    data: {path: \"%s\", tokenizer: bpe, vocabulary: \"%s/vocab.json\","
        " merges: \"%s/merges.txt\"}\n"
        "    optimizer: {name: adamw, learningRate: 0.001}\n    globalBatchSize: 4\n"
        "    microBatchSize: 1\n    steps: 3\n    checkpoint: {path: \"%s\", resume: never}\n",
        weights ? ", initialWeights: " : "", weights ? weights : "", DATA, place, place,
        weights ? SAVED "-second" : SAVED "-first");
    write_text(arguments[0], text.text);
    job_run(arguments, LIMIT_S, NULL, NULL, &run);
    expect_success(&run);
    (void)snprintf(sha256, 65, "%s", run.sha256);
    job_run_release(&run);
}

static void copy_to_store(const char *from, const char *name)
{
    FLEET_AUTO_FREE char *text = NULL;
    FLEET_AUTO_FREE char *folder = fleet_dup_text(at_home("data/fleet/bpe"));
    FLEET_AUTO_FREE char *to = fleet_file_join(folder, name);
    size_t size;

    (void)mkdir(folder, 0777);
    assert_int_equal(fleet_file_read(from, 1 << 24, &text, &size, NULL), 0);
    assert_int_equal(fleet_file_write(to, text, size, NULL), 0);
}

static void test_store_run__reads_vocabulary_and_first_weights_there(void **state)
{
    FLEET_AUTO_FREE char *golden = realpath("tests/golden/bpe", NULL), *said = NULL;
    FLEET_AUTO_FREE char *start = fleet_dup_text(at_home("start.safetensors"));
    char here[65], there[65];

    (void)state;
    copy_to_store("tests/golden/bpe/vocab.json", "vocab.json");
    copy_to_store("tests/golden/bpe/merges.txt", "merges.txt");
    run_bpe(golden, NULL, here);
    run_bpe("s3://fleet/bpe", NULL, there);
    assert_string_equal(there, here);
    said = use_weights("export", SAVED "-first", start);
    copy_to_store(start, "start.safetensors");
    run_bpe(golden, start, here);
    run_bpe("s3://fleet/bpe", "s3://fleet/bpe/start.safetensors", there);
    assert_string_equal(there, here);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_store_run__trains_from_a_store_and_saves_there),
        cmocka_unit_test(test_store_run__goes_on_after_fleetjob_was_killed),
        cmocka_unit_test(test_store_run__uploads_that_fail_are_tried_again),
        cmocka_unit_test(test_store_run__a_lost_last_checkpoint_fails_the_job),
        cmocka_unit_test(test_store_run__keys_that_may_only_read_end_the_job_once),
        cmocka_unit_test(test_store_run__a_store_that_refuses_later_fails_a_job_of_two),
        cmocka_unit_test(test_store_run__weights_come_out_of_the_store),
        cmocka_unit_test(test_store_run__reads_vocabulary_and_first_weights_there),
        cmocka_unit_test(test_store_run__says_what_is_wrong_with_the_data),
    };

    return cmocka_run_group_tests(tests, start_all, s3_stop);
}

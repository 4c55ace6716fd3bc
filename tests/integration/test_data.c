/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Data of a job as a user meets them: what is wrong with a file, for training or for evaluation,
 * before or during the run, ends the job with exit code 1 and a message that names field and file;
 * and a byte-pair model takes its vocabulary from the tokenizer's file.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "tests/support/job_folder.h"
#include "tests/support/job_run.h"

#define LIMIT_S 600.0
#define TRIES   5 /* as a trainer may see a file half written */
#define GPT     "name: gpt, layers: 1, heads: 2, width: 16, context: 16"
#define RESNET  "name: resnet, depths: [1, 1, 1, 1], baseWidth: 2"
#define BPE     "path: text, tokenizer: bpe, vocabulary: vocab.json, merges: merges.txt"
#define ENDLESS "1000000" /* steps: the change comes first */

static char *path_of(const char *name)
{
    return fleet_file_join(folder, name);
}

static void make_folder_in(const char *name)
{
    FLEET_AUTO_FREE char *path = path_of(name);

    assert_int_equal(mkdir(path, 0700), 0);
}

/* `name`: `count` lines of text. */
static void write_lines(const char *name, int count)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    for (int i = 0; i < count; i++)
        fleet_strbuf_appendf(&text, "line %d of some text to learn\n", i);
    write_file(name, text.text, text.length);
}

static void copy_golden(const char *name)
{
    FLEET_AUTO_FREE char *from = fleet_file_join("tests/golden/bpe", name);
    FLEET_AUTO_FREE char *text = NULL;
    size_t size;

    assert_int_equal(fleet_file_read(from, 1 << 20, &text, &size, NULL), 0);
    write_file(name, text, size);
}

static void write_job(const char *model, const char *data, const char *rest)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    fleet_strbuf_appendf(
        &text,
        "apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\nmetadata: {name: data}\n"
        "spec: {worker: {replicas: 2}, training: {model: {%s}, data: {%s}, "
        "optimizer: {learningRate: 0.001}, globalBatchSize: 4, microBatchSize: 1, %s}}\n",
        model, data, rest);
    write_file("job.yaml", text.text, text.length);
}

static void run_job(const char *workers, job_run_watch watch, void *context, struct job_run *out)
{
    FLEET_AUTO_FREE char *path = path_of("job.yaml");
    const char *arguments[] = {"--workers", workers, path, NULL};

    job_run(arguments, LIMIT_S, watch, context, out);
}

/* `words`, with NULL at the end, all are in one line of the messages of `run`. */
static void expect_line(const char *errors, const char *what, const char *const *words)
{
    FLEET_AUTO_FREE char *copy = strdup(errors);
    char *rest = copy, *line;

    assert_non_null(copy);
    while ((line = strsep(&rest, "\n"))) {
        size_t found = 0;
        while (words[found] && strstr(line, words[found]))
            found++;
        if (!words[found])
            return;
    }
    fail_msg("%s: no line with \"%s\", \"%s\" … in:\n%s", what, words[0], words[1], errors);
}

static void expect_failed(const struct job_run *run, const char *what, const char *const *words)
{
    if (run->exit_code != 1 || strcmp(run->state, "Failed") != 0)
        fail_msg("%s: exit code %d, state \"%s\" after %d steps: %s", what, run->exit_code,
                 run->state, run->step_count, run->errors);
    assert_string_equal(run->problem, "");
    expect_line(run->errors, what, words);
}

/* ---- wrong from the beginning ---------------------------------------------------------------- */

/* Before there is a process. */
static void expect_refused(const char *model, const char *data, const char *rest,
                           const char *const *words)
{
    struct job_run run;

    write_job(model, data, rest);
    run_job("2", NULL, NULL, &run);
    if (run.exit_code != 1 || strcmp(run.state, "") != 0)
        fail_msg("%s: exit code %d, state \"%s\": %s", data, run.exit_code, run.state, run.errors);
    expect_line(run.errors, data, words);
    job_run_release(&run);
}

#define REFUSED(model, data, rest, ...) \
    expect_refused(model, data, rest, (const char *[]){"spec.training.data.", __VA_ARGS__, NULL})

/* By a trainer, which meets it between the samples that are looked at before. */
static void expect_met(const char *model, const char *data, const char *rest,
                       const char *const *words)
{
    struct job_run run;

    write_job(model, data, rest);
    run_job("2", NULL, NULL, &run);
    expect_failed(&run, data, words);
    job_run_release(&run);
}

#define MET(model, data, rest, ...) \
    expect_met(model, data, rest, (const char *[]){"spec.training.data.", __VA_ARGS__, NULL})

static void test_data__of_the_wrong_size_or_kind(void **state)
{
    static const uint8_t zeros[3073 * 4 + 1];
    FLEET_AUTO_FREE char *pipe = path_of("pipe");

    (void)state;
    write_file("odd", zeros, 1001);
    write_file("pictures", zeros, sizeof(zeros));
    assert_int_equal(mkfifo(pipe, 0600), 0);
    make_folder_in("set");
    write_file("set/test_batch.bin", zeros, 3073);
    REFUSED(GPT ", vocabulary: 256", "path: odd, tokenizer: tokens-u16", "steps: 3", "data.path",
            "/odd", "1001", "multiple of the 2");
    REFUSED(GPT ", vocabulary: 256", "path: odd, tokenizer: tokens-u32", "steps: 3", "data.path",
            "/odd", "1001", "multiple of the 4");
    REFUSED(RESNET, "path: pictures, tokenizer: cifar10", "steps: 3", "data.path", "/pictures",
            "12293", "multiple of the 3073");
    REFUSED(RESNET, "path: set, tokenizer: cifar10", "steps: 3", "data.path", "/set", "*.bin");
    REFUSED(GPT, "path: pipe", "steps: 3", "data.path", "/pipe", "regular file");
}

#define TOKENS 6400 /* 399 samples of 16, each sixth is looked at */
#define IMAGES 200  /* each third */

/* A token that the model does not have: where it stands and what is allowed. */
static void test_data__with_a_token_that_the_model_has_not(void **state)
{
    uint16_t tokens[TOKENS];

    (void)state;
    for (int i = 0; i < TOKENS; i++)
        tokens[i] = 5;
    tokens[16 * 361 + 1] = 300; /* in the first batch that is held out */
    write_file("tokens", tokens, sizeof(tokens));
    MET(GPT ", vocabulary: 300", "path: tokens, tokenizer: tokens-u16, validation: 0.1",
        "steps: 4, evaluation: {everySteps: 2, batches: 1}", "evaluation: ", "/tokens", "300");
    tokens[16 * 7 + 1] = 300;
    write_file("tokens", tokens, sizeof(tokens));
    MET(GPT ", vocabulary: 300", "path: tokens, tokenizer: tokens-u16, shuffle: false", "steps: 90",
        "data.path", "/tokens at position 113", "token 300 is not below", "300");
    tokens[16 * 6 + 1] = 300;
    write_file("tokens", tokens, sizeof(tokens));
    REFUSED(GPT ", vocabulary: 300", "path: tokens, tokenizer: tokens-u16", "steps: 90",
            "data.path", "/tokens at position 97", "token 300 is not below", "300");
}

static void test_data__with_a_label_that_the_model_has_not(void **state)
{
    static uint8_t images[IMAGES * 3073];

    (void)state;
    images[181 * 3073] = 77; /* in the first batch that is held out */
    write_file("images", images, sizeof(images));
    MET(RESNET, "path: images, tokenizer: cifar10, validation: 0.1",
        "steps: 4, evaluation: {everySteps: 2, batches: 1}", "evaluation: ", "/images", "label 77");
    for (int i = 1; i < IMAGES; i += 3)
        images[i * 3073] = 77;
    write_file("images", images, sizeof(images));
    MET(RESNET, "path: images, tokenizer: cifar10", "steps: 20", "data.path", "/images", "label 77",
        "below 10");
    images[0] = 77;
    write_file("images", images, sizeof(images));
    REFUSED(RESNET, "path: images, tokenizer: cifar10", "steps: 20", "data.path", "/images",
            "label 77", "below 10");
}

/* ---- changed during the run ------------------------------------------------------------------ */

static void grow(const char *path)
{
    FILE *file = fopen(path, "a");

    assert_non_null(file);
    assert_true(fputs("more", file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void shrink(const char *path)
{
    assert_int_equal(truncate(path, 100), 0);
}

static void put(const char *path, const char *text)
{
    FILE *file = fopen(path, "r+");

    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static bool is_same_time(const struct timespec *a, const struct timespec *b)
{
    return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

/* The clock of files ticks every few milliseconds; the test is not about that. */
static void overwrite(const char *path)
{
    struct stat before, now;

    assert_int_equal(stat(path, &before), 0);
    do {
        put(path, "LINE");
        assert_int_equal(stat(path, &now), 0);
    } while (is_same_time(&now.st_mtim, &before.st_mtim));
}

static void date_back(const char *path)
{
    struct stat before, now;

    assert_int_equal(stat(path, &before), 0);
    do {
        const struct timespec times[2] = {before.st_atim, before.st_mtim};
        put(path, "LINE");
        assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
        assert_int_equal(stat(path, &now), 0);
    } while (is_same_time(&now.st_ctim, &before.st_ctim));
}

static void replace(const char *path)
{
    FLEET_AUTO_FREE char *text = NULL, *other = path_of("other");
    size_t size;

    assert_int_equal(fleet_file_read(path, 1 << 20, &text, &size, NULL), 0);
    assert_int_equal(fleet_file_write(other, text, size, NULL), 0);
    assert_int_equal(rename(other, path), 0);
}

static void delete (const char *path)
{
    assert_int_equal(unlink(path), 0);
}

struct change {
    void (*make)(const char *path);
    const char *path;
    bool is_done;
};

static void change_at_step_3(void *context, struct job_run *run, const cJSON *event)
{
    struct change *change = context;

    (void)event;
    if (change->is_done || run->step_count < 3)
        return;
    change->make(change->path);
    change->is_done = true;
}

static const struct {
    void (*make)(const char *path);
    const char *words;
    const char *in_a_read; /* said instead by a trainer that is just reading; NULL: the same */
} changes[] = {
    {grow, "changed during the run: it had", NULL},
    {shrink, "changed during the run: it had", "became shorter during the run"},
    {overwrite, "changed during the run: it was written to", NULL},
    {date_back, "changed during the run: it was written to and dated back", NULL},
    {replace, "was replaced by another file during the run", NULL},
    {delete, "No such file", NULL},
};

/* Runs the job, and changes the file at `path` on the way. False, unless it is the last try: a
 * trainer has looked in the middle, when the file was written to, but not dated back yet, or (the
 * kernel dates first) not longer yet. */
static bool notices(size_t i, const char *path, const char *part, bool is_last_try)
{
    struct change change = {.make = changes[i].make, .path = path};
    const char *words = changes[i].words;
    struct job_run run;
    bool was_half_done;

    run_job("2", change_at_step_3, &change, &run);
    assert_true(change.is_done);
    if (changes[i].in_a_read && strstr(run.errors, changes[i].in_a_read))
        words = changes[i].in_a_read;
    was_half_done = strstr(run.errors, "it was written to") && !strstr(run.errors, words);
    if (!was_half_done || is_last_try)
        expect_failed(&run, words,
                      (const char *[]){part, "spec.training.data.path", path, words, NULL});
    job_run_release(&run);
    return !was_half_done;
}

/* `part` of the message beside field and file. The file that is changed is `name`. */
static void expect_noticed(const char *model, const char *data, const char *rest, const char *name,
                           const char *part)
{
    FLEET_AUTO_FREE char *path = path_of(name), *original = NULL;
    size_t size;

    assert_int_equal(fleet_file_read(path, 1 << 20, &original, &size, NULL), 0);
    write_job(model, data, rest);
    for (size_t i = 0; i < FLEET_COUNT(changes); i++) {
        bool is_noticed = false;
        for (int tries = 1; !is_noticed && tries <= TRIES; tries++) {
            is_noticed = notices(i, path, part, tries == TRIES);
            write_file(name, original, size);
        }
    }
}

static void test_data__changed_during_the_run(void **state)
{
    (void)state;
    write_lines("text", 400);
    expect_noticed(GPT, "path: text", "steps: " ENDLESS, "text", "step ");
}

/* Of a folder of two files the second lies in what is held out: only the evaluation, which takes
 * all of that, meets it. */
static void test_data__changed_in_what_is_held_out(void **state)
{
    (void)state;
    make_folder_in("set");
    write_lines("set/a", 100);
    write_lines("set/b", 15);
    expect_noticed(GPT, "path: set, validation: 0.2",
                   "evaluation: {everySteps: 5, batches: 100}, steps: " ENDLESS, "set/b",
                   "evaluation: ");
}

/* Byte pairs stay in memory, but a worker that comes later would read the file again. */
static void test_data__changed_where_tokens_are_in_memory(void **state)
{
    (void)state;
    copy_golden("vocab.json");
    copy_golden("merges.txt");
    write_lines("text", 400);
    expect_noticed(GPT, BPE, "steps: " ENDLESS, "text", "step ");
}

/* ---- the vocabulary of byte pairs ------------------------------------------------------------ */

/* Runs the command on the job; its exit code is `expected`. Heap texts. */
static void run_command(const char *command, int expected, char **out_text, char **out_errors)
{
    FLEET_AUTO_FREE char *path = path_of("job.yaml");
    const char *arguments[] = {command, path, NULL};
    int code = job_run_command("fleetjob", arguments, out_text, out_errors);

    if (code != expected)
        fail_msg("%s: expected exit code %d, got %d: %s%s", command, expected, code, *out_text,
                 *out_errors);
}

/* The same job whether the size is given or read; plan and trainers know it. */
static void test_data__the_vocabulary_is_the_tokenizers(void **state)
{
    FLEET_AUTO_FREE char *text = NULL, *errors = NULL, *words = NULL, *warnings = NULL;
    struct job_run given, read, alone;

    (void)state;
    copy_golden("vocab.json");
    copy_golden("merges.txt");
    write_lines("text", 400);
    write_job(GPT ", vocabulary: 700", BPE, "steps: 4");
    run_job("2", NULL, NULL, &given);
    write_job(GPT, BPE, "steps: 4");
    run_job("2", NULL, NULL, &read);
    run_job("1", NULL, NULL, &alone);
    assert_int_equal(given.exit_code, 0);
    assert_int_equal(read.exit_code, 0);
    assert_string_equal(read.sha256, given.sha256);
    assert_string_equal(alone.sha256, given.sha256);
    assert_string_equal(fleet_json_at(read.plan, "digest")->valuestring,
                        fleet_json_at(given.plan, "digest")->valuestring);
    run_command("plan", 0, &text, &errors);
    assert_non_null(strstr(text, "bytes of a rank"));
    run_command("validate", 0, &words, &warnings);
    assert_string_equal(warnings, "");
    job_run_release(&given);
    job_run_release(&read);
    job_run_release(&alone);
}

/* What would stop a run here is an error of `run` and `validate`, and a warning beside a plan. */
static void test_data__a_tokenizer_that_cannot_be_read(void **state)
{
    const char *words[] = {"spec.training.data.vocabulary: ", "/vocab.json",
                           "No such file or directory", NULL};
    FLEET_AUTO_FREE char *text = NULL, *errors = NULL, *verdict = NULL, *none = NULL;
    FLEET_AUTO_FREE char *plan = NULL, *warnings = NULL;

    (void)state;
    write_lines("text", 400);
    copy_golden("merges.txt");
    write_job(GPT, BPE, "steps: 4");
    run_command("run", 1, &text, &errors);
    expect_line(errors, "run", words);
    run_command("validate", 1, &verdict, &none);
    expect_line(verdict, "validate", words);
    run_command("plan", 0, &plan, &warnings);
    expect_line(warnings, "plan", words);
    REFUSED(GPT ", vocabulary: 700", BPE, "steps: 4", "data.vocabulary", "/vocab.json",
            "No such file");
}

static void test_data__a_tokenizer_that_does_not_fit(void **state)
{
    static const char merges[] = "t h\nzz q\n";

    (void)state;
    write_lines("text", 400);
    copy_golden("vocab.json");
    write_file("merges.txt", merges, sizeof(merges) - 1);
    REFUSED(GPT, BPE, "steps: 4", "data.merges", "/merges.txt", "line 2", "\"zz");
    copy_golden("merges.txt");
    expect_refused(GPT ", vocabulary: 699", BPE, "steps: 4",
                   (const char *[]){"spec.training.model.vocabulary", "699", "700", NULL});
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, job_folder_make, job_folder_remove)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_FOLDER(test_data__of_the_wrong_size_or_kind),
        IN_FOLDER(test_data__with_a_token_that_the_model_has_not),
        IN_FOLDER(test_data__with_a_label_that_the_model_has_not),
        IN_FOLDER(test_data__changed_during_the_run),
        IN_FOLDER(test_data__changed_in_what_is_held_out),
        IN_FOLDER(test_data__changed_where_tokens_are_in_memory),
        IN_FOLDER(test_data__the_vocabulary_is_the_tokenizers),
        IN_FOLDER(test_data__a_tokenizer_that_cannot_be_read),
        IN_FOLDER(test_data__a_tokenizer_that_does_not_fit),
    };

    return cmocka_run_group_tests_name("data", tests, NULL, NULL);
}

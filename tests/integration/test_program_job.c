/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Programs of jobs in libfleet.so, which has its own copy of executor and kernels: the model that
 * `fleetjob export --inference` writes has the bits that the programs give, and the text that
 * `fleetjob plan --program` prints trains.
 */
#include <dlfcn.h>
#include <errno.h>
#include <string.h>

#include "agent/runtime/inference/inference_model.h"
#include "include/fleet/fleet_program.h"
#include "libfleet/base/strbuf.h"
#include "tests/support/job_folder.h"

#define TOKENS  16
#define WORDS   256
#define LIMIT_S 600.0

static struct {
    void *handle;
    __typeof__(&fleet_load_inference_model) load;
    __typeof__(&fleet_program_compile) compile;
    __typeof__(&fleet_program_run) run;
    __typeof__(&fleet_program_free) release;
} library;

static struct fleet_error err;

static int open_library(void **state)
{
    (void)state;
    library.handle = dlopen("build/lib/libfleet.so.0", RTLD_NOW | RTLD_LOCAL);
    if (!library.handle)
        return -1;
    library.load = dlsym(library.handle, "fleet_load_inference_model");
    library.compile = dlsym(library.handle, "fleet_program_compile");
    library.run = dlsym(library.handle, "fleet_program_run");
    library.release = dlsym(library.handle, "fleet_program_free");
    return 0;
}

static int close_library(void **state)
{
    (void)state;
    return dlclose(library.handle);
}

/* A job of one worker in the folder; the path of its text, for free(). */
static char *write_job(void)
{
    static const char text[] =
        "apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\nmetadata: {name: small}\n"
        "spec:\n  worker: {replicas: 1}\n  training:\n"
        "    model: {name: gpt, layers: 2, heads: 2, width: 32, context: 16, vocabulary: 256}\n"
        "    data: {tokenizer: synthetic-markov}\n"
        "    optimizer: {name: adamw, learningRate: 0.01}\n"
        "    globalBatchSize: 2\n    microBatchSize: 2\n    steps: 3\n"
        "    checkpoint: {path: checkpoints}\n";

    write_file("job.yaml", text, sizeof(text) - 1);
    return fleet_file_join(folder, "job.yaml");
}

/* Run a command of fleetjob; its output, for free(). */
static char *fleetjob(const char *const *arguments)
{
    char *text = NULL, *errors = NULL;

    if (job_run_command("fleetjob", arguments, &text, &errors) != 0)
        fail_msg("%s", errors);
    free(errors);
    return text;
}

static void fill_ids(int32_t *ids)
{
    for (int i = 0; i < 2 * TOKENS; i++)
        ids[i] = (i * 91 + 3) % WORDS;
}

static void test_program_job__exported_models_have_the_same_bits(void **state)
{
    FLEET_AUTO_FREE char *job = write_job();
    FLEET_AUTO_FREE char *checkpoints = fleet_file_join(folder, "checkpoints");
    FLEET_AUTO_FREE char *file = fleet_file_join(folder, "model");
    const char *arguments[] = {"run", job, NULL};
    const char *export[] = {"export", checkpoints, file, "--inference", NULL};
    static float logits[2 * TOKENS * WORDS], again[2 * TOKENS * WORDS];
    int32_t ids[2 * TOKENS];
    const void *in[] = {ids};
    void *out[] = {logits};
    const struct fleet_state_entry feed = {"ids", {ids, FLEET_INT32, 2, {2, TOKENS}}};
    const struct fleet_state_entry result = {"lm_head", {again, FLEET_FP32, 3, {2, TOKENS, WORDS}}};
    struct inference_model *model = NULL;
    struct fleet_program *program = NULL;

    (void)state;
    free(fleetjob(arguments));
    free(fleetjob(export));
    fill_ids(ids);
    if (inference_model_open(file, 1, &model, &err) < 0 ||
        inference_model_run(model, in, out, &err) < 0 ||
        library.load(file, 2, &program, &err) < 0 ||
        library.run(program, FLEET_PROGRAM_PREDICT, &feed, 1, &result, 1, &err) < 0)
        fail_msg("%s", err.text);
    assert_memory_equal(logits, again, sizeof(logits));
    library.release(program);
    inference_model_free(model);
}

static void test_program_job__printed_programs_train(void **state)
{
    FLEET_AUTO_FREE char *job = write_job();
    const char *arguments[] = {"plan", job, "--program", NULL};
    FLEET_AUTO_FREE char *text = fleetjob(arguments);
    int32_t ids[2 * TOKENS], targets[2 * TOKENS];
    float loss = 0;
    const struct fleet_state_entry feeds[] = {{"ids", {ids, FLEET_INT32, 2, {2, TOKENS}}},
                                              {"targets", {targets, FLEET_INT32, 2, {2, TOKENS}}}};
    const struct fleet_state_entry result = {"loss", {&loss, FLEET_FP32, 1, {1}}};
    struct fleet_program *program = NULL;
    char *begin = strstr(text, "program gpt ");

    (void)state;
    assert_non_null(begin);
    fill_ids(ids);
    for (int i = 0; i < 2 * TOKENS; i++)
        targets[i] = ids[(i + 1) % (2 * TOKENS)];
    if (library.compile(begin, NULL, &program, &err) < 0 ||
        library.run(program, FLEET_PROGRAM_TRAIN, feeds, 2, &result, 1, &err) < 0)
        fail_msg("%s", err.text);
    assert_true(loss > 5 && loss < 6); /* the logarithm of 256 is 5.55 */
    library.release(program);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_program_job__exported_models_have_the_same_bits,
                                        job_folder_make, job_folder_remove),
        cmocka_unit_test_setup_teardown(test_program_job__printed_programs_train, job_folder_make,
                                        job_folder_remove),
    };

    return cmocka_run_group_tests(tests, open_library, close_library);
}

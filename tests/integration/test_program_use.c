/* SPDX-License-Identifier: Apache-2.0 */

/*
 * fleet_program.h through libfleet.so: a classifier is trained as a program, saved by one rank and
 * read back, with the same outputs. And what wrong texts, tensors and files say.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "include/fleet/fleet_program.h"
#include "tests/integration/library_processes.h"

#define SAMPLES  4
#define FEATURES 8
#define CLASSES  3

static const char classifier[] = "program classifier micro_batch_size=4 loss=loss\n"
                                 "var x fp32 input [4,8]\n"
                                 "var labels int32 input [4]\n"
                                 "var w fp32 parameter [8,3] trained initial=normal deviation=0.1\n"
                                 "var b fp32 parameter [3] trained\n"
                                 "var logits fp32 activation [?]\n"
                                 "var p fp32 activation [?]\n"
                                 "var loss fp32 activation [?]\n"
                                 "var lse fp32 activation [?]\n"
                                 "forward linear x w b -> logits - ;\n"
                                 "forward softmax logits -> p ;\n"
                                 "forward cross_entropy logits labels - -> loss lse ;"
                                 " ignore_index=-1\n";

static float x[SAMPLES * FEATURES], logits[SAMPLES * CLASSES], loss;
static int32_t labels[SAMPLES];
static char folder[64];

static const struct fleet_state_entry feeds[] = {
    {"x", {x, FLEET_FP32, 2, {SAMPLES, FEATURES}}},
    {"labels", {labels, FLEET_INT32, 1, {SAMPLES}}},
};
static const struct fleet_state_entry results[] = {
    {"logits", {logits, FLEET_FP32, 2, {SAMPLES, CLASSES}}},
    {"loss", {&loss, FLEET_FP32, 1, {1}}},
};
static const char *const fetches[] = {"logits"};
static const struct fleet_program_options options = {
    .fetches = fetches, .fetch_count = 1, .seed = 7};

static int make_folder(void **state)
{
    (void)state;
    (void)strcpy(folder, "/tmp/program-use-XXXXXX");
    for (int i = 0; i < SAMPLES * FEATURES; i++)
        x[i] = (float)((i * 7 + i / FEATURES) % 11 - 5) / 5;
    for (int i = 0; i < SAMPLES; i++)
        labels[i] = i % CLASSES;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    char command[128];

    (void)state;
    (void)snprintf(command, sizeof(command), "rm -rf %s", folder);
    return system(command);
}

static const char *in_folder(const char *name)
{
    static char path[128];

    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

static struct fleet_program *compile(const char *text, const struct fleet_program_options *o)
{
    struct fleet_program *program = NULL;

    if (fleet_program_compile(text, o, &program, &err) < 0)
        fail_msg("%s", err.text);
    return program;
}

static int run(struct fleet_program *program, enum fleet_program_mode mode)
{
    bool predicts = mode == FLEET_PROGRAM_PREDICT;

    return fleet_program_run(program, mode, feeds, predicts ? 1 : 2, results, predicts ? 1 : 2,
                             &err);
}

static void descend(const struct fleet_program *program, float rate)
{
    int count;
    const struct fleet_ddp_tensor *tensors = fleet_program_tensors(program, &count);

    for (int t = 0; t < count; t++) {
        int64_t elements = 1;
        float *value = tensors[t].value.data;
        for (int d = 0; d < tensors[t].value.dimensions; d++)
            elements *= tensors[t].value.shape[d];
        for (int64_t i = 0; i < elements; i++)
            value[i] -= rate * ((const float *)tensors[t].gradient)[i];
    }
}

/* ---- training -------------------------------------------------------------------------------- */

static void test_program_use__gradients_are_those_of_finite_differences(void **state)
{
    struct fleet_program *program = compile(classifier, &options);
    const struct fleet_ddp_tensor *tensors;
    int count;

    (void)state;
    assert_int_equal(fleet_program_highest(program), FLEET_PROGRAM_TRAIN);
    tensors = fleet_program_tensors(program, &count);
    assert_int_equal(count, 2);
    assert_string_equal(tensors[0].name, "w");
    assert_int_equal(tensors[0].kind, FLEET_DDP_DENSE);
    assert_int_equal(run(program, FLEET_PROGRAM_TRAIN), 0);
    for (int i = 0; i < FEATURES * CLASSES; i++) {
        float *w = tensors[0].value.data, before = w[i], step = 0.01f, above;
        float gradient = ((const float *)tensors[0].gradient)[i];
        w[i] = before + step;
        assert_int_equal(run(program, FLEET_PROGRAM_EVAL), 0);
        above = loss;
        w[i] = before - step;
        assert_int_equal(run(program, FLEET_PROGRAM_EVAL), 0);
        w[i] = before;
        assert_float_equal(gradient, (above - loss) / (2 * step), 1e-3);
    }
    fleet_program_free(program);
    fleet_program_free(NULL);
}

static void test_program_use__modes_read_and_return_what_they_need(void **state)
{
    struct fleet_program_options evaluates = options;
    struct fleet_program *program = compile(classifier, &options);
    struct fleet_state_entry entry;

    (void)state;
    assert_true(fleet_program_feed(program, FLEET_PROGRAM_TRAIN, 1, &entry));
    assert_string_equal(entry.name, "labels");
    assert_false(fleet_program_feed(program, FLEET_PROGRAM_PREDICT, 1, &entry));
    assert_true(fleet_program_fetch(program, FLEET_PROGRAM_HIGHEST, 1, &entry));
    assert_string_equal(entry.name, "loss");
    assert_false(fleet_program_fetch(program, FLEET_PROGRAM_PREDICT, 1, &entry));
    assert_false(fleet_program_fetch(program, FLEET_PROGRAM_TRAIN, 2, &entry));
    assert_int_equal(run(program, FLEET_PROGRAM_PREDICT), 0);
    fleet_program_free(program);
    evaluates.highest = FLEET_PROGRAM_EVAL;
    program = compile(classifier, &evaluates);
    assert_int_equal(run(program, FLEET_PROGRAM_TRAIN), -EINVAL);
    assert_non_null(strstr(err.text, "above the program's highest"));
    assert_int_equal(run(program, FLEET_PROGRAM_EVAL), 0);
    fleet_program_free(program);
}

/* ---- models for inference -------------------------------------------------------------------- */

/* Two ranks average their gradients; rank 0 writes the model. */
static void train_and_save(void)
{
    static const char *const both[] = {"p", "logits"};
    struct fleet_program_options more = {.fetches = both, .fetch_count = 2, .seed = 7};
    struct fleet_program *program = NULL;
    float before = 0;
    int count;

    CHECK(fleet_env_init(&err) == 0);
    for (int i = 0; i < SAMPLES; i++)
        labels[i] = (i + rank) % CLASSES;
    CHECK(fleet_program_compile(classifier, &more, &program, &err) == 0);
    for (int step = 0; step < 30; step++) {
        const struct fleet_ddp_tensor *tensors = fleet_program_tensors(program, &count);
        CHECK(run(program, FLEET_PROGRAM_TRAIN) == 0);
        before = step == 0 ? loss : before;
        CHECK(fleet_all_reduce_gradients(tensors, count, NULL, &err) == 0);
        descend(program, 0.5f);
    }
    CHECK(loss < before);
    CHECK(fleet_save_inference_model(program, in_folder("model"), NULL, 0, both, 2, &err) == 0);
    CHECK(fleet_barrier(NULL, &err) == 0);
    CHECK(run(program, FLEET_PROGRAM_PREDICT) == 0);
    if (rank == 1) {
        float own[SAMPLES * CLASSES];
        struct fleet_program *read = NULL;
        (void)memcpy(own, logits, sizeof(own));
        CHECK(fleet_load_inference_model(in_folder("model"), 1, &read, &err) == 0);
        CHECK(run(read, FLEET_PROGRAM_PREDICT) == 0);
        for (int i = 0; i < SAMPLES * CLASSES; i++)
            CHECK(own[i] == logits[i]);
        fleet_program_free(read);
    }
    fleet_program_free(program);
}

static void test_program_use__a_saved_model_has_the_same_outputs(void **state)
{
    struct fleet_program *read = NULL;
    struct fleet_state_entry entry;
    struct stat info;

    (void)state;
    run_processes(2, train_and_save, -1);
    assert_int_equal(stat(in_folder("model"), &info), 0);
    assert_int_equal(fleet_load_inference_model(in_folder("model"), 0, &read, &err), 0);
    assert_int_equal(fleet_program_highest(read), FLEET_PROGRAM_PREDICT);
    assert_true(fleet_program_fetch(read, FLEET_PROGRAM_PREDICT, 0, &entry));
    assert_string_equal(entry.name, "p");
    assert_int_equal(run(read, FLEET_PROGRAM_TRAIN), -EINVAL);
    /* It can be saved again, and gives the same file. */
    assert_int_equal(fleet_save_inference_model(read, in_folder("again"), NULL, 0, NULL, 0, &err),
                     0);
    {
        char command[256];
        (void)snprintf(command, sizeof(command), "cmp -s %s/model %s/again", folder, folder);
        assert_int_equal(system(command), 0);
    }
    fleet_program_free(read);
}

static void test_program_use__wrong_requests_of_a_save(void **state)
{
    static const char *const unknown[] = {"nothing"}, *const twice[] = {"logits", "logits"},
                             *const fed[] = {"x", "labels"}, *const none[] = {NULL};
    struct fleet_program *program = compile(classifier, &options);
    const char *path = in_folder("none");
    struct rlimit limit, small = {100, RLIM_INFINITY};

    (void)state;
    assert_int_equal(fleet_save_inference_model(NULL, path, NULL, 0, NULL, 0, &err), -EINVAL);
    assert_int_equal(fleet_save_inference_model(program, NULL, NULL, 0, NULL, 0, &err), -EINVAL);
    assert_int_equal(fleet_save_inference_model(program, path, NULL, 0, unknown, 1, &err), -ENOENT);
    assert_int_equal(fleet_save_inference_model(program, path, NULL, 0, twice, 2, &err), -EINVAL);
    assert_int_equal(fleet_save_inference_model(program, path, NULL, 0, none, 1, &err), -EINVAL);
    assert_int_equal(fleet_save_inference_model(program, path, fed, 2, NULL, 0, &err), -EINVAL);
    assert_non_null(strstr(err.text, "labels"));
    assert_int_equal(
        fleet_save_inference_model(program, "/no/such/folder/file", NULL, 0, NULL, 0, &err),
        -ENOENT);
    assert_non_null(strstr(err.text, "/no/such/folder"));
    /* A file system that is full. */
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    small.rlim_max = limit.rlim_max;
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    assert_int_equal(fleet_save_inference_model(program, path, NULL, 0, NULL, 0, &err), -EFBIG);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_int_equal(access(path, F_OK), -1);
    fleet_program_free(program);
}

static void test_program_use__damaged_files_are_refused(void **state)
{
    struct fleet_program *program = compile(classifier, &options), *read = NULL;
    struct stat info;
    int fd, size;

    (void)state;
    assert_int_equal(
        fleet_save_inference_model(program, in_folder("model"), NULL, 0, NULL, 0, &err), 0);
    fleet_program_free(program);
    assert_int_equal(fleet_load_inference_model(in_folder("absent"), 0, &read, &err), -ENOENT);
    assert_int_equal(fleet_load_inference_model(in_folder("model"), -1, &read, &err), -EINVAL);
    assert_int_equal(stat(in_folder("model"), &info), 0);
    size = (int)info.st_size;
    for (int at = 0; at < size; at += 31) { /* each damage is an error, and none a crash */
        unsigned char byte;
        fd = open(in_folder("model"), O_RDWR);
        assert_true(fd >= 0);
        assert_int_equal(pread(fd, &byte, 1, at), 1);
        byte ^= 0x5a;
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
        if (fleet_load_inference_model(in_folder("model"), 1, &read, &err) == 0) {
            fleet_program_free(read); /* white space of the header */
            read = NULL;
        }
        byte ^= 0x5a;
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
        (void)close(fd);
    }
    assert_int_equal(truncate(in_folder("model"), size - 1), 0);
    assert_int_equal(fleet_load_inference_model(in_folder("model"), 1, &read, &err), -EINVAL);
    assert_non_null(strstr(err.text, "model"));
    assert_null(read);
}

/* ---- wrong texts and tensors ----------------------------------------------------------------- */

#define HEAD "program p micro_batch_size=4 loss=loss\nvar x fp32 input [4,8]\n"
#define MEAN "var loss fp32 activation [?]\nforward reduce x -> loss ; mean\n"

static void refuse(const char *text, const char *word)
{
    struct fleet_program *program = NULL;

    assert_int_equal(fleet_program_compile(text, NULL, &program, &err), -EINVAL);
    if (!strstr(err.text, word))
        fail_msg("'%s' lacks '%s'", err.text, word);
    assert_null(program);
}

static void test_program_use__wrong_texts_have_one_error(void **state)
{
    (void)state;
    refuse("", "program is missing");
    refuse("hello", "line 1");
    refuse(HEAD "var y fp32\n", "line 3");
    refuse(HEAD "forward magic x -> x ;\n", "magic");
    refuse(HEAD MEAN, "no parameter is trained");
    refuse("program p\nvar x fp32 input [4,8]\nvar y fp32 activation [?]\nforward relu x -> y ;\n",
           "nothing is fetched");
    refuse("program p loss=x\nvar x fp32 input [1]\n", "no result");
    refuse("program p loss=x\nvar x fp32 input [1]\nforward relu x -> x ;\n", "x");
    refuse(HEAD "var w fp32 parameter [3] trained\n" MEAN, "no parameter is trained");
    refuse(HEAD "var w fp32 parameter [4,8] trained\nvar loss fp32 activation [?]\n"
                "forward add x w -> loss ;\n",
           "one value");
    refuse(HEAD "var w fp32 parameter [7,8] trained\nvar y fp32 activation [?]\n"
                "var loss fp32 activation [?]\nforward add x w -> y ;\n"
                "forward reduce y -> loss ; mean\n",
           "add");
    refuse(HEAD "var w@GRAD fp32 parameter [4,8] trained\nvar y fp32 activation [?]\n"
                "var loss fp32 activation [?]\nforward add x w@GRAD -> y ;\n"
                "forward reduce y -> loss ; mean\n",
           "@GRAD");
    refuse(HEAD "var w fp32 parameter [4,8] trained\nvar y fp32 activation [?]\n"
                "var loss fp32 activation [?]\nforward add x w -> y ;\nforward relu x -> y ;\n"
                "forward reduce y -> loss ; mean\n",
           "two operators write y");
    refuse(HEAD "var y fp32 activation [?]\nvar loss fp32 activation [?]\n"
                "forward all_reduce x -> y ; group=data\nforward reduce y -> loss ; mean\n",
           "all_reduce");
}

static void test_program_use__wrong_options_have_one_error(void **state)
{
    static const char *const unknown[] = {"nothing"}, *const twice[] = {"p", "p"};
    struct fleet_program_options wrong[] = {
        {.fetches = unknown, .fetch_count = 1},  {.fetches = twice, .fetch_count = 2},
        {.fetches = NULL, .fetch_count = 1},     {.fetches = twice, .fetch_count = 65},
        {.highest = (enum fleet_program_mode)9}, {.threads = -1},
    };
    struct fleet_program *program = NULL;

    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
        assert_int_equal(fleet_program_compile(classifier, &wrong[i], &program, &err), -EINVAL);
        assert_null(program);
    }
    assert_int_equal(fleet_program_compile(NULL, NULL, &program, &err), -EINVAL);
    assert_int_equal(fleet_program_compile(classifier, NULL, NULL, &err), -EINVAL);
}

static void test_program_use__wrong_tensors_have_one_error(void **state)
{
    struct fleet_program *program = compile(classifier, &options);
    struct fleet_state_entry f[3], r[2];

    (void)state;
#define RUN_SAYS(feed_count, result_count, word)                                                   \
    do {                                                                                           \
        assert_int_equal(                                                                          \
            fleet_program_run(program, FLEET_PROGRAM_TRAIN, f, feed_count, r, result_count, &err), \
            -EINVAL);                                                                              \
        assert_non_null(strstr(err.text, word));                                                   \
        (void)memcpy(f, feeds, sizeof(feeds));                                                     \
        (void)memcpy(r, results, sizeof(results));                                                 \
    } while (0)
    (void)memcpy(f, feeds, sizeof(feeds));
    (void)memcpy(r, results, sizeof(results));
    RUN_SAYS(1, 2, "labels is not fed");
    f[2] = f[0];
    RUN_SAYS(3, 2, "x is fed twice");
    f[2] = (struct fleet_state_entry){"y", f[0].tensor};
    RUN_SAYS(3, 2, "y is fed");
    f[0].tensor.shape[1] = 7;
    RUN_SAYS(2, 2, "needed: fp32 [4,8]");
    f[0].tensor.type = FLEET_FP64;
    RUN_SAYS(2, 2, "needed: fp32 [4,8]");
    f[0].tensor.data = NULL;
    RUN_SAYS(2, 2, "x has no data");
    r[0].name = "p";
    RUN_SAYS(2, 2, "p is no result");
    r[1].tensor.dimensions = 2;
    RUN_SAYS(2, 2, "loss has another type or shape");
    RUN_SAYS(-1, 0, "-1 feeds");
    labels[2] = CLASSES;
    RUN_SAYS(2, 2, "labels: value 2 is 3, allowed: 0 to 2");
    labels[2] = -1; /* ignore_index */
    assert_int_equal(run(program, FLEET_PROGRAM_TRAIN), 0);
    labels[2] = 2;
    fleet_program_free(program);
}

/* A world of one that the variables deny: no rank writes. */
static void test_program_use__wrong_variables_are_an_error_of_the_save(void **state)
{
    struct fleet_program *program = compile(classifier, &options);

    (void)state;
    (void)setenv("PADDLE_TRAINER_ID", "three", 1);
    assert_int_equal(
        fleet_save_inference_model(program, in_folder("model"), NULL, 0, NULL, 0, &err), -EINVAL);
    (void)unsetenv("PADDLE_TRAINER_ID");
    assert_int_equal(access(in_folder("model"), F_OK), -1);
    fleet_program_free(program);
}

/* The same from Python, in two processes. */
static void test_program_use__from_python(void **state)
{
    (void)state;
    assert_int_equal(system("bash tests/python/run.sh program"), 0);
}

#define TEST(name) \
    cmocka_unit_test_setup_teardown(test_program_use__##name, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(gradients_are_those_of_finite_differences),
        TEST(modes_read_and_return_what_they_need),
        TEST(a_saved_model_has_the_same_outputs),
        TEST(wrong_requests_of_a_save),
        TEST(damaged_files_are_refused),
        TEST(wrong_texts_have_one_error),
        TEST(wrong_options_have_one_error),
        TEST(wrong_tensors_have_one_error),
        TEST(wrong_variables_are_an_error_of_the_save),
        TEST(from_python),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

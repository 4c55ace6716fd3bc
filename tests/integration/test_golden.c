/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A test of the recordings' runner (tests/golden): it must fail where a recording disagrees.
 *
 * Each case links a copy of tests/golden, changes one value of one file by a per cent (or one word,
 * or cuts the file short) and runs the reader of that file. Missing folders, files and variants
 * that the reader does not know, and the closing line are checked, too.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/file.h"
#include "libfleet/base/strbuf.h"
#include "tests/support/job_run.h"

#define RUNNER "../../golden" /* from this program's folder */

enum change {
    PER_CENT, /* the number number `nth` behind `at` */
    ADD_ONE,  /* a whole number */
    WORD,     /* the first `at` (the last one, if nth is -1) becomes `word` */
    CUT,      /* half of the file is left */
    FLOAT,    /* of the tensor `at`, the element in the middle, by a per cent */
};

static const struct mutation {
    const char *file;
    enum change change;
    const char *at;
    int nth;
    const char *word;
} mutations[] = {
    {"paddle/optimizer/adam.json", PER_CENT, "\"params\"", 1, NULL},
    {"paddle/optimizer/momentum.json", PER_CENT, "\"accumulators\"", 1, NULL},
    {"paddle/optimizer/clip.json", PER_CENT, "\"params\"", 2, NULL},
    {"paddle/optimizer/regularizer.json", PER_CENT, "\"params\"", 1, NULL},
    {"paddle/optimizer/lamb.json", PER_CENT, "\"params\"", 3, NULL},
    {"paddle/optimizer/lars.json", PER_CENT, "velocity_0\"", 1, NULL},
    {"paddle/optimizer/lr_schedules.json", PER_CENT, "\"lr_at_step_0_1_2\"", 5, NULL},
    {"paddle/amp/loss_scaling.json", PER_CENT, "\"operator\": [", 1, NULL},
    {"paddle/amp/op_lists.json", WORD, "\"softmax_with_cross_entropy\"", -1, "\"nothing\""},
    {"paddle/prototxt/04-amp-configs.prototxt", PER_CENT, "init_loss_scaling", 1, NULL},
    {"paddle/prototxt_styles/python3/13-dgc-rampup.prototxt", PER_CENT, "sparsity", 1, NULL},
    {"paddle/prototxt_read.json", ADD_ONE, "\"column\"", 1, NULL},
    {"paddle/prototxt_read.json", WORD, "\"accepted\"", 0, "\"error\""},
    {"paddle/assignments.json", PER_CENT, "\"init_loss_scaling\":", 1, NULL},
    {"paddle/selection_2_0_lists.json", WORD, ">recompute\"", 0, ">dgc\""},
    {"paddle/selection_gpu_build.json", WORD, "\"workers\": 2", 0, "\"workers\": two"},
    {"paddle/programs_gpu_build.json", WORD, "\"relu_grad\"", 0, "\"gelu_grad\""},
    {"paddle/programs_gpu_build.json", ADD_ONE, "\"root_id\"", 1, NULL},
    {"paddle/programs_gpu_build.json", WORD, "\"root\": 1, \"vars\": [\"fc1.b_0@BroadCast_0\"]", 0,
     "\"root\": 0, \"vars\": [\"fc1.b_0@BroadCast_0\"]"},
    {"paddle/recompute_programs.json", WORD, "\"relu_grad\"", 0, "\"mul_grad\""},
    {"paddle/pipeline_schedules.json", WORD, "f1;b0;", 0, "b0;f1;"},
    {"paddle/sharding_owners.json", WORD, "\"owner\": [0, ", 0, "\"owner\": [1, "},
    {"mindspore/assignments.json", WORD, "\"accepted\"", 0, "\"exception\""},
    {"torch/ops/linear.safetensors", FLOAT, "case0.output", 0, NULL},
    {"torch/ops/conv2d.safetensors", FLOAT, "case1.grad_weight", 0, NULL},
    {"torch/gpt2/forward.safetensors", FLOAT, "logits", 0, NULL},
    {"torch/gpt2/adamw.json", PER_CENT, "\"loss\"", 7, NULL},
    {"torch/gpt2/sgd.json", PER_CENT, "\"grad_norm\"", 3, NULL},
    {"torch/resnet/config.json", PER_CENT, "\"grad_norm\"", 2, NULL},
    {"torch/jobs/momentum.json", PER_CENT, "\"gradNorm\"", 1, NULL},
    {"torch/distributed/batchnorm-2-sync.json", PER_CENT, "\"steps\"", 2, NULL},
    {"torch/distributed/dgc-4-decay.json", PER_CENT, "\"steps\"", 2, NULL},
    {"torch/distributed/localsgd-2-k2.json", PER_CENT, "\"steps\"", 2, NULL},
    {"paddle/optimizer/sgd.json", CUT, NULL, 0, NULL},
    {"paddle/prototxt/04-amp-configs.json", CUT, NULL, 0, NULL},
    {"torch/gpt2/accum.json", CUT, NULL, 0, NULL},
    {"torch/ops/relu.safetensors", CUT, NULL, 0, NULL},
    {"torch/resnet/expected.safetensors", CUT, NULL, 0, NULL},
};

/* ---- running --------------------------------------------------------------------------------- */

/* The runner on `folder`; exit code, and what it says. */
static int run_golden(const char *folder, const char *pattern, char **out_text)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf command = {0}, text = {0};
    char self[4096], line[4096];
    ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
    FILE *pipe;
    int status;

    assert_true(length > 0);
    self[length] = '\0';
    *strrchr(self, '/') = '\0';
    fleet_strbuf_appendf(&command, "'%s/" RUNNER "' '%s' '%s' 2>&1", self, folder, pattern);
    pipe = popen(command.text, "r");
    assert_non_null(pipe);
    fleet_strbuf_append(&text, "");
    while (fgets(line, sizeof(line), pipe))
        fleet_strbuf_append(&text, line);
    status = pclose(pipe);
    *out_text = fleet_strbuf_take(&text);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* A folder of links to our recordings. */
static char *linked_copy(void)
{
    char *folder = job_run_folder();
    FLEET_AUTO_STRBUF struct fleet_strbuf command = {0};
    char here[4096];

    assert_non_null(getcwd(here, sizeof(here)));
    for (const char *const *name = (const char *const[]){"paddle", "torch", "mindspore", NULL};
         *name; name++)
        fleet_strbuf_appendf(&command, "cp -rs '%s/tests/golden/%s' '%s/' && ", here, *name,
                             folder);
    fleet_strbuf_append(&command, "true");
    assert_int_equal(system(command.text), 0);
    return folder;
}

/* ---- changing -------------------------------------------------------------------------------- */

/* Number `nth` outside strings; `at` is outside strings. */
static char *find_number(char *at, int nth)
{
    for (bool in_string = false; *at; at++) {
        bool starts = (*at >= '0' && *at <= '9') || (*at == '-' && at[1] >= '0' && at[1] <= '9');
        in_string ^= *at == '"';
        if (in_string || !starts)
            continue;
        if (--nth == 0)
            return at;
        at += strspn(at, "0123456789.eE+-") - 1;
    }
    fail_msg("there is no such number");
    return NULL;
}

static void change_number(const struct mutation *m, char *text, struct fleet_strbuf *out)
{
    char *at = strstr(text, m->at), *end;
    double number;

    if (!at)
        fail_msg("%s has no %s", m->file, m->at);
    at = find_number(at + strlen(m->at), m->nth);
    number = strtod(at, &end);
    fleet_strbuf_appendf(out, "%.*s", (int)(at - text), text);
    if (m->change == ADD_ONE)
        fleet_strbuf_appendf(out, "%.0f", number + 1);
    else
        fleet_strbuf_appendf(out, "%.9g", number * 1.01);
    fleet_strbuf_append(out, end);
}

static void change_word(const struct mutation *m, const char *text, struct fleet_strbuf *out)
{
    const char *at = strstr(text, m->at), *next = at;

    if (!at)
        fail_msg("%s has no %s", m->file, m->at);
    while (m->nth == -1 && (next = strstr(at + 1, m->at)))
        at = next;
    fleet_strbuf_appendf(out, "%.*s%s%s", (int)(at - text), text, m->word, at + strlen(m->at));
}

/* The header says where the tensor lies: "name":{…"data_offsets":[from,to]…}. */
static void change_float(const struct mutation *m, char *data, size_t size)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf key = {0};
    uint64_t header;
    char *at;
    long from, to;
    float value;
    size_t place;

    memcpy(&header, data, sizeof(header));
    fleet_strbuf_appendf(&key, "\"%s\"", m->at);
    at = memmem(data + 8, header, key.text, key.length);
    assert_non_null(at);
    at = strstr(at, "data_offsets");
    assert_non_null(at);
    assert_int_equal(sscanf(at, "data_offsets\" : [%ld,%ld", &from, &to) +
                             sscanf(at, "data_offsets\":[%ld,%ld", &from, &to) >
                         0,
                     1);
    place = 8 + header + (size_t)(from + (to - from) / 8 * 4);
    assert_true(place + sizeof(value) <= size);
    memcpy(&value, data + place, sizeof(value));
    value = value == 0 ? 1 : value * 1.01f;
    memcpy(data + place, &value, sizeof(value));
}

static void write_changed(const struct mutation *m, const char *folder)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf source = {0}, changed = {0};
    FLEET_AUTO_FREE char *text = NULL, *path = fleet_file_join(folder, m->file);
    size_t size;

    fleet_strbuf_appendf(&source, "tests/golden/%s", m->file);
    assert_int_equal(fleet_file_read(source.text, 1 << 28, &text, &size, NULL), 0);
    assert_int_equal(unlink(path), 0); /* the link, not the recording */
    if (m->change == CUT || m->change == FLOAT) {
        if (m->change == FLOAT)
            change_float(m, text, size);
        assert_int_equal(fleet_file_write(path, text, m->change == CUT ? size / 2 : size, NULL), 0);
        return;
    }
    if (m->change == WORD)
        change_word(m, text, &changed);
    else
        change_number(m, text, &changed);
    assert_int_equal(fleet_file_write(path, changed.text, changed.length, NULL), 0);
}

/* Which files to run: that of the change, or the one that reads it. */
static const char *pattern_of(const struct mutation *m)
{
    if (strncmp(m->file, "torch/ops/", 10) == 0)
        return "torch/ops/index.json";
    if (strncmp(m->file, "torch/resnet/", 13) == 0)
        return "torch/resnet/config.json";
    if (strncmp(m->file, "torch/jobs/", 11) == 0)
        return "torch/jobs/momentum.yaml";
    if (strcmp(m->file, "torch/distributed/dgc-4-decay.json") == 0)
        return "torch/distributed/dgc-4-decay.yaml";
    if (strcmp(m->file, "torch/distributed/localsgd-2-k2.json") == 0)
        return "torch/distributed/localsgd-2-k2.yaml";
    if (strncmp(m->file, "torch/distributed/", 18) == 0)
        return "torch/distributed/batchnorm-2-sync.yaml";
    return strstr(m->file, "04-amp-configs.json") ? "paddle/prototxt/04-amp-configs.*" : m->file;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void test_golden__finds_a_changed_value(void **state)
{
    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(mutations); i++) {
        const struct mutation *m = &mutations[i];
        FLEET_AUTO_FREE char *folder = linked_copy();
        FLEET_AUTO_FREE char *text = NULL;
        int rc;

        write_changed(m, folder);
        rc = run_golden(folder, pattern_of(m), &text);
        if (rc != 1 || !strstr(text, "FAILED") || strstr(text, " 0 failed,"))
            fail_msg("%s, change %d at %s: exit %d\n%s", m->file, (int)m->change,
                     m->at ? m->at : "half", rc, text);
        if (!strstr(text, folder) ||
            !strstr(text, strchr(pattern_of(m), '*') ? "04-amp-configs" : pattern_of(m)))
            fail_msg("%s: the failure does not name the file:\n%s", m->file, text);
        job_run_remove(folder);
    }
}

static void test_golden__passes_unchanged_values(void **state)
{
    FLEET_AUTO_FREE char *folder = linked_copy();
    FLEET_AUTO_FREE char *text = NULL;

    (void)state;
    assert_int_equal(run_golden(folder, "paddle/optimizer/*", &text), 0);
    assert_non_null(strstr(text, " passed, 0 failed, "));
    assert_null(strstr(text, "FAILED"));
    job_run_remove(folder);
}

static void test_golden__skips_unknown_files(void **state)
{
    static const char unknown[] =
        "{\"init\":[[1.0]],\"gradients\":[[[1.0]]],\"cases\":[{\"case\":\"new\",\"param_names\":"
        "[\"p\"],\"config\":{\"class\":\"paddle.optimizer.lion.Lion\",\"learning_rate\":1},"
        "\"steps\":[{\"lr\":1}]}]}";
    FLEET_AUTO_FREE char *folder = linked_copy(), *text = NULL;
    FLEET_AUTO_FREE char *optimizer = fleet_file_join(folder, "paddle/optimizer/lion.json");
    FLEET_AUTO_FREE char *other = fleet_file_join(folder, "paddle/newer_kind.json");

    (void)state;
    assert_int_equal(fleet_file_write(optimizer, unknown, strlen(unknown), NULL), 0);
    assert_int_equal(fleet_file_write(other, "{\"rows\":[1,2,3]}", 16, NULL), 0);
    assert_int_equal(run_golden(folder, "paddle/*[ne]*/lion.json", &text), 0);
    assert_non_null(strstr(text, "there is no optimizer for paddle.optimizer.lion.Lion"));
    assert_non_null(strstr(text, "0 passed, 0 failed, 1 skipped\n"));
    free(text);
    assert_int_equal(run_golden(folder, "paddle/newer_kind.json", &text), 0);
    assert_non_null(strstr(text, "no reader knows files of this name"));
    assert_non_null(strstr(text, "0 passed, 0 failed, 3 skipped\n"));
    job_run_remove(folder);
}

static void test_golden__says_that_there_is_no_folder(void **state)
{
    FLEET_AUTO_FREE char *text = NULL, *folder = job_run_folder();

    (void)state;
    assert_int_equal(run_golden("/nowhere/at/all", "*", &text), 1);
    assert_non_null(strstr(text, "/nowhere/at/all: No such file or directory"));
    free(text);
    assert_int_equal(run_golden(folder, "*", &text), 1);
    assert_non_null(strstr(text, "holds no recordings"));
    job_run_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden__finds_a_changed_value),
        cmocka_unit_test(test_golden__passes_unchanged_values),
        cmocka_unit_test(test_golden__skips_unknown_files),
        cmocka_unit_test(test_golden__says_that_there_is_no_folder),
    };
    const char *variant = getenv("FLEET_TEST_VARIANT");

    if (variant && strcmp(variant, "release") != 0) /* the runner itself runs under sanitizers */
        return 77;
    return cmocka_run_group_tests_name("golden", tests, NULL, NULL);
}

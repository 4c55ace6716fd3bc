/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Goal: `fleetjob curve` draws what a run has left, in every form, and says clearly what it
 * cannot draw. Method: a small job with held-out data, run in two parts, leaves a record, event
 * files, JSON and checkpoints. The command reads each of them; then it is given what is missing,
 * empty and damaged, and outputs that it must not touch.
 */
#include "tests/integration/run_fixture.h"

static const char *in_folder(const char *name)
{
    static char paths[8][160];
    static int next;

    next = (next + 1) % 8;
    (void)snprintf(paths[next], sizeof(paths[next]), "%s/%s", folder, name);
    return paths[next];
}

static void put(const char *name, const char *text)
{
    struct fleet_error err = {0};

    if (fleet_file_write(in_folder(name), text, strlen(text), &err) < 0)
        fail_msg("%s", err.text);
}

static char *get(const char *name, size_t *out_size)
{
    struct fleet_error err = {0};
    char *text = NULL;

    if (fleet_file_read(in_folder(name), 1 << 24, &text, out_size, &err) < 0)
        fail_msg("%s", err.text);
    return text;
}

static int count_words(const char *text, const char *words)
{
    int count = 0;

    for (const char *at = text; (at = strstr(at, words)); at++)
        count++;
    return count;
}

/* The picture of `source` has `words`, and held-out losses after steps 25, 30, 50 and 60. */
static void expect_picture(const char *source, const char *words)
{
    FLEET_AUTO_FREE char *svg = NULL;
    struct run run;
    size_t size;

    run_words(&run, "curve", in_folder(source), "-o", in_folder("out.svg"), NULL);
    expect_exit(&run, 0);
    expect_words(&run.out, "Drew 1 run to ");
    release(&run);
    svg = get("out.svg", &size);
    if (!strstr(svg, words))
        fail_msg("%s: no \"%s\" in:\n%s", source, words, svg);
    assert_int_equal(count_words(svg, "held-out loss"), 1);
    assert_int_equal(count_words(svg, "stroke-width=\"5\""), 4); /* each is a dot */
    assert_non_null(strstr(svg, ">60</text>"));
    assert_int_equal(unlink(in_folder("out.svg")), 0);
}

static void test_curve__draws_what_a_run_has_left(void **state)
{
    const char *path = write_job("left",
                                 "    evaluation: {everySteps: 25}\n"
                                 "    checkpoint: {path: left, everySteps: 30}\n"
                                 "    log: {tensorboard: events, everySteps: 1, curve: left.png}\n",
                                 "");
    FLEET_AUTO_FREE char *data = NULL, *png = NULL, *yaml = get("left.yaml", &(size_t){0});
    struct run run;
    size_t size;
    char *at;

    (void)state;
    at = strstr(yaml, "{path: text}"); /* with samples held back */
    assert_non_null(at);
    {
        FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
        fleet_strbuf_append_bytes(&text, yaml, (size_t)(at - yaml));
        fleet_strbuf_append(&text, "{path: text, validation: 0.2}");
        fleet_strbuf_append(&text, at + strlen("{path: text}"));
        put("left.yaml", text.text);
    }
    run_words(&run, "run", path, "--json", "--steps", "30", NULL);
    expect_exit(&run, 0);
    put("first.jsonl", run.out.text);
    release(&run);
    run_words(&run, "run", path, "--json", NULL);
    expect_exit(&run, 0);
    data = get("first.jsonl", &size);
    {
        FLEET_AUTO_STRBUF struct fleet_strbuf both = {0};
        fleet_strbuf_append(&both, data);
        fleet_strbuf_append(&both, run.out.text);
        put("both.jsonl", both.text);
    }
    release(&run);

    png = get("left.png", &size);
    assert_true(size > 10000);
    assert_memory_equal(png, "\x89PNG\r\n\x1a\n", 8);
    expect_picture("left", ">left</text>");
    expect_picture("left/losses-left.tsv", ">resumed (1)</text>");
    expect_picture("left.yaml", "gpt of 2 layers, width 32");
    expect_picture("events", ">resumed (1)</text>");
    expect_picture("both.jsonl", ">resumed (1)</text>");
}

/* A record that cannot be read is not replaced, and the run says so. */
static void test_curve__a_damaged_record_is_set_aside(void **state)
{
    const char *path = write_job("hurt", "    checkpoint: {path: hurt, everySteps: 30}\n", "");
    FLEET_AUTO_FREE char *damaged = NULL, *record = NULL;
    struct run run;
    size_t size;

    (void)state;
    run_words(&run, "run", path, "--steps", "30", NULL);
    expect_exit(&run, 0);
    release(&run);
    put("hurt/losses-hurt.tsv", "1\t5\nnonsense\n");
    run_words(&run, "run", path, "--steps", "35", NULL);
    expect_exit(&run, 0);
    expect_words(&run.err, "losses-hurt.tsv: line 2: expected a step");
    expect_words(&run.err, "the file is now ");
    release(&run);
    damaged = get("hurt/losses-hurt.tsv.damaged", &size);
    assert_string_equal(damaged, "1\t5\nnonsense\n");
    record = get("hurt/losses-hurt.tsv", &size);
    assert_non_null(strstr(record, "\n30\t\t\tresume\n31\t"));
}

/* What an own trainer reports is drawn, too; options for spec.training are refused by name. */
static void test_curve__draws_what_an_own_trainer_reports(void **state)
{
    FLEET_AUTO_FREE char *svg = NULL;
    struct run run;
    size_t size;

    (void)state;
    put("own.yaml",
        "apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\nmetadata: {name: own}\n"
        "spec:\n  worker:\n    replicas: 1\n    template:\n      spec:\n        containers:\n"
        "          - name: trainer\n            command: [sh, -c, 'for i in 5 10 15; do echo "
        "\"{\\\"step\\\":$i,\\\"loss\\\":$((20-i))}\" >&$FLEET_PROGRESS_FD; done']\n");
    run_words(&run, "run", in_folder("own.yaml"), "--curve", in_folder("own.svg"), NULL);
    expect_exit(&run, 0);
    expect_words(&run.out, "own.svg");
    release(&run);
    svg = get("own.svg", &size);
    assert_non_null(strstr(svg, ">own</text>"));
    assert_non_null(strstr(svg, ">14</text>")); /* of steps 5 to 15 */
    assert_null(strstr(svg, "resumed"));
    run_words(&run, "run", in_folder("own.yaml"), "--steps", "3", "--data", "x", NULL);
    expect_exit(&run, 1);
    expect_words(&run.err, "--steps: this job has no spec.training");
    expect_words(&run.err, "--data: this job has no spec.training");
    assert_null(strstr(run.err.text, "required"));
    release(&run);
}

/* "-" is standard output, for both formats; the table then goes to standard error. */
static void test_curve__writes_to_standard_output(void **state)
{
    static const char *const formats[] = {"svg", "png"}, *const begins[] = {"<svg ", "\x89PNG"};
    struct run run;

    (void)state;
    put("losses-a.tsv", "1\t5\n2\t4\n3\t3\n");
    put("losses-b.tsv", "1\t6\n2\t3\n3\t2\n4\t1\n");
    for (int i = 0; i < 2; i++) {
        run_words(&run, "curve", in_folder("losses-a.tsv"), in_folder("losses-b.tsv"), "-o", "-",
                  "--format", formats[i], "--compare", NULL);
        expect_exit(&run, 0);
        assert_memory_equal(run.out.text, begins[i], 4);
        expect_words(&run.err, "loss at 3");
        expect_words(&run.err, "\nb           4               2          -1  -\n");
        release(&run);
    }
    run_words(&run, "curve", in_folder("losses-a.tsv"), "-o", in_folder("x.PNG"), "--title",
              "a <title>", "--format", "svg", NULL);
    expect_exit(&run, 0);
    release(&run);
    {
        size_t size;
        FLEET_AUTO_FREE char *svg = get("x.PNG", &size);
        assert_non_null(strstr(svg, ">a &lt;title></text>"));
    }
}

static void test_curve__says_what_it_cannot_draw(void **state)
{
    static const struct {
        const char *name, *text; /* NULL: the file is not made */
        const char *says;
    } cases[] = {
        {"nowhere.tsv", NULL, "nowhere.tsv: No such file or directory"},
        {"empty.tsv", "", "empty.tsv: the file is empty"},
        {"head.tsv", "step\tloss\theldOutLoss\tevents\n", "head.tsv: there is no loss in it yet"},
        {"damaged.tsv", "1\t5\n2\t4\n!!\n", "damaged.tsv: line 3: expected a step greater than 2"},
        {"state.json", "{\"pid\":7,\"members\":[]}\n", "state.json: line 1: a state file lists"},
        {"picture.svg", "<svg/>", "picture.svg: not a record of losses"},
        {"keeps.yaml",
         "apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\nmetadata: {name: k}\nspec:\n"
         "  training:\n    model: {name: gpt, width: 8, layers: 1, heads: 1, context: 8}\n"
         "    data: {path: text}\n"
         "    optimizer: {name: sgd, learningRate: 0.1}\n    globalBatchSize: 1\n"
         "    microBatchSize: 1\n    steps: 1\n  worker: {replicas: 1}\n",
         "this job keeps no losses"},
    };
    const char *words[16] = {"curve"};
    struct run run;

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(cases); i++) {
        if (cases[i].text)
            put(cases[i].name, cases[i].text);
        words[i + 1] = strdup(in_folder(cases[i].name));
    }
    run_words(&run, "curve", words[1], words[2], words[3], words[4], words[5], words[6], words[7],
              "-o", in_folder("none.png"), NULL);
    expect_exit(&run, 1);
    for (size_t i = 0; i < FLEET_COUNT(cases); i++) { /* all of them at once */
        expect_words(&run.err, cases[i].says);
        free((char *)(uintptr_t)words[i + 1]);
    }
    assert_int_equal(run.out.length, 0);
    assert_int_not_equal(access(in_folder("none.png"), F_OK), 0);
    release(&run);
}

static void test_curve__leaves_other_files_alone(void **state)
{
    static const struct {
        const char *path, *says;
    } cases[] = {{"fifo.svg", "a named pipe"},
                 {"link.svg", "a symbolic link"},
                 {"/dev/null", "must end in .svg or .png"},
                 {"out.gif", "out.gif: must end in .svg or .png"},
                 {"/proc/nowhere/x.svg", "/proc/nowhere"}};
    struct stat info;
    struct run run;

    (void)state;
    put("losses-a.tsv", "1\t5\n2\t4\n");
    assert_int_equal(mkfifo(in_folder("fifo.svg"), 0600), 0);
    assert_int_equal(symlink("losses-a.tsv", in_folder("link.svg")), 0);
    for (size_t i = 0; i < FLEET_COUNT(cases); i++) {
        run_words(&run, "curve", in_folder("losses-a.tsv"), "-o",
                  cases[i].path[0] == '/' ? cases[i].path : in_folder(cases[i].path), NULL);
        expect_exit(&run, 1);
        expect_words(&run.err, cases[i].says);
        release(&run);
    }
    assert_true(lstat(in_folder("fifo.svg"), &info) == 0 && S_ISFIFO(info.st_mode));
    assert_true(lstat(in_folder("link.svg"), &info) == 0 && S_ISLNK(info.st_mode));
}

static void test_curve__wrong_usage_exits_2(void **state)
{
    static const struct {
        const char *words[4], *says;
    } cases[] = {
        {{NULL}, "RUN… is missing"},
        {{"a.tsv"}, "-o FILE is missing"},
        {{"a.tsv", "-o"}, "Usage: fleetjob curve"},
        {{"--compare", "a.tsv", "-o", "b.svg"}, "--compare needs two runs or more"},
        {{"a.tsv", "-o", "-", "--format=gif"}, "--format must be svg or png, not \"gif\""},
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(cases); i++) {
        const char *const *w = cases[i].words;
        struct run run;
        run_words(&run, "curve", w[0], w[0] ? w[1] : NULL, w[0] && w[1] ? w[2] : NULL,
                  w[0] && w[1] && w[2] ? w[3] : NULL, NULL);
        expect_exit(&run, 2);
        expect_words(&run.err, cases[i].says);
        assert_int_equal(run.out.length, 0);
        release(&run);
    }
}

/* What is put into pods and into the controller's image draws nothing, and needs no libraries
 * for it. */
static void test_curve__only_the_command_line_needs_the_libraries(void **state)
{
    static const char *const names[] = {"fleetjob-agent", "fleetjob-train", "fleetjob-controller",
                                        "fleetjob"};
    char *slash = strrchr(program, '/');

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(names); i++) {
        FLEET_AUTO_FREE char *bytes = NULL;
        bool needs, is_cli = i + 1 == FLEET_COUNT(names);
        char path[4200];
        size_t size;
        (void)snprintf(path, sizeof(path), "%.*s/%s", (int)(slash - program), program, names[i]);
        assert_int_equal(fleet_file_read(path, (size_t)1 << 30, &bytes, &size, NULL), 0);
        needs = memmem(bytes, size, "libfreetype.so", 14) || memmem(bytes, size, "libpng", 6);
        if (needs != is_cli)
            fail_msg("%s %s the libraries", path, needs ? "needs" : "does not need");
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_curve__draws_what_a_run_has_left),
        cmocka_unit_test(test_curve__a_damaged_record_is_set_aside),
        cmocka_unit_test(test_curve__draws_what_an_own_trainer_reports),
        cmocka_unit_test(test_curve__writes_to_standard_output),
        cmocka_unit_test(test_curve__says_what_it_cannot_draw),
        cmocka_unit_test(test_curve__leaves_other_files_alone),
        cmocka_unit_test(test_curve__wrong_usage_exits_2),
        cmocka_unit_test(test_curve__only_the_command_line_needs_the_libraries),
    };

    return find_everything(argc, argv) ? cmocka_run_group_tests(tests, make_folder, remove_folder)
                                       : 1;
}

/* SPDX-License-Identifier: Apache-2.0 */

/*
 * `fleetjob convert`, `fleetjob select` and `fleetjob plan` as their users see them: each command
 * runs in this process with a file and its standard output caught. Forms found by content, every
 * recorded file through JSON and YAML and back, the contract of the JSON, exit codes.
 */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/commands.h"
#include "cli/strategy_commands.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/strbuf.h"
#include "tests/golden/golden.h"

static char folder[] = "/tmp/strategy-commands-XXXXXX";

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    static const char *const names[] = {"in", "out", "err", "middle"};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(names); i++) {
        char path[128];
        (void)snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
        (void)unlink(path);
    }
    return rmdir(folder);
}

static void write_file(const char *name, const char *text)
{
    char path[128];
    struct fleet_error err;

    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    if (fleet_file_write(path, text, strlen(text), &err) < 0)
        fail_msg("%s", err.text);
}

/* Send a stream to a file of the folder; returns the descriptor to put back. */
static int divert(FILE *stream, const char *name)
{
    char path[128];
    int saved;
    FILE *file;

    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    (void)fflush(stream);
    saved = dup(fileno(stream));
    file = fopen(path, "w");
    assert_non_null(file);
    assert_true(dup2(fileno(file), fileno(stream)) >= 0);
    (void)fclose(file);
    return saved;
}

static void restore(FILE *stream, int saved)
{
    (void)fflush(stream);
    assert_true(dup2(saved, fileno(stream)) >= 0);
    (void)close(saved);
}

static char *read_back(const char *name)
{
    char path[128], *text = NULL;
    size_t size;

    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    assert_int_equal(fleet_file_read(path, GOLDEN_SIZE_MAX, &text, &size, NULL), 0);
    return text;
}

/* Run "convert --to json", say, on `path`; *out_text and *out_errors are freed by the caller. */
static int run(const char *command, const char *path, char **out_text, char **out_errors)
{
    char *words = strdup(command), *argv[12], *state = NULL;
    int argc = 0, code, out, err;

    for (char *w = strtok_r(words, " ", &state); w; w = strtok_r(NULL, " ", &state))
        argv[argc++] = w;
    argv[argc++] = (char *)(uintptr_t)path;
    argv[argc] = NULL;
    out = divert(stdout, "out");
    err = divert(stderr, "err");
    code = strcmp(argv[0], "convert") == 0 ? cli_convert(argc, argv)
           : strcmp(argv[0], "plan") == 0  ? cli_plan(argc, argv)
                                           : cli_select(argc, argv);
    restore(stdout, out);
    restore(stderr, err);
    *out_text = read_back("out");
    *out_errors = read_back("err");
    free(words);
    return code;
}

static void expect(const char *command, const char *input, int code, const char *output,
                   const char *errors)
{
    char path[128], *got, *said;
    int got_code;

    (void)snprintf(path, sizeof(path), "%s/in", folder);
    write_file("in", input);
    got_code = run(command, path, &got, &said);
    if (got_code != code || strcmp(got, output) != 0 || !strstr(said, errors))
        fail_msg("%s of %s\n  expected: %d %s (%s)\n  actual:   %d %s (%s)", command, input, code,
                 output, errors, got_code, got, said);
    free(got);
    free(said);
}

/* ---- convert --------------------------------------------------------------------------------- */

static void test_commands__convert_finds_the_form_by_content(void **state)
{
    static const char *const forms[] = {
        "amp: true\namp_configs { incr_ratio: 3 }\n",
        "amp: on\namp_configs: {incr_ratio: 3}\n",
        "{\"amp\": true, \"amp_configs\": {\"incr_ratio\": 3}}",
        "apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\nmetadata: {name: a}\n"
        "spec:\n  worker: {replicas: 2}\n  strategy: {amp: true, amp_configs: {incr_ratio: 3}}\n",
        "apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\nmetadata: {name: a}\n"
        "spec:\n  worker: {replicas: 2}\n  strategyText: |\n    amp: t;\n"
        "    amp_configs < incr_ratio: 3f >\n",
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(forms); i++) {
        expect("convert --to prototxt", forms[i], 0,
               "amp: true\namp_configs {\n  incr_ratio: 3\n}\n", "");
        expect("convert --to yaml", forms[i], 0, "amp: true\namp_configs:\n  incr_ratio: 3\n", "");
        expect("convert --to json", forms[i], 0,
               "{\n\t\"amp\":\ttrue,\n\t\"amp_configs\":\t{\n\t\t\"incr_ratio\":\t3\n\t}\n}\n", "");
    }
    expect("convert --to prototxt", "", 0, "", "");
}

static void test_commands__convert_changes_the_generation(void **state)
{
    static const char job[] =
        "apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\nmetadata: {name: a}\n"
        "spec:\n  worker: {replicas: 8}\n"
        "  strategy: {sharding: true, sharding_configs: {hybrid_dp: true, sharding_group_size: 4}}"
        "\n";

    (void)state;
    expect("convert --to prototxt --schema 2.1", job, 0,
           "sharding: true\nsharding_configs {\n  sharding_degree: 4\n  dp_degree: 2\n"
           "  hybrid_dp: true\n}\n",
           "");
    expect("convert --to yaml --schema 2.0", "pipeline_configs { accumulate_steps: 3 }", 0,
           "pipeline_configs:\n  micro_batch: 3\n", "");
    expect("convert --to yaml --schema 2.0", "sharding_configs { stage: 2 }", 1, "",
           "sharding_configs.stage: has no counterpart in 2.0");
    expect("convert --to prototxt", "{\"hybrid_configs\": {\"order\": [\"dp\"]}}", 0,
           "hybrid_configs {\n}\n", "warning: hybrid_configs.order is left out");
}

static void test_commands__convert_reports_errors_and_usage(void **state)
{
    (void)state;
    expect("convert --to json", "amp_configs { init_loss_scale: 1 }", 1, "",
           ":1:15: Message type \"paddle.fleet.AMPConfig\" has no field named \"init_loss_scale\"");
    expect("convert --to json", "{\"ampp\": true}", 1, "",
           "ampp: is not a field of DistributedStrategy; did you mean \"amp\"?");
    expect("convert --to xml", "", 2, "", "--to must be prototxt, yaml or json, not \"xml\"");
    expect("convert --to json --schema 3", "", 2, "", "--schema must be 2.0 or 2.1, not \"3\"");
    expect("convert", "", 2, "", "Usage: fleetjob convert");
}

static void test_commands__every_recorded_file_goes_through_json_and_yaml(void **state)
{
    static const char *const forms[] = {"convert --to json", "convert --to yaml"};
    DIR *dir = opendir("tests/golden/paddle/prototxt");
    struct dirent *entry;
    int files = 0;

    (void)state;
    assert_non_null(dir);
    while ((entry = readdir(dir))) {
        char path[600], golden[512], *original;
        size_t size;

        if (!strstr(entry->d_name, ".prototxt"))
            continue;
        (void)snprintf(golden, sizeof(golden), "paddle/prototxt/%s", entry->d_name);
        original = golden_text(golden, &size);
        for (size_t i = 0; i < FLEET_COUNT(forms); i++) {
            char *middle, *back, *said;

            (void)snprintf(path, sizeof(path), "tests/golden/%s", golden);
            assert_int_equal(run(forms[i], path, &middle, &said), 0);
            free(said);
            write_file("middle", middle);
            (void)snprintf(path, sizeof(path), "%s/middle", folder);
            if (run("convert --to prototxt", path, &back, &said) != 0 ||
                strcmp(back, original) != 0)
                fail_msg("%s, %s: %s\n%s\nback:\n%s", entry->d_name, forms[i], said, middle, back);
            free(said);
            free(middle);
            free(back);
        }
        free(original);
        files++;
    }
    (void)closedir(dir);
    assert_int_equal(files, 54);
}

/* ---- select ---------------------------------------------------------------------------------- */

static cJSON *selected(const char *command, const char *input, int code)
{
    char path[128], *text, *said;
    cJSON *json;
    int got;

    (void)snprintf(path, sizeof(path), "%s/in", folder);
    write_file("in", input);
    got = run(command, path, &text, &said);
    json = cJSON_Parse(text);
    if (got != code || !json)
        fail_msg("%s of %s: exit %d, %s%s", command, input, got, text, said);
    free(text);
    free(said);
    return json;
}

static void expect_compact(const cJSON *json, const char *key, const char *expected)
{
    char *text = cJSON_PrintUnformatted(cJSON_GetObjectItem(json, key));

    assert_non_null(text);
    assert_string_equal(text, expected);
    free(text);
}

static void test_commands__select_keeps_its_contract(void **state)
{
    cJSON *json =
        selected("select --world-size 4 --policy paddle --optimizer momentum --output json",
                 "amp: true localsgd: true lamb: true auto: true", 0);

    (void)state;
    expect_compact(json, "applied", "[\"localsgd\",\"amp\"]");
    expect_compact(
        json, "dropped",
        "[{\"setting\":\"lamb\",\"because\":\"it works with the optimizer Adam only, not "
        "with momentum\"}]");
    expect_compact(
        json, "withoutEffect",
        "[{\"setting\":\"auto\",\"because\":\"it chooses only when no other field is set, "
        "and others are\"}]");
    expect_compact(json, "dependsOnWorkers", "[\"localsgd\"]");
    expect_compact(json, "final", "{\"amp\":true,\"localsgd\":true,\"lamb\":false,\"auto\":true}");
    cJSON_Delete(json);
    json = selected("select --world-size 4 --output json", "lars: true lamb: true nccl_comm_num: 9",
                    1);
    expect_compact(json, "errors",
                   "[{\"path\":\"nccl_comm_num\",\"message\":\"must be from 1 to 8, not 9\"},"
                   "{\"path\":\"lamb\",\"message\":\"lars and lamb contradict each other: two "
                   "optimizers for one parameter\"}]");
    cJSON_Delete(json);
}

static void test_commands__select_takes_policy_and_optimizer_from_the_job(void **state)
{
    static const char job[] =
        "apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\nmetadata: {name: a}\n"
        "spec:\n  worker: {replicas: 2}\n  strategyPolicy: Paddle\n  strategy: {lars: true}\n"
        "  training:\n    model: {name: mlp, sizes: [4, 4]}\n    data: {path: x}\n"
        "    optimizer: {name: adam, learningRate: 0.1}\n"
        "    globalBatchSize: 4\n    microBatchSize: 2\n    steps: 1\n";
    cJSON *json = selected("select --world-size 2 --output json", job, 0);

    (void)state;
    expect_compact(json, "applied", "[]");
    expect_compact(
        json, "dropped",
        "[{\"setting\":\"lars\",\"because\":\"it works with the optimizer Momentum only, "
        "not with adam\"}]");
    cJSON_Delete(json);
    json = selected("select --world-size 2 --policy full --output json", job, 1);
    expect_compact(cJSON_GetArrayItem(cJSON_GetObjectItem(json, "errors"), 0), "path",
                   "\"spec.strategy.lars\"");
    cJSON_Delete(json);
}

static void test_commands__select_reports_usage(void **state)
{
    (void)state;
    expect("select --output json", "", 2, "", "Usage: fleetjob select");
    expect("select --world-size 0", "", 2, "", "--world-size must be in [1, 65536], not \"0\"");
    expect("select --world-size 4 --policy all", "", 2, "", "--policy must be full or paddle");
    expect("select --world-size 2", "amp: true", 0,
           "applied:\n  - amp\ndropped: []\nwithoutEffect: []\ndependsOnWorkers: []\nnotes: []\n"
           "final:\n  amp: true\n",
           "");
}

/* ---- plan ------------------------------------------------------------------------------------ */

#define PLANNED                                                                               \
    "apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\nmetadata: {name: a}\n"                \
    "spec:\n  worker: {replicas: 4}\n  strategy: {sharding: true, amp: true}\n"               \
    "  training:\n    model: {name: gpt, layers: 2, heads: 2, width: 16, context: 8, "        \
    "vocabulary: 256}\n    data: {path: x}\n    optimizer: {name: adam, learningRate: 0.1}\n" \
    "    globalBatchSize: 8\n    microBatchSize: 1\n    steps: 1\n"

/* Every rank's place: all different, and each group is one of the groups of the whole. */
static void test_commands__plan_places_every_rank(void **state)
{
    bool seen[8] = {false};

    (void)state;
    for (int rank = 0; rank < 8; rank++) {
        char command[80];
        cJSON *json;
        const cJSON *group;
        int place;

        (void)snprintf(command, sizeof(command), "plan --world-size 8 --output json --rank %d",
                       rank);
        json = selected(command, PLANNED, 0);
        expect_compact(json, "applied", "[\"sharding\",\"amp\"]");
        expect_compact(json, "order",
                       "[\"model\",\"sequence\",\"sharding\",\"pipeline\",\"data\"]");
        place = fleet_json_at(json, "rank.coordinates.sharding")->valueint;
        assert_false(seen[place]);
        seen[place] = true;
        group = fleet_json_at(json, "rank.groups.sharding");
        assert_int_equal(cJSON_GetArrayItem(group, place)->valueint, rank);
        assert_true(fleet_json_equal(group, fleet_json_at(json, "groups.sharding[0]")));
        assert_true(fleet_json_at(json, "rank.bytes.total")->valuedouble > 0);
        assert_int_equal(cJSON_GetArraySize(fleet_json_at(json, "cannotRun")), 0);
        cJSON_Delete(json);
    }
}

static void test_commands__plan_prints_the_program(void **state)
{
    cJSON *json = selected("plan --output json --program", PLANNED, 0);

    (void)state;
    assert_non_null(strstr(fleet_json_at(json, "program")->valuestring, "cross_entropy"));
    cJSON_Delete(json);
}

static void test_commands__plan_takes_a_strategy_alone(void **state)
{
    cJSON *json = selected("plan --world-size 6 --output json",
                           "pipeline: true hybrid_configs { pp_degree: 3 }", 0);

    (void)state;
    expect_compact(json, "groups",
                   "{\"model\":[[0],[1],[2],[3],[4],[5]],\"sequence\":[[0],[1],[2],[3],[4],[5]],"
                   "\"sharding\":[[0],[1],[2],[3],[4],[5]],\"pipeline\":[[0,1,2],[3,4,5]],"
                   "\"data\":[[0,3],[1,4],[2,5]]}");
    assert_null(fleet_json_at(json, "bytesPerRank"));
    cJSON_Delete(json);
    json = selected("plan --world-size 6 --output json", "lars: true lamb: true", 1);
    expect_compact(json, "errors",
                   "[{\"path\":\"lamb\",\"message\":\"lars and lamb contradict each other: two "
                   "optimizers for one parameter\"}]");
    cJSON_Delete(json);
    json =
        selected("plan --world-size 6 --policy paddle --output json", "lars: true lamb: true", 0);
    expect_compact(json, "applied", "[\"lamb\"]");
    cJSON_Delete(json);
}

static void test_commands__plan_reports_usage(void **state)
{
    (void)state;
    expect("plan", "amp: true", 1, "", "give --world-size");
    expect("plan --world-size 0", "amp: true", 2, "",
           "--world-size must be in [1, 65536], not \"0\"");
    expect("plan --world-size 2 --rank 2", "amp: true", 1, "",
           "there is no rank 2: ranks are 0 to 1");
    expect("plan --world-size 2 --rank -1", "amp: true", 2, "", "--rank must be in [0, 65535]");
    expect("plan --world-size 2 --output xml", "amp: true", 2, "",
           "--output must be table or json");
    expect("plan --world-size 2 --program", "amp: true", 1, "", "there is no program to print");
    expect("plan --world-size 16", PLANNED, 1, "", "spec.training.globalBatchSize: ");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_commands__convert_finds_the_form_by_content),
        cmocka_unit_test(test_commands__convert_changes_the_generation),
        cmocka_unit_test(test_commands__convert_reports_errors_and_usage),
        cmocka_unit_test(test_commands__every_recorded_file_goes_through_json_and_yaml),
        cmocka_unit_test(test_commands__select_keeps_its_contract),
        cmocka_unit_test(test_commands__select_takes_policy_and_optimizer_from_the_job),
        cmocka_unit_test(test_commands__select_reports_usage),
        cmocka_unit_test(test_commands__plan_places_every_rank),
        cmocka_unit_test(test_commands__plan_prints_the_program),
        cmocka_unit_test(test_commands__plan_takes_a_strategy_alone),
        cmocka_unit_test(test_commands__plan_reports_usage),
    };
    return cmocka_run_group_tests_name("strategy_commands", tests, make_folder, remove_folder);
}

/* SPDX-License-Identifier: Apache-2.0 */

/* What an own trainer finds in its environment (agent/environment.h), for 2 pods of 2 processes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "agent/environment.h"
#include "agent/own_files.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"

static const int first_ports[] = {5000, 5001}, second_ports[] = {6000, 6001};
static const struct message_member members[] = {
    {.pod_uid = "a", .index = 0, .address = "10.0.0.1", .ports = first_ports, .processes = 2},
    {.pod_uid = "b", .index = 1, .address = "fd00::2", .ports = second_ports, .processes = 2},
};
static const struct message_assign assign = {
    .generation = {1, 7}, .members = members, .member_count = 2, .world = 4};

static const char *value_of(char *const *environment, const char *name)
{
    size_t size = strlen(name);

    for (; *environment; environment++)
        if (strncmp(*environment, name, size) == 0 && (*environment)[size] == '=')
            return *environment + size + 1;
    return NULL;
}

static void expect(char *const *environment, const char *name, const char *expected)
{
    const char *actual = value_of(environment, name);

    if (!actual || strcmp(actual, expected) != 0)
        fail_msg("%s: expected \"%s\", got \"%s\"", name, expected, actual ? actual : "(none)");
}

static void test_environment__says_what_the_frameworks_expect(void **state)
{
    static const char *const expected[][2] = {
        {"PADDLE_TRAINER_ID", "3"},
        {"PADDLE_TRAINERS_NUM", "4"},
        {"PADDLE_CURRENT_ENDPOINT", "[fd00::2]:6001"},
        {"PADDLE_TRAINER_ENDPOINTS", "10.0.0.1:5000,10.0.0.1:5001,[fd00::2]:6000,[fd00::2]:6001"},
        {"PADDLE_RANK_IN_NODE", "1"},
        {"PADDLE_LOCAL_SIZE", "2"},
        {"PADDLE_NNODES", "2"},
        {"PADDLE_MASTER", "10.0.0.1:5000"},
        {"PADDLE_MASTER_ENDPOINT", "10.0.0.1:5000"},
        {"PADDLE_AUTO_CLUSTER", "0"},
        {"PADDLE_PG_TIMEOUT", "1800000"},
        {"FLAGS_stop_check_timeout", "900"},
        {"PADDLE_JOB_ID", "gpt"},
        {"PADDLE_DISTRI_BACKEND", "gloo"},
        {"OMP_NUM_THREADS", "1"},
        {"POD_NAME", "gpt-worker-1-0"},
        {"MASTER_ADDR", "10.0.0.1"},
        {"MASTER_PORT", "5000"},
        {"RANK", "3"},
        {"WORLD_SIZE", "4"},
        {"LOCAL_RANK", "1"},
        {"LOCAL_WORLD_SIZE", "2"},
        {"GROUP_RANK", "1"},
        {"MS_WORKER_NUM", "4"},
        {"MS_SCHED_HOST", "10.0.0.1"},
        {"RANK_ID", "3"},
        {"RANK_SIZE", "4"},
        {"PATH", "/bin"},
    };
    char *base[] = {(char *)"PATH=/bin", (char *)"RANK=99", (char *)"http_proxy=x",
                    (char *)"FLEET_TOKEN_FILE=/secret", NULL};
    struct environment_input input = {.base = base,
                                      .assign = &assign,
                                      .place = 1,
                                      .first_rank = 2,
                                      .local_rank = 1,
                                      .job_id = "gpt",
                                      .pod_name = "gpt-worker-1-0"};
    char **environment = environment_build(&input);

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(expected); i++)
        expect(environment, expected[i][0], expected[i][1]);
    assert_null(value_of(environment, "http_proxy"));
    assert_null(value_of(environment, "FLEET_TOKEN_FILE"));
    environment_free(environment);
}

static void test_environment__gives_each_trainer_one_gpu(void **state)
{
    static const struct {
        const char *base[3];
        int local_rank, processes;
        const char *expected; /* NULL = the variable is not set */
    } cases[] = {
        {{"FLEET_BACKEND=cuda"}, 1, 2, "1"},
        {{"FLEET_BACKEND=cuda", "CUDA_VISIBLE_DEVICES=GPU-a,GPU-b"}, 0, 2, "GPU-a"},
        {{"FLEET_BACKEND=cuda", "CUDA_VISIBLE_DEVICES=GPU-a,GPU-b"}, 1, 2, "GPU-b"},
        {{"FLEET_BACKEND=cuda", "CUDA_VISIBLE_DEVICES=GPU-a"}, 1, 2, ""}, /* there is none left */
        {{"FLEET_BACKEND=cuda", "CUDA_VISIBLE_DEVICES=3,4"}, 0, 1, "3,4"},
        {{"FLEET_BACKEND=cuda"}, 0, 1, NULL},
        {{"FLEET_BACKEND=cpu"}, 1, 2, NULL},
        {{"A=1"}, 1, 2, NULL},
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(cases); i++) {
        char **environment =
            environment_choose_gpu(environment_inherit((char *const *)cases[i].base),
                                   cases[i].local_rank, cases[i].processes);
        if (cases[i].expected)
            expect(environment, "CUDA_VISIBLE_DEVICES", cases[i].expected);
        else
            assert_null(value_of(environment, "CUDA_VISIBLE_DEVICES"));
        environment_free(environment);
    }
}

/* The agent that came by a library of its own gives the user's back, and leaves nothing of its
 * own. */
static void test_environment__preloads_what_the_template_says(void **state)
{
    static const struct {
        const char *base[4], *preload; /* NULL = none */
    } cases[] = {
        {{"A=1"}, NULL},
        {{"LD_PRELOAD=/x.so", "A=1"}, "/x.so"}, /* the agent was the command */
        {{"FLEET_ENTRYPOINT_PRELOAD=/x.so /y.so", "A=1", "FLEET_ENTRYPOINT_AGENT=/a"},
         "/x.so /y.so"},
        {{"A=1", "FLEET_ENTRYPOINT_AGENT=/a", "FLEET_ENTRYPOINT_PRELOAD=/x.so"}, "/x.so"},
        {{"FLEET_ENTRYPOINT_AGENT=/a", "A=1"}, NULL},
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(cases); i++) {
        char **environment = environment_inherit((char *const *)cases[i].base);
        if (cases[i].preload)
            expect(environment, "LD_PRELOAD", cases[i].preload);
        else
            assert_null(value_of(environment, "LD_PRELOAD"));
        expect(environment, "A", "1");
        assert_null(value_of(environment, "FLEET_ENTRYPOINT_AGENT"));
        assert_null(value_of(environment, "FLEET_ENTRYPOINT_PRELOAD"));
        environment_free(environment);
    }
}

static void test_environment__says_where_to_resume_once_the_job_has_said(void **state)
{
    struct message_assign resumed = assign;
    char *base[] = {(char *)"FLEET_RESUME_STEP=3", NULL};
    struct environment_input input = {.base = base,
                                      .assign = &assign,
                                      .job_id = "gpt",
                                      .pod_name = "p",
                                      .progress_file = "/tmp/f/progress.0"};
    char **environment = environment_build(&input);

    (void)state;
    expect(environment, "FLEET_RESUME_STEP", "3"); /* of the user */
    assert_null(value_of(environment, "FLEET_RESUME_PATH"));
    expect(environment, "FLEET_PROGRESS_FILE", "/tmp/f/progress.0");
    environment_free(environment);
    resumed.checkpoint_step = 400;
    resumed.checkpoint_path = "/c/400";
    input.assign = &resumed;
    environment = environment_build(&input);
    expect(environment, "FLEET_RESUME_STEP", "400");
    expect(environment, "FLEET_RESUME_PATH", "/c/400");
    environment_free(environment);
}

/* gloo, unless a variable names a device. */
static void test_environment__finds_devices_as_containers_name_them(void **state)
{
    static const struct {
        const char *base[4];
        const char *expected; /* NULL = the variable is not set */
    } cases[] = {
        {{"A=1"}, "gloo"},
        {{"CUDA_VISIBLE_DEVICES=0"}, NULL},
        {{"NVIDIA_VISIBLE_DEVICES=GPU-8f4e"}, NULL}, /* of a device plugin */
        {{"NVIDIA_VISIBLE_DEVICES=all"}, NULL},
        {{"NVIDIA_VISIBLE_DEVICES=void"}, "gloo"},
        {{"NVIDIA_VISIBLE_DEVICES=none"}, "gloo"},
        {{"NVIDIA_VISIBLE_DEVICES="}, "gloo"},
        {{"CUDA_VISIBLE_DEVICES="}, "gloo"},
        {{"NVIDIA_VISIBLE_DEVICES=all", "CUDA_VISIBLE_DEVICES=-1"}, "gloo"},
        {{"NVIDIA_VISIBLE_DEVICES=void", "CUDA_VISIBLE_DEVICES=1"}, NULL},
        {{"NVIDIA_VISIBLE_DEVICES=void", "XPU_VISIBLE_DEVICES=0,1"}, NULL},
        {{"XPULINK_VISIBLE_DEVICES=2"}, NULL},
        {{"NVIDIA_VISIBLE_DEVICES=0", "PADDLE_DISTRI_BACKEND=gloo"}, "gloo"},
        {{"PADDLE_DISTRI_BACKEND=auto"}, "auto"},
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(cases); i++) {
        struct environment_input input = {.base = (char *const *)cases[i].base,
                                          .assign = &assign,
                                          .job_id = "gpt",
                                          .pod_name = "p"};
        char **environment = environment_build(&input);
        if (cases[i].expected)
            expect(environment, "PADDLE_DISTRI_BACKEND", cases[i].expected);
        else
            assert_null(value_of(environment, "PADDLE_DISTRI_BACKEND"));
        environment_free(environment);
    }
}

static void test_environment__keeps_what_the_user_may_set(void **state)
{
    char *base[] = {(char *)"MASTER_ADDR=master",      (char *)"MASTER_PORT=1234",
                    (char *)"OMP_NUM_THREADS=4",       (char *)"PADDLE_PG_TIMEOUT=5000",
                    (char *)"PADDLE_AUTO_CLUSTER=1",   (char *)"FLAGS_stop_check_timeout=60",
                    (char *)"PADDLE_LOG_DIR=/my/logs", NULL};
    struct environment_input input = {
        .base = base, .assign = &assign, .job_id = "gpt", .pod_name = "p", .folder = "/tmp/f"};
    char **environment = environment_build(&input);

    (void)state;
    expect(environment, "MASTER_ADDR", "master");
    expect(environment, "MASTER_PORT", "1234");
    expect(environment, "OMP_NUM_THREADS", "4");
    expect(environment, "PADDLE_PG_TIMEOUT", "5000");
    expect(environment, "FLAGS_stop_check_timeout", "60");
    expect(environment, "PADDLE_AUTO_CLUSTER", "1");
    expect(environment, "PADDLE_LOG_DIR", "/my/logs");
    expect(environment, "PADDLE_MASTER", "10.0.0.1:5000");
    environment_free(environment);
}

/* The secret is the key of the generation, in hexadecimal digits. */
static void test_environment__hands_over_the_encryption_of_the_job(void **state)
{
    static const struct {
        const char *base[3];
        bool encrypts;
        const char *encryption, *secret; /* NULL = not set */
    } cases[] = {
        {{NULL}, false, NULL, NULL},
        {{"FLEET_WORLD_SECRET=mine"}, false, NULL, "mine"},
        {{NULL}, true, "AES-GCM", "0102"},
        {{"FLEET_WORLD_SECRET=mine"}, true, "AES-GCM", "mine"},
        {{"FLEET_DATA_ENCRYPTION=None"}, true, "None", "0102"},
    };
    struct message_assign keyed = assign;

    (void)state;
    keyed.key[0] = 1;
    keyed.key[1] = 2;
    for (size_t i = 0; i < FLEET_COUNT(cases); i++) {
        struct environment_input input = {.base = (char *const *)cases[i].base,
                                          .assign = &keyed,
                                          .job_id = "gpt",
                                          .pod_name = "p",
                                          .encrypts = cases[i].encrypts};
        char **environment = environment_build(&input);
        const char *encryption = value_of(environment, "FLEET_DATA_ENCRYPTION");
        const char *secret = value_of(environment, "FLEET_WORLD_SECRET");
        assert_int_equal(encryption != NULL, cases[i].encryption != NULL);
        assert_int_equal(secret != NULL, cases[i].secret != NULL);
        if (encryption)
            assert_string_equal(encryption, cases[i].encryption);
        if (secret && strcmp(cases[i].secret, "mine") != 0)
            assert_int_equal(strlen(secret), 2 * MESSAGE_SECRET_SIZE);
        if (secret)
            assert_int_equal(strncmp(secret, cases[i].secret, strlen(cases[i].secret)), 0);
        environment_free(environment);
    }
}

static void test_environment__puts_aside_what_is_too_long(void **state)
{
    static int port = 5000;
    size_t count = MESSAGE_MEMBERS_MAX;
    struct message_member *many = calloc(count, sizeof(*many));
    struct message_assign big = {.members = many, .member_count = count, .world = (int)count};
    char *base[] = {NULL};
    struct environment_input input = {
        .base = base, .assign = &big, .job_id = "gpt", .pod_name = "p"};
    char **environment, *backup = NULL;

    (void)state;
    for (size_t i = 0; i < count; i++)
        many[i] = (struct message_member){
            .address = "2001:db8:1111:2222:3333:4444:5555:6666", .ports = &port, .processes = 1};
    environment = environment_shorten(environment_build(&input), &backup);
    assert_null(value_of(environment, "PADDLE_TRAINER_ENDPOINTS"));
    expect(environment, "WORLD_SIZE", "4096");
    assert_non_null(backup);
    assert_ptr_equal(strstr(backup, "{\"PADDLE_TRAINER_ENDPOINTS\":\"[2001:db8:"), backup);
    environment = environment_set(environment, "PADDLE_BACKUP_ENV_PATH", "/x");
    expect(environment, "PADDLE_BACKUP_ENV_PATH", "/x");
    free(backup);
    environment_free(environment);
    free(many);
}

static void test_environment__names_the_files_of_the_job(void **state)
{
    char *base[] = {NULL};
    struct environment_input input = {.base = base,
                                      .assign = &assign,
                                      .job_id = "gpt",
                                      .pod_name = "p",
                                      .folder = "/tmp/f",
                                      .strategy_json = "{\"amp\":true}",
                                      .strategy_file = "/tmp/f/strategy.prototxt",
                                      .rank_table_file = "/tmp/f/rank_table.json",
                                      .auto_parallel_json = "{\"device_num\":4}",
                                      .auto_parallel_file = "/tmp/f/auto_parallel.json",
                                      .nccl_rings = 3};
    char *backup, **environment = environment_shorten(environment_build(&input), &backup);

    (void)state;
    assert_null(backup);
    expect(environment, "FLEET_STRATEGY_JSON", "{\"amp\":true}");
    expect(environment, "FLEET_STRATEGY_FILE", "/tmp/f/strategy.prototxt");
    expect(environment, "RANK_TABLE_FILE", "/tmp/f/rank_table.json");
    expect(environment, "PADDLE_LOG_DIR", "/tmp/f");
    expect(environment, "FLAGS_nccl_nrings", "3");
    expect(environment, "FLEET_AUTO_PARALLEL_JSON", "{\"device_num\":4}");
    expect(environment, "FLEET_AUTO_PARALLEL_FILE", "/tmp/f/auto_parallel.json");
    expect(environment, "FLEET_GENERATION", "7");
    environment_free(environment);
}

/* The page lists all that is set. */
static void test_environment__every_variable_is_documented(void **state)
{
    struct message_assign resumed = assign;
    char *base[] = {NULL};
    struct environment_input input = {.base = base,
                                      .assign = &resumed,
                                      .job_id = "gpt",
                                      .pod_name = "p",
                                      .folder = "/tmp/f",
                                      .strategy_json = "{}",
                                      .strategy_file = "/s",
                                      .rank_table_file = "/r",
                                      .auto_parallel_json = "{}",
                                      .auto_parallel_file = "/a",
                                      .progress_file = "/p",
                                      .encrypts = true,
                                      .nccl_rings = 1};
    FLEET_AUTO_FREE char *page = NULL;
    char **environment, name[80];
    struct fleet_error err;
    size_t size;

    (void)state;
    if (fleet_file_read("docs/own-trainer.md", 1 << 20, &page, &size, &err) < 0)
        fail_msg("%s", err.text);
    resumed.checkpoint_step = 1;
    resumed.checkpoint_path = "/c";
    environment = environment_build(&input);
    for (char **entry = environment; *entry; entry++) {
        (void)snprintf(name, sizeof(name), "`%.*s`", (int)strcspn(*entry, "="), *entry);
        if (!strstr(page, name))
            fail_msg("docs/own-trainer.md does not say what %s is", name);
    }
    environment_free(environment);
}

static void write_job(char path[static 32], const char *text)
{
    FILE *file;
    int fd;

    strcpy(path, "/tmp/job-XXXXXX");
    fd = mkstemp(path);
    assert_true(fd >= 0);
    file = fdopen(fd, "w");
    (void)fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static int syncs;

/* In place of libc's. */
int fsync(int fd)
{
    (void)fd;
    syncs++;
    return 0;
}

/* The agent writes them between two heartbeats, on a disk that may be busy for seconds. */
static void test_own_files__wait_for_no_disk(void **state)
{
    struct own_files files;
    char path[32], *table = NULL, *backup = NULL;

    (void)state;
    write_job(path, "{\"strategy\": {\"amp\": true}}");
    syncs = 0;
    assert_int_equal(own_files_open(path, &files, NULL), 0);
    assert_int_equal(own_files_rank_table(&files, &assign, &table, NULL), 0);
    assert_int_equal(own_files_backup(&files, 0, "{}", &backup, NULL), 0);
    assert_int_equal(syncs, 0);
    free(table);
    free(backup);
    own_files_release(&files);
    (void)unlink(path);
}

/* Paddle uses one communicator where there is one rank, or batch norm is synchronized. */
static void test_own_files__nccl_rings_are_those_that_take_effect(void **state)
{
    FLEET_AUTO_FREE char *text = NULL;
    struct own_files files;
    char path[32];
    size_t size;

    (void)state;
    write_job(path, "{\"strategy\": {\"nccl_comm_num\": 3}, \"strategyPolicy\": \"Full\"}");
    assert_int_equal(own_files_open(path, &files, NULL), 0);
    assert_int_equal(own_files_nccl_rings(&files, 4), 3);
    assert_int_equal(own_files_nccl_rings(&files, 1), 1);
    assert_null(files.auto_parallel_json);
    assert_null(files.auto_parallel_file);
    own_files_release(&files);
    (void)unlink(path);
    write_job(path, "{\"strategy\": {\"nccl_comm_num\": 3, \"sync_batch_norm\": true}, "
                    "\"autoParallel\": {\"parallel_mode\": \"data_parallel\"}}");
    assert_int_equal(own_files_open(path, &files, NULL), 0);
    assert_int_equal(own_files_nccl_rings(&files, 4), 1);
    assert_string_equal(files.auto_parallel_json, "{\"parallel_mode\":\"data_parallel\"}");
    assert_int_equal(fleet_file_read(files.auto_parallel_file, 100, &text, &size, NULL), 0);
    assert_string_equal(text, files.auto_parallel_json);
    own_files_release(&files);
    (void)unlink(path);
}

static void test_environment__rank_table_lists_every_rank_once(void **state)
{
    FLEET_AUTO_FREE char *text = own_files_format_rank_table(&assign);

    (void)state;
    assert_string_equal(text, "{\"version\":\"1.0\",\"server_count\":\"2\",\"server_list\":["
                              "{\"server_id\":\"10.0.0.1\",\"device\":["
                              "{\"device_id\":\"0\",\"device_ip\":\"10.0.0.1\",\"rank_id\":\"0\"},"
                              "{\"device_id\":\"1\",\"device_ip\":\"10.0.0.1\",\"rank_id\":\"1\"}],"
                              "\"host_nic_ip\":\"reserve\"},"
                              "{\"server_id\":\"fd00::2\",\"device\":["
                              "{\"device_id\":\"0\",\"device_ip\":\"fd00::2\",\"rank_id\":\"2\"},"
                              "{\"device_id\":\"1\",\"device_ip\":\"fd00::2\",\"rank_id\":\"3\"}],"
                              "\"host_nic_ip\":\"reserve\"}],\"status\":\"completed\"}");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_environment__says_what_the_frameworks_expect),
        cmocka_unit_test(test_environment__gives_each_trainer_one_gpu),
        cmocka_unit_test(test_environment__preloads_what_the_template_says),
        cmocka_unit_test(test_environment__says_where_to_resume_once_the_job_has_said),
        cmocka_unit_test(test_environment__finds_devices_as_containers_name_them),
        cmocka_unit_test(test_environment__keeps_what_the_user_may_set),
        cmocka_unit_test(test_environment__names_the_files_of_the_job),
        cmocka_unit_test(test_environment__every_variable_is_documented),
        cmocka_unit_test(test_own_files__wait_for_no_disk),
        cmocka_unit_test(test_own_files__nccl_rings_are_those_that_take_effect),
        cmocka_unit_test(test_environment__rank_table_lists_every_rank_once),
        cmocka_unit_test(test_environment__hands_over_the_encryption_of_the_job),
        cmocka_unit_test(test_environment__puts_aside_what_is_too_long),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

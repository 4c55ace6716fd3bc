/* SPDX-License-Identifier: Apache-2.0 */

/*
 * `fleetjob launch` as users of Paddle's launcher and of torchrun call it: the options mean a job,
 * its processes get their ranks and arguments, a failed process restarts all, and what it cannot do
 * is one message.
 */
#include "tests/integration/run_fixture.h"

/* An executable script in the folder. */
static const char *write_script(const char *name, const char *text)
{
    static char path[128];

    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    assert_int_equal(fleet_file_write(path, text, strlen(text), NULL), 0);
    assert_int_equal(chmod(path, 0755), 0);
    return path;
}

#define SHOW                                                                           \
    "#!/bin/sh\n"                                                                      \
    "echo \"rank $PADDLE_TRAINER_ID of $PADDLE_TRAINERS_NUM, local $LOCAL_RANK, gpus " \
    "$CUDA_VISIBLE_DEVICES: $*\"\n"

static void test_launch__processes_get_ranks_devices_and_arguments(void **state)
{
    const char *script = write_script("show", SHOW);
    struct run run;

    (void)state;
    run_words(&run, "launch", "--nnodes", "2", "--devices=4,5", script, "--lr", "a b", NULL);
    expect_exit(&run, 0);
    expect_words(&run.out, "[0] rank 0 of 4, local 0, gpus 4,5: --lr a b\n");
    expect_words(&run.out, "[3] rank 3 of 4, local 1, gpus 4,5: --lr a b\n");
    release(&run);
    /* as torchrun writes it */
    run_words(&run, "launch", "--standalone", "--nproc-per-node=3", "--rdzv-backend", "c10d",
              script, NULL);
    expect_exit(&run, 0);
    expect_words(&run.out, "[2] rank 2 of 3, local 2, gpus : \n");
    expect_words(&run.err, "note: --rdzv-backend has no effect: the hub of FleetJob connects");
    release(&run);
}

static void test_launch__a_script_that_cannot_run_is_refused_at_once(void **state)
{
    char path[128];
    struct run run;

    (void)state;
    (void)snprintf(path, sizeof(path), "%s/missing.py", folder);
    run_words(&run, "launch", path, NULL);
    expect_exit(&run, 1);
    expect_words(&run.err, "missing.py: No such file or directory\n");
    assert_string_equal(fleet_strbuf_text(&run.out), ""); /* nothing was started */
    release(&run);
    write_text("plain", 10);
    (void)snprintf(path, sizeof(path), "%s/plain", folder);
    run_words(&run, "launch", path, NULL);
    expect_exit(&run, 1);
    expect_words(&run.err, "plain is not executable: chmod +x ");
    release(&run);
}

static void test_launch__a_failed_process_restarts_all(void **state)
{
    char text[512];
    const char *script;
    struct run run;

    (void)state;
    (void)snprintf(text, sizeof(text),
                   "#!/bin/sh\n"
                   "echo \"start of $RANK\"\n"
                   "[ $RANK != 1 ] || [ -e %s/mark ] || { : >%s/mark; exit 7; }\n",
                   folder, folder);
    script = write_script("fails", text);
    run_words(&run, "launch", "--nproc_per_node", "2", "--max_restart", "1", script, NULL);
    expect_exit(&run, 0);
    expect_words(&run.out, "restarts  1");
    release(&run);
    script = write_script("fails-always", "#!/bin/sh\n[ $RANK != 1 ] || exit 7\n");
    run_words(&run, "launch", "--nproc_per_node=2", "--elastic_level", "0", script, NULL);
    expect_exit(&run, 1);
    release(&run);
}

/* 101 and 102 of Paddle; no failure that a user has to look for. */
static void test_launch__a_process_may_ask_for_a_restart(void **state)
{
    const char *script = write_script("asks", "#!/bin/sh\n"
                                              "case $FLEET_GENERATION.$RANK in\n"
                                              "1.1) exit 101 ;;\n"
                                              "2.0) exit 102 ;;\n"
                                              "[12].*) sleep 600 ;;\n"
                                              "esac\n");
    struct run run;

    (void)state;
    run_words(&run, "launch", "--nnodes", "2", "--max_restart", "2", script, NULL);
    expect_exit(&run, 0);
    expect_words(&run.out, "worker 1: its trainer exited with code 101 (it asks for a restart)\n");
    expect_words(&run.out, "worker 0: its trainer exited with code 102 (it asks for a restart with "
                           "a new parallel plan)\n");
    expect_words(&run.out, "restarts  2 (RestartRequested of worker 1");
    release(&run);
}

static void test_launch__logs_go_to_a_file_for_each_rank(void **state)
{
    const char *script = write_script("show", SHOW);
    FLEET_AUTO_FREE char *logs = fleet_file_join(folder, "logs");
    FLEET_AUTO_FREE char *file = fleet_file_join(logs, "workerlog.1");
    struct run run;

    (void)state;
    for (int round = 1; round <= 3; round++) {
        FLEET_AUTO_FREE char *text = NULL;
        size_t size, lines = 0;
        if (round < 3)
            run_words(&run, "launch", "--log_dir", logs, "--nproc_per_node", "2", script, NULL);
        else
            run_words(&run, "launch", "--log_dir", logs, "--log_overwrite", "--nproc_per_node", "2",
                      script, NULL);
        expect_exit(&run, 0);
        assert_null(strstr(fleet_strbuf_text(&run.out), "rank 1 of"));
        release(&run);
        assert_int_equal(fleet_file_read(file, 1 << 20, &text, &size, NULL), 0);
        for (const char *at = text; (at = strchr(at, '\n')) != NULL; at++)
            lines++;
        assert_int_equal(lines, round == 2 ? 2 : 1); /* appended, then emptied */
    }
}

/* "--log_overwrite True" is how Paddle's users write it; torchrun's options with one letter. */
static void test_launch__values_are_read_as_the_launchers_read_them(void **state)
{
    static const struct {
        const char *value, *expected;
    } cases[] = {{"False", "\\\" >>\\\""},
                 {"no", "\\\" >>\\\""},
                 {"True", "\\\" >\\\""},
                 {"1", "\\\" >\\\""}};
    struct run run;

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(cases); i++) {
        FLEET_AUTO_FREE char *logs = fleet_file_join(folder, "logs");
        run_words(&run, "launch", "--print-job", "--log_dir", logs, "--log_overwrite",
                  cases[i].value, "train.py", NULL);
        expect_exit(&run, 0);
        expect_words(&run.out, "train.py\"\n");
        expect_words(&run.out, cases[i].expected);
        release(&run);
    }
    run_words(&run, "launch", "--print-job", "-r", "3", "-t", "1", "--no-python", "--log_level",
              "DEBUG", "--start_method=spawn", "train.py", NULL);
    expect_exit(&run, 0);
    expect_words(&run.out, "command:\n");
    assert_null(strstr(fleet_strbuf_text(&run.out), "python3"));
    expect_words(&run.err, "note: -r has no effect: each line is printed with its rank");
    expect_words(&run.err, "note: --log_level has no effect: `fleetjob run -v`");
    expect_words(&run.err, "note: --start_method has no effect: an agent of FleetJob starts");
    release(&run);
    run_words(&run, "launch", "--print-job", "--nproc-per-node=cpu", "train.py", NULL);
    expect_exit(&run, 0);
    expect_words(&run.out, "processesPerPod: ");
    release(&run);
}

static void test_launch__addresses_are_nodes_of_a_printed_job(void **state)
{
    struct run run;

    (void)state;
    run_words(&run, "launch", "--print-job", "--ips=10.0.0.1,10.0.0.2,10.0.0.3", "train.py", NULL);
    expect_exit(&run, 0);
    expect_words(&run.out, "replicas: 3\n");
    release(&run);
    run_words(&run, "launch", "--print-job", "--ips", "a,b", "--nnodes", "3", "train.py", NULL);
    expect_exit(&run, 2);
    expect_words(&run.err, "--ips has 2 addresses, --nnodes is 3");
    release(&run);
    assert_int_equal(setenv("PADDLE_IPS", "127.0.0.1", 1), 0);
    assert_int_equal(setenv("PADDLE_MASTER", "127.0.0.1:70", 1), 0);
    run_words(&run, "launch", "--print-job", "train.py", NULL);
    assert_int_equal(unsetenv("PADDLE_IPS"), 0);
    assert_int_equal(unsetenv("PADDLE_MASTER"), 0);
    expect_exit(&run, 0);
    expect_words(&run.err, "note: PADDLE_IPS has no effect: the hub of FleetJob connects");
    expect_words(&run.err, "note: PADDLE_MASTER has no effect: the hub of FleetJob connects");
    release(&run);
}

/* Paddle's init_rpc() reads the address of rank 0 from PADDLE_MASTER_ENDPOINT. */
static void test_launch__workers_of_calls_get_their_master(void **state)
{
    const char *script = write_script(
        "rpc",
        "#!/bin/sh\n[ \"$PADDLE_MASTER_ENDPOINT\" = \"$PADDLE_MASTER\" ] && echo \"same\"\n");
    struct run run;

    (void)state;
    run_words(&run, "launch", "--run_mode", "rpc", "--nproc_per_node=2", script, NULL);
    expect_exit(&run, 0);
    expect_words(&run.out, "[0] same\n");
    expect_words(&run.out, "[1] same\n");
    release(&run);
}

static void test_launch__a_printed_job_is_valid(void **state)
{
    FLEET_AUTO_FREE char *file = fleet_file_join(folder, "job.yaml");
    struct run run;

    (void)state;
    assert_int_equal(setenv("PADDLE_NNODES", "2:4", 1), 0);
    run_words(&run, "launch", "--print-job", "--nnodes", "7", "--job_id", "mine", "-m",
              "pack.train", "--x", NULL);
    assert_int_equal(unsetenv("PADDLE_NNODES"), 0);
    expect_exit(&run, 0);
    expect_words(&run.out, "  name: mine\n");
    expect_words(&run.out, "    minReplicas: 2\n    maxReplicas: 4\n"); /* the variable wins */
    expect_words(&run.out, "- python3\n");
    assert_int_equal(fleet_file_write(file, run.out.text, run.out.length, NULL), 0);
    release(&run);
    run_words(&run, "validate", file, NULL);
    expect_exit(&run, 0);
    expect_words(&run.out, "valid");
    release(&run);
}

static void refused(const char *words, const char *option, const char *value)
{
    struct run run;

    run_words(&run, "launch", option, value, "script", NULL);
    expect_exit(&run, 2);
    expect_words(&run.err, words);
    release(&run);
}

static void test_launch__wrong_options_are_one_message(void **state)
{
    struct run run;

    (void)state;
    refused("--nnodes is \"0\", not a number between 1 and 256", "--nnodes", "0");
    refused("--nnodes is \"4:2\": the second number is less", "--nnodes", "4:2");
    refused("--nproc_per_node is \"many\"", "--nproc_per_node", "many");
    refused("unknown option --nnode;", "--nnode", "1");
    refused("--run_mode is \"ps-heter\", allowed: collective, ps, rpc; all workers", "--run_mode",
            "ps-heter");
    refused("--ips has 2 addresses: `fleetjob launch` runs jobs on one machine", "--ips", "a,b");
    refused("--log-overwrite is \"maybe\", allowed: True, False", "--log-overwrite=maybe", "-m");
    refused("unknown option -x", "-x", "1");
    run_words(&run, "launch", "--nnodes", NULL);
    expect_exit(&run, 2);
    expect_words(&run.err, "--nnodes: needs a value");
    release(&run);
    run_words(&run, "launch", NULL);
    expect_exit(&run, 2);
    expect_words(&run.err, "name a script");
    release(&run);
    run_words(&run, "launch", "--job_id", "A b", "script", NULL);
    expect_exit(&run, 1);
    expect_words(&run.err, "metadata.name");
    release(&run);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_launch__processes_get_ranks_devices_and_arguments),
        cmocka_unit_test(test_launch__a_script_that_cannot_run_is_refused_at_once),
        cmocka_unit_test(test_launch__a_failed_process_restarts_all),
        cmocka_unit_test(test_launch__a_process_may_ask_for_a_restart),
        cmocka_unit_test(test_launch__logs_go_to_a_file_for_each_rank),
        cmocka_unit_test(test_launch__values_are_read_as_the_launchers_read_them),
        cmocka_unit_test(test_launch__addresses_are_nodes_of_a_printed_job),
        cmocka_unit_test(test_launch__workers_of_calls_get_their_master),
        cmocka_unit_test(test_launch__a_printed_job_is_valid),
        cmocka_unit_test(test_launch__wrong_options_are_one_message),
    };

    return find_everything(argc, argv) ? cmocka_run_group_tests(tests, make_folder, remove_folder)
                                       : 1;
}

/* SPDX-License-Identifier: Apache-2.0 */

/*
 * `fleetjob launch` of a job with servers of parameters: the example of the documentation ends with
 * the same bits after a server or a worker was killed, each process starts again alone, and the job
 * ends when its workers have.
 */
#include "tests/integration/run_fixture.h"
#include "tests/support/free_port.h"

static const char *write_script(const char *name, const char *text)
{
    static char path[128];

    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    assert_int_equal(fleet_file_write(path, text, strlen(text), NULL), 0);
    assert_int_equal(chmod(path, 0755), 0);
    return path;
}

/* ---- the example ----------------------------------------------------------------------------- */

static char example[128];

static void build_example(void)
{
    char command[512];

    (void)snprintf(example, sizeof(example), "%s/click", folder);
    (void)snprintf(command, sizeof(command),
                   "cc -O1 -Iinclude -o %s docs/examples/click-through.c -Lbuild/lib -lfleet -lm "
                   "-Wl,-rpath,\"$PWD/build/lib\"",
                   example);
    assert_int_equal(system(command), 0);
}

/* The line with the area under the curve, for so many steps. Borrowed until the next. */
static const char *undisturbed(const char *steps)
{
    static char line[128];
    const char *at;
    struct run run;

    run_words(&run, "launch", "--server_num", "1", "--worker_num", "2", example, steps, NULL);
    expect_exit(&run, 0);
    at = strstr(run.out.text, "area under the curve ");
    assert_non_null(at);
    (void)snprintf(line, sizeof(line), "%.*s\n", (int)strcspn(at, "\n"), at);
    release(&run);
    return line;
}

/* Kill a process of the run with this role. */
static void kill_role(const struct run *run, const char *role)
{
    DIR *proc = opendir("/proc");
    const struct dirent *entry;
    bool has_killed = false;

    while (proc && !has_killed && (entry = readdir(proc)))
        if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9' &&
            carries_mark(entry->d_name, run->mark) && carries_mark(entry->d_name, role))
            has_killed = kill((pid_t)strtol(entry->d_name, NULL, 10), SIGKILL) == 0;
    if (proc)
        (void)closedir(proc);
}

/* False: the job was over before its process was killed. */
static bool strike_role(const void *context, int steps)
{
    const char *role = context;
    char snapshots[128];
    char *arguments[] = {program,
                         (char *)"launch",
                         (char *)"--server_num=2",
                         (char *)"--worker_num=2",
                         example,
                         (char *)steps_text(steps),
                         snapshots,
                         NULL};
    struct run run;
    bool is_hit;

    (void)snprintf(snapshots, sizeof(snapshots), "%s/%s-%d", folder, strchr(role, '=') + 1, steps);
    start(&run, arguments);
    wait_for_words(&run, "[worker 0] step 20\n");
    kill_role(&run, role);
    wait_for_end(&run);
    if (strstr(fleet_strbuf_text(&run.err), " after all servers had ended\n")) {
        release(&run); /* the worker had told the servers that it stops */
        return false;
    }
    expect_exit(&run, 0);
    is_hit = strstr(fleet_strbuf_text(&run.err), " was ended by signal 9, restart 1 of 3\n");
    expect_words(&run.out, undisturbed(steps_text(steps)));
    if (is_hit)
        expect_words(&run.out, "Succeeded: 2 servers, 2 workers, restarts 1\n");
    expect_nothing_left(&run);
    release(&run);
    return is_hit;
}

static void test_launch_servers__a_killed_server_changes_no_bit(void **state)
{
    (void)state;
    build_example();
    strike_until_hit(strike_role, "TRAINING_ROLE=PSERVER", "80");
}

static void test_launch_servers__a_killed_worker_changes_no_bit(void **state)
{
    (void)state;
    build_example();
    strike_until_hit(strike_role, "TRAINING_ROLE=TRAINER", "80");
}

/* ---- processes ------------------------------------------------------------------------------- */

#define SHOW                                                                                   \
    "#!/bin/sh\n"                                                                              \
    "echo \"$TRAINING_ROLE $PADDLE_ROLE $POD_IP:$PADDLE_PORT id '$PADDLE_TRAINER_ID' of "      \
    "$PADDLE_TRAINERS_NUM, servers $PADDLE_PSERVERS_IP_PORT_LIST, proxy '$http_proxy': $*\"\n" \
    "[ -n \"$FLEET_WORLD_SECRET\" ]\n"

static void test_launch_servers__processes_get_the_variables_of_paddle(void **state)
{
    const char *script = write_script("show", SHOW);
    int first = free_port(), second = free_port();
    char servers[64], line[256];
    struct run run;

    (void)state;
    (void)snprintf(servers, sizeof(servers), "127.0.0.1:%d,127.0.0.1:%d", first, second);
    assert_int_equal(setenv("http_proxy", "http://x", 1), 0);
    assert_int_equal(setenv("PADDLE_TRAINER_NUM", "2", 1), 0);
    run_words(&run, "launch", "--servers", servers, "--worker-num", "7", script, "--lr", "a b",
              NULL);
    assert_int_equal(unsetenv("http_proxy"), 0);
    assert_int_equal(unsetenv("PADDLE_TRAINER_NUM"), 0);
    expect_exit(&run, 0);
    (void)snprintf(line, sizeof(line),
                   "[server 1] PSERVER PSERVER 127.0.0.1:%d id '' of 2, servers %s, proxy '': "
                   "--lr a b\n",
                   second, servers);
    expect_words(&run.out, line);
    expect_words(&run.out, "[worker 1] TRAINER TRAINER 127.0.0.1:");
    expect_words(&run.out, " id '1' of 2, servers 127.0.0.1:"); /* the variable wins */
    expect_words(&run.out, "Succeeded: 2 servers, 2 workers, restarts 0\n");
    release(&run);
}

static void test_launch_servers__a_process_that_fails_too_often_ends_the_job(void **state)
{
    const char *script = write_script("fails", "#!/bin/sh\n"
                                               "[ $TRAINING_ROLE = PSERVER ] && exec sleep 1000\n"
                                               "[ $PADDLE_TRAINER_ID = 0 ] && exec sleep 1000\n"
                                               "exit 7\n");
    struct run run;

    (void)state;
    run_words(&run, "launch", "--server_num", "1", "--worker_num", "2", "--max_restart", "1",
              script, NULL);
    expect_exit(&run, 1);
    expect_words(&run.err, "worker 1 ended with exit code 7, restart 1 of 1\n");
    expect_words(&run.err, "fleetjob launch: worker 1 ended with exit code 7 after 1 restart\n");
    expect_nothing_left(&run);
    release(&run);
}

/* The server ignores SIGTERM, so it is killed in the end. */
static void test_launch_servers__the_job_ends_with_its_workers(void **state)
{
    const char *script = write_script("stays", "#!/bin/sh\n"
                                               "[ $TRAINING_ROLE = TRAINER ] && exit 0\n"
                                               "trap '' TERM\n"
                                               "while :; do sleep 1; done\n");
    struct run run;

    (void)state;
    run_words(&run, "launch", "--run_mode", "ps", "--server_num", "1", "--trainer_num", "2", script,
              NULL);
    expect_exit(&run, 0);
    expect_words(&run.out, "Succeeded: 1 server, 2 workers, restarts 0\n");
    expect_nothing_left(&run);
    release(&run);
}

static void test_launch_servers__ctrl_c_ends_all(void **state)
{
    const char *script = write_script("waits", "#!/bin/sh\necho ready\nexec sleep 1000\n");
    char *arguments[] = {program,
                         (char *)"launch",
                         (char *)"--server_num=1",
                         (char *)"--worker_num=1",
                         (char *)script,
                         NULL};
    struct run run;

    (void)state;
    start(&run, arguments);
    wait_for_words(&run, "[server 0] ready\n");
    wait_for_words(&run, "[worker 0] ready\n");
    assert_int_equal(kill(run.process.pid, SIGINT), 0);
    wait_for_end(&run);
    expect_exit(&run, 130);
    expect_nothing_left(&run);
    release(&run);
}

static void test_launch_servers__logs_go_to_a_file_for_each_process(void **state)
{
    const char *script = write_script("show", SHOW);
    FLEET_AUTO_FREE char *logs = fleet_file_join(folder, "logs");

    (void)state;
    for (int round = 1; round <= 3; round++) {
        static const char *const names[] = {"serverlog.0", "workerlog.0", "workerlog.1"};
        struct run run;
        if (round < 3)
            run_words(&run, "launch", "--log_dir", logs, "--server_num=1", "--worker_num=2", script,
                      NULL);
        else
            run_words(&run, "launch", "--log_dir", logs, "--log_overwrite", "--server_num=1",
                      "--worker_num=2", script, NULL);
        expect_exit(&run, 0);
        assert_null(strstr(run.out.text, "TRAINER"));
        release(&run);
        for (size_t i = 0; i < FLEET_COUNT(names); i++) {
            FLEET_AUTO_FREE char *file = fleet_file_join(logs, names[i]), *text = NULL;
            size_t size, lines = 0;
            assert_int_equal(fleet_file_read(file, 1 << 20, &text, &size, NULL), 0);
            for (const char *at = text; (at = strchr(at, '\n')) != NULL; at++)
                lines++;
            assert_int_equal(lines, round == 2 ? 2 : 1); /* appended, then emptied */
        }
    }
}

/* ---- a FleetJob ------------------------------------------------------------------------------ */

#define JOB                                                                            \
    "{apiVersion: fleetjob.dev/v1alpha1, kind: FleetJob, metadata: {name: clicks},\n"  \
    " spec: {server: {replicas: 2%s}, worker: {replicas: 1, processesPerPod: 2,\n"     \
    "   template: {spec: {containers: [{name: t, image: i, command: [\"%s\", work],\n" \
    "     env: [{name: WORD, value: own}]}]}}}, strategy: {a_sync: true},\n"           \
    "   runPolicy: {dataEncryption: AES-GCM, restart: {maxRestarts: 1}}}}\n"

static const char *write_server_job(const char *server, const char *script)
{
    static char path[128];
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    (void)snprintf(path, sizeof(path), "%s/job.yaml", folder);
    fleet_strbuf_appendf(&text, JOB, server, script);
    assert_int_equal(fleet_file_write(path, text.text, text.length, NULL), 0);
    return path;
}

static void test_launch_servers__run_starts_the_servers_of_a_job(void **state)
{
    const char *script =
        write_script("job", "#!/bin/sh\n"
                            "echo $TRAINING_ROLE of $PADDLE_TRAINERS_NUM $WORD "
                            "$FLEET_DATA_ENCRYPTION $PADDLE_JOB_ID: $*\n"
                            "[ $TRAINING_ROLE = PSERVER ] || cat $FLEET_STRATEGY_FILE\n");
    FLEET_AUTO_STRBUF struct fleet_strbuf server = {0};
    struct run run;

    (void)state;
    run_words(&run, "run", write_server_job("", script), NULL);
    expect_exit(&run, 0);
    expect_words(&run.out, "[server 1] PSERVER of 2 own AES-GCM clicks: work\n");
    expect_words(&run.out, "[worker 1] TRAINER of 2 own AES-GCM clicks: work\n");
    expect_words(&run.out, "[worker 0] a_sync: true\n");
    expect_words(&run.out, "Succeeded: 2 servers, 2 workers, restarts 0\n");
    expect_nothing_left(&run);
    release(&run);
    fleet_strbuf_appendf(&server, ", template: {spec: {containers: [{command: [\"%s\", serve]}]}}",
                         script);
    run_words(&run, "run", write_server_job(server.text, script), NULL);
    expect_exit(&run, 0);
    expect_words(&run.out, "[server 0] PSERVER of 2 AES-GCM clicks: serve\n");
    expect_words(&run.out, "[worker 0] TRAINER of 2 own AES-GCM clicks: work\n");
    release(&run);
}

static void test_launch_servers__run_ends_a_job_whose_server_fails(void **state)
{
    const char *script = write_script("job", "#!/bin/sh\n"
                                             "[ $TRAINING_ROLE = TRAINER ] && exec sleep 1000\n"
                                             "exit 7\n");
    struct run run;

    (void)state;
    run_words(&run, "run", write_server_job("", script), NULL);
    expect_exit(&run, 1);
    expect_words(&run.err, " ended with exit code 7 after 1 restart\n");
    expect_nothing_left(&run);
    release(&run);
}

static void test_launch_servers__prints_the_job(void **state)
{
    struct run run;

    (void)state;
    run_words(&run, "launch", "--print-job", "--server_num=2", "--worker_num=3", "train", NULL);
    expect_exit(&run, 0);
    expect_words(&run.out, "  server:\n    replicas: 2\n");
    expect_words(&run.out, "  worker:\n    replicas: 3\n");
    release(&run);
}

/* ---- wrong input ----------------------------------------------------------------------------- */

static void refused(int code, const char *words, const char *option, const char *other)
{
    const char *script = write_script("show", SHOW);
    struct run run;

    run_words(&run, "launch", option, other, script, NULL);
    expect_exit(&run, code);
    expect_words(&run.err, words);
    assert_string_equal(fleet_strbuf_text(&run.out), ""); /* nothing was started */
    release(&run);
}

static void test_launch_servers__a_worker_does_not_listen_where_a_server_does(void **state)
{
    char servers[64], workers[64];
    int port = free_port();

    (void)state;
    (void)snprintf(servers, sizeof(servers), "--servers=127.0.0.1:%d", port);
    (void)snprintf(workers, sizeof(workers), "--workers=127.0.0.1:%d", port);
    refused(1, " is the address of server 0, too\n", servers, workers);
}

static void test_launch_servers__wrong_options_are_one_message(void **state)
{
    (void)state;
    refused(2, "a job with servers needs --server_num or --servers", "--run_mode=ps",
            "--worker_num=1");
    refused(2, "a job with servers needs --worker_num or --workers", "--run_mode=ps",
            "--server_num=1");
    refused(2, "--server_num is \"0\", not a number between 1 and 256", "--server_num=0",
            "--worker_num=1");
    refused(2, "--servers has \"127.0.0.1\", needed: host:port", "--servers=127.0.0.1",
            "--worker_num=1");
    refused(2, "--servers has \"a:0\", needed: host:port", "--servers=b:1,a:0", "--worker_num=1");
    refused(2, "--servers has a:1 twice", "--servers=a:1,b:1,a:1", "--worker_num=1");
    refused(2, "--server_num is 3, --servers has 2 endpoints", "--servers=a:1,b:1",
            "--server_num=3");
    refused(2, "--nnodes: a job with servers has --worker_num workers", "--server_num=1",
            "--nnodes=2");
    refused(2, "--nproc_per_node: a job with servers", "--server_num=1", "--nproc_per_node=2");
    refused(1, "servers: 192.0.2.1:80 is not an address of this machine", "--servers=192.0.2.1:80",
            "--worker_num=1");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_launch_servers__a_killed_server_changes_no_bit),
        cmocka_unit_test(test_launch_servers__a_killed_worker_changes_no_bit),
        cmocka_unit_test(test_launch_servers__processes_get_the_variables_of_paddle),
        cmocka_unit_test(test_launch_servers__a_process_that_fails_too_often_ends_the_job),
        cmocka_unit_test(test_launch_servers__the_job_ends_with_its_workers),
        cmocka_unit_test(test_launch_servers__ctrl_c_ends_all),
        cmocka_unit_test(test_launch_servers__logs_go_to_a_file_for_each_process),
        cmocka_unit_test(test_launch_servers__run_starts_the_servers_of_a_job),
        cmocka_unit_test(test_launch_servers__run_ends_a_job_whose_server_fails),
        cmocka_unit_test(test_launch_servers__prints_the_job),
        cmocka_unit_test(test_launch_servers__a_worker_does_not_listen_where_a_server_does),
        cmocka_unit_test(test_launch_servers__wrong_options_are_one_message),
    };

    return find_everything(argc, argv) ? cmocka_run_group_tests(tests, make_folder, remove_folder)
                                       : 1;
}

/* SPDX-License-Identifier: Apache-2.0 */

/*
 * `kubectl fleetjob export` with a kubectl that answers from files: what reaches this machine, that
 * the pod is deleted in every case, and the message when something is missing. Its `exec` runs
 * the command of the pod here. The scenario on a real cluster is in e2e/07-weights.bats.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "libfleet/base/clock.h"
#include "libfleet/base/strbuf.h"
#include "tests/support/child_process.h"
#include "tests/support/job_folder.h"

#define LIMIT_S 120.0

static char here[4096];

/* What it was asked goes to `asked`. State is in files of its folder: job.json, pods.json,
 * claims.json, state.json; `slow` makes exec wait, `cut` makes it end early. */
static const char stand_in[] =
    "#!/bin/sh\n"
    "cd \"$(dirname \"$0\")\" || exit 1\n"
    "echo \"$*\" >>asked\n"
    "case \"$*\" in\n"
    "*'get fleetjobs.fleetjob.dev'*) [ -f job.json ] && cat job.json && exit\n"
    "    echo 'Error from server (NotFound): fleetjobs.fleetjob.dev \"gpt\" not found' >&2\n"
    "    exit 1 ;;\n"
    "*'get pods -o json'*) cat pods.json ;;\n"
    "*'get persistentvolumeclaims'*) cat claims.json ;;\n"
    "*'get events'*) cat events.json ;;\n"
    "*'get pod '*) cat state.json ;;\n"
    "*create*) cat >pod.json; cat pod.json ;;\n"
    "*delete*) : ;;\n"
    "*exec*)\n"
    "    [ ! -f slow ] || { : >begun; exec sleep 300; }\n"
    "    while [ \"$1\" != -- ]; do shift; done\n"
    "    shift 2\n"
    "    if [ -f cut ]; then \"$FLEET_BIN/fleetjob\" \"$@\" | head -c 3000; exit 0; fi\n"
    "    exec \"$FLEET_BIN/fleetjob\" \"$@\" ;;\n"
    "*) echo \"what is $*?\" >&2; exit 1 ;;\n"
    "esac\n";

static char *in_folder(const char *name)
{
    return fleet_file_join(folder, name);
}

static void write_text(const char *name, const char *text)
{
    write_file(name, text, strlen(text));
}

static char *read_text(const char *name)
{
    FLEET_AUTO_FREE char *path = in_folder(name);
    char *text = NULL;
    size_t size;

    return fleet_file_read(path, 1 << 22, &text, &size, NULL) < 0 ? strdup("") : text;
}

static void make_checkpoint(void)
{
    FLEET_AUTO_FREE char *path = in_folder("train.yaml");
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    const char *arguments[] = {path, NULL};
    struct job_run run;

    fleet_strbuf_appendf(
        &text,
        "apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\nmetadata: {name: gpt}\n"
        "spec: {worker: {replicas: 1}, training: {model: {name: gpt, layers: 1, heads: 2, width: "
        "16, context: 16}, data: {path: %s/tests/golden/torch/jobs/text.txt}, optimizer: "
        "{learningRate: 0.1}, globalBatchSize: 2, microBatchSize: 2, steps: 2, checkpoint: {path: "
        "ck}}}\n",
        here);
    write_text("train.yaml", text.text);
    job_run(arguments, LIMIT_S, NULL, NULL, &run);
    if (run.exit_code != 0)
        fail_msg("%s", run.errors);
    job_run_release(&run);
}

/* A finished job whose checkpoints are in the folder's ck. */
static void make_cluster(void)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf job = {0};
    FLEET_AUTO_FREE char *kubectl = in_folder("kubectl");
    FLEET_AUTO_FREE char *plug_in = in_folder("kubectl-fleetjob");
    FLEET_AUTO_FREE char *program = fleet_file_join(getenv("FLEET_BIN"), "fleetjob");

    write_text("kubectl", stand_in);
    assert_int_equal(chmod(kubectl, 0755), 0);
    assert_int_equal(symlink(program, plug_in), 0);
    fleet_strbuf_appendf(
        &job,
        "{\"apiVersion\":\"fleetjob.dev/v1alpha1\",\"kind\":\"FleetJob\",\"metadata\":{\"name\":"
        "\"gpt\",\"namespace\":\"team\",\"uid\":\"u\"},\"spec\":{\"worker\":{\"replicas\":1,"
        "\"volumes\":[{\"name\":\"ck\",\"mountPath\":\"%s\",\"claim\":\"ck\"}]},\"training\":{"
        "\"model\":{\"name\":\"gpt\",\"layers\":1,\"heads\":2,\"width\":16,\"context\":16},"
        "\"data\":{\"path\":\"/data\"},\"optimizer\":{\"learningRate\":0.1},\"globalBatchSize\":2,"
        "\"microBatchSize\":2,\"steps\":2,\"checkpoint\":{\"path\":\"%s/ck\"}}},\"status\":{"
        "\"agentImage\":\"runtime:1\",\"checkpoint\":{\"path\":\"%s/ck/x\"}}}",
        folder, folder, folder);
    write_text("job.json", job.text);
    write_text("pods.json", "{\"items\":[]}");
    write_text("claims.json", "{\"items\":[{\"metadata\":{\"name\":\"ck\"}}]}");
    write_text("state.json", "{\"status\":{\"phase\":\"Running\",\"containerStatuses\":[{\"ready\":"
                             "true}]}}");
}

static int make_all(void **state)
{
    (void)job_folder_make(state);
    make_cluster();
    return 0;
}

/* Start `kubectl-fleetjob export …`, standard output and error to files. */
static pid_t start(const char *arguments)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf command = {0};
    pid_t pid;

    fleet_strbuf_appendf(&command,
                         "cd %s && PATH=%s:$PATH exec ./kubectl-fleetjob export %s >said 2>errors",
                         folder, folder, arguments);
    pid = child_process_fork();
    if (pid == 0) {
        (void)execl("/bin/sh", "sh", "-c", command.text, (char *)NULL);
        _exit(126);
    }
    return pid;
}

static void expect_asked(const char *words, bool is_expected)
{
    FLEET_AUTO_FREE char *asked = read_text("asked");

    if (!strstr(asked, words) != !is_expected)
        fail_msg("%s \"%s\": %s", is_expected ? "never asked" : "asked", words, asked);
}

static void run_well(const char *arguments)
{
    int code = child_process_wait(start(arguments));
    FLEET_AUTO_FREE char *errors = read_text("errors");

    if (code != 0)
        fail_msg("%s: exit %d: %s", arguments, code, errors);
    expect_asked("delete pod gpt-export-", true);
}

static void expect_failure(const char *arguments, const char *words)
{
    int code = child_process_wait(start(arguments));
    FLEET_AUTO_FREE char *errors = read_text("errors");

    if (code == 0 || !strstr(errors, words))
        fail_msg("%s: exit %d, expected \"%s\": %s", arguments, code, words, errors);
}

static void expect_same(const char *a, const char *b)
{
    FLEET_AUTO_FREE char *x = read_text(a);
    FLEET_AUTO_FREE char *y = read_text(b);

    if (strcmp(x, y) != 0)
        fail_msg("%s is not %s", a, b);
}

static bool is_there(const char *name)
{
    FLEET_AUTO_FREE char *path = in_folder(name);

    return access(path, F_OK) == 0;
}

/* ---- what comes home ------------------------------------------------------------------------- */

static void test_kubectl_export__brings_what_export_writes(void **state)
{
    FLEET_AUTO_FREE char *checkpoints = in_folder("ck");
    FLEET_AUTO_FREE char *wanted = in_folder("wanted");
    const char *const files[] = {"config.json", "vocab.json", "merges.txt",
                                 "tokenizer_config.json"};
    const char *arguments[] = {"export", checkpoints, wanted, NULL};
    FLEET_AUTO_FREE char *compare = NULL;

    (void)state;
    make_checkpoint();
    assert_int_equal(job_run_command("fleetjob", arguments, NULL, NULL), 0);
    run_well("gpt out/deep -n team --context there");
    run_well("gpt alone.safetensors");
    run_well("gpt -");
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        char a[64], b[64];
        (void)snprintf(a, sizeof(a), "out/deep/%s", files[i]);
        (void)snprintf(b, sizeof(b), "wanted/%s", files[i]);
        assert_true(is_there(a));
        expect_same(a, b);
    }
    compare = malloc(3 * strlen(folder) + 300);
    (void)sprintf(compare,
                  "cd %s && cmp out/deep/model.safetensors wanted/model.safetensors && "
                  "cmp alone.safetensors wanted/model.safetensors && "
                  "cmp said wanted/model.safetensors",
                  folder);
    assert_int_equal(system(compare), 0);
    expect_asked("--namespace team --context there get fleetjobs.fleetjob.dev gpt -o json", true);
}

static void test_kubectl_export__a_stream_that_is_cut_off_is_no_export(void **state)
{
    (void)state;
    make_checkpoint();
    write_text("cut", "");
    expect_failure("gpt out", "ends too early");
    assert_false(is_there("out/config.json"));
    assert_false(is_there("out/model.safetensors"));
    write_text("old.safetensors", "mine");
    expect_failure("gpt old.safetensors", "safetensors");
    expect_same("old.safetensors", "old.safetensors");
    {
        FLEET_AUTO_FREE char *kept = read_text("old.safetensors");
        assert_string_equal(kept, "mine");
    }
    expect_asked("delete pod gpt-export-", true);
}

static void wait_for(const char *name)
{
    double deadline_ms = fleet_monotonic_ms() + 1e3 * LIMIT_S;
    struct timespec nap = {.tv_nsec = 20000000};

    while (!is_there(name)) {
        if (fleet_monotonic_ms() > deadline_ms)
            fail_msg("%s does not come", name);
        (void)nanosleep(&nap, NULL);
    }
}

static void test_kubectl_export__an_interrupt_deletes_the_pod(void **state)
{
    const int signals[] = {SIGINT, SIGTERM};

    (void)state;
    make_checkpoint();
    write_text("slow", "");
    for (size_t i = 0; i < 2; i++) {
        FLEET_AUTO_FREE char *begun = in_folder("begun");
        FLEET_AUTO_FREE char *asked = in_folder("asked");
        pid_t pid;
        (void)unlink(begun);
        (void)unlink(asked);
        pid = start(i ? "gpt out.safetensors" : "gpt out");
        wait_for("begun");
        expect_asked("delete", false);
        assert_int_equal(kill(pid, signals[i]), 0);
        assert_int_equal(child_process_wait(pid), 130);
        expect_asked("delete pod gpt-export-", true);
        assert_false(is_there("out.safetensors"));
    }
}

/* ---- what is missing ------------------------------------------------------------------------- */

static void test_kubectl_export__what_is_missing_is_named(void **state)
{
    FLEET_AUTO_FREE char *job = in_folder("job.json");

    (void)state;
    expect_failure("gpt out", "there is no checkpoint"); /* said by the export in the pod */
    expect_asked("delete pod gpt-export-", true);
    write_text("claims.json", "{\"items\":[]}");
    expect_failure("gpt out", "the PersistentVolumeClaim ck of the job is gone");
    expect_failure("ck/step-1 out", "is no name of a FleetJob");
    assert_int_equal(unlink(job), 0);
    expect_failure("gpt out -n team", "there is no FleetJob gpt in namespace team");
    expect_failure("gpt", "OUT is missing");
    write_text("file", "x");
    expect_failure("gpt file", "is not a folder");
}

static void test_kubectl_export__a_pod_that_does_not_start_says_why(void **state)
{
    (void)state;
    write_text("state.json",
               "{\"status\":{\"phase\":\"Pending\",\"conditions\":[{\"type\":\"PodScheduled\","
               "\"status\":\"False\",\"message\":\"0/2 nodes are available\"}]}}");
    expect_failure("gpt out --timeout 1",
                   "cannot be scheduled: 0/2 nodes are available; make room");
    write_text("state.json",
               "{\"status\":{\"phase\":\"Pending\",\"containerStatuses\":[{\"state\":{"
               "\"waiting\":{\"reason\":\"ImagePullBackOff\",\"message\":\"no such "
               "image\"}}}]}}");
    expect_failure("gpt out", "cannot start: ImagePullBackOff: no such image; --image names");
    write_text("state.json",
               "{\"status\":{\"phase\":\"Pending\",\"containerStatuses\":[{\"state\":{"
               "\"waiting\":{\"reason\":\"ContainerCreating\"}}}]}}");
    write_text("events.json", "{\"items\":[{\"message\":\"FailedMount: no such volume\"}]}");
    expect_failure("gpt out --timeout 1", "has not started after 1 s: FailedMount: no such volume");
    write_text("state.json", "{\"status\":{\"phase\":\"Failed\"}}");
    expect_failure("gpt out", "ended before the export began");
    expect_asked("delete pod gpt-export-", true);
}

#define WITH_CLUSTER(test) cmocka_unit_test_setup_teardown(test, make_all, job_folder_remove)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_CLUSTER(test_kubectl_export__brings_what_export_writes),
        WITH_CLUSTER(test_kubectl_export__a_stream_that_is_cut_off_is_no_export),
        WITH_CLUSTER(test_kubectl_export__an_interrupt_deletes_the_pod),
        WITH_CLUSTER(test_kubectl_export__what_is_missing_is_named),
        WITH_CLUSTER(test_kubectl_export__a_pod_that_does_not_start_says_why),
    };

    if (!getenv("FLEET_BIN") || !getcwd(here, sizeof(here))) {
        (void)fprintf(stderr, "FLEET_BIN is not set: run by tests/run.sh\n");
        return 1;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}

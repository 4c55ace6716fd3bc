/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The contract with own trainers (docs/own-trainer.md) with real ones: a shell script, a C program,
 * and PyTorch where it is installed. Each reports, is ended in the middle, and goes on from what it
 * reported last as a checkpoint.
 */
#include "tests/integration/run_fixture.h"

static int processes = 1;       /* of each worker */
static const char *more = "";   /* fields of the spec */
static const char *policy = ""; /* of runPolicy */

/* A job of two workers whose container has `command` (YAML) and the text of `script` as its last
 * argument. */
static const char *write_own_job(const char *name, const char *command, const char *script)
{
    static char path[128];
    FILE *file;

    (void)snprintf(path, sizeof(path), "%s/%s.yaml", folder, name);
    file = fopen(path, "w");
    assert_non_null(file);
    (void)fprintf(
        file,
        "apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\nmetadata: {name: own}\n"
        "spec:\n  worker:\n    replicas: 2\n    processesPerPod: %d\n    template:\n      spec:\n"
        "        containers:\n          - name: trainer\n"
        "            env: [{name: WHERE, value: %s}, {name: PATH, value: '%s'}]\n"
        "            command: %s\n",
        processes, folder, getenv("PATH"), command);
    if (script[0])
        (void)fputs("            args:\n              - |\n", file);
    for (const char *line = script; *line; line += strcspn(line, "\n") + 1)
        (void)fprintf(file, "                %.*s\n", (int)strcspn(line, "\n"), line);
    (void)fprintf(file, "  runPolicy: {restart: {maxRestarts: 5}%s}\n%s", policy, more);
    (void)fclose(file);
    return path;
}

static void start_own_job(struct run *run, const char *path)
{
    static int count;
    char state_file[128];
    char *arguments[] = {
        program,    (char *)"run", (char *)path, (char *)"--json", (char *)"--state-file",
        state_file, NULL};

    (void)snprintf(state_file, sizeof(state_file), "%s/own-%d.json", folder, ++count);
    start(run, arguments);
    strcpy(run->state_file, state_file);
}

/* ---- shell ----------------------------------------------------------------------------------- */

/* Rank 0 writes steps to the descriptor and checkpoints to the file, and waits after step 8. Rank 1
 * fails then, once, when the file `told` says that step 8 was reported. */
#define SHELL_TRAINER                                                                    \
    "step=${FLEET_RESUME_STEP:-0}\n"                                                     \
    "echo from $step of $FLEET_RESUME_PATH\n"                                            \
    "say() { echo \"$1\" >> $FLEET_PROGRESS_FILE; }\n"                                   \
    "[ $RANK = 0 ] && say \"{\\\"resumed\\\": $step}\"\n"                                \
    "while [ $step -lt 12 ]; do\n"                                                       \
    "  step=$((step + 1))\n"                                                             \
    "  if [ $RANK = 0 ]; then\n"                                                         \
    "    eval \"echo '{\\\"step\\\": $step, \\\"steps\\\": 12, \\\"loss\\\": $step.5}' " \
    ">&$FLEET_PROGRESS_FD\"\n"                                                           \
    "    [ $((step % 5)) = 0 ] && say \"{\\\"checkpoint\\\": $step, \\\"path\\\": "      \
    "\\\"/c/$step\\\"}\"\n"                                                              \
    "    while [ $step = 8 ] && [ $FLEET_GENERATION = 1 ]; do sleep 0.1; done\n"         \
    "  elif [ $RANK$FLEET_GENERATION = 11 ]; then\n"                                     \
    "    until [ -e $WHERE/told ]; do sleep 0.1; done\n"                                 \
    "    exit 3\n"                                                                       \
    "  fi\n"                                                                             \
    "done\n"

static void run_shell_trainer(struct run *run, const char *name)
{
    char told[128];

    (void)snprintf(told, sizeof(told), "%s/told", folder);
    (void)unlink(told);
    start_own_job(run, write_own_job(name, "[bash, -c]", SHELL_TRAINER));
    wait_for_step(run, 8);
    write_text("told", 0);
    wait_for_end(run);
}

static void test_own_trainer__a_shell_script_reports_and_resumes(void **state)
{
    struct run run;

    (void)state;
    run_shell_trainer(&run, "shell");
    expect_exit(&run, 0);
    expect_words(&run.out, "{\"event\":\"step\",\"step\":8,\"loss\":8.5,\"generation\":1}");
    expect_words(&run.out, "{\"event\":\"checkpoint\",\"step\":5,\"path\":\"/c/5\"}");
    expect_words(&run.out, "\"lostSteps\":3}"); /* 8 were reported, it went on from 5 */
    expect_words(&run.out, "{\"event\":\"step\",\"step\":12,\"loss\":12.5,\"generation\":2}");
    expect_words(&run.out, "\"state\":\"Succeeded\",\"steps\":12,\"loss\":12.5,\"restarts\":1");
    expect_words(&run.err, "[0] from 0 of\n");
    expect_words(&run.err, "[1] from 5 of /c/5\n");
    expect_nothing_left(&run);
    release(&run);
}

/* Of a pod's trainers only one is rank 0. */
static void test_own_trainer__one_of_several_in_a_worker_reports(void **state)
{
    struct run run;

    (void)state;
    processes = 2;
    run_shell_trainer(&run, "several");
    processes = 1;
    expect_exit(&run, 0);
    expect_words(&run.out, "\"lostSteps\":3}");
    expect_words(&run.out, "\"state\":\"Succeeded\",\"steps\":12,\"loss\":12.5,\"restarts\":1");
    expect_words(&run.err, "[3] from 5 of /c/5\n");
    expect_nothing_left(&run);
    release(&run);
}

static void test_own_trainer__what_is_not_reported_is_not_claimed(void **state)
{
    struct run run;

    (void)state;
    run_words(&run, "run",
              write_own_job("silent", "[sh, -c]",
                            "echo hello of $RANK\necho oops >&2\n"
                            "[ $RANK$FLEET_GENERATION != 11 ] || exit 4\nsleep 1\n"),
              NULL);
    expect_exit(&run, 0);
    expect_words(&run.out, "[0] hello of 0\n");
    expect_words(&run.err, "[1] oops\n");
    expect_words(&run.out, ": every worker exited with 0\n");
    assert_null(strstr(run.out.text, "steps"));
    assert_null(strstr(run.out.text, "lost"));
    assert_null(strstr(run.out.text, "restored"));
    release(&run);
}

/* What is printed by an own trainer that shows what it got of the job's strategy. */
static void print_strategy(const char *name, const char *fields, struct run *run)
{
    more = fields;
    run_words(run, "run",
              write_own_job(name, "[sh, -c]",
                            "echo rings $FLAGS_nccl_nrings\n"
                            "echo context $FLEET_AUTO_PARALLEL_JSON\n"
                            "echo file $(cat $FLEET_AUTO_PARALLEL_FILE /dev/null)\n"
                            "echo strategy $FLEET_STRATEGY_JSON\n"),
              NULL);
    more = "";
    expect_exit(run, 0);
}

/* The numbers that take effect, not those that were asked for, and MindSpore's context. */
static void test_own_trainer__is_given_the_strategy_that_takes_effect(void **state)
{
    struct run run;

    (void)state;
    print_strategy("asked", "  strategy: {nccl_comm_num: 3}\n", &run);
    expect_words(&run.out, "[0] rings 3\n");
    expect_words(&run.out, "[1] rings 3\n");
    expect_words(&run.out, "[0] context\n");
    expect_words(&run.out, "[0] file\n");
    release(&run);
    print_strategy("effective", "  strategy: {nccl_comm_num: 3, sync_batch_norm: true}\n", &run);
    expect_words(&run.out, "[0] rings 1\n");
    expect_words(&run.out, "[1] rings 1\n");
    expect_words(&run.out, "[1] strategy {\"nccl_comm_num\":3,\"sync_batch_norm\":true}\n");
    release(&run);
    print_strategy("context",
                   "  autoParallel: {parallel_mode: semi_auto_parallel, gradients_mean: true}\n",
                   &run);
    for (int rank = 0; rank < 2; rank++) {
        char words[128];
        (void)snprintf(words, sizeof(words),
                       "[%d] context {\"parallel_mode\":\"semi_auto_parallel\","
                       "\"gradients_mean\":true}\n",
                       rank);
        expect_words(&run.out, words);
        (void)snprintf(words, sizeof(words),
                       "[%d] file {\"parallel_mode\":\"semi_auto_parallel\","
                       "\"gradients_mean\":true}\n",
                       rank);
        expect_words(&run.out, words);
    }
    release(&run);
}

static void test_own_trainer__bad_lines_are_reported_once_and_end_no_trainer(void **state)
{
    struct run run;

    (void)state;
    start_own_job(&run, write_own_job("bad", "[bash, -c]",
                                      "for i in 1 2 3; do echo $i >> $FLEET_PROGRESS_FILE; done\n"
                                      "echo '{\"step\": 7}' >> $FLEET_PROGRESS_FILE\nsleep 1\n"));
    wait_for_end(&run);
    expect_exit(&run, 0);
    expect_words(&run.out, "\"step\":7,");
    expect_words(&run.err, "Ignored a progress line; more like it are only counted");
    expect_words(&run.err, " generation=1 localRank=0 ignored=3 lines=4");
    release(&run);
}

/* As in a cluster: a restart cannot help. */
static void test_own_trainer__a_missing_command_fails_the_job_at_once(void **state)
{
    struct run run;

    (void)state;
    run_words(&run, "run", write_own_job("missing", "[/no/such/program]", ""), NULL);
    expect_exit(&run, 1);
    expect_words(&run.out, "exited with code 127");
    expect_words(&run.out, "restarts  0");
    expect_nothing_left(&run);
    release(&run);
}

/* In a cluster the agent takes the place of the image's ENTRYPOINT. Here there is no image. */
static void test_own_trainer__args_alone_need_a_cluster(void **state)
{
    char path[128];
    struct run run;
    FILE *file;

    (void)state;
    (void)snprintf(path, sizeof(path), "%s/entrypoint.yaml", folder);
    file = fopen(path, "w");
    assert_non_null(file);
    (void)fputs("apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\nmetadata: {name: own}\n"
                "spec: {worker: {template: {spec: {containers: [{name: t, image: r/i:1,"
                " args: [--x]}]}}}}\n",
                file);
    (void)fclose(file);
    run_words(&run, "run", path, NULL);
    expect_exit(&run, 1);
    expect_words(&run.err, "spec.worker.template.spec.containers[0].command: required on this "
                           "machine, where the image's ENTRYPOINT is not known");
    expect_words(&run.err, "docker inspect");
    release(&run);
    run_words(&run, "validate", path, NULL);
    expect_exit(&run, 0);
    release(&run);
}

/* The shell ends at SIGTERM at once. What it has started has the same grace. */
static void test_own_trainer__all_of_a_process_group_may_save(void **state)
{
    char path[128];
    struct run run;

    (void)state;
    start_own_job(
        &run,
        write_own_job("group", "[sh, -c]",
                      "bash -c 'trap \"sleep 0.5; echo saved > $WHERE/saved.$RANK; exit 0\" TERM;"
                      " echo \"{\\\"step\\\": 1}\" >> $FLEET_PROGRESS_FILE;"
                      " while :; do sleep 0.1; done'\n: the shell waits\n"));
    wait_for_words(&run, "\"step\",\"step\":1,");
    assert_int_equal(kill(run.process.pid, SIGINT), 0);
    wait_for_end(&run);
    expect_exit(&run, 130);
    (void)snprintf(path, sizeof(path), "%s/saved.0", folder);
    assert_int_equal(access(path, R_OK), 0);
    expect_nothing_left(&run);
    release(&run);
}

static void test_own_trainer__its_plan_claims_nothing(void **state)
{
    struct run run;

    (void)state;
    run_words(&run, "plan", write_own_job("plan", "[sh, -c]", "exit 0\n"), NULL);
    expect_exit(&run, 0);
    expect_words(&run.out, "depends on workers not known: the trainer is your own program");
    expect_words(&run.out, "what follows holds if it applies the strategy");
    assert_null(strstr(run.out.text, "the same weights"));
    assert_null(strstr(run.out.text, "applied"));
    release(&run);
}

/* ---- C --------------------------------------------------------------------------------------- */

/* Saves on SIGTERM, as a real one would. Step 40 of the first start waits to be
 * killed. */
static const char c_trainer[] =
    "#include <signal.h>\n#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n"
    "#include <unistd.h>\n"
    "static volatile sig_atomic_t stopping;\n"
    "static void stop(int n) { (void)n; stopping = 1; }\n"
    "int main(void)\n{\n"
    "    const char *resume = getenv(\"FLEET_RESUME_STEP\");\n"
    "    long step = resume ? atol(resume) : 0;\n"
    "    int fd = atoi(getenv(\"FLEET_PROGRESS_FD\")), first = !resume;\n"
    "    signal(SIGTERM, stop);\n"
    "    dprintf(fd, \"{\\\"resumed\\\": %ld}\\n\", step);\n"
    "    while (step < 60) {\n"
    "        step++;\n"
    "        dprintf(fd, \"{\\\"step\\\": %ld, \\\"loss\\\": %f}\\n\", step, 1.0 / step);\n"
    "        if (step % 20 == 0 || stopping)\n"
    "            dprintf(fd, \"{\\\"checkpoint\\\": %ld, \\\"path\\\": \\\"/c/%ld\\\"}\\n\", step,"
    " step);\n"
    "        if (stopping) return 1;\n"
    "        while (first && step == 40 && !stopping) usleep(1000);\n"
    "    }\n"
    "    return 0;\n}\n";

static void test_own_trainer__a_c_program_that_is_killed_resumes(void **state)
{
    char source[128], binary[128], command[512];
    struct run run;
    FILE *file;

    (void)state;
    (void)snprintf(source, sizeof(source), "%s/trainer.c", folder);
    (void)snprintf(binary, sizeof(binary), "%s/trainer", folder);
    file = fopen(source, "w");
    (void)fputs(c_trainer, file);
    (void)fclose(file);
    (void)snprintf(command, sizeof(command), "cc -o %s %s", binary, source);
    assert_int_equal(system(command), 0);
    (void)snprintf(command, sizeof(command), "[%s]", binary);
    start_own_job(&run, write_own_job("c", command, ""));
    wait_for_words(&run, "\"checkpoint\",\"step\":40,");
    strike(&run, 1, false, SIGKILL);
    wait_for_end(&run);
    expect_exit(&run, 0);
    expect_words(&run.out, "\"cause\":\"MemberLost\",\"member\":1");
    expect_words(&run.out, "\"lostSteps\":0}"); /* it saved step 40, and went on from there */
    expect_words(&run.out, "\"state\":\"Succeeded\",\"steps\":60,");
    expect_nothing_left(&run);
    release(&run);
}

/* The example of the documentation with fleet.h, which sleeps after each step. Here rank 0 of the
 * first generation dies instead, after step 45. */
static void build_fleet_example(void)
{
    char path[128], command[768];
    FILE *file;

    (void)snprintf(path, sizeof(path), "%s/die.h", folder);
    file = fopen(path, "w");
    assert_non_null(file);
    (void)fputs(
        "#include <fleet/fleet.h>\n#include <signal.h>\n#include <stdlib.h>\n#include <time.h>\n"
        "#define nanosleep(a, b) \\\n"
        "    (step == 45 && fleet_rank(0) == 0 && \\\n"
        "     atoi(getenv(\"FLEET_GENERATION\")) == 1 && raise(SIGKILL))\n",
        file);
    (void)fclose(file);
    (void)snprintf(command, sizeof(command),
                   "cc -Iinclude -include %s/die.h -o %s/fleet_trainer docs/examples/own-trainer.c "
                   "-Lbuild/lib -lfleet -Wl,-rpath,\"$PWD/build/lib\"",
                   folder, folder);
    assert_int_equal(system(command), 0);
}

/* Rank 0 writes the checkpoints and is lost. The other rank stays, and gives its state to the
 * process that replaces it. */
static void test_own_trainer__the_fleet_h_example_goes_on_in_process(void **state)
{
    char command[768];
    struct run run;

    (void)state;
    build_fleet_example();
    (void)snprintf(command, sizeof(command), "[env, CHECKPOINTS=%s/fleet, %s/fleet_trainer]",
                   folder, folder);
    start_own_job(&run, write_own_job("fleet", command, ""));
    wait_for_end(&run);
    expect_exit(&run, 0);
    expect_words(&run.out, "\"cause\":\"MemberLost\",\"member\":0");
    expect_words(&run.err, "[1] rank 1 of 2 goes on from step 4"); /* 44 or 45, not 40 */
    assert_null(strstr(run.err.text, "goes on from step 40"));
    assert_true(strstr(run.out.text, "\"lostSteps\":0}") ||
                strstr(run.out.text, "\"lostSteps\":1}"));
    expect_words(&run.out, "\"state\":\"Succeeded\",\"steps\":200,");
    expect_words(&run.err, "[1] rank 1 of 2: y = 2.998 x + 1.001\n");
    expect_nothing_left(&run);
    release(&run);
}

/* Each rank says what it was given, and rank 1 fails once, so that there is another generation. It
 * waits for the words of rank 0, which is ended then. */
#define SECRETIVE_TRAINER                                                              \
    "echo secret $FLEET_GENERATION $RANK $FLEET_DATA_ENCRYPTION $FLEET_WORLD_SECRET\n" \
    "[ $RANK = 0 ] && touch $WHERE/said\n"                                             \
    "until [ -e $WHERE/said ]; do sleep 0.1; done\n"                                   \
    "[ $RANK$FLEET_GENERATION = 11 ] && exit 3\n"                                      \
    "[ $FLEET_GENERATION = 1 ] && sleep 600\n"                                         \
    "exit 0\n"

/* The secret of rank `rank` in generation `generation`, as the trainer printed it. */
static void read_secret(const struct run *run, int rank, int generation, char out[65])
{
    char front[64];
    const char *found;

    (void)snprintf(front, sizeof(front), "[%d] secret %d %d AES-GCM ", rank, generation, rank);
    found = strstr(run->err.text, front);
    if (!found)
        fail_msg("no line \"%s\" in %s", front, run->err.text);
    found += strlen(front);
    assert_int_equal(strspn(found, "0123456789abcdef"), 64);
    (void)snprintf(out, 65, "%s", found);
}

static void test_own_trainer__ranks_share_a_new_secret_in_each_generation(void **state)
{
    char secrets[2][2][65]; /* by generation and rank */
    struct run run;

    (void)state;
    policy = ", dataEncryption: AES-GCM";
    start_own_job(&run, write_own_job("secret", "[bash, -c]", SECRETIVE_TRAINER));
    policy = "";
    wait_for_end(&run);
    expect_exit(&run, 0);
    for (int i = 0; i < 4; i++)
        read_secret(&run, i % 2, i / 2 + 1, secrets[i / 2][i % 2]);
    assert_string_equal(secrets[0][0], secrets[0][1]);
    assert_string_equal(secrets[1][0], secrets[1][1]);
    assert_string_not_equal(secrets[0][0], secrets[1][0]);
    expect_nothing_left(&run);
    release(&run);
}

/* ---- PyTorch --------------------------------------------------------------------------------- */

/* The example of the documentation, struck in the middle. */
static void test_own_trainer__the_pytorch_example_resumes(void **state)
{
    char example[4200], here[4096];
    struct run run;

    (void)state;
    if (system("python -c 'import torch' 2>/dev/null") != 0)
        skip(); /* pip install torch */
    assert_non_null(getcwd(here, sizeof(here)));
    (void)snprintf(example, sizeof(example), "%s/docs/examples/pytorch.yaml", here);
    assert_int_equal(chdir(folder), 0); /* its checkpoints go there */
    (void)setenv("STEPS", "120", 1);
    start_own_job(&run, example);
    assert_int_equal(chdir(here), 0);
    wait_for_words(&run, "\"checkpoint\",\"step\":50,");
    strike(&run, 1, false, SIGKILL);
    wait_for_end(&run);
    expect_exit(&run, 0);
    expect_words(&run.out, "\"event\":\"restart\",\"generation\":2,");
    expect_words(&run.out, "\"lostSteps\":"); /* it says where it goes on */
    expect_words(&run.out, "\"state\":\"Succeeded\",\"steps\":120,");
    expect_words(&run.err, "[0] done after 120 steps on 2 ranks");
    expect_nothing_left(&run);
    release(&run);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_own_trainer__a_shell_script_reports_and_resumes),
        cmocka_unit_test(test_own_trainer__one_of_several_in_a_worker_reports),
        cmocka_unit_test(test_own_trainer__what_is_not_reported_is_not_claimed),
        cmocka_unit_test(test_own_trainer__is_given_the_strategy_that_takes_effect),
        cmocka_unit_test(test_own_trainer__bad_lines_are_reported_once_and_end_no_trainer),
        cmocka_unit_test(test_own_trainer__a_missing_command_fails_the_job_at_once),
        cmocka_unit_test(test_own_trainer__args_alone_need_a_cluster),
        cmocka_unit_test(test_own_trainer__all_of_a_process_group_may_save),
        cmocka_unit_test(test_own_trainer__its_plan_claims_nothing),
        cmocka_unit_test(test_own_trainer__a_c_program_that_is_killed_resumes),
        cmocka_unit_test(test_own_trainer__the_fleet_h_example_goes_on_in_process),
        cmocka_unit_test(test_own_trainer__ranks_share_a_new_secret_in_each_generation),
        cmocka_unit_test(test_own_trainer__the_pytorch_example_resumes),
    };

    return find_everything(argc, argv) ? cmocka_run_group_tests(tests, make_folder, remove_folder)
                                       : 1;
}

/* SPDX-License-Identifier: Apache-2.0 */

/*
 * fleet_job.h through libfleet.so: generations in process, the newest state, checkpoints. A real
 * agent is in test_own_trainer; here the test writes what an agent would.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "include/fleet/fleet_job.h"
#include "tests/integration/library_processes.h"

static char folder[] = "/tmp/test-fleet-job-XXXXXX";

static char *in_folder(const char *name)
{
    static char paths[4][128];
    static int next;
    char *path = paths[next++ % 4];

    (void)snprintf(path, sizeof(paths[0]), "%s/%s", folder, name);
    return path;
}

static void write_text(const char *path, const char *text, size_t size)
{
    FILE *file = fopen(path, "w");

    CHECK(file && fwrite(text, 1, size, file) == size && fclose(file) == 0);
}

static bool says(const char *path, const char *words)
{
    char text[4096] = "";
    FILE *file = fopen(path, "r");

    CHECK(file);
    (void)!fread(text, 1, sizeof(text) - 1, file);
    (void)fclose(file);
    return strstr(text, words) != NULL;
}

/* ---- generations ----------------------------------------------------------------------------- */

static int agent; /* the agent's end of the pipe */

static void say(const char *line)
{
    CHECK(write(agent, line, strlen(line)) == (ssize_t)strlen(line));
}

/* Become a process of an agent, in generation 1. */
static void be_started(void)
{
    char name[32];

    (void)snprintf(name, sizeof(name), "pipe.%d", rank);
    (void)setenv("FLEET_GENERATION_PIPE", in_folder(name), 1);
    CHECK(mkfifo(getenv("FLEET_GENERATION_PIPE"), 0600) == 0);
    agent = open(getenv("FLEET_GENERATION_PIPE"), O_RDWR);
    (void)snprintf(name, sizeof(name), "progress.%d", rank);
    (void)setenv("FLEET_PROGRESS_FILE", in_folder(name), 1);
    write_text(getenv("FLEET_PROGRESS_FILE"), "", 0);
    (void)setenv("FLEET_GENERATION", "1", 1);
}

/* The agent writes the variables of a generation in which this process is alone. */
static void begin_alone(int number)
{
    char variables[128], path[160], line[32];
    int size = snprintf(variables, sizeof(variables),
                        "PADDLE_TRAINERS_NUM=1%cPADDLE_TRAINER_ID=0%cFLEET_GENERATION=%d%c", 0, 0,
                        number, 0);

    (void)snprintf(path, sizeof(path), "%s.%d", getenv("FLEET_GENERATION_PIPE"), number);
    write_text(path, variables, (size_t)size);
    (void)snprintf(line, sizeof(line), "begin %d\n", number);
    say(line);
}

static int sum(void)
{
    int32_t one = 1;
    const struct fleet_tensor tensor = {&one, FLEET_INT32, 0, {0}};
    int rc = fleet_all_reduce(&tensor, FLEET_SUM, NULL, NULL, &err);

    CHECK(rc < 0 || one == fleet_world_size(NULL));
    return rc;
}

static void generations(void)
{
    int rc;

    be_started();
    CHECK(fleet_wait_generation(&err) == 0 && fleet_world_size(NULL) == 2 && sum() == 0);
    CHECK(says(getenv("FLEET_PROGRESS_FILE"), "{\"stays\": true}\n"));
    if (rank == 1)
        _exit(0); /* it is lost */
    rc = sum();
    CHECK(rc == FLEET_RANK_LOST || rc == FLEET_GENERATION_ENDED);
    begin_alone(2);
    begin_alone(3); /* before it has read of the second one */
    CHECK(fleet_wait_generation(&err) == 0 && fleet_world_size(NULL) == 1);
    CHECK(says(getenv("FLEET_PROGRESS_FILE"), "{\"waiting\": 1}\n"));
    CHECK(strcmp(getenv("FLEET_GENERATION"), "3") == 0 && sum() == 0);
    say("end\n");
    while ((rc = sum()) == 0)
        continue;
    CHECK(rc == FLEET_GENERATION_ENDED);
    begin_alone(4);
    CHECK(fleet_wait_generation(&err) == 0 && sum() == 0);
    CHECK(says(getenv("FLEET_PROGRESS_FILE"), "{\"waiting\": 3}\n"));
    write_text(in_folder("pipe.0.5"), "PADDLE_TRAINERS_NUM=-4", 23);
    say("begin 5\n");
    CHECK(fleet_wait_generation(&err) == -EINVAL && strstr(err.text, "PADDLE_TRAINERS_NUM"));
    (void)close(agent);
    CHECK(fleet_wait_generation(&err) == -EPIPE && strstr(err.text, "the agent"));
}

static void test_fleet_job__a_process_joins_one_generation_after_another(void **state)
{
    (void)state;
    run_processes(2, generations, -1);
}

static void without_agent(void)
{
    (void)unsetenv("FLEET_GENERATION_PIPE");
    (void)unsetenv("FLEET_PROGRESS_FILE");
    CHECK(fleet_wait_generation(&err) == 0 && sum() == 0);
    CHECK(fleet_report(1, 2, 0.5, &err) == 0);
    CHECK(fleet_barrier(NULL, &err) == 0);
    CHECK(fleet_wait_generation(&err) == -ENOTSUP && strstr(err.text, "no agent"));
}

static void test_fleet_job__without_an_agent_there_is_one_generation(void **state)
{
    (void)state;
    run_processes(2, without_agent, -1);
}

/* ---- states ---------------------------------------------------------------------------------- */

static float weights[3];
static int64_t count;
static struct fleet_state_entry entries[] = {{"weights", {weights, FLEET_FP32, 1, {3}}},
                                             {"count", {&count, FLEET_INT64, 0, {0}}}};

static void set_state(float value)
{
    for (int i = 0; i < 3; i++)
        weights[i] = value + (float)i;
    count = (int64_t)value;
}

static bool is_state(float value)
{
    return weights[0] == value && weights[2] == value + 2 && count == (int64_t)value;
}

static void resuming(void)
{
    int64_t step = rank == 2 ? 7 : rank, none = 0;

    CHECK(fleet_env_init(&err) == 0);
    set_state((float)(10 * rank));
    CHECK(fleet_resume(entries, 2, &step, &err) == 0);
    CHECK(step == 7 && is_state(20)); /* of rank 2 */
    set_state((float)rank + 1);
    CHECK(fleet_resume(entries, 2, &none, &err) == 0 && none == 0 && is_state(1));

    (void)setenv("FLEET_PROGRESS_FILE", in_folder("reports"), 1);
    if (rank == 0)
        write_text(in_folder("reports"), "", 0);
    set_state(30);
    for (int64_t s = 10; s <= 30; s += 10)
        CHECK(fleet_checkpoint_save(in_folder("c"), s, entries, 2, &err) == 0);
    CHECK(fleet_barrier(NULL, &err) == 0);
    CHECK(access(in_folder("c/step-10.safetensors"), F_OK) != 0);
    CHECK(access(in_folder("c/step-20.safetensors"), F_OK) == 0);
    CHECK(says(in_folder("reports"), "{\"checkpoint\": 30, \"path\": \"/tmp/"));

    (void)setenv("FLEET_RESUME_PATH", in_folder("c/step-30.safetensors"), 1);
    (void)setenv("FLEET_RESUME_STEP", "30", 1);
    step = 29; /* of all ranks, older than the checkpoint */
    set_state(0);
    CHECK(fleet_resume(entries, 2, &step, &err) == 0 && step == 30 && is_state(30));
    set_state(31);
    step = rank == 1 ? 31 : 0; /* newer than the checkpoint */
    CHECK(fleet_resume(entries, 2, &step, &err) == 0 && step == 31 && is_state(31));
    CHECK(fleet_barrier(NULL, &err) == 0);
    CHECK(says(in_folder("reports"), "{\"resumed\": 31}\n"));
}

static void test_fleet_job__the_newest_state_goes_to_all_ranks(void **state)
{
    (void)state;
    run_processes(3, resuming, -1);
}

/* All ranks get the error of rank 0. */
static void bad_checkpoints(void)
{
    struct fleet_state_entry other[] = {entries[0], entries[1]};
    int64_t step = 0;

    CHECK(fleet_env_init(&err) == 0);
    set_state(1);
    CHECK(fleet_checkpoint_save(in_folder("d"), 5, entries, 2, &err) == 0);
    (void)setenv("FLEET_RESUME_PATH", in_folder("d/step-5.safetensors"), 1);
    other[0].tensor.shape[0] = 2;
    CHECK(fleet_resume(other, 2, &step, &err) == -EINVAL && strstr(err.text, "another type or sh"));
    other[0] = (struct fleet_state_entry){"bias", {weights, FLEET_FP32, 1, {3}}};
    CHECK(fleet_resume(other, 2, &step, &err) == -EINVAL && strstr(err.text, "bias is not in it"));
    (void)setenv("FLEET_RESUME_PATH", in_folder("d/none"), 1);
    CHECK(fleet_resume(entries, 2, &step, &err) == -ENOENT && strstr(err.text, "d/none"));
    (void)setenv("FLEET_RESUME_PATH", "/proc/self/exe", 1);
    CHECK(fleet_resume(entries, 2, &step, &err) == -EINVAL && strstr(err.text, "/proc/self/exe"));
    CHECK(step == 0 && fleet_barrier(NULL, &err) == 0); /* the world is alive */
}

static void test_fleet_job__a_wrong_checkpoint_is_an_error_of_all_ranks(void **state)
{
    (void)state;
    run_processes(2, bad_checkpoints, -1);
}

static void expect_error(int rc, const char *words)
{
    if (rc != -EINVAL || !strstr(err.text, words))
        fail_msg("%d, \"%s\", expected \"%s\"", rc, err.text, words);
}

static void test_fleet_job__wrong_arguments_have_one_error(void **state)
{
    struct fleet_state_entry bad[] = {entries[0], entries[1]};
    int64_t step = -1;

    (void)state;
    assert_int_equal(fleet_resume(entries, 2, &step, &err), FLEET_NOT_INITIALIZED);
    assert_int_equal(fleet_env_init(&err), 0);
    expect_error(fleet_resume(entries, 2, NULL, &err), "*step is NULL");
    expect_error(fleet_resume(entries, 2, &step, &err), "negative");
    expect_error(fleet_resume(NULL, 2, &step, &err), "state is NULL");
    expect_error(fleet_resume(entries, 0, &step, &err), "count");
    bad[1].name = "weights";
    expect_error(fleet_resume(bad, 2, &step, &err), "both named weights");
    bad[1].name = NULL;
    expect_error(fleet_checkpoint_save(folder, 1, bad, 2, &err), "state[1].name");
    bad[1] = (struct fleet_state_entry){"c", {weights, FLEET_COMPLEX64, 0, {0}}};
    expect_error(fleet_checkpoint_save(folder, 1, bad, 2, &err), "type of c is 9");
    bad[1] = (struct fleet_state_entry){"c", {NULL, FLEET_FP32, 1, {2}}};
    expect_error(fleet_checkpoint_save(folder, 1, bad, 2, &err), "c has no data");
    bad[1] = (struct fleet_state_entry){"c", {weights, FLEET_FP32, 9, {1}}};
    expect_error(fleet_checkpoint_save(folder, 1, bad, 2, &err), "9 dimensions");
    bad[1] = (struct fleet_state_entry){"c", {weights, FLEET_FP32, 1, {-1}}};
    expect_error(fleet_checkpoint_save(folder, 1, bad, 2, &err), "shape of c");
    expect_error(fleet_checkpoint_save(NULL, 1, entries, 2, &err), "folder");
    expect_error(fleet_checkpoint_save(folder, 0, entries, 2, &err), "step is 0");
    expect_error(fleet_report(-1, 0, NAN, &err), "step is -1");
    assert_true(fleet_checkpoint_save("/proc/none", 1, entries, 2, &err) < 0);
    assert_non_null(strstr(err.text, "/proc/none"));
    assert_true(fleet_checkpoint_save("/proc/none", 1, entries, 2, NULL) < 0);
    fleet_env_release();
}

/* No space for the second file: nothing of it is left, and the first one stays. */
static void full_disk(void)
{
    static float large[10000];
    struct fleet_state_entry state[] = {{"large", {large, FLEET_FP32, 1, {10}}}};
    const struct rlimit limit = {4096, 4096};

    (void)signal(SIGXFSZ, SIG_IGN);
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    CHECK(fleet_checkpoint_save(in_folder("full"), 1, state, 1, &err) == 0);
    state[0].tensor.shape[0] = 10000;
    CHECK(fleet_checkpoint_save(in_folder("full"), 2, state, 1, &err) == -EFBIG);
    CHECK(strstr(err.text, "/full/step-2.safetensors: File too large"));
    CHECK(access(in_folder("full/step-1.safetensors"), F_OK) == 0);
    CHECK(unlink(in_folder("full/step-1.safetensors")) == 0);
    CHECK(rmdir(in_folder("full")) == 0);
}

static void test_fleet_job__a_full_disk_leaves_nothing_half_written(void **state)
{
    (void)state;
    run_processes(1, full_disk, -1);
}

static void test_fleet_job__sizes_of_structures(void **state)
{
    (void)state;
    assert_int_equal(sizeof(struct fleet_state_entry), 88);
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    char command[128];

    (void)state;
    (void)snprintf(command, sizeof(command), "rm -rf %s", folder);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fleet_job__a_process_joins_one_generation_after_another),
        cmocka_unit_test(test_fleet_job__without_an_agent_there_is_one_generation),
        cmocka_unit_test(test_fleet_job__the_newest_state_goes_to_all_ranks),
        cmocka_unit_test(test_fleet_job__a_wrong_checkpoint_is_an_error_of_all_ranks),
        cmocka_unit_test(test_fleet_job__wrong_arguments_have_one_error),
        cmocka_unit_test(test_fleet_job__a_full_disk_leaves_nothing_half_written),
        cmocka_unit_test(test_fleet_job__sizes_of_structures),
    };
    return cmocka_run_group_tests_name("fleet_job", tests, make_folder, remove_folder);
}

/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Kills and stops of trainers and agents at any moment: they change neither the order of the steps
 * nor the weights, and nothing is left behind.
 */
#include "tests/integration/run_fixture.h"

/* A job, and the members that are struck after a step. */
struct fault {
    const char *workers;
    int step, members[2], count;
    bool agents; /* else trainers */
    int signal;
    bool may_end; /* the job may be over before anybody misses them */
};

/* Does it strike the job while it runs? In any case all steps and the weights are as they are
 * without. */
static bool strike_job(const void *context, int steps)
{
    const struct fault *fault = context;
    bool is_hit = true;
    struct story story;
    struct run run;

    start_small_job(&run, write_job("fault", "", ""), fault->workers, steps_text(steps));
    wait_for_step(&run, fault->step);
    for (int i = 0; i < fault->count && is_hit; i++)
        is_hit = strike_if_running(&run, fault->members[i], fault->agents, fault->signal);
    wait_for_end(&run);
    story = expect_success(&run, steps);
    expect_undisturbed(&story, steps_text(steps));
    release(&run);
    /* The others may go on before its end is known, and before its replacement comes. */
    return is_hit && (story.restarts > 0 || fault->may_end) && story.restarts <= 2 * fault->count;
}

static void test_run_faults__a_killed_trainer_changes_nothing(void **state)
{
    (void)state;
    for (int member = 0; member < 3; member++) /* the one with rank 0, too */
        strike_until_hit(strike_job,
                         &(struct fault){.workers = "3",
                                         .step = 10 + 7 * member,
                                         .members = {member},
                                         .count = 1,
                                         .signal = SIGKILL},
                         few_steps);
}

static void test_run_faults__two_killed_trainers_change_nothing(void **state)
{
    (void)state;
    strike_until_hit(
        strike_job,
        &(struct fault){
            .workers = "3", .step = 20, .members = {0, 2}, .count = 2, .signal = SIGKILL},
        few_steps);
}

static void test_run_faults__a_killed_agent_changes_nothing(void **state)
{
    (void)state;
    strike_until_hit(strike_job,
                     &(struct fault){.workers = "3",
                                     .step = 15,
                                     .members = {1},
                                     .count = 1,
                                     .agents = true,
                                     .signal = SIGKILL},
                     few_steps);
}

static void test_run_faults__a_stopped_trainer_is_replaced(void **state)
{
    (void)state;
    strike_until_hit(
        strike_job,
        &(struct fault){.workers = "2", .step = 15, .members = {1}, .count = 1, .signal = SIGSTOP},
        few_steps);
}

/* The hub misses its heartbeats. A short job is over by then, since its trainer goes on; in a long
 * one the pod is replaced. */
static void test_run_faults__a_stopped_agent_holds_nobody_up(void **state)
{
    const char *const steps[] = {few_steps, many_steps};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(steps); i++)
        strike_until_hit(strike_job,
                         &(struct fault){.workers = "2",
                                         .step = 15,
                                         .members = {1},
                                         .count = 1,
                                         .agents = true,
                                         .signal = SIGSTOP,
                                         .may_end = true},
                         steps[i]);
}

/* Six kills at moments that the seed chooses, of trainers and agents alike. */
static bool kill_at_random(const void *context, int steps)
{
    unsigned int seed = *(const unsigned int *)context;
    struct run run;
    struct story story;

    start_small_job(&run, write_job("storm", "", "  runPolicy: {restart: {maxRestarts: 100}}\n"),
                    "3", steps_text(steps));
    wait_for_step(&run, 5);
    for (int i = 0; i < 6 && run.process.out_fd >= 0; i++) {
        double until_ms = fleet_monotonic_ms() + (double)(rand_r(&seed) % 400);
        if (!strike_if_running(&run, (int)(rand_r(&seed) % 3), rand_r(&seed) % 4 == 0, SIGKILL))
            break;
        while (fleet_monotonic_ms() < until_ms)
            listen_to(&run, 10);
    }
    wait_for_end(&run);
    story = expect_success(&run, steps);
    expect_undisturbed(&story, steps_text(steps));
    release(&run);
    return story.restarts >= 1;
}

static void test_run_faults__kills_at_random_moments_change_nothing(void **state)
{
    unsigned int seed = (unsigned int)time(NULL);

    (void)state;
    (void)printf("seed %u\n", seed);
    strike_until_hit(kill_at_random, &seed, many_steps);
}

/* A folder of programs where the agent of worker 1 stops before it has done anything. */
static const char *make_sleepy_programs(void)
{
    static const char script[] =
        "mkdir $2/sleepy && cp $1/fleetjob $2/sleepy && ln -s $1/fleetjob-train $2/sleepy && "
        "printf '#!/bin/sh\\n[ $FLEET_INDEX = 0 ] || kill -STOP $$\\nexec %s/fleetjob-agent' $1 "
        ">$2/sleepy/fleetjob-agent && chmod +x $2/sleepy/fleetjob-agent";
    static char path[128];
    char *bin = strndup(program, (size_t)(strrchr(program, '/') - program));
    char *arguments[] = {(char *)"sh", (char *)"-c", (char *)script, (char *)"sh", bin,
                         folder,       NULL};
    struct run run;

    start_program(&run, "/bin/sh", arguments);
    wait_for_end(&run);
    expect_exit(&run, 0);
    release(&run);
    free(bin);
    (void)snprintf(path, sizeof(path), "%s/sleepy/fleetjob", folder);
    return path;
}

static void test_run_faults__says_which_worker_it_waits_for(void **state)
{
    static const char words[] = "waiting for worker 1: its agent (process ";
    char state_file[128];
    char *arguments[] = {
        (char *)"fleetjob",     (char *)"run",       (char *)write_job("sleepy", "", ""),
        (char *)"--json",       (char *)"--workers", (char *)"2",
        (char *)"--state-file", state_file,          NULL};
    double give_up_ms = fleet_monotonic_ms() + PATIENCE_MS;
    const char *told;
    struct run run;

    (void)state;
    (void)snprintf(state_file, sizeof(state_file), "%s/sleepy.json", folder);
    start_program(&run, make_sleepy_programs(), arguments);
    strcpy(run.state_file, state_file);
    while (!(told = strstr(fleet_strbuf_text(&run.err), words)) && run.process.err_fd >= 0 &&
           fleet_monotonic_ms() < give_up_ms)
        listen_to(&run, 1000);
    expect_words(&run.err, words);
    (void)kill(atoi(told + strlen(words)), SIGCONT);
    wait_for_end(&run);
    (void)expect_success(&run, STEPS);
    told = strstr(fleet_strbuf_text(&run.err), words);
    assert_null(strstr(told + 1, "waiting for")); /* once, and for no other worker */
    release(&run);
}

static void test_run_faults__too_many_restarts_fail_with_the_cause(void **state)
{
    struct run run;
    struct story story;

    (void)state;
    start_small_job(&run, write_job("limit", "", "  runPolicy: {restart: {maxRestarts: 1}}\n"), "2",
                    ENDLESS_STEPS);
    wait_for_step(&run, 5);
    strike(&run, 0, false, SIGKILL);
    wait_for_words(&run, "\"event\":\"restart\"");
    strike(&run, 0, false, SIGKILL);
    wait_for_end(&run);
    expect_exit(&run, 1);
    story = read_story(&run);
    assert_string_equal(story.state, "Failed");
    expect_words(&run.out, "restarts are used up");
    expect_nothing_left(&run);
    release(&run);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_run_faults__a_killed_trainer_changes_nothing),
        cmocka_unit_test(test_run_faults__two_killed_trainers_change_nothing),
        cmocka_unit_test(test_run_faults__a_killed_agent_changes_nothing),
        cmocka_unit_test(test_run_faults__a_stopped_trainer_is_replaced),
        cmocka_unit_test(test_run_faults__a_stopped_agent_holds_nobody_up),
        cmocka_unit_test(test_run_faults__kills_at_random_moments_change_nothing),
        cmocka_unit_test(test_run_faults__says_which_worker_it_waits_for),
        cmocka_unit_test(test_run_faults__too_many_restarts_fail_with_the_cause),
    };

    return find_everything(argc, argv) ? cmocka_run_group_tests(tests, make_folder, remove_folder)
                                       : 1;
}

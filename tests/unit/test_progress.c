/* SPDX-License-Identifier: Apache-2.0 */

/* What `fleetjob run` prints (cli/progress.h): events go in, the text that comes out is
 * compared. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cli/progress.h"
#include "libfleet/base/json.h"

struct screen {
    char *text;
    size_t size;
    FILE *file;
    struct progress *progress;
};

static void open_screen(struct screen *s, struct progress_config config)
{
    s->file = open_memstream(&s->text, &s->size);
    config.out = config.notes = s->file;
    s->progress = progress_new(&config);
}

static void close_screen(struct screen *s)
{
    progress_free(s->progress);
    (void)fclose(s->file);
    free(s->text);
}

/* All that was printed since the last time. */
static void expect(struct screen *s, const char *expected)
{
    (void)fflush(s->file);
    if (strcmp(s->text, expected) != 0)
        fail_msg("expected\n%s\nactual\n%s", expected, s->text);
    rewind(s->file);
    memset(s->text, 0, s->size);
}

static struct hub_event step_event(int64_t step, double loss, bool has_update)
{
    return (struct hub_event){.type = HUB_EVENT_STEP,
                              .step = {.step = step,
                                       .generation = 1,
                                       .loss = loss,
                                       .grad_norm = has_update ? 1.9 : NAN,
                                       .learning_rate = has_update ? 0.00005 : NAN,
                                       .tokens = 2048,
                                       .tokens_per_second = 91000.4}};
}

static struct hub_event restart_event(void)
{
    return (struct hub_event){.type = HUB_EVENT_RESTART,
                              .generation = {1, 2},
                              .member = 3,
                              .cause = "MemberLost",
                              .counted = true,
                              .restarts = 1,
                              .members = 4,
                              .timeline = {.detect_ms = 4.04,
                                           .agree_ms = 2.04,
                                           .connect_ms = 9.04,
                                           .restore_ms = 120.04,
                                           .resume_ms = 135.16,
                                           .first_step_ms = 41.26}};
}

static void test_progress__json_says_what_the_specification_says(void **state)
{
    struct screen s;
    cJSON *plan = cJSON_CreateObject();
    struct hub_event e;

    (void)state;
    open_screen(&s, (struct progress_config){.is_json = true, .steps = 300, .every_steps = 10});
    (void)cJSON_AddStringToObject(plan, "digest", "00");
    progress_plan(s.progress, plan, "for people");
    expect(&s, "{\"event\":\"plan\",\"digest\":\"00\"}\n");

    e = step_event(1, 5.54, true);
    progress_event(s.progress, &e, 0);
    expect(&s,
           "{\"event\":\"step\",\"step\":1,\"loss\":5.54,\"gradNorm\":1.9,\"learningRate\":5e-05,"
           "\"tokens\":2048,\"tokensPerSecond\":91000,\"generation\":1}\n");
    e = step_event(2, 5.5, false);
    progress_event(s.progress, &e, 0);
    expect(&s,
           "{\"event\":\"step\",\"step\":2,\"loss\":5.5,\"tokens\":2048,\"tokensPerSecond\":91000,"
           "\"generation\":1}\n");

    e = restart_event();
    progress_event(s.progress, &e, 0);
    expect(&s, "{\"event\":\"restart\",\"generation\":2,\"cause\":\"MemberLost\",\"member\":3,"
               "\"detectMs\":4,\"agreeMs\":2,\"connectMs\":9,\"restoreMs\":120,\"resumeMs\":135,"
               "\"firstStepMs\":41.3,\"lostSteps\":0}\n"); /* 4 + 2 + 9 + 120 = 135 as printed */

    e = (struct hub_event){.type = HUB_EVENT_EVALUATION, .step = {.step = 100, .loss = 2.31}};
    progress_event(s.progress, &e, 0);
    expect(&s, "{\"event\":\"evaluation\",\"step\":100,\"loss\":2.31}\n");
    e = (struct hub_event){
        .type = HUB_EVENT_CHECKPOINT, .step = {.step = 100}, .text = strdup("/c")};
    progress_event(s.progress, &e, 0);
    free(e.text);
    expect(&s, "{\"event\":\"checkpoint\",\"step\":100,\"path\":\"/c\"}\n");
    e = (struct hub_event){.type = HUB_EVENT_STALLED, .message = "words"};
    progress_event(s.progress, &e, 0);
    expect(&s, "");

    progress_finish(s.progress, &(struct progress_end){.state = "Succeeded",
                                                       .message = "",
                                                       .weights_sha256 = "ab",
                                                       .curve_path = "",
                                                       .restarts = 1,
                                                       .seconds = 41.17});
    expect(&s, "{\"event\":\"end\",\"state\":\"Succeeded\",\"steps\":2,\"loss\":5.5,"
               "\"weightsSha256\":\"ab\",\"restarts\":1,\"seconds\":41.2}\n");
    cJSON_Delete(plan);
    close_screen(&s);
}

static void test_progress__a_phase_that_was_not_reached_is_null(void **state)
{
    struct screen s;
    struct hub_event e = restart_event();

    (void)state;
    open_screen(&s, (struct progress_config){.is_json = true});
    e.timeline.restore_ms = e.timeline.resume_ms = e.timeline.first_step_ms = -1;
    progress_event(s.progress, &e, 0);
    expect(&s, "{\"event\":\"restart\",\"generation\":2,\"cause\":\"MemberLost\",\"member\":3,"
               "\"detectMs\":4,\"agreeMs\":2,\"connectMs\":9,\"restoreMs\":null,\"resumeMs\":null,"
               "\"firstStepMs\":null,\"lostSteps\":0}\n");
    close_screen(&s);
}

static void test_progress__lines_in_a_pipe_are_few(void **state)
{
    struct screen s;

    (void)state;
    open_screen(&s, (struct progress_config){.steps = 1000, .every_steps = 5});
    for (int step = 1; step <= 1000; step++) { /* 100 steps a second */
        struct hub_event e = step_event(step, 2.5, true);
        progress_event(s.progress, &e, step * 10.0);
    }
    (void)fflush(s.file);
    assert_non_null(
        strstr(s.text, "step 1/1000  loss 2.5000  norm 1.90  lr 5.0e-05 91.0k tok/s\n"));
    assert_non_null(strstr(s.text, "step 1000/1000  loss 2.5000"));
    assert_non_null(strstr(s.text, "  eta 5s\n"));
    assert_null(strchr(s.text, '\r'));
    {
        int lines = 0;
        for (const char *c = s.text; *c; c++)
            lines += *c == '\n';
        if (lines < 20 || lines > 22)
            fail_msg("expected about two lines a second, that is 21, got %d", lines);
    }
    close_screen(&s);
}

static void test_progress__a_terminal_has_one_line_that_is_rewritten(void **state)
{
    struct screen s;
    struct hub_event first = step_event(1, 5.5, true), second = step_event(2, 5.25, true);

    (void)state;
    open_screen(&s, (struct progress_config){.is_terminal = true, .steps = 3});
    progress_event(s.progress, &first, 0);
    expect(&s, "step 1/3  loss 5.5000  norm 1.90  lr 5.0e-05 91.0k tok/s");
    progress_event(s.progress, &second, 2000);
    expect(&s, "\r\033[Kstep 2/3  loss 5.2500  norm 1.90  lr 5.0e-05 91.0k tok/s  eta 2s");
    progress_note(s.progress, "warning: %s", "look");
    expect(&s, "\r\033[Kwarning: look\n"
               "step 2/3  loss 5.2500  norm 1.90  lr 5.0e-05 91.0k tok/s  eta 2s");
    close_screen(&s);
}

static void test_progress__a_narrow_terminal_gets_a_shorter_line(void **state)
{
    struct screen s;
    struct hub_event e = step_event(1, 5.5, true);

    (void)state;
    open_screen(&s, (struct progress_config){.is_terminal = true, .columns = 20, .steps = 3});
    progress_event(s.progress, &e, 0);
    expect(&s, "step 1/3  loss 5.50"); /* 19 columns: the cursor stays on the line */
    close_screen(&s);
}

static void test_progress__says_which_trainer_ended_and_how(void **state)
{
    struct screen s;
    struct hub_event step = step_event(7, 5.5, true);
    struct hub_event e = {.type = HUB_EVENT_TRAINER_FAILED, .member = 3, .signal = 9};

    (void)state;
    open_screen(&s, (struct progress_config){.is_terminal = true});
    progress_event(s.progress, &step, 0);
    (void)fflush(s.file);
    rewind(s.file);
    progress_event(s.progress, &e, 0);
    (void)fflush(s.file);
    assert_non_null(
        strstr(s.text, "worker 3: its trainer was ended by signal 9 (Killed) after step 7\n"));
    close_screen(&s);
}

static void test_progress__a_restart_is_reported_with_its_phases(void **state)
{
    struct screen s;
    struct hub_event e = restart_event();

    (void)state;
    e.is_before_first_step = true;
    open_screen(&s, (struct progress_config){.steps = 300});
    progress_event(s.progress, &e, 0);
    expect(&s, "restart 1: MemberLost of worker 3, noticed in 4 ms, agreed in 2 ms, connected in 9 "
               "ms, restored in 120 ms = 135 ms, first step in 41 ms; no step had been made yet; "
               "generation 2, 4 workers\n");
    close_screen(&s);
}

static void test_progress__notices_that_its_output_is_not_read(void **state)
{
    struct hub_event e = step_event(1, 5.5, true);
    FILE *full = fopen("/dev/full", "w");
    struct progress_config config = {.is_json = true, .out = full, .notes = stderr};
    struct progress *p = progress_new(&config);

    (void)state;
    assert_true(progress_is_heard(p));
    progress_event(p, &e, 0);
    assert_false(progress_is_heard(p));
    progress_free(p);
    (void)fclose(full);
}

/* At its end a run shows where the time went, as parts of the time of all steps. It shows nothing
 * if the time was not measured. */
static void test_progress__says_where_the_time_went(void **state)
{
    struct progress_end end = {
        .state = "Succeeded", .message = "", .weights_sha256 = "", .curve_path = "", .seconds = 2};
    struct hub_event e = step_event(1, 5.5, true);
    struct screen s;

    (void)state;
    e.step.tokens = 1000;
    e.step.tokens_per_second = 1000; /* a second a step */
    open_screen(&s, (struct progress_config){.steps = 2, .every_steps = 1});
    e.step.times.data_s = 0.01;
    e.step.times.forward_s = 0.3;
    e.step.times.backward_s = 0.5;
    e.step.times.exchange_s = 0.1;
    e.step.times.optimizer_s = 0.04;
    progress_event(s.progress, &e, 0);
    e.step.step = 2;
    e.step.times.data_s = 0.03;
    e.step.times.hidden_s = 0.06;
    progress_event(s.progress, &e, 1000);
    progress_finish(s.progress, &end);
    (void)fflush(s.file);
    if (!strstr(s.text, "\n  time      data 2.0%, forward 30.0%, backward 50.0%, exchange 10.0% "
                        "(3.0% more hidden), optimizer 4.0%, other 4.0%\n"))
        fail_msg("%s", s.text);
    close_screen(&s);

    open_screen(&s, (struct progress_config){.steps = 2, .every_steps = 1});
    e = step_event(1, 5.5, true);
    progress_event(s.progress, &e, 0);
    progress_finish(s.progress, &end);
    (void)fflush(s.file);
    assert_null(strstr(s.text, "  time "));
    close_screen(&s);
}

/* ---- own trainers: nothing that they did not report ------------------------------------------ */

static void test_progress__claims_nothing_that_an_own_trainer_does_not_report(void **state)
{
    struct screen s;
    struct hub_event restart = {.type = HUB_EVENT_RESTART,
                                .generation = {1, 2},
                                .member = 1,
                                .cause = "TrainerFailed",
                                .counted = true,
                                .restarts = 1,
                                .members = 2,
                                .lost_steps = -1,
                                .timeline = {.detect_ms = 1,
                                             .agree_ms = 2,
                                             .connect_ms = 3,
                                             .restore_ms = -1,
                                             .resume_ms = -1,
                                             .first_step_ms = -1}};
    struct progress_end end = {.state = "Succeeded",
                               .has_succeeded = true,
                               .message = "",
                               .weights_sha256 = "",
                               .curve_path = "",
                               .restarts = 1,
                               .seconds = 12};

    (void)state;
    open_screen(&s, (struct progress_config){.own_trainer = true});
    progress_event(s.progress, &restart, 0);
    expect(&s, "restart 1: TrainerFailed of worker 1, noticed in 1 ms, agreed in 2 ms, trainers "
               "started in 3 ms; generation 2, 2 workers\n");
    progress_finish(s.progress, &end);
    expect(&s, "\nSucceeded after 12s: every worker exited with 0\n  restarts  1 (TrainerFailed of "
               "worker 1)\n");
    close_screen(&s);
}

static void test_progress__shows_what_an_own_trainer_reports(void **state)
{
    struct screen s;
    struct hub_event step = {.type = HUB_EVENT_STEP,
                             .step = {.step = 10,
                                      .steps = 100,
                                      .loss = 2.5,
                                      .grad_norm = NAN,
                                      .learning_rate = NAN,
                                      .tokens_per_second = NAN}};
    struct progress_end end = {.state = "Succeeded",
                               .has_succeeded = true,
                               .message = "",
                               .weights_sha256 = "",
                               .curve_path = ""};

    (void)state;
    open_screen(&s, (struct progress_config){.own_trainer = true});
    progress_event(s.progress, &step, 0);
    expect(&s, "step 10/100  loss 2.5000\n");
    progress_output(s.progress, false, "[0] hello");
    expect(&s, "[0] hello\n");
    progress_finish(s.progress, &end);
    expect(&s, "\nSucceeded after 0s: every worker exited with 0, 10 of 100 steps\n"
               "  loss      2.5000 at first, 2.5000 at last\n  restarts  0\n");
    close_screen(&s);
    open_screen(&s, (struct progress_config){.own_trainer = true, .is_json = true});
    progress_event(s.progress, &step, 0);
    expect(&s, "{\"event\":\"step\",\"step\":10,\"loss\":2.5,\"generation\":0}\n");
    close_screen(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_progress__json_says_what_the_specification_says),
        cmocka_unit_test(test_progress__a_phase_that_was_not_reached_is_null),
        cmocka_unit_test(test_progress__lines_in_a_pipe_are_few),
        cmocka_unit_test(test_progress__a_terminal_has_one_line_that_is_rewritten),
        cmocka_unit_test(test_progress__a_narrow_terminal_gets_a_shorter_line),
        cmocka_unit_test(test_progress__says_which_trainer_ended_and_how),
        cmocka_unit_test(test_progress__a_restart_is_reported_with_its_phases),
        cmocka_unit_test(test_progress__notices_that_its_output_is_not_read),
        cmocka_unit_test(test_progress__says_where_the_time_went),
        cmocka_unit_test(test_progress__claims_nothing_that_an_own_trainer_does_not_report),
        cmocka_unit_test(test_progress__shows_what_an_own_trainer_reports),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

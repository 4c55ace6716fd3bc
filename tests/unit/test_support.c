/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What the built-in runtime does not run yet: each row of the table refuses a job, blames a field
 * that the job wrote, and is the first line of the knob's page.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/file.h"
#include "libfleet/plan/support.h"
#include "libfleet/program/passes/pass.h"
#include "libfleet/strategy/units.h"
#include "tests/support/knob_outcome.h"
#include "tests/unit/strategy_text.h"

#define GPT    0
#define RESNET 2

static const struct support_gap *gap_of(const char *knob)
{
    for (const struct support_gap *gap = support_gaps; gap->knob; gap++)
        if (strcmp(gap->knob, knob) == 0)
            return gap;
    return NULL;
}

static void test_support__units_have_a_pass_or_a_row(void **state)
{
    (void)state;
    for (int unit = 0; unit < UNITS; unit++) {
        const char *name = unit_name((enum unit)unit);

        if (pass_exists(name) == (gap_of(name) != NULL))
            fail_msg("%s has %s", name,
                     pass_exists(name) ? "a pass and a row" : "neither a pass nor a row");
    }
}

/* ---- every row refuses ----------------------------------------------------------------------- */

static const struct {
    const char *gap, *strategy, *optimizer;
    const char *blamed; /* below spec.strategy */
    int model, workers;
} jobs[] = {
    {"gradient_scale_configs.scale_strategy",
     "{'gradient_scale_configs': {'scale_strategy': 'customized'}}", "adamw",
     "gradient_scale_configs.scale_strategy", GPT, 2},
    {"build_strategy.reduce_strategy", "{'build_strategy': {'reduce_strategy': 2}}", "adamw",
     "build_strategy.reduce_strategy", GPT, 2},
    {"amp_configs.use_optimizer_fp16", "{'amp': true, 'amp_configs': {'use_optimizer_fp16': true}}",
     "adamw", "amp_configs.use_optimizer_fp16", GPT, 1},
    {"asp", "{'asp': true}", "adamw", "asp", GPT, 1},
    {"qat", "{'qat': true}", "adamw", "qat", GPT, 1},
    {"adam_d2sum", "{'adam_d2sum': true}", "adam", "adam_d2sum", GPT, 1},
    {"is_fl_ps_mode", "{'is_fl_ps_mode': true}", "adamw", "is_fl_ps_mode", GPT, 1},
    {"with_coordinator", "{'with_coordinator': true}", "adamw", "with_coordinator", GPT, 1},
    {"semi_auto", "{'semi_auto': true}", "adamw", "semi_auto", GPT, 1},
    {"auto_search", "{'auto_search': true}", "adamw", "auto_search", GPT, 1},
};

static void judge(const char *strategy, int model, int workers, const char *optimizer,
                  struct outcome *out)
{
    FLEET_AUTO_JSON cJSON *json = strategy_text_json(strategy);
    struct knob_job wanted = {
        .model = model, .workers = workers, .optimizer = optimizer, .strategy = json};
    FLEET_AUTO_JSON cJSON *job = NULL;

    assert_non_null(json);
    job = knob_job_make(&wanted);
    outcome_of(job, workers, out);
}

static void test_support__each_row_refuses_a_job(void **state)
{
    (void)state;
    for (const struct support_gap *gap = support_gaps; gap->knob; gap++) {
        bool tried = false;

        for (size_t i = 0; i < FLEET_COUNT(jobs); i++)
            tried |= strcmp(jobs[i].gap, gap->knob) == 0;
        if (!tried)
            fail_msg("no job of this test hits %s", gap->knob);
    }
    for (size_t i = 0; i < FLEET_COUNT(jobs); i++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf wanted = {0}, found = {0};
        const char *because = gap_of(jobs[i].gap)->because;
        struct outcome o;

        judge(jobs[i].strategy, jobs[i].model, jobs[i].workers, jobs[i].optimizer, &o);
        fleet_errors_print(&o.errors, &found);
        fleet_strbuf_appendf(&wanted, "spec.strategy.%s: ", jobs[i].blamed);
        if (o.errors.count != 1 || strncmp(found.text, wanted.text, wanted.length) != 0 ||
            !strstr(found.text, because))
            fail_msg("%s: expected %s… %s, got %s", jobs[i].strategy, wanted.text, because,
                     fleet_strbuf_text(&found));
        outcome_release(&o);
    }
}

/* ---- auto ------------------------------------------------------------------------------------ */

static void expect_auto(int workers, const char *optimizer, const char *error)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf found = {0};
    struct outcome o;

    judge("{'auto': true}", GPT, workers, optimizer, &o);
    fleet_errors_print(&o.errors, &found);
    assert_string_equal(fleet_strbuf_text(&found), error);
    outcome_release(&o);
}

/* The user wrote `auto` and none of the knobs that it chooses. */
static void test_support__auto_is_blamed_for_what_it_chooses(void **state)
{
    (void)state;
    expect_auto(1, "momentum", "");
    expect_auto(2, "momentum", ""); /* sharding, amp, lars */
    expect_auto(2, "sgd", "");      /* adaptive_localsgd > amp */
}

/* ---- pages ----------------------------------------------------------------------------------- */

static void expect_first_line(const char *page, const char *because)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf path = {0};
    FLEET_AUTO_FREE char *text = NULL;
    const char *line;
    size_t size;

    fleet_strbuf_appendf(&path, "docs/reference/strategy/%s.md", page);
    assert_int_equal(fleet_file_read(path.text, 1 << 20, &text, &size, NULL), 0);
    line = strstr(text, "\n\n");
    if (!line || strncmp(line + 2, "**Does not run yet.**", 21) != 0 || !strstr(text, because))
        fail_msg("%s does not begin with what does not run: %s", path.text, because);
}

static void test_support__pages_begin_with_what_does_not_run(void **state)
{
    (void)state;
    for (const struct support_gap *gap = support_gaps; gap->knob; gap++) {
        expect_first_line(gap->knob, gap->because);
        for (int i = 0; i < SUPPORT_DEGREES_MAX && gap->degrees[i]; i++)
            expect_first_line(gap->degrees[i], gap->because);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_support__units_have_a_pass_or_a_row),
        cmocka_unit_test(test_support__each_row_refuses_a_job),
        cmocka_unit_test(test_support__auto_is_blamed_for_what_it_chooses),
        cmocka_unit_test(test_support__pages_begin_with_what_does_not_run),
    };
    return cmocka_run_group_tests_name("support", tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */

/* The kind of a file follows from its content; both forms of a strategy may be in a job. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/api/document.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/errors.h"

#define JOB                                                                           \
    "apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\nmetadata: {name: j}\nspec:\n" \
    "  worker: {template: {spec: {containers: [{name: a}]}}}\n"

static int read_document(const char *text, struct document *out, struct fleet_strbuf *lines)
{
    struct fleet_errors errors = {0};
    int rc = document_read("file", text, strlen(text), out, &errors);

    fleet_errors_print(&errors, lines);
    assert_int_equal(rc, errors.count > 0 ? -EINVAL : 0);
    fleet_errors_release(&errors);
    return rc;
}

static void assert_kind(const char *text, enum document_kind kind, bool amp)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf lines = {0};
    struct document document;

    if (read_document(text, &document, &lines) < 0)
        fail_msg("%s: refused: %s", text, lines.text);
    assert_int_equal(document.kind, kind);
    assert_int_equal(document_strategy(&document)->amp, amp);
    document_release(&document);
}

static void assert_refused(const char *text, const char *part)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf lines = {0};
    struct document document;

    if (read_document(text, &document, &lines) == 0)
        fail_msg("expected \"%s\" to be refused", text);
    if (!strstr(fleet_strbuf_text(&lines), part))
        fail_msg("expected \"%s\" in \"%s\"", part, fleet_strbuf_text(&lines));
    document_release(&document);
}

static void test_document__content_tells_what_a_file_is(void **state)
{
    (void)state;
    assert_kind(JOB "  strategy: {amp: true}\n", DOCUMENT_JOB, true);
    assert_kind("amp: true\namp_configs: {init_loss_scaling: 1024}\n", DOCUMENT_STRATEGY_JSON,
                true);
    assert_kind("{\"amp\": true}", DOCUMENT_STRATEGY_JSON, true);
    assert_kind("strategy:\n  amp: true\n", DOCUMENT_STRATEGY_JSON, true);
    assert_kind("amp: true\namp_configs {\n  init_loss_scaling: 1024.0\n}\n",
                DOCUMENT_STRATEGY_TEXT, true);
    assert_kind("amp: true; recompute: false", DOCUMENT_STRATEGY_TEXT, true);
    assert_kind("", DOCUMENT_STRATEGY_TEXT, false);
    /* both readers take it; only to YAML, as to Paddle's setter, it says something of k_steps */
    assert_kind("a_sync: true\n", DOCUMENT_STRATEGY_TEXT, false);
    assert_kind("{a_sync: true}\n", DOCUMENT_STRATEGY_JSON, false);
}

static void test_document__errors_are_those_of_the_form_it_looks_like(void **state)
{
    (void)state;
    assert_refused("amp: 3\n", "amp: ");
    assert_refused("ampp: true\n", "did you mean \"amp\"?");
    assert_refused("strategy: {amp: true}\nlars: true\n", "strategy: is not a field");
    assert_refused("amp_configs {\n  init_loss: 1\n}\n", "file:2:3: ");
    assert_refused("{\"a\\nb\": 1}", "a\\nb: is not a field");
    assert_refused("amp: true\n---\nlars: true\n", "2 documents, and none is a FleetJob");
    assert_refused("kind: FleetJob\nspec: [\n", "line 3, column 1: ");
    assert_refused("[1, 2]", "file:1:1: ");
    assert_refused("{\"amp\": true", "file: line 1, column 1: ");
    assert_refused("{\"amp\": \"\xff\"}", "file: line 1, column ");
    assert_refused("{\"amp\": true, \"amp\": false}", "file: line 1, column ");
    assert_refused("amp_configs:\n  incr_ratio: [\n", "file: line 3, column 1: ");
    assert_refused("- amp\n", "file:1:1: not a FleetJob: a mapping");
    assert_refused("kind: Pod\n", "kind: must be \"FleetJob\", not \"Pod\"");
}

/* Types, unknown names and ranges in one go; companions of fields that could not be read are not
 * guessed. */
static void test_document__one_look_shows_all_errors(void **state)
{
    static const char strategy[] = "{ampp: true, amp: 1, amp_configs: {incr_ratio: 0.5, "
                                   "decr_ratio: x}, nccl_comm_num: 9}";
    FLEET_AUTO_STRBUF struct fleet_strbuf job = {0};

    (void)state;
    assert_refused(strategy,
                   "ampp: is not a field of DistributedStrategy; did you mean \"amp\"?\n"
                   "amp: must be true or false, not 1\n"
                   "amp_configs.decr_ratio: must be a number, not \"x\"\n"
                   "nccl_comm_num: must be from 1 to 8, not 9\n"
                   "amp_configs.incr_ratio: must be finite and greater than 1, not 0.5\n");
    fleet_strbuf_appendf(&job, JOB "  strategy: %s\n  strategyPolicy: Nobody\n", strategy);
    assert_refused(job.text, "spec.strategyPolicy: ");
    assert_refused(job.text, "spec.strategy.ampp: ");
    assert_refused(job.text, "spec.strategy.amp_configs.decr_ratio: ");
    assert_refused(job.text, "spec.strategy.nccl_comm_num: must be from 1 to 8, not 9\n");
}

static void test_document__errors_beyond_the_limit_are_counted(void **state)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    (void)state;
    for (int i = 0; i < FLEET_ERRORS_MAX + 23; i++)
        fleet_strbuf_appendf(&text, "unknown_%d: 1\n", i);
    assert_refused(text.text, "unknown_99: is not a field of DistributedStrategy\nand 23 more\n");
}

/* As in the text format, and to Paddle's setters; YAML readers for Kubernetes drop the
 * difference. */
static void test_document__a_float_is_no_integer(void **state)
{
    (void)state;
    assert_refused("{nccl_comm_num: 2.0}", "nccl_comm_num: must be an integer, not 2.0\n");
    assert_refused("{\"gradient_merge_configs\": {\"k_steps\": 1e3}}",
                   "gradient_merge_configs.k_steps: must be an integer, not 1e3\n");
    assert_refused("{\"a\\\"1e3\": [-1.5e+3, {\"b\": -0.5}], \"nccl_comm_num\": 2e0, \"c\": 4}",
                   "nccl_comm_num: must be an integer, not 2e0\n");
    assert_refused(
        JOB "  strategy: {recompute_configs: {checkpoint_shape: [1, 2.]}}\n",
        "spec.strategy.recompute_configs.checkpoint_shape[1]: must be an integer, not 2.");
    assert_kind(
        "{\"amp\": true, \"amp_configs\": {\"incr_ratio\": 2.0, \"incr_every_n_steps\": 10}}",
        DOCUMENT_STRATEGY_JSON, true);
}

static void test_document__a_job_may_hold_the_text_form(void **state)
{
    (void)state;
    assert_kind(JOB "  strategyText: |\n    amp: true\n    amp_configs { incr_ratio: 3 }\n",
                DOCUMENT_JOB, true);
    assert_kind(JOB "  strategy: {amp: true}\n  strategyText: 'amp: true'\n", DOCUMENT_JOB, true);
    assert_refused(
        JOB "  strategy: {amp: true}\n  strategyText: 'amp: false'\n",
        "spec.strategyText: says something else than spec.strategy; give one of the two");
    assert_refused(JOB "  strategyText: 'amp: maybe'\n", "spec.strategyText: text:1:6: ");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_document__content_tells_what_a_file_is),
        cmocka_unit_test(test_document__errors_are_those_of_the_form_it_looks_like),
        cmocka_unit_test(test_document__one_look_shows_all_errors),
        cmocka_unit_test(test_document__errors_beyond_the_limit_are_counted),
        cmocka_unit_test(test_document__a_float_is_no_integer),
        cmocka_unit_test(test_document__a_job_may_hold_the_text_form),
    };
    return cmocka_run_group_tests_name("document", tests, NULL, NULL);
}

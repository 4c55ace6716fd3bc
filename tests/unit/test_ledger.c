/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What becomes of a gradient that is not finite and of a loss that jumps: verdicts, the loss
 * scale's state machine against traces by hand, and that a ledger survives a
 * manifest.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "agent/runtime/ledger.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"
#include "libfleet/strategy/strategy.h"
#include "libfleet/strategy/strategy_json.h"
#include "libfleet/strategy/strategy_options.h"
#include "libfleet/training/training.h"

struct rig {
    struct strategy strategy;
    struct strategy_options options;
    struct training_health health;
    struct ledger_rules rules;
    struct ledger *ledger;
};

static void rig_init(struct rig *rig, const char *strategy, enum training_loss_spike spike)
{
    FLEET_AUTO_JSON cJSON *json = cJSON_Parse(strategy);
    struct fleet_errors errors = {0};

    assert_non_null(json);
    assert_int_equal(strategy_json_decode(json, "", &rig->strategy, &errors), 0);
    strategy_options_init(&rig->options);
    rig->health = (struct training_health){.loss_spike = spike, .factor = 6, .window = 10};
    rig->rules = (struct ledger_rules){&rig->strategy, &rig->options, &rig->health};
    rig->ledger = ledger_new(&rig->rules);
}

static void rig_release(struct rig *rig)
{
    strategy_release(&rig->strategy);
    free(rig->ledger);
}

static enum ledger_verdict step(struct rig *rig, bool is_finite, double loss)
{
    enum ledger_verdict verdict = ledger_judge(rig->ledger, &rig->rules, is_finite, &loss, 1);

    if (verdict != LEDGER_FATAL)
        ledger_commit(rig->ledger, &rig->rules, true, verdict, is_finite, &loss, 1);
    return verdict;
}

/* ---- overflow -------------------------------------------------------------------------------- */

static const struct trace {
    const char *strategy, *overflows;
    struct loss_scaling expected[8];
} traces[] = {
    {"{\"amp\":true,\"amp_configs\":{\"init_loss_scaling\":32768,\"decr_every_n_nan_or_inf\":2,"
     "\"decr_ratio\":0.5}}",
     "1011110",
     {{32768, 0, 1},
      {32768, 1, 0},
      {32768, 0, 1},
      {16384, 0, 0},
      {16384, 0, 1},
      {8192, 0, 0},
      {8192, 1, 0}}},
    {"{\"amp\":true,\"amp_configs\":{\"init_loss_scaling\":32768,\"incr_every_n_steps\":3,"
     "\"decr_every_n_nan_or_inf\":2}}",
     "00010000",
     {{32768, 1, 0},
      {32768, 2, 0},
      {65536, 0, 0},
      {65536, 0, 1},
      {65536, 1, 0},
      {65536, 2, 0},
      {131072, 0, 0},
      {131072, 1, 0}}},
    {"{\"amp\":true,\"amp_configs\":{\"init_loss_scaling\":4,\"decr_every_n_nan_or_inf\":1,"
     "\"decr_ratio\":0.5}}",
     "1111",
     {{2, 0, 0}, {1, 0, 0}, {1, 0, 0}, {1, 0, 0}}},
    {"{\"amp\":true,\"amp_configs\":{\"init_loss_scaling\":1024,"
     "\"use_dynamic_loss_scaling\":false}}",
     "101",
     {{1024, 0, 0}, {1024, 0, 0}, {1024, 0, 0}}},
};

static void test_ledger__an_overflow_skips_the_update_and_moves_the_scale(void **state)
{
    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(traces); i++) {
        struct rig rig;
        int64_t updates = 0;
        rig_init(&rig, traces[i].strategy, TRAINING_LOSS_SPIKE_OFF);
        for (size_t t = 0; traces[i].overflows[t]; t++) {
            bool found = traces[i].overflows[t] == '1';
            const struct loss_scaling *have = &rig.ledger->scaling, *want = &traces[i].expected[t];
            assert_int_equal(step(&rig, !found, 2.0), found ? LEDGER_OVERFLOW : LEDGER_APPLY);
            updates += !found;
            if (have->scale != want->scale || have->good != want->good || have->bad != want->bad)
                fail_msg("trace %zu, step %zu: (%g, %d, %d), expected (%g, %d, %d)", i, t + 1,
                         (double)have->scale, have->good, have->bad, (double)want->scale,
                         want->good, want->bad);
            assert_int_equal(rig.ledger->updates, updates); /* the powers of beta stand still */
        }
        assert_int_equal(rig.ledger->updates + rig.ledger->skipped, strlen(traces[i].overflows));
        rig_release(&rig);
    }
}

static void test_ledger__zero_grad_counts_the_update(void **state)
{
    struct rig rig;

    (void)state;
    rig_init(&rig, "{\"amp\":true}", TRAINING_LOSS_SPIKE_OFF);
    rig.options.overflow_action = STRATEGY_OVERFLOW_ZERO_GRAD;
    assert_int_equal(step(&rig, false, 2.0), LEDGER_ZERO);
    assert_int_equal(rig.ledger->updates, 1);
    assert_int_equal(rig.ledger->skipped, 0);
    assert_int_equal(rig.ledger->scaling.bad, 1);
    rig_release(&rig);
}

static void test_ledger__without_a_scale_infinity_is_fatal(void **state)
{
    struct rig rig;

    (void)state;
    rig_init(&rig, "{}", TRAINING_LOSS_SPIKE_OFF);
    assert_int_equal(step(&rig, false, 2.0), LEDGER_FATAL);
    rig_release(&rig);
    rig_init(&rig, "{}", TRAINING_LOSS_SPIKE_SKIP);
    assert_int_equal(step(&rig, false, NAN), LEDGER_SPIKE);
    rig_release(&rig);
}

/* ---- the loss -------------------------------------------------------------------------------- */

/* Ten losses 2 ± 0.1: mean 2, deviation 0.1. */
static void fill_window(struct rig *rig)
{
    for (int i = 0; i < 10; i++)
        assert_int_equal(step(rig, true, i % 2 ? 2.1 : 1.9), LEDGER_APPLY);
}

static void test_ledger__a_loss_above_the_limit_is_a_spike(void **state)
{
    static const struct {
        enum training_loss_spike action;
        double loss;
        enum ledger_verdict expected;
    } cases[] = {
        {TRAINING_LOSS_SPIKE_SKIP, 2.59, LEDGER_APPLY},
        {TRAINING_LOSS_SPIKE_SKIP, 2.61, LEDGER_SPIKE},
        {TRAINING_LOSS_SPIKE_SKIP, 1.0, LEDGER_APPLY},
        {TRAINING_LOSS_SPIKE_ROLLBACK, 2.61, LEDGER_ROLLBACK},
        {TRAINING_LOSS_SPIKE_OFF, 100, LEDGER_APPLY},
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(cases); i++) {
        struct rig rig;
        rig_init(&rig, "{}", cases[i].action);
        fill_window(&rig);
        if (step(&rig, true, cases[i].loss) != cases[i].expected)
            fail_msg("case %zu: loss %g was not judged as %d", i, cases[i].loss, cases[i].expected);
        rig_release(&rig);
    }
}

static void test_ledger__nothing_is_a_spike_before_the_window_is_full(void **state)
{
    struct rig rig;

    (void)state;
    rig_init(&rig, "{}", TRAINING_LOSS_SPIKE_SKIP);
    for (int i = 0; i < 9; i++)
        assert_int_equal(step(&rig, true, 2.0), LEDGER_APPLY);
    assert_int_equal(step(&rig, true, 1000.0), LEDGER_APPLY);
    rig_release(&rig);
}

/* ---- the manifest ---------------------------------------------------------------------------- */

static void test_ledger__goes_into_a_manifest_and_back(void **state)
{
    struct rig rig, other;
    FLEET_AUTO_JSON cJSON *json = NULL;
    FLEET_AUTO_JSON cJSON *again = NULL;
    FLEET_AUTO_FREE char *text = NULL;
    struct fleet_error err;

    (void)state;
    rig_init(&rig, "{\"amp\":true}", TRAINING_LOSS_SPIKE_SKIP);
    for (int i = 0; i < 27; i++)
        (void)step(&rig, i % 5 != 3, 2.0 + 0.1 / (i + 1));
    json = ledger_encode(rig.ledger);
    text = fleet_json_print(json);
    again = cJSON_Parse(text);
    rig_init(&other, "{\"amp\":true}", TRAINING_LOSS_SPIKE_SKIP);
    assert_int_equal(ledger_decode(other.ledger, again, rig.ledger->updates, &err), 0);
    for (int i = 0; i < 20; i++) { /* they judge and go on alike */
        double loss = 2.0 + 0.02 * i;
        assert_int_equal(step(&rig, i != 4, loss), step(&other, i != 4, loss));
        assert_int_equal(rig.ledger->updates, other.ledger->updates);
        assert_int_equal(rig.ledger->skipped, other.ledger->skipped);
        assert_memory_equal(&rig.ledger->scaling, &other.ledger->scaling,
                            sizeof(rig.ledger->scaling));
    }
    rig_release(&rig);
    rig_release(&other);
}

static void test_ledger__refuses_what_no_ledger_says(void **state)
{
    static const char *const wrong[] = {
        "{\"lossScaling\":{\"scale\":0,\"good\":0,\"bad\":0}}",
        "{\"lossScaling\":{\"scale\":1e300,\"good\":0,\"bad\":0}}",
        "{\"lossScaling\":{\"scale\":2,\"good\":-1,\"bad\":0}}",
        "{\"lossScaling\":{\"scale\":\"2\"}}",
        "{\"losses\":[1,\"x\"]}",
        "{\"skipped\":-4}",
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(wrong); i++) {
        FLEET_AUTO_JSON cJSON *json = cJSON_Parse(wrong[i]);
        struct fleet_error err = {0};
        struct rig rig;
        rig_init(&rig, "{\"amp\":true}", TRAINING_LOSS_SPIKE_SKIP);
        if (ledger_decode(rig.ledger, json, 3, &err) != -EINVAL)
            fail_msg("%s was accepted", wrong[i]);
        assert_true(err.text[0] != '\0');
        rig_release(&rig);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ledger__an_overflow_skips_the_update_and_moves_the_scale),
        cmocka_unit_test(test_ledger__zero_grad_counts_the_update),
        cmocka_unit_test(test_ledger__without_a_scale_infinity_is_fatal),
        cmocka_unit_test(test_ledger__a_loss_above_the_limit_is_a_spike),
        cmocka_unit_test(test_ledger__nothing_is_a_spike_before_the_window_is_full),
        cmocka_unit_test(test_ledger__goes_into_a_manifest_and_back),
        cmocka_unit_test(test_ledger__refuses_what_no_ledger_says),
    };
    return cmocka_run_group_tests_name("ledger", tests, NULL, NULL);
}

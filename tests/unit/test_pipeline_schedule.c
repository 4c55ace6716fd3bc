/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Orders of passes against what Paddle's own schedulers recorded, makespans and peaks against
 * closed formulas and the published sequences.
 */
#include <math.h>
#include <string.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/strategy/pipeline_schedule.h"
#include "tests/golden/golden.h"
#include "tests/support/pipeline_text.h"

static struct pipeline_shape shape_of(const cJSON *row)
{
    struct pipeline_shape shape = {0};
    const char *name = "";
    int64_t stages = 0, micro_batches = 0, chunks = 0;

    (void)fleet_json_get_string(row, "schedule", &name, NULL);
    (void)fleet_json_get_int(row, "stages", &stages, NULL);
    (void)fleet_json_get_int(row, "micro_batches", &micro_batches, NULL);
    (void)fleet_json_get_int(row, "chunks", &chunks, NULL);
    shape.stages = (int)stages;
    shape.micro_batches = (int)micro_batches;
    shape.chunks = (int)chunks;
    shape.all_forward = strcmp(name, "F-then-B") == 0;
    return shape;
}

static void test_pipeline_schedule__orders_passes_as_recorded(void **state)
{
    cJSON *root = golden_json("paddle/pipeline_schedules.json");
    const cJSON *row;
    int rows = 0;

    (void)state;
    cJSON_ArrayForEach(row, fleet_json_at(root, "schedules"))
    {
        struct pipeline_shape shape = shape_of(row);
        const cJSON *orders = cJSON_GetObjectItem(row, "order_by_stage");

        if (cJSON_GetObjectItem(row, "error")) /* Paddle refuses the shape: there is no order */
            continue;
        assert_int_equal(cJSON_GetArraySize(orders), shape.stages);
        for (int stage = 0; stage < shape.stages; stage++) {
            FLEET_AUTO_STRBUF struct fleet_strbuf ours = {0};
            const char *wanted = cJSON_GetArrayItem(orders, stage)->valuestring;

            pipeline_text_append(&shape, stage, &ours);
            if (strcmp(fleet_strbuf_text(&ours), wanted) != 0)
                fail_msg("P=%d M=%d V=%d stage %d: expected %s, got %s", shape.stages,
                         shape.micro_batches, shape.chunks, stage, wanted,
                         fleet_strbuf_text(&ours));
            rows++;
        }
    }
    assert_true(rows > 10);
    cJSON_Delete(root);
}

static void expect_printed(struct pipeline_shape shape, int stage, const char *wanted)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    pipeline_print(&shape, stage, &text);
    assert_string_equal(fleet_strbuf_text(&text), wanted);
}

static void test_pipeline_schedule__prints_for_people(void **state)
{
    (void)state;
    expect_printed((struct pipeline_shape){4, 8, 1, false, false}, 1,
                   "f0 f1 f2 b0 f3 b1 f4 b2 f5 b3 f6 b4 f7 b5 b6 b7");
    expect_printed((struct pipeline_shape){4, 3, 1, true, false}, 2, "f0 f1 f2 b0 b1 b2");
    expect_printed((struct pipeline_shape){3, 6, 2, false, false}, 2,
                   "f0 f1 f2 f0' b0' f1' b1' f2' b2' f3 b0 f4 b1 f5 b2 f3' b3' f4' b4' f5' b5' b3 "
                   "b4 b5");
    expect_printed((struct pipeline_shape){2, 3, 1, false, .zero_bubble = true}, 1,
                   "f0 b0 f1 b1 w0 f2 b2 w1 w2");
}

static void test_pipeline_schedule__takes_the_published_time(void **state)
{
    static const struct {
        struct pipeline_shape shape;
        double makespan; /* forward 1, backward 2 */
    } rows[] = {
        {{4, 8, 1, false, false}, 33},   {{4, 8, 1, true, false}, 33},
        {{4, 8, 2, false, false}, 28.5}, {{4, 8, 4, false, false}, 26.25},
        {{8, 32, 1, false, false}, 117}, {{8, 32, 2, false, false}, 106.5},
        {{3, 7, 3, false, false}, 23},   {{4, 10, 2, false, false}, 34.5},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        double ours = pipeline_makespan(&rows[i].shape, 1, 2);
        if (fabs(ours - rows[i].makespan) > 1e-9)
            fail_msg("P=%d M=%d V=%d: expected %g, got %g", rows[i].shape.stages,
                     rows[i].shape.micro_batches, rows[i].shape.chunks, rows[i].makespan, ours);
    }
}

/* (M + P - 1)(t_f + t_b) for both orders and all sizes. */
static void test_pipeline_schedule__takes_the_time_of_the_formula(void **state)
{
    (void)state;
    for (int p = 1; p <= 9; p++)
        for (int m = 1; m <= 12; m++)
            for (int all_forward = 0; all_forward < 2; all_forward++) {
                struct pipeline_shape shape = {p, m, 1, all_forward != 0, false};
                double ours = pipeline_makespan(&shape, 1, 2), wanted = 3.0 * (m + p - 1);
                if (fabs(ours - wanted) > 1e-9)
                    fail_msg("P=%d M=%d %s: expected %g, got %g", p, m,
                             all_forward ? "F-then-B" : "1F1B", wanted, ours);
            }
}

/* ZB-H1 (2401.10241, table 2): with equal passes the bubble is (P - 1) of one pass; a stage holds
 * at most P micro-batches. */
static void test_pipeline_schedule__zero_bubble_has_a_third_of_the_bubble(void **state)
{
    (void)state;
    for (int p = 1; p <= 9; p++)
        for (int m = p; m <= 3 * p; m++) {
            struct pipeline_shape shape = {p, m, 1, false, .zero_bubble = true};
            struct pipeline_shape plain = {p, m, 1, false, false};
            double ours = pipeline_makespan(&shape, 1, 2), wanted = 3.0 * m + p - 1;

            if (fabs(ours - wanted) > 1e-9)
                fail_msg("P=%d M=%d: expected %g, got %g", p, m, wanted, ours);
            for (int stage = 0; stage < p; stage++)
                assert_true(pipeline_peak(&shape, stage) <= pipeline_peak(&plain, 0));
        }
}

static void test_pipeline_schedule__zero_bubble_runs_each_pass_once(void **state)
{
    (void)state;
    for (int p = 1; p <= 6; p++)
        for (int m = 1; m <= 14; m++)
            for (int stage = 0; stage < p; stage++) {
                struct pipeline_shape shape = {p, m, 1, false, .zero_bubble = true};
                int next[PIPELINE_PASSES] = {0};
                struct pipeline_step *steps = calloc(pipeline_step_count(&shape), sizeof(*steps));

                assert_non_null(steps);
                assert_true(pipeline_makespan(&shape, 1, 2) > 0);
                pipeline_steps(&shape, stage, steps);
                for (int i = 0; i < 3 * m; i++) {
                    assert_int_equal(steps[i].micro_batch, next[steps[i].pass]++);
                    assert_true(next[PIPELINE_WEIGHTS] <= next[PIPELINE_BACKWARD]);
                    assert_true(next[PIPELINE_BACKWARD] <= next[PIPELINE_FORWARD]);
                }
                free(steps);
            }
}

static void test_pipeline_schedule__names_what_is_wrong_with_a_shape(void **state)
{
    static const struct {
        struct pipeline_shape shape;
        const char *message; /* "" = it runs */
    } rows[] = {
        {{1, 1, 1, false, false}, ""},
        {{4, 8, 1, true, false}, ""},
        {{4, 4, 1, false, true}, ""},
        {{3, 6, 2, false, false}, ""},
        {{4, 3, 1, false, false}, "3 micro-batches are fewer than the 4 pipeline stages"},
        {{4, 8, 1, true, true}, "zero-bubble is an order of its own: not with F-then-B"},
        {{2, 8, 2, false, false}, "2 chunks a stage need at least 3 pipeline stages, not 2"},
        {{4, 5, 2, false, false},
         "2 chunks a stage need at least 8 micro-batches on 4 stages, not 5"},
        {{4, 10, 2, false, false},
         "2 chunks a stage need a multiple of the 4 stages as micro-batches, not 10"},
        {{4, 8, 2, true, false}, "2 chunks a stage need the schedule 1F1B"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct fleet_error err = {0};

        assert_int_equal(pipeline_check(&rows[i].shape, &err) < 0, rows[i].message[0] != '\0');
        assert_string_equal(err.text, rows[i].message);
    }
}

static void test_pipeline_schedule__holds_the_published_activations(void **state)
{
    static const int f_then_b[] = {8, 8, 8, 8}, one[] = {4, 3, 2, 1}, two_chunks[] = {11, 9, 7, 5};

    (void)state;
    for (int stage = 0; stage < 4; stage++) {
        assert_int_equal(pipeline_peak(&(struct pipeline_shape){4, 8, 1, true, false}, stage),
                         f_then_b[stage]);
        assert_int_equal(pipeline_peak(&(struct pipeline_shape){4, 8, 1, false, false}, stage),
                         one[stage]);
        assert_int_equal(pipeline_peak(&(struct pipeline_shape){4, 8, 2, false, false}, stage),
                         two_chunks[stage]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pipeline_schedule__orders_passes_as_recorded),
        cmocka_unit_test(test_pipeline_schedule__prints_for_people),
        cmocka_unit_test(test_pipeline_schedule__takes_the_published_time),
        cmocka_unit_test(test_pipeline_schedule__takes_the_time_of_the_formula),
        cmocka_unit_test(test_pipeline_schedule__zero_bubble_has_a_third_of_the_bubble),
        cmocka_unit_test(test_pipeline_schedule__zero_bubble_runs_each_pass_once),
        cmocka_unit_test(test_pipeline_schedule__names_what_is_wrong_with_a_shape),
        cmocka_unit_test(test_pipeline_schedule__holds_the_published_activations),
    };
    return cmocka_run_group_tests_name("pipeline_schedule", tests, NULL, NULL);
}

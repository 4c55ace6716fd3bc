/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The actions of all stages, run together: a message waits until its receiver has posted it, as a
 * network without buffers would do. No shape blocks, neighbours agree on each message, the passes
 * are those of the schedule in their order, and no pass runs before what it reads has arrived.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/base/strbuf.h"
#include "libfleet/strategy/pipeline_messages.h"

#define STAGES_MAX  8
#define VIRTUAL_MAX (STAGES_MAX * 4)
#define BATCHES_MAX 24

/* One stage at work. */
struct stage {
    struct pipeline_action *actions;
    size_t count, at;
    bool is_posted;
    bool done[PIPELINE_MESSAGES_MAX]; /* of the messages that are posted */
};

struct world {
    struct pipeline_shape shape;
    struct stage stages[STAGES_MAX];
    bool arrived[2][VIRTUAL_MAX]
                [BATCHES_MAX]; /* what pass b, or else f, of a virtual stage reads */
    struct pipeline_step ran[STAGES_MAX][3 * 4 * BATCHES_MAX];
    size_t ran_count[STAGES_MAX];
};

static struct stage *open_world(struct world *w, const struct pipeline_shape *shape)
{
    memset(w, 0, sizeof(*w));
    w->shape = *shape;
    for (int s = 0; s < shape->stages; s++)
        w->stages[s].count = pipeline_actions(shape, s, &w->stages[s].actions);
    return w->stages;
}

static int virtual_of(const struct world *w, int stage, const struct pipeline_step *step)
{
    return step->chunk * w->shape.stages + stage;
}

/* The first message of an action in that direction to or from stage `other` that has not gone. */
static int next_message(const struct world *w, int stage, int other, bool is_receive)
{
    const struct stage *x = &w->stages[stage];

    for (int i = 0; x->is_posted && i < x->actions[x->at].message_count; i++) {
        const struct pipeline_message *m = &x->actions[x->at].messages[i];
        if (!x->done[i] && m->is_receive == is_receive &&
            pipeline_neighbour(&w->shape, stage, m) % w->shape.stages == other)
            return i;
    }
    return -1;
}

/* Let one message of each pair through. */
static bool move_messages(struct world *w)
{
    bool any = false;

    for (int from = 0; from < w->shape.stages; from++)
        for (int to = 0; to < w->shape.stages; to++) {
            int out = next_message(w, from, to, false), in = next_message(w, to, from, true);
            const struct pipeline_message *sent, *received;

            if (from == to || out < 0 || in < 0)
                continue;
            sent = &w->stages[from].actions[w->stages[from].at].messages[out];
            received = &w->stages[to].actions[w->stages[to].at].messages[in];
            assert_int_equal(sent->step.pass, received->step.pass);
            assert_int_equal(sent->step.micro_batch, received->step.micro_batch);
            assert_int_equal(pipeline_neighbour(&w->shape, from, sent),
                             virtual_of(w, to, &received->step));
            w->arrived[received->step.pass == PIPELINE_BACKWARD][virtual_of(w, to, &received->step)]
                      [received->step.micro_batch] = true;
            w->stages[from].done[out] = w->stages[to].done[in] = true;
            any = true;
        }
    return any;
}

static void expect_input(const struct world *w, int stage, const struct pipeline_step *step)
{
    int place = virtual_of(w, stage, step), last = w->shape.stages * w->shape.chunks - 1;

    if (step->pass == PIPELINE_FORWARD && place > 0)
        assert_true(w->arrived[0][place][step->micro_batch]);
    if (step->pass == PIPELINE_BACKWARD && place < last)
        assert_true(w->arrived[1][place][step->micro_batch]);
}

/* Run passes, post messages, leave actions that have ended. */
static bool advance(struct world *w, int stage)
{
    struct stage *x = &w->stages[stage];
    bool any = false;

    while (x->at < x->count) {
        const struct pipeline_action *action = &x->actions[x->at];
        bool has_ended = true;

        if (action->message_count == 0) {
            expect_input(w, stage, &action->step);
            w->ran[stage][w->ran_count[stage]++] = action->step;
        } else if (!x->is_posted) {
            memset(x->done, 0, sizeof(x->done));
            x->is_posted = any = true;
        }
        for (int i = 0; i < action->message_count; i++)
            has_ended &= x->done[i];
        if (!has_ended)
            break;
        x->at++;
        x->is_posted = false;
        any = true;
    }
    return any;
}

static void expect_schedule(const struct world *w, int stage)
{
    struct pipeline_step steps[3 * 4 * BATCHES_MAX];

    pipeline_steps(&w->shape, stage, steps);
    assert_int_equal(w->ran_count[stage], pipeline_step_count(&w->shape));
    for (size_t i = 0; i < w->ran_count[stage]; i++) {
        assert_int_equal(w->ran[stage][i].pass, steps[i].pass);
        assert_int_equal(w->ran[stage][i].micro_batch, steps[i].micro_batch);
        assert_int_equal(w->ran[stage][i].chunk, steps[i].chunk);
    }
}

static void play(struct world *w, const struct pipeline_shape *shape)
{
    struct stage *stages = open_world(w, shape);
    bool any = true;

    while (any) {
        any = false;
        for (int s = 0; s < shape->stages; s++)
            any |= advance(w, s);
        any |= move_messages(w);
    }
    for (int s = 0; s < shape->stages; s++) {
        if (stages[s].at < stages[s].count)
            fail_msg("P=%d M=%d V=%d: stage %d is blocked", shape->stages, shape->micro_batches,
                     shape->chunks, s);
        expect_schedule(w, s);
        free(stages[s].actions);
    }
}

static void test_pipeline_messages__never_block(void **state)
{
    struct world *w = malloc(sizeof(*w));
    int played = 0;

    (void)state;
    assert_non_null(w);
    for (int p = 1; p <= STAGES_MAX; p++)
        for (int m = p; m <= BATCHES_MAX; m++)
            for (int kind = 0; kind < 5; kind++) { /* 1F1B, F-then-B, zero bubble, 2 and 3 chunks */
                struct pipeline_shape shape = {.stages = p,
                                               .micro_batches = m,
                                               .chunks = kind > 2 ? kind - 1 : 1,
                                               .all_forward = kind == 1,
                                               .zero_bubble = kind == 2};
                if (pipeline_check(&shape, NULL) < 0 || (p == 1 && kind > 2))
                    continue;
                play(w, &shape);
                played++;
            }
    assert_in_range(played, 450, 700);
    free(w);
}

/* "recv f0 | f0 | send f0 | …": the order of strategy.md 18.4. */
static void append(const struct pipeline_action *action, struct fleet_strbuf *out)
{
    fleet_strbuf_append(out, out->length ? " | " : "");
    if (action->message_count == 0)
        fleet_strbuf_appendf(out, "%c%d", pipeline_pass_letter(action->step.pass),
                             action->step.micro_batch);
    for (int i = 0; i < action->message_count; i++)
        fleet_strbuf_appendf(out, "%s%s %c%d", i ? " + " : "",
                             action->messages[i].is_receive ? "recv" : "send",
                             pipeline_pass_letter(action->messages[i].step.pass),
                             action->messages[i].step.micro_batch);
}

static void test_pipeline_messages__combine_where_directions_meet(void **state)
{
    static const struct {
        int stage;
        const char *text;
    } rows[] = {
        {0, "f0 | send f0 | f1 | send f1 | f2 | send f2 + recv b0 | b0 | f3 | send f3 + recv b1 | "
            "b1 | recv b2 | b2 | recv b3 | b3"},
        {1, "recv f0 | f0 | send f0 | recv f1 | f1 | send f1 + recv b0 | b0 | send b0 + recv f2 | "
            "f2 | send f2 + recv b1 | b1 | send b1 + recv f3 | f3 | send f3 + recv b2 | b2 | "
            "send b2 | recv b3 | b3 | send b3"},
        {2, "recv f0 | f0 | b0 | send b0 + recv f1 | f1 | b1 | send b1 + recv f2 | f2 | b2 | "
            "send b2 + recv f3 | f3 | b3 | send b3"},
    };
    static const struct pipeline_shape shape = {.stages = 3, .micro_batches = 4, .chunks = 1};

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct fleet_strbuf text = {0};
        struct pipeline_action *actions;
        size_t count = pipeline_actions(&shape, rows[i].stage, &actions);

        for (size_t a = 0; a < count; a++)
            append(&actions[a], &text);
        assert_string_equal(text.text, rows[i].text);
        fleet_strbuf_release(&text);
        free(actions);
    }
}

/* A copy is never shared, and 1F1B needs at most one more than the schedule holds. */
static void test_pipeline_messages__give_each_micro_batch_a_copy(void **state)
{
    (void)state;
    for (int p = 2; p <= STAGES_MAX; p++)
        for (int m = p; m <= BATCHES_MAX; m++)
            for (int stage = 0; stage < p; stage++) {
                struct pipeline_shape shape = {.stages = p, .micro_batches = m, .chunks = 1};
                int copies[BATCHES_MAX], holders[BATCHES_MAX];
                int count = pipeline_copies(&shape, stage, copies);
                struct pipeline_action *actions;
                size_t actions_count = pipeline_actions(&shape, stage, &actions);

                assert_in_range(count, pipeline_peak(&shape, stage),
                                pipeline_peak(&shape, stage) + 1);
                memset(holders, -1, sizeof(holders));
                for (size_t i = 0; i < actions_count;
                     i++) { /* a forward begins, others find theirs */
                    const struct pipeline_step *step = &actions[i].step;
                    if (actions[i].message_count > 0)
                        continue;
                    if (step->pass == PIPELINE_FORWARD)
                        holders[copies[step->micro_batch]] = step->micro_batch;
                    assert_int_equal(holders[copies[step->micro_batch]], step->micro_batch);
                }
                free(actions);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pipeline_messages__never_block),
        cmocka_unit_test(test_pipeline_messages__combine_where_directions_meet),
        cmocka_unit_test(test_pipeline_messages__give_each_micro_batch_a_copy),
    };
    return cmocka_run_group_tests_name("pipeline_messages", tests, NULL, NULL);
}

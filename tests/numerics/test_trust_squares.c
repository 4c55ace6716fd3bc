/* SPDX-License-Identifier: Apache-2.0 */

/*
 * LAMB and LARS of tensors that ranks divide: the squares of a part, and the update from the
 * squares of all ranks. With a tensor cut into parts, the ratio is that of the whole one.
 */
#include "libfleet/base/assert.h"
#include "tests/numerics/kernel_data.h"

enum {
    RANKS = 3
};

static const int64_t counts[] = {1, 17, 4096, 4099, 9001};

struct tensor {
    int64_t count;
    float *param, *gradient, *state[2];
    float norms[2]; /* of the gradient; the last is the global one */
};

static struct tensor tensor_of(int64_t count)
{
    struct tensor t = {count,
                       normal("p", count),
                       normal("g", count),
                       {normal("m", count), normal("v", count)},
                       {9, 5}};

    for (int64_t i = 0; i < count; i++)
        t.state[1][i] *= t.state[1][i]; /* LAMB takes its root */
    return t;
}

static void release(struct tensor *t)
{
    free(t->param);
    free(t->gradient);
    free(t->state[0]);
    free(t->state[1]);
}

static void init(struct rig *rig, enum op_kind kind, enum op_kind optimizer, const struct tensor *t)
{
    static const int64_t two = 2;

    rig_init(rig, kind);
    rig_in(rig, PROGRAM_FP32, 1, &t->count, t->param);
    rig_in(rig, PROGRAM_FP32, 1, &t->count, t->gradient);
    rig_in(rig, PROGRAM_FP32, 1, &t->count, t->state[0]);
    if (optimizer == OP_LAMB)
        rig_in(rig, PROGRAM_FP32, 1, &t->count, t->state[1]);
    else if (kind == OP_TRUST_SQUARES)
        rig_in(rig, PROGRAM_FP32, 0, NULL, NULL);
    rig_in(rig, PROGRAM_FP32, 1, &two, t->norms);
    for (int i = 1; i < (optimizer == OP_LAMB ? 4 : 3); i++)
        rig->program.vars[i].of = 0;
    rig->program.vars[0].role = PROGRAM_ROLE_PARAMETER;
    rig->program.vars[0].trained = true;
    rig->op.attributes.optimizer.beta1 = 0.9;
    rig->op.attributes.optimizer.beta2 = 0.99;
    rig->op.attributes.optimizer.epsilon = 1e-6;
    rig->op.attributes.optimizer.momentum = 0.9;
    rig->op.attributes.optimizer.coefficient = 0.01;
    rig->op.attributes.optimizer.lambda = 0.01;
    rig->op.attributes.optimizer.clip = OP_CLIP_GLOBAL_NORM;
    rig->op.attributes.optimizer.clip_limit = 1;
    rig->scalars.gradient_scale = 0.25;
    rig->scalars.learning_rate = 0.1;
    rig->scalars.update_1based = 3;
}

/* What a LAMB step or a LARS gradient is, in double. */
static double step_of(enum op_kind optimizer, const struct tensor *t, int64_t i)
{
    double g = (double)t->gradient[i] * 0.25 / 5, m, v;

    if (optimizer == OP_LARS)
        return g;
    m = 0.9 * (double)t->state[0][i] + 0.1 * g;
    v = 0.99 * (double)t->state[1][i] + 0.01 * g * g;
    return m / (1 - pow(0.9, 3)) / (sqrt(v / (1 - pow(0.99, 3))) + 1e-6) +
           0.01 * (double)t->param[i];
}

static void test_trust_squares__of_parameter_and_step(void **state)
{
    static const int64_t two = 2;

    (void)state;
    EACH_LEVEL(level)
    for (size_t c = 0; c < FLEET_COUNT(counts); c++)
        for (int k = 0; k < 2; k++) {
            enum op_kind optimizer = k ? OP_LARS : OP_LAMB;
            struct tensor t = tensor_of(counts[c]);
            double param = 0, moved = 0;
            const float *got;
            struct rig rig;

            init(&rig, OP_TRUST_SQUARES, optimizer, &t);
            rig_out(&rig, PROGRAM_FP32, 1, &two);
            rig_run(&rig, level);
            for (int64_t i = 0; i < t.count; i++) {
                param += (double)t.param[i] * (double)t.param[i];
                moved += pow(step_of(optimizer, &t, i), 2);
            }
            got = rig.out[0];
            assert_true(fabs((double)got[0] - param) <= 1e-6 * param);
            assert_true(fabs((double)got[1] - moved) <= 1e-4 * moved);
            rig_release(&rig);
            release(&t);
        }
}

/* The ratio is that of all parts if ranks divide the tensor, else that of the first rank's. */
static void test_trust_squares__updates_join_the_squares_of_all_ranks(void **state)
{
    static const float squares[RANKS * 2] = {16, 4, 9, 1, 0.5f, 11};
    static const int64_t shape = RANKS * 2;

    (void)state;
    EACH_LEVEL(level)
    for (size_t c = 0; c < FLEET_COUNT(counts); c++)
        for (int k = 0; k < 4; k++) {
            enum op_kind optimizer = k % 2 ? OP_LARS : OP_LAMB;
            bool is_divided = k / 2;
            struct tensor t = tensor_of(counts[c]);
            double p = sqrt(is_divided ? 25.5 : 16), s = sqrt(is_divided ? 16 : 4), expected;
            struct rig rig;

            init(&rig, optimizer, optimizer, &t);
            if (is_divided)
                rig.program.vars[0].slice.parts = RANKS;
            rig_in(&rig, PROGRAM_FP32, 1, &shape, squares);
            rig.op.attributes.ranks = RANKS;
            rig_out_in_place(&rig, 0);
            rig_out_in_place(&rig, 2);
            if (optimizer == OP_LAMB)
                rig_out_in_place(&rig, 3);
            rig_run(&rig, level);
            for (int64_t i = 0; i < t.count; i++) {
                expected = (double)t.param[i] - 0.1 * p / s * step_of(optimizer, &t, i);
                if (optimizer == OP_LARS)
                    expected = (double)t.param[i] - 0.9 * (double)t.state[0][i] -
                               0.1 * 0.01 * p / (s + 0.01 * p + 1e-6) *
                                   (step_of(optimizer, &t, i) + 0.01 * (double)t.param[i]);
                assert_true(fabs((double)((float *)rig.out[0])[i] - expected) <=
                            1e-5 * (1 + fabs(expected)));
            }
            rig_release(&rig);
            release(&t);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trust_squares__of_parameter_and_step),
        cmocka_unit_test(test_trust_squares__updates_join_the_squares_of_all_ranks),
    };

    return cmocka_run_group_tests_name("trust_squares", tests, NULL, NULL);
}

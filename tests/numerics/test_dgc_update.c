/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What an update of dgc does, against its formulas written in double: nothing is lost, and the
 * dense phase is momentum.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/base/assert.h"
#include "libfleet/program/dgc.h"
#include "tests/numerics/dgc_fixture.h"
#include "tests/numerics/kernel_rig.h"

/* ---- what an update does --------------------------------------------------------------------- */

/* 14.5: without momentum all that was sent and all that is left add up to all gradients. */
static void test_dgc__nothing_is_lost_without_momentum(void **state)
{
    enum {
        COUNT = SIZE(20000),
        STEPS = 8
    };
    struct bench b;

    (void)state;
    EACH_LEVEL(level)
    for (int sampled = 0; sampled < 2; sampled++) {
        double *all = calloc(COUNT, sizeof(*all)), *sent = calloc(COUNT, sizeof(*sent));

        bench_init(&b, COUNT, 3, 0.01);
        attributes(&b)->sampled = sampled;
        for (int s = 0; s < STEPS; s++) {
            for (int r = 0; r < b.ranks; r++) {
                fill_normal(b.of[r][GRADIENT], COUNT, s, r);
                for (int64_t i = 0; i < COUNT; i++)
                    all[i] += b.of[r][GRADIENT][i];
            }
            step(&b, level);
            for (int64_t i = 0; i < COUNT; i++) /* the applied gradient stays there */
                sent[i] += (double)b.of[0][GRADIENT][i] * b.scale * b.ranks;
            for (int r = 1; r < b.ranks; r++)
                assert_memory_equal(b.of[r][PARAM], b.of[0][PARAM], COUNT * sizeof(float));
        }
        for (int64_t i = 0; i < COUNT; i++) {
            double left = (double)b.of[0][V][i] + b.of[1][V][i] + b.of[2][V][i];
            assert_true(fabs(sent[i] + left - all[i]) < 2e-5);
            assert_true(fabs(-b.rate * sent[i] / b.ranks - b.of[0][PARAM][i]) < 2e-5);
        }
        bench_release(&b);
        free(all);
        free(sent);
    }
}

/* 14.5: a rank that sends all elements masks all, so momentum never acts. With Nesterov an element
 * sends (1 + m) times its gradient. */
static void test_dgc__sending_everything_is_sgd(void **state)
{
    enum {
        COUNT = SIZE(17000),
        STEPS = 5
    };
    struct bench b;

    (void)state;
    EACH_LEVEL(level)
    for (int kind = 0; kind < 3; kind++) {
        double *p = calloc(COUNT, sizeof(*p)), gain = kind == 2 ? 1.9 : 1;

        bench_init(&b, COUNT, 2, 1);
        attributes(&b)->optimizer.momentum = kind == 0 ? 0 : 0.9;
        attributes(&b)->optimizer.nesterov = kind == 2;
        for (int s = 0; s < STEPS; s++) {
            for (int r = 0; r < b.ranks; r++) {
                fill_normal(b.of[r][GRADIENT], COUNT, s, r);
                for (int64_t i = 0; i < COUNT; i++)
                    p[i] -= b.rate * gain * b.of[r][GRADIENT][i] / b.ranks;
            }
            step(&b, level);
        }
        for (int64_t i = 0; i < COUNT; i++)
            assert_true(fabs(p[i] - b.of[0][PARAM][i]) < 1e-5);
        bench_release(&b);
        free(p);
    }
}

/* ---- against the formulas -------------------------------------------------------------------- */

struct variant {
    bool nesterov;
    enum op_decay decay_kind;
    double decay, clip, rescale;
};

/* 14.2 in double for one rank: u and v after momentum correction, before the selection. */
static void correct(const struct bench *b, const struct variant *variant, int rank, double *u,
                    double *v)
{
    const float *gradient = b->of[rank][GRADIENT], *p = b->of[rank][PARAM];
    double norm = 0, factor = 1, limit = variant->clip / sqrt(b->ranks);

    for (int64_t i = 0; i < b->count; i++)
        norm += pow(gradient[i] * b->scale, 2);
    if (variant->clip > 0 && sqrt(norm) > limit)
        factor = limit / sqrt(norm);
    for (int64_t i = 0; i < b->count; i++) {
        double g = b->ranks * b->scale * gradient[i] * factor * variant->rescale;
        if (variant->decay_kind == OP_DECAY_L2)
            g += variant->decay * p[i];
        if (variant->decay_kind == OP_DECAY_L1)
            g += variant->decay * ((p[i] > 0) - (p[i] < 0));
        if (variant->nesterov) {
            u[i] = 0.9 * (u[i] + g);
            v[i] += u[i] + g;
        } else {
            u[i] = 0.9 * u[i] + g;
            v[i] += u[i];
        }
    }
}

static void run_variant(const struct variant *variant, enum fleet_isa level)
{
    enum {
        COUNT = SIZE(16384),
        STEPS = 4
    };
    struct bench b;
    double *u[2], *v[2];
    int64_t k = dgc_kept(COUNT, 0.05);

    bench_init(&b, COUNT, 2, 0.05);
    attributes(&b)->optimizer.momentum = 0.9;
    attributes(&b)->optimizer.nesterov = variant->nesterov;
    attributes(&b)->optimizer.decay_kind = variant->decay_kind;
    attributes(&b)->optimizer.decay = variant->decay;
    attributes(&b)->optimizer.rescale = variant->rescale;
    attributes(&b)->optimizer.clip = variant->clip > 0 ? OP_CLIP_NORM : OP_CLIP_NONE;
    attributes(&b)->optimizer.clip_limit = variant->clip;
    for (int r = 0; r < 2; r++) {
        u[r] = calloc(COUNT, sizeof(double));
        v[r] = calloc(COUNT, sizeof(double));
        fill_normal(b.of[r][PARAM], COUNT, 99, 0);
    }
    for (int s = 0; s < STEPS; s++) {
        for (int r = 0; r < 2; r++) {
            fill_normal(b.of[r][GRADIENT], COUNT, s, r);
            correct(&b, variant, r, u[r], v[r]);
        }
        step(&b, level);
        for (int r = 0; r < 2; r++) /* masked where the kernel chose: ties are decided by bits */
            for (int64_t j = 0; j < k; j++) {
                uint32_t at = b.messages[r * b.words + j];
                float value;
                memcpy(&value, &b.messages[r * b.words + k + j], sizeof(value));
                assert_true(fabs(v[r][at] - value) < 1e-5 * (1 + fabs(value)));
                u[r][at] = v[r][at] = 0;
            }
        for (int r = 0; r < 2; r++)
            for (int64_t i = 0; i < COUNT; i++) {
                assert_true(fabs(u[r][i] - b.of[r][U][i]) < 1e-5 * (1 + fabs(u[r][i])));
                assert_true(fabs(v[r][i] - b.of[r][V][i]) < 1e-5 * (1 + fabs(v[r][i])));
            }
        assert_memory_equal(b.of[0][PARAM], b.of[1][PARAM], COUNT * sizeof(float));
    }
    for (int r = 0; r < 2; r++) {
        free(u[r]);
        free(v[r]);
    }
    bench_release(&b);
}

static void test_dgc__follows_the_formulas(void **state)
{
    static const struct variant variants[] = {
        {.rescale = 1},
        {.nesterov = true, .rescale = 1},
        {.decay_kind = OP_DECAY_L2, .decay = 0.1, .rescale = 1},
        {.decay_kind = OP_DECAY_L1, .decay = 0.1, .rescale = 0.5},
        {.clip = 3, .rescale = 1},
        {.nesterov = true, .decay_kind = OP_DECAY_L2, .decay = 0.01, .clip = 1, .rescale = 2},
    };

    (void)state;
    EACH_LEVEL(level)
    for (size_t i = 0; i < FLEET_COUNT(variants); i++)
        run_variant(&variants[i], level);
}

/* Before the sparse phase it is momentum, bit by bit. */
static void test_dgc__the_dense_phase_is_momentum(void **state)
{
    enum {
        COUNT = SIZE(16390)
    };
    struct bench b;
    struct rig rig;
    int64_t shape = COUNT;
    struct fleet_error err;

    (void)state;
    EACH_LEVEL(level)
    for (int nesterov = 0; nesterov < 2; nesterov++) {
        bench_init(&b, COUNT, 2, 0.01);
        for (int a = PARAM; a <= U; a++)
            fill_normal(b.of[0][a], COUNT, a, 0);
        rig_init(&rig, OP_MOMENTUM);
        rig_in(&rig, PROGRAM_FP32, 1, &shape, b.of[0][PARAM]);
        rig_in(&rig, PROGRAM_FP32, 1, &shape, b.of[0][GRADIENT]);
        rig_in(&rig, PROGRAM_FP32, 1, &shape, b.of[0][U]);
        rig_out_in_place(&rig, 0);
        rig_out_in_place(&rig, 2);
        rig.program.vars[0].role = PROGRAM_ROLE_PARAMETER;
        rig.program.vars[0].trained = true;
        rig.program.vars[1].of = rig.program.vars[2].of = 0;
        rig.op.attributes.optimizer.momentum = 0.9;
        rig.op.attributes.optimizer.nesterov = nesterov;
        rig.op.attributes.optimizer.decay = 0.01;
        rig.op.attributes.optimizer.decay_kind = OP_DECAY_L2;
        rig.scalars.gradient_scale = b.scale;
        rig.scalars.learning_rate = b.rate;
        *attributes(&b) = rig.op.attributes;
        attributes(&b)->optimizer.clip = OP_CLIP_NORM; /* which waits for the sparse phase */
        attributes(&b)->optimizer.clip_limit = 1e-3;
        rig_run(&rig, level);
        assert_int_equal(run(&b, OP_DGC, 0, false, level, &err), 0);
        assert_memory_equal(b.of[0][PARAM], rig.out[0], COUNT * sizeof(float));
        assert_memory_equal(b.of[0][U], rig.out[1], COUNT * sizeof(float));
        rig_release(&rig);
        bench_release(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dgc__nothing_is_lost_without_momentum),
        cmocka_unit_test(test_dgc__sending_everything_is_sgd),
        cmocka_unit_test(test_dgc__follows_the_formulas),
        cmocka_unit_test(test_dgc__the_dense_phase_is_momentum),
    };
    return cmocka_run_group_tests_name("dgc_update", tests, NULL, NULL);
}

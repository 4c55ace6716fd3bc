/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Deep gradient compression of one tensor on a few ranks, without processes: what is sent, what is
 * left, what is applied. At every instruction-set level, with 1 to 3 threads.
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

#include "libfleet/base/assert.h"
#include "libfleet/base/random.h"
#include "libfleet/program/dgc.h"
#include "tests/numerics/kernel_rig.h"

#define EACH_LEVEL(level) \
    for (enum fleet_isa level = FLEET_ISA_PLAIN; level <= backend_level_of_machine(); level++)

#define RANKS_MAX 3

enum array {
    PARAM,
    GRADIENT,
    U,
    V,
    ARRAYS
};

struct bench {
    struct program program;
    struct program_op select, update;
    int64_t count;
    int ranks, threads;
    double ratio, rate, scale;
    float *of[RANKS_MAX][ARRAYS]; /* [count] each */
    uint32_t *messages;           /* [ranks][words] */
    int64_t words;
    void *scratch;
};

/* One parameter of `count` elements on `ranks` ranks, all zero. The caller sets attributes. */
static void bench_init(struct bench *b, int64_t count, int ranks, double ratio)
{
    struct op_cost cost;
    int param;

    *b = (struct bench){.count = count, .ranks = ranks, .ratio = ratio, .threads = 2};
    b->rate = 0.5;
    b->scale = 1.0 / ranks;
    program_init(&b->program, "dgc");
    param = program_add_var(&b->program, "w", PROGRAM_FP32, PROGRAM_ROLE_PARAMETER, 1, &count);
    b->program.vars[param].trained = true;
    b->update = (struct program_op){.kind = OP_DGC, .section = PROGRAM_SECTION_UPDATE};
    b->update.inputs[0] = b->update.outputs[0] = param;
    b->update.inputs[1] = program_add_gradient(&b->program, param);
    b->update.inputs[2] = b->update.outputs[1] = program_add_state(&b->program, param, 0);
    b->update.inputs[3] = b->update.outputs[2] = program_add_state(&b->program, param, 1);
    b->update.input_count = 4;
    b->update.output_count = 3;
    b->update.attributes.optimizer.rescale = 1;
    b->program.state_count = 2;
    program_layout(&b->program);
    (void)program_add_op(&b->program, &b->update);
    op_cost(&b->program, &b->update, &cost);
    b->scratch = malloc(cost.scratch_bytes);
    for (int r = 0; r < ranks; r++)
        for (int a = 0; a < ARRAYS; a++)
            b->of[r][a] = calloc((size_t)count, sizeof(float));
    b->messages = calloc((size_t)(2 * count + 1) * (size_t)ranks, sizeof(uint32_t));
    fleet_assert(b->scratch && b->messages);
}

static void bench_release(struct bench *b)
{
    for (int r = 0; r < b->ranks; r++)
        for (int a = 0; a < ARRAYS; a++)
            free(b->of[r][a]);
    free(b->messages);
    free(b->scratch);
    program_release(&b->program);
}

/* Both operators have the same attributes. */
static int run(struct bench *b, enum op_kind kind, int rank, bool is_sparse, enum fleet_isa level,
               struct fleet_error *err)
{
    struct backend *backend = rig_backend(level, b->threads);
    struct run_scalars scalars = {.gradient_scale = b->scale,
                                  .learning_rate = b->rate,
                                  .update_1based = 1,
                                  .messages = {.ranks = b->ranks, .rank = rank}};
    struct program_op op = b->program.ops[0];
    struct kernel_call call = {
        .program = &b->program,
        .op = &op,
        .in = {b->of[rank][PARAM], b->of[rank][GRADIENT], b->of[rank][U], b->of[rank][V]},
        .out = {b->of[rank][PARAM], b->of[rank][U], b->of[rank][V]},
        .scratch = b->scratch,
        .scalars = &scalars};

    op.kind = kind;
    if (is_sparse) {
        scalars.messages.ratio = b->ratio;
        scalars.messages.words = b->words = dgc_words(&b->program, b->ratio, PROGRAM_NONE);
        scalars.messages.all = b->messages;
    }
    return backend->vtable->kernel(backend, kind)(backend, &call, err);
}

/* One update: select on all ranks, then apply on all. */
static void step(struct bench *b, enum fleet_isa level)
{
    struct fleet_error err;

    for (int r = 0; r < b->ranks; r++)
        if (run(b, OP_DGC_SELECT, r, true, level, &err) < 0)
            rig_fail("%s", err.text);
    for (int r = 0; r < b->ranks; r++)
        if (run(b, OP_DGC, r, true, level, &err) < 0)
            rig_fail("%s", err.text);
}

static void fill_normal(float *out, int64_t count, int step, int rank)
{
    char name[32];

    (void)snprintf(name, sizeof(name), "g.%d.%d", step, rank);
    fleet_random_normal(fleet_random_key(7, name, 0), 0, (size_t)count, 0, 1, out);
}

static struct op_attributes *attributes(struct bench *b)
{
    return &b->program.ops[0].attributes;
}

/* ---- selection ------------------------------------------------------------------------------- */

struct magnitude {
    uint32_t key;
    int64_t index;
};

static int compare(const void *a, const void *b)
{
    const struct magnitude *x = a, *y = b;

    if (x->key != y->key)
        return x->key > y->key ? -1 : 1;
    return (x->index > y->index) - (x->index < y->index);
}

/* Whether element i belongs to the k largest of x, by sorting all of them. */
static bool *largest(const float *x, int64_t count, int64_t k)
{
    struct magnitude *all = malloc((size_t)count * sizeof(*all));
    bool *is_taken = calloc((size_t)count, 1);

    for (int64_t i = 0; i < count; i++) {
        float magnitude = fabsf(x[i]);
        memcpy(&all[i].key, &magnitude, sizeof(magnitude));
        if (isnan(x[i]))
            all[i].key = UINT32_MAX;
        all[i].index = i;
    }
    qsort(all, (size_t)count, sizeof(*all), compare);
    for (int64_t i = 0; i < k; i++)
        is_taken[all[i].index] = true;
    free(all);
    return is_taken;
}

/* Compare the message of rank 0 with the k largest of its gradient. */
static void check_message(const struct bench *b, const char *what, enum fleet_isa level)
{
    int64_t k = dgc_kept(b->count, b->ratio), place = 0;
    bool *is_taken = largest(b->of[0][GRADIENT], b->count, k);
    float sent;

    for (int64_t i = 0; i < b->count; i++) {
        if (!is_taken[i])
            continue;
        if (place >= k || b->messages[place] != (uint32_t)i)
            rig_fail("%s at level %s: element %lld is not number %lld of the message", what,
                     fleet_isa_names[level], (long long)i, (long long)place);
        memcpy(&sent, &b->messages[k + place], sizeof(sent));
        assert_true(sent == b->of[0][GRADIENT][i] || (isnan(sent) && isnan(b->of[0][GRADIENT][i])));
        place++;
    }
    assert_int_equal(place, k);
    free(is_taken);
}

/* Without momentum v is the gradient itself in the first step: what is sent is known. */
static void test_dgc__selects_the_largest_with_ties_to_the_lower_index(void **state)
{
    enum {
        COUNT = 40007
    };
    static const double ratios[] = {1e-9, 0.001, 0.01, 0.25, 0.9, 1};
    struct bench b;

    (void)state;
    EACH_LEVEL(level)
    for (int kind = 0; kind < 4; kind++)
        for (size_t i = 0; i < FLEET_COUNT(ratios); i++)
            for (int threads = 1; threads <= RIG_THREADS_MAX; threads++) {
                static const char *const names[] = {"normal", "ties", "zeros", "NaN"};
                float *g;
                struct fleet_error err;
                bench_init(&b, COUNT, 1, ratios[i]);
                b.threads = threads;
                g = b.of[0][GRADIENT];
                if (kind != 2)
                    fill_normal(g, COUNT, 0, 0);
                for (int64_t e = 0; e < COUNT && kind == 1; e++)
                    g[e] = rintf(g[e]); /* about ten different magnitudes */
                for (int64_t e = 5; e < COUNT && kind == 3; e += 997)
                    g[e] = e % 2 ? NAN : -INFINITY;
                assert_int_equal(run(&b, OP_DGC_SELECT, 0, true, level, &err), 0);
                check_message(&b, names[kind], level);
                for (int64_t e = 0; e < COUNT; e++)
                    assert_true(b.of[0][U][e] == 0 && b.of[0][V][e] == 0);
                bench_release(&b);
            }
}

/* A threshold from a sample sends about as many, never more, and says how many. */
static void test_dgc__a_sampled_threshold_sends_at_most_as_many(void **state)
{
    enum {
        COUNT = 300000
    };
    struct bench b;

    (void)state;
    EACH_LEVEL(level)
    {
        int64_t k, sent;
        float least = INFINITY;
        struct fleet_error err;

        bench_init(&b, COUNT, 1, 0.01);
        attributes(&b)->sampled = true;
        fill_normal(b.of[0][GRADIENT], COUNT, 0, 0);
        assert_int_equal(run(&b, OP_DGC_SELECT, 0, true, level, &err), 0);
        k = dgc_kept(COUNT, 0.01);
        assert_int_equal(b.words, 2 * k + 1);
        sent = b.messages[0];
        assert_true(sent > k / 2 && sent <= k);
        for (int64_t j = 0; j < sent; j++) {
            float value;
            memcpy(&value, &b.messages[1 + k + j], sizeof(value));
            least = fminf(least, fabsf(value));
            assert_true(value == b.of[0][GRADIENT][b.messages[1 + j]]);
            assert_true(j == 0 || b.messages[1 + j] > b.messages[j]);
        }
        assert_true(least > 2); /* the hundredth part of a normal distribution lies above 2.58 */
        assert_int_equal(run(&b, OP_DGC, 0, true, level, &err), 0);
        for (int64_t j = 0; j < sent; j++)
            assert_true(b.of[0][V][b.messages[1 + j]] == 0);
        bench_release(&b);
    }
}

/* ---- what an update does --------------------------------------------------------------------- */

/* 14.5: without momentum all that was sent and all that is left add up to all gradients. */
static void test_dgc__nothing_is_lost_without_momentum(void **state)
{
    enum {
        COUNT = 20000,
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
        COUNT = 17000,
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
        COUNT = 16384,
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
        COUNT = 16390
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

/* Messages come from other processes: an index beyond the tensor is an error, not a write. */
static void test_dgc__a_message_that_lies_is_refused(void **state)
{
    enum {
        COUNT = 20000
    };
    struct bench b;
    struct fleet_error err;

    (void)state;
    for (int sampled = 0; sampled < 2; sampled++) {
        bench_init(&b, COUNT, 2, 0.01);
        attributes(&b)->sampled = sampled;
        for (int r = 0; r < 2; r++) {
            fill_normal(b.of[r][GRADIENT], COUNT, 0, r);
            assert_int_equal(run(&b, OP_DGC_SELECT, r, true, FLEET_ISA_PLAIN, &err), 0);
        }
        b.messages[b.words] = sampled ? 201 : COUNT;
        assert_int_equal(run(&b, OP_DGC, 0, true, FLEET_ISA_PLAIN, &err), -EPROTO);
        assert_non_null(strstr(err.text, sampled ? "201 elements of at most 200"
                                                 : "sends element 20000 of 20000"));
        bench_release(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dgc__selects_the_largest_with_ties_to_the_lower_index),
        cmocka_unit_test(test_dgc__a_sampled_threshold_sends_at_most_as_many),
        cmocka_unit_test(test_dgc__nothing_is_lost_without_momentum),
        cmocka_unit_test(test_dgc__sending_everything_is_sgd),
        cmocka_unit_test(test_dgc__follows_the_formulas),
        cmocka_unit_test(test_dgc__the_dense_phase_is_momentum),
        cmocka_unit_test(test_dgc__a_message_that_lies_is_refused),
    };
    return cmocka_run_group_tests_name("dgc", tests, NULL, NULL);
}

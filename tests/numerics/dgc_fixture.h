/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_NUMERICS_DGC_FIXTURE_H
#define TESTS_NUMERICS_DGC_FIXTURE_H

/*
 * The state of dgc on several ranks: one update at a time, at any level of instructions.
 */

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/random.h"
#include "libfleet/program/dgc.h"
#include "tests/numerics/kernel_rig.h"

#define RANKS_MAX 3

/* Elements of a tensor: a quarter on the emulator, which is slow. */
#if defined(RIG_EMULATED)
#define SIZE(count) ((count) / 4)
#else
#define SIZE(count) (count)
#endif

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
static inline void bench_init(struct bench *b, int64_t count, int ranks, double ratio)
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

static inline void bench_release(struct bench *b)
{
    for (int r = 0; r < b->ranks; r++)
        for (int a = 0; a < ARRAYS; a++)
            free(b->of[r][a]);
    free(b->messages);
    free(b->scratch);
    program_release(&b->program);
}

/* Both operators have the same attributes. */
static inline int run_on(struct backend *backend, struct bench *b, enum op_kind kind, int rank,
                         bool is_sparse, struct fleet_error *err)
{
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

#if defined(RIG_CUDA)

/* The same arrays again, for the CPU's kernel. */
static inline void bench_copy(const struct bench *from, struct bench *to)
{
    bench_init(to, from->count, from->ranks, from->ratio);
    to->rate = from->rate;
    to->scale = from->scale;
    to->program.ops[0].attributes = from->program.ops[0].attributes;
    for (int r = 0; r < from->ranks; r++)
        for (int a = 0; a < ARRAYS; a++)
            memcpy(to->of[r][a], from->of[r][a], (size_t)from->count * sizeof(float));
    memcpy(to->messages, from->messages, (size_t)(from->words * from->ranks) * sizeof(uint32_t));
}

/* A NaN of a GPU has other bits than one of the CPU. No index is that large. */
static inline bool is_nan_word(uint32_t word)
{
    return (word & 0x7fffffffu) > 0x7f800000u;
}

static inline void bench_compare(const struct bench *cuda, const struct bench *cpu, int rank)
{
    static const char *const names[ARRAYS] = {"parameter", "gradient", "u", "v"};

    for (int a = 0; a < ARRAYS; a++)
        for (int64_t i = 0; i < cpu->count; i++)
            if (memcmp(&cuda->of[rank][a][i], &cpu->of[rank][a][i], sizeof(float)) != 0)
                rig_fail("%s %lld: %.9g " RIG_CUDA ", %.9g on the CPU", names[a], (long long)i,
                         (double)cuda->of[rank][a][i], (double)cpu->of[rank][a][i]);
    for (int64_t i = 0; i < cpu->words * cpu->ranks; i++)
        if (cuda->messages[i] != cpu->messages[i] &&
            !(is_nan_word(cuda->messages[i]) && is_nan_word(cpu->messages[i])))
            rig_fail("word %lld of the messages: %08x " RIG_CUDA ", %08x on the CPU", (long long)i,
                     (unsigned)cuda->messages[i], (unsigned)cpu->messages[i]);
}

#endif

/* A CUDA kernel must give the bits of the CPU's, at levels with fused multiply-add. */
static inline int run(struct bench *b, enum op_kind kind, int rank, bool is_sparse,
                      enum fleet_isa level, struct fleet_error *err)
{
    struct backend *backend = rig_backend(level, b->threads);
#if defined(RIG_CUDA)
    struct backend *cpu = rig_backend_cpu(FLEET_ISA_AVX2, 1);
    struct bench twin;
    int rc;

    b->words = is_sparse ? dgc_words(&b->program, b->ratio, PROGRAM_NONE) : 0;
    if (!cpu)
        return run_on(backend, b, kind, rank, is_sparse, err);
    bench_copy(b, &twin);
    rc = run_on(backend, b, kind, rank, is_sparse, err);
    if (run_on(cpu, &twin, kind, rank, is_sparse, err) != rc)
        rig_fail("only one of two fails: %s", err->text);
    bench_compare(b, &twin, rank);
    bench_release(&twin);
    return rc;
#else
    return run_on(backend, b, kind, rank, is_sparse, err);
#endif
}

/* One update: select on all ranks, then apply on all. */
static inline void step(struct bench *b, enum fleet_isa level)
{
    struct fleet_error err;

    for (int r = 0; r < b->ranks; r++)
        if (run(b, OP_DGC_SELECT, r, true, level, &err) < 0)
            rig_fail("%s", err.text);
    for (int r = 0; r < b->ranks; r++)
        if (run(b, OP_DGC, r, true, level, &err) < 0)
            rig_fail("%s", err.text);
}

static inline void fill_normal(float *out, int64_t count, int step, int rank)
{
    char name[32];

    (void)snprintf(name, sizeof(name), "g.%d.%d", step, rank);
    fleet_random_normal(fleet_random_key(7, name, 0), 0, (size_t)count, 0, 1, out);
}

static inline struct op_attributes *attributes(struct bench *b)
{
    return &b->program.ops[0].attributes;
}

#endif

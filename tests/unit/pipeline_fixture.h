/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_PIPELINE_FIXTURE_H
#define TESTS_UNIT_PIPELINE_FIXTURE_H

/*
 * Models that are cut into the stages of a pipeline, and their programs.
 */

#include "libfleet/base/cleanup.h"
#include "libfleet/base/errors.h"
#include "libfleet/program/passes/pass.h"
#include "libfleet/program/passes/pipeline.h"
#include "libfleet/program/program_build.h"
#include "libfleet/program/stages.h"
#include "libfleet/strategy/strategy.h"
#include "libfleet/strategy/strategy_options.h"
#include "tests/unit/comm_ranks.h"
#include "tests/unit/passes_fixture.h"

#define JOB(name, layers, rest, optimizer)                                                     \
    "{\"model\":{\"name\":\"" name "\",\"layers\":" #layers ",\"heads\":2,\"width\":16,"       \
    "\"context\":8,\"vocabulary\":37" rest "},\"data\":{\"path\":\"t\",\"tokenizer\":\"bpe\"," \
    "\"vocabulary\":\"v\",\"merges\":\"m\"},\"globalBatchSize\":2,\"microBatchSize\":2,"       \
    "\"steps\":8,\"optimizer\":{\"learningRate\":0.1," optimizer "}"
#define CLIPPED         "\"clip\":{\"globalNorm\":0.1}"
#define FP32(job)       job "}"
#define HALF(job, type) job ",\"precision\":\"" type "\"}"

static const struct job_case {
    const char *name, *training;
    struct pipeline_shape shape;
    int replicas, leaves;
    struct strategy_ends layers; /* by hand */
    bool recompute, offload, amp, localsgd;
} jobs[] = {
    {"gpt, tied embeddings, clipped by its global norm, 1F1B",
     FP32(JOB("gpt", 2, "", CLIPPED)),
     {.stages = 2, .micro_batches = 4, .chunks = 1},
     .replicas = 1,
     .leaves = 4,
     .recompute = false},
    {"gpt, F-then-B, dropout, recompute, uneven stages by hand",
     FP32(JOB("gpt", 5, ",\"tieEmbeddings\":false,\"dropout\":0.1", CLIPPED)),
     {.stages = 3, .micro_batches = 4, .chunks = 1, .all_forward = true},
     .replicas = 1,
     .leaves = 4,
     .layers = {{1, 3, 1}, 3},
     .recompute = true},
    {"llama, interleaved, clipped by norms of tensors",
     FP32(JOB("llama", 6, "", "\"clip\":{\"norm\":0.05}")),
     {.stages = 3, .micro_batches = 6, .chunks = 2},
     .replicas = 1,
     .leaves = 6},
    {"gpt, interleaved, tied embeddings, recompute",
     FP32(JOB("gpt", 7, "", CLIPPED)),
     {.stages = 3, .micro_batches = 6, .chunks = 2},
     .replicas = 1,
     .leaves = 6,
     .recompute = true},
    {"gpt, zero bubble, tied embeddings, dropout, recompute with offload",
     FP32(JOB("gpt", 8, ",\"dropout\":0.1", CLIPPED)),
     {.stages = 2, .micro_batches = 4, .chunks = 1, .zero_bubble = true},
     .replicas = 1,
     .leaves = 4,
     .layers = {{6, 2}, 2},
     .recompute = true,
     .offload = true},
    {"llama, zero bubble, tied embeddings on three stages",
     FP32(JOB("llama", 3, ",\"tieEmbeddings\":true", CLIPPED)),
     {.stages = 3, .micro_batches = 5, .chunks = 1, .zero_bubble = true},
     .replicas = 1,
     .leaves = 5},
    {"gpt in bf16 by amp's lists, 1F1B, two replicas",
     HALF(JOB("gpt", 3, "", CLIPPED), "bf16"),
     {.stages = 2, .micro_batches = 3, .chunks = 1},
     .replicas = 2,
     .leaves = 5,
     .amp = true},
    {"gpt in fp16 with a loss scale, zero bubble, two replicas",
     HALF(JOB("gpt", 3, "", CLIPPED), "fp16"),
     {.stages = 3, .micro_batches = 3, .chunks = 1, .zero_bubble = true},
     .replicas = 2,
     .leaves = 6,
     .amp = true},
};

static inline int build_stage(const struct training_config *training, const struct job_case *job,
                              struct program_cell cell, struct program *out,
                              struct fleet_error *err)
{
    STRATEGY_AUTO struct strategy strategy = {0};
    struct strategy_options options;
    struct fleet_errors errors = {0};
    struct pass_context context = {
        .training = training, .strategy = &strategy, .options = &options, .world = 1, .cell = cell};
    int rc;

    strategy_init(&strategy);
    strategy_options_init(&options);
    options.pipeline_layers = job->layers;
    strategy.recompute = job->recompute;
    strategy.recompute_configs.enable_offload = job->offload;
    if (job->offload) {
        strategy.recompute_configs.checkpoint_shape.items = calloc(3, sizeof(int));
        strategy.recompute_configs.checkpoint_shape.count = 3;
        memcpy(strategy.recompute_configs.checkpoint_shape.items, (int[]){2, 8, 16},
               3 * sizeof(int));
    }
    strategy.amp = job->amp;
    strategy.localsgd = job->localsgd;
    rc = program_build(&context, "spec.strategy", out, &errors);
    if (rc < 0)
        (void)fleet_errors_result(&errors, err);
    fleet_errors_release(&errors);
    return rc;
}

static inline struct program_cell cell_of(const struct job_case *job, int stage)
{
    return (struct program_cell){.stages = job->shape.stages,
                                 .stage = stage,
                                 .chunks = job->shape.chunks,
                                 .splits_weights = job->shape.zero_bubble};
}

#endif

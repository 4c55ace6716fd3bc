/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_TENSOR_PARALLEL_JOBS_H
#define TESTS_UNIT_TENSOR_PARALLEL_JOBS_H

/* The jobs that test_tensor_parallel.c trains on ranks that share tensors. */

#include "tests/unit/tensor_parallel_fixture.h"

#define CLIPPED(name, clip) JOB(name, "", ",\"clip\":{" clip "}") "}"
#define FP16(name)          JOB(name, "", "") ",\"precision\":\"fp16\"}"
#define GROUPED(heads)      ",\"kvHeads\":" #heads
#define BF16(name)          JOB(name, "", "") ",\"precision\":\"bf16\"}"

static const struct {
    const char *name, *training;
    int ranks;
    struct knobs knobs;
} jobs[] = {
    {"gpt on 2", MODEL("gpt", ""), 2, {0}},
    {"gpt with recompute on 2", MODEL("gpt", ""), 2, {.recompute = true}},
    {"gpt on 4", MODEL("gpt", ""), 4, {0}},
    {"gpt with a head of its own and dropout on 2",
     MODEL("gpt", ",\"tieEmbeddings\":false,\"dropout\":0.1"),
     2,
     {.recompute = true}},
    {"llama on 2", MODEL("llama", ""), 2, {.recompute = true}},
    {"llama with tied embeddings and dropout on 4",
     MODEL("llama", ",\"tieEmbeddings\":true,\"dropout\":0.1"),
     4,
     {0}},
    {"gpt clipped by its global norm on 2", CLIPPED("gpt", "\"globalNorm\":0.1"), 2, {0}},
    {"llama clipped by norms of tensors on 4", CLIPPED("llama", "\"norm\":0.05"), 4, {0}},
    {"gpt in bf16 on 2", BF16("gpt"), 2, {.recompute = true}},
    {"llama in bf16 on 4", BF16("llama"), 4, {0}},
    {"gpt in bf16 by the lists on 4", BF16("gpt"), 4, {.amp = true}},
    {"gpt in fp16 with a loss scale on 2", FP16("gpt"), 2, {.amp = true}},
    {"llama in pure bf16 on 2", BF16("llama"), 2, {.amp = true, .pure = true}},
    {"gpt in pure bf16 on 2", BF16("gpt"), 2, {.amp = true, .pure = true}},
    {"gpt with divided rows on 2", MODEL("gpt", ""), 2, {.rows = true}},
    {"gpt with divided rows, recompute and dropout on 4",
     MODEL("gpt", ",\"tieEmbeddings\":false,\"dropout\":0.1"),
     4,
     {.recompute = true, .rows = true}},
    {"llama with divided rows and dropout on 4",
     MODEL("llama", ",\"tieEmbeddings\":true,\"dropout\":0.1"),
     4,
     {.rows = true}},
    {"llama with divided rows, clipped by norms of tensors on 2",
     CLIPPED("llama", "\"norm\":0.05"),
     2,
     {.rows = true}},
    {"gpt with divided rows in bf16 by the lists on 4",
     BF16("gpt"),
     4,
     {.amp = true, .rows = true}},
    {"gpt with divided rows in fp16 with a loss scale on 2",
     FP16("gpt"),
     2,
     {.amp = true, .rows = true}},
    {"llama with divided rows in pure bf16 on 2",
     BF16("llama"),
     2,
     {.amp = true, .pure = true, .rows = true}},
    {"llama with divided rows in bf16 on 4", BF16("llama"), 4, {.recompute = true, .rows = true}},
    {"llama of 2 key heads on 2", MODEL("llama", GROUPED(2)), 2, {.recompute = true}},
    {"llama of 2 key heads on 4", MODEL("llama", GROUPED(2)), 4, {0}},
    {"llama of 1 key head with divided rows, clipped, on 4",
     JOB("llama", GROUPED(1), ",\"clip\":{\"globalNorm\":0.1}") "}",
     4,
     {.recompute = true, .rows = true}},
    {"llama of 2 key heads in bf16 by the lists on 4",
     JOB("llama", GROUPED(2), "") ",\"precision\":\"bf16\"}",
     4,
     {.amp = true}},
    {"llama of 2 key heads with divided rows in pure bf16 on 4",
     JOB("llama", GROUPED(2), "") ",\"precision\":\"bf16\"}",
     4,
     {.amp = true, .pure = true, .rows = true}},
};

#endif

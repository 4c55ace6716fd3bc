/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_TENSOR_PARALLEL_JOBS_H
#define TESTS_UNIT_TENSOR_PARALLEL_JOBS_H

/* The jobs that test_tensor_parallel.c trains on ranks that share tensors. */

#include "tests/unit/tensor_parallel_fixture.h"

#define CLIPPED(name, clip)     JOB(name, "", ",\"clip\":{" clip "}") "}"
#define FP16(name)              JOB(name, "", "") ",\"precision\":\"fp16\"}"
#define GROUPED(heads)          ",\"kvHeads\":" #heads
#define GIVEN(name, rest, list) JOB(name, rest, "") ",\"operatorStrategies\":[" list "]"
#define DIVIDED(name, in)       "{\"operator\":\"" name "\",\"in\":[" in "]}"
#define WHOLE(name)             DIVIDED(name, "[1,1,1],[1,1]")

/* Parts that are whole. */
#define BLOCK  WHOLE("h.1.mlp.c_fc") "," WHOLE("h.1.attn.c_attn")
#define TABLE  DIVIDED("embedding", "[1,1],[1,1]")
#define MLPS   WHOLE("h.*.mlp.*") "," TABLE
#define HEADS  TABLE "," WHOLE("h.*.attn*")
#define K_HEAD WHOLE("*.self_attn.k_proj") "," WHOLE("lm_head")
/* Layers between which columns are gathered or split. */
#define CHANGES_0 WHOLE("h.0.mlp.c_proj") "," DIVIDED("h.0.attn", "[1,1,1]")
#define CHANGES_1 DIVIDED("h.1.mlp.c_proj", "[1,1,2],[2,1]") "," WHOLE("h.1.attn.c_proj")
#define CHANGES_2 BLOCK "," DIVIDED("h.1.attn", "[1,1,2]")
#define CHANGES   CHANGES_0 "," CHANGES_1 "," CHANGES_2
#define COLUMNS   DIVIDED("h.*.mlp.c_proj", "[1,1,1],[1,4]")
#define ROWS(op)  DIVIDED("h.0.attn." op, "[1,1,4],[4,1]")
#define SAME      COLUMNS "," ROWS("c_attn") "," ROWS("c_proj")
#define LLAMA     "model.layers."
#define LLAMA_0   WHOLE(LLAMA "0.mlp.down_proj") "," DIVIDED(LLAMA "0.self_attn", "[1,1,1]")
#define LLAMA_1   WHOLE(LLAMA "1.self_attn.q_proj") "," DIVIDED(LLAMA "1.self_attn", "[1,1,4]")
#define LLAMA_2   DIVIDED(LLAMA "1.mlp.up_proj", "[1,1,4],[1,4]")
#define LLAMAS    LLAMA_0 "," LLAMA_1 "," LLAMA_2 "," DIVIDED("lm_head", "[1,1,4],[1,4]")
/* Operators on some of the tokens (T) or samples (S) of 2 ranks. */
#define T(name)      DIVIDED(name, "[1,2,1]")
#define S(name)      DIVIDED(name, "[2,1,1]")
#define NORMS        T("h.*.ln_1") "," T("*.residual") "," T("h.0.attn.resid_dropout") "," T("h.0")
#define LINEAR_ROWS  T("h.0.mlp.c_fc") "," T("h.1.mlp.c_proj") "," S("h.1.attn.*") "," T("drop")
#define TOKENS       NORMS "," LINEAR_ROWS
#define LLAMA_TOKENS T("*.input_layernorm") "," T("*.0.self_attn.o_proj") "," T("*.mlp.swiglu")
#define LLAMA_HEADS  S("*.1.self_attn*") "," T("*.0.self_attn.dropout") "," T("lm_head")
#define BF16(name)   JOB(name, "", "") ",\"precision\":\"bf16\"}"

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
    {"gpt with one whole block on 2",
     GIVEN("gpt", "", BLOCK) "}",
     2,
     {.recompute = true, .given = true}},
    {"gpt with whole MLPs and a whole table on 4", GIVEN("gpt", "", MLPS) "}", 4, {.given = true}},
    {"gpt with a whole embedding, a divided head and dropout on 2",
     GIVEN("gpt", ",\"tieEmbeddings\":false,\"dropout\":0.1", HEADS) "}",
     2,
     {.given = true}},
    {"llama with whole attention and a whole head on 2",
     GIVEN("llama", "", K_HEAD) "}",
     2,
     {.recompute = true, .given = true}},
    {"llama of 2 key heads with whole attention on 4",
     GIVEN("llama", GROUPED(2), WHOLE("model.layers.0.self_attn*")) "}",
     4,
     {.given = true}},
    {"gpt that gathers and splits on 2", GIVEN("gpt", "", CHANGES) "}", 2, {.given = true}},
    {"gpt with columns behind columns, rows behind rows and dropout on 4",
     GIVEN("gpt", ",\"dropout\":0.1", SAME) "}",
     4,
     {.recompute = true, .given = true}},
    {"llama that gathers and splits in bf16 by the lists on 4",
     GIVEN("llama", "", LLAMAS) ",\"precision\":\"bf16\"}",
     4,
     {.amp = true, .given = true}},
    {"gpt with tokens of norms, additions and linear layers on 2",
     GIVEN("gpt", ",\"dropout\":0.1", TOKENS) "}",
     2,
     {.given = true}},
    {"gpt with tokens of the loss, recompute on 2",
     GIVEN("gpt", "", TOKENS "," DIVIDED("loss", "[1,2,1],[1,2]")) "}",
     2,
     {.recompute = true, .given = true}},
    {"gpt with all samples of a block, and its loss on 2",
     GIVEN("gpt", ",\"tieEmbeddings\":false", S("h.1*") "," S("loss") "," T("ln_f")) "}",
     2,
     {.given = true}},
    {"llama with tokens and samples on 2",
     GIVEN("llama", ",\"dropout\":0.1", LLAMA_TOKENS "," LLAMA_HEADS) "}",
     2,
     {.recompute = true, .given = true}},
    {"llama of 1 key head with tokens, in bf16 by the lists on 2",
     GIVEN("llama", GROUPED(1), LLAMA_TOKENS) ",\"precision\":\"bf16\"}",
     2,
     {.amp = true, .given = true}},
    {"llama of 2 key heads with tokens of norms on 4",
     GIVEN("llama", GROUPED(2), DIVIDED("*norm*", "[1,4,1]")) "}",
     4,
     {.given = true}},
};

#endif

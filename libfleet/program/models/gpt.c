/* SPDX-License-Identifier: Apache-2.0 */

/*
 *  ids ─ wte, wpe ─ dropout ─▶ x ─┬─ ln_1 ─ c_attn ─ attention ─ c_proj ─ dropout ─ + ─┐  block h.i
 *                                 └───────────────────────────────────────────────────┘
 *                              x ─┬─ ln_2 ─ c_fc, GELU ─ c_proj ─ dropout ─ + ─▶ x
 *                                 └────────────────────────────────────────┘
 *  x ─ ln_f ─ head (wteᵀ) ─ cross-entropy with targets
 *
 * Radford et al., "Language models are unsupervised multitask learners" (2019), section 2.3. The
 * output of block i is called "h.i": the natural checkpoint for recomputation. Probabilities of the
 * attention are not dropped: they are never in memory.
 */
#include "libfleet/program/models/gpt.h"

#include <math.h>
#include <stdio.h>

#include "libfleet/program/models/builder.h"
#include "libfleet/training/training.h"

#define DEVIATION 0.02

/* A Conv1D of GPT-2: weight [in,out] and bias. */
static int conv1d(struct builder *b, const char *name, int x, const struct builder_linear *l)
{
    struct builder_linear layer = *l;

    layer.bias = true;
    layer.initial = PROGRAM_INITIAL_NORMAL;
    if (layer.deviation == 0)
        layer.deviation = DEVIATION;
    return builder_linear(b, name, x, &layer);
}

/* Writes onto the residual stream start smaller: there are two a block (section 2.3). */
static int block(struct builder *b, const struct training_model *m, int layer, int x)
{
    double residual = DEVIATION / sqrt(2.0 * (double)m->layers);
    char prefix[32], name[32];
    bool divided;
    int h, heads;

    (void)snprintf(prefix, sizeof(prefix), "h.%d.", layer);
    (void)snprintf(name, sizeof(name), "h.%d", layer);
    builder_enter(b, layer, prefix);

    h = builder_layer_norm(b, "ln_1", x, GPT_EPSILON);
    h = builder_join_rows(b, "ln_1", h);
    h = conv1d(b, "attn.c_attn", h,
               &(struct builder_linear){
                   .features = 3 * m->width, .division = BUILDER_COLUMNS, .blocks = 3});
    divided = builder_heads_divided(b, "attn", h, 3 * m->width);
    h = builder_convert(b, "attn.qkv", h, 3, 3 * m->width, divided);
    heads = builder_heads(b, (int)m->heads);
    h = builder_join_tokens(b, "attn.qkv", h, 3);
    h = builder_attention(b, "attn", h, heads, heads);
    h = builder_join_heads(b, "attn", h);
    h = conv1d(b, "attn.c_proj", h,
               &(struct builder_linear){.features = m->width,
                                        .deviation = residual,
                                        .division = BUILDER_ROWS,
                                        .inputs = m->width});
    h = builder_dropout(b, "attn.resid_dropout", h, m->dropout);
    x = builder_add(b, "attn.residual", h, x);

    h = builder_layer_norm(b, "ln_2", x, GPT_EPSILON);
    h = builder_join_rows(b, "ln_2", h);
    h = conv1d(b, "mlp.c_fc", h,
               &(struct builder_linear){.features = m->hidden,
                                        .activation = OP_ACTIVATION_GELU,
                                        .division = BUILDER_COLUMNS});
    h = conv1d(b, "mlp.c_proj", h,
               &(struct builder_linear){.features = m->width,
                                        .deviation = residual,
                                        .division = BUILDER_ROWS,
                                        .inputs = m->hidden});
    h = builder_dropout(b, "mlp.dropout", h, m->dropout);

    builder_enter(b, layer, "");
    return builder_add(b, name, h, x);
}

static int embed(struct builder *b, const struct training_model *m, int ids, int *out_wte)
{
    int wpe, x;

    *out_wte =
        builder_table(b, "wte.weight", m->vocabulary, m->width, DEVIATION, m->tie_embeddings);
    wpe = builder_parameter(b, "wpe.weight", PROGRAM_INITIAL_NORMAL, DEVIATION, 2,
                            (int64_t[]){m->context, m->width});
    x = builder_embedding(b, "embedding", ids, *out_wte, wpe);
    return builder_dropout(b, "drop", x, m->dropout);
}

void gpt_build(struct builder *b, const struct training_config *config)
{
    const struct training_model *m = &config->model;
    int64_t tokens[2] = {config->micro_batch_size, m->context};
    int ids = builder_input(b, "ids", PROGRAM_INT32, 2, tokens);
    int targets = builder_input(b, "targets", PROGRAM_INT32, 2, tokens);
    int wte, x;

    b->program->tokens_per_sample = m->context;
    x = embed(b, m, ids, &wte);
    for (int layer = 0; layer < m->layers; layer++)
        x = block(b, m, layer, x);
    builder_enter(b, -1, "");
    x = builder_layer_norm(b, "ln_f", x, GPT_EPSILON);
    x = builder_join_rows(b, "ln_f", x);
    x = builder_linear(b, "lm_head", x,
                       &(struct builder_linear){.features = m->vocabulary,
                                                .transposed = true,
                                                .initial = PROGRAM_INITIAL_NORMAL,
                                                .deviation = DEVIATION,
                                                .division = BUILDER_COLUMNS,
                                                .weight = m->tie_embeddings ? wte : 0});
    builder_cross_entropy(b, x, targets);
}

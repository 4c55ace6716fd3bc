/* SPDX-License-Identifier: Apache-2.0 */

/*
 *  ids ─ embed_tokens ─▶ x ─┬─ input_layernorm ─ q, k, v ─ rope ─ attention ─ o_proj ─ + ─┐ block i
 *                           └─────────────────────────────────────────────────────────────┘
 *                        x ─┬─ post_attention_layernorm ─ gate, up ─ swiglu ─ down_proj ─ + ─▶ x
 *                           └─────────────────────────────────────────────────────────────┘
 *  x ─ norm ─ lm_head ─ cross-entropy with targets
 *
 * Touvron et al., 2302.13971: RMSNorm before each part, SwiGLU, rotary positions, no biases. With
 * kvHeads below heads each k and v serves a group of q (Llama 2's 70B and Llama 3, 2307.09288).
 */
#include "libfleet/program/models/llama.h"

#include <stdio.h>

#include "libfleet/program/models/builder.h"
#include "libfleet/training/training.h"

#define DEVIATION 0.02

/* Layers that read one input: all are divided, or none. */
static const char *const qkv_names[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                                        NULL};
static const char *const mlp_names[] = {"mlp.gate_proj", "mlp.up_proj", NULL};

/* torch.nn.Linear without bias: weight [out,in]. By columns with `siblings`, else by rows. */
static int projection(struct builder *b, const char *name, int x, int64_t features, int64_t inputs,
                      const char *const *siblings)
{
    return builder_linear(
        b, name, x,
        &(struct builder_linear){.features = features,
                                 .transposed = true,
                                 .initial = PROGRAM_INITIAL_NORMAL,
                                 .deviation = DEVIATION,
                                 .division = siblings ? BUILDER_COLUMNS : BUILDER_ROWS,
                                 .inputs = inputs,
                                 .siblings = siblings});
}

/* Keys or values of this rank. */
static int kv_projection(struct builder *b, const struct training_model *m, const char *name, int x)
{
    return builder_kv_linear(
        b, name, x,
        &(struct builder_linear){.features = m->kv_heads * (m->width / m->heads),
                                 .transposed = true,
                                 .initial = PROGRAM_INITIAL_NORMAL,
                                 .deviation = DEVIATION,
                                 .siblings = qkv_names},
        (int)m->kv_heads);
}

/* q, k and v with all heads, or with those of this rank. */
static void convert(struct builder *b, const struct training_model *m, int parts[3])
{
    bool is_shared = m->kv_heads < b->cell.model_ranks; /* a head of several ranks */
    bool divided = builder_heads_divided(b, is_shared ? NULL : "self_attn", parts[0], m->width);

    for (int i = 0; i < 3 && !(is_shared && divided); i++)
        parts[i] = builder_convert(b, qkv_names[i], parts[i], 1,
                                   (i ? m->kv_heads : m->heads) * (m->width / m->heads), divided);
}

/* q, k and v of all tokens side by side, for the heads of this rank. */
static int project(struct builder *b, const struct training_model *m, int x)
{
    int parts[3];

    parts[0] = projection(b, "self_attn.q_proj", x, m->width, m->width, qkv_names);
    parts[1] = kv_projection(b, m, "self_attn.k_proj", x);
    parts[2] = kv_projection(b, m, "self_attn.v_proj", x);
    convert(b, m, parts);
    if (m->kv_heads == m->heads) {
        x = builder_concat(b, "self_attn.qkv", parts, 3);
        return builder_join_tokens(b, "self_attn.qkv", x, 3);
    }
    parts[0] = builder_join_tokens(b, "self_attn.q", parts[0], 1);
    parts[1] = builder_join_kv(b, "self_attn.k", parts[1], (int)m->kv_heads);
    parts[2] = builder_join_kv(b, "self_attn.v", parts[2], (int)m->kv_heads);
    return builder_concat(b, "self_attn.qkv", parts, 3);
}

static int attend(struct builder *b, const struct training_model *m, int x)
{
    int qkv = project(b, m, x);
    int heads = builder_heads(b, (int)m->heads), kv_heads = builder_kv_heads(b, (int)m->kv_heads);

    qkv = builder_unary(b, "self_attn.rope", OP_ROPE, qkv,
                        &(struct op_attributes){.heads = heads + kv_heads,
                                                .head_dim = (int)(m->width / m->heads),
                                                .base = LLAMA_ROPE_BASE});
    x = builder_attention(b, "self_attn", qkv, heads, kv_heads);
    x = builder_join_heads(b, "self_attn", x);
    return projection(b, "self_attn.o_proj", x, m->width, m->width, NULL);
}

static int feed_forward(struct builder *b, const struct training_model *m, int x)
{
    int gate = projection(b, "mlp.gate_proj", x, m->hidden, m->width, mlp_names);
    int up = projection(b, "mlp.up_proj", x, m->hidden, m->width, mlp_names);

    x = builder_swiglu(b, "mlp.swiglu", gate, up, m->hidden);
    return projection(b, "mlp.down_proj", x, m->width, m->hidden, NULL);
}

static int block(struct builder *b, const struct training_model *m, int layer, int x)
{
    char prefix[48], name[48];
    int h;

    (void)snprintf(prefix, sizeof(prefix), "model.layers.%d.", layer);
    (void)snprintf(name, sizeof(name), "model.layers.%d", layer);
    builder_enter(b, layer, prefix);
    h = builder_rms_norm(b, "input_layernorm", x, LLAMA_EPSILON);
    h = builder_join_rows(b, "input_layernorm", h);
    h = attend(b, m, h);
    h = builder_dropout(b, "self_attn.dropout", h, m->dropout);
    x = builder_add(b, "self_attn.residual", h, x);
    h = builder_rms_norm(b, "post_attention_layernorm", x, LLAMA_EPSILON);
    h = builder_join_rows(b, "post_attention_layernorm", h);
    h = feed_forward(b, m, h);
    h = builder_dropout(b, "mlp.dropout", h, m->dropout);
    builder_enter(b, layer, "");
    return builder_add(b, name, h, x);
}

static int embed(struct builder *b, const struct training_model *m, int ids, int *out_table)
{
    int x;

    *out_table = builder_table(b, "model.embed_tokens.weight", m->vocabulary, m->width, DEVIATION,
                               m->tie_embeddings);
    x = builder_embedding(b, "embedding", ids, *out_table, PROGRAM_NONE);
    return builder_dropout(b, "drop", x, m->dropout);
}

void llama_build(struct builder *b, const struct training_config *config)
{
    const struct training_model *m = &config->model;
    int64_t tokens[2] = {config->micro_batch_size, m->context};
    int ids = builder_input(b, "ids", PROGRAM_INT32, 2, tokens);
    int targets = builder_input(b, "targets", PROGRAM_INT32, 2, tokens);
    int table, x;

    b->program->tokens_per_sample = m->context;
    x = embed(b, m, ids, &table);
    for (int layer = 0; layer < m->layers; layer++)
        x = block(b, m, layer, x);
    builder_enter(b, -1, "");
    x = builder_rms_norm(b, "model.norm", x, LLAMA_EPSILON);
    x = builder_join_rows(b, "model.norm", x);
    x = builder_linear(b, "lm_head", x,
                       &(struct builder_linear){.features = m->vocabulary,
                                                .transposed = true,
                                                .initial = PROGRAM_INITIAL_NORMAL,
                                                .deviation = DEVIATION,
                                                .division = BUILDER_COLUMNS,
                                                .weight = m->tie_embeddings ? table : 0});
    builder_cross_entropy(b, x, targets);
}

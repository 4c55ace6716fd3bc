/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_MODELS_BUILDER_H
#define LIBFLEET_PROGRAM_MODELS_BUILDER_H

/*
 * Writes a forward program, one call a layer, so that a model reads like its drawing:
 *
 *     x = builder_layer_norm(&b, "ln_1", x, 1e-5);
 *     x = builder_join_rows(&b, "ln_1", x);
 *     x = builder_linear(&b, "mlp.c_fc", x, &(struct builder_linear){.features = 4 * C, …});
 *
 * Names are relative to the prefix ("h.0."); a layer's output has the layer's name, its parameters
 * have that name and ".weight" or ".bias". Every operator is inferred at once. The first error
 * stays in the builder and later calls do nothing, so only builder_finish() has to be looked at.
 */

#include <stdbool.h>
#include <stdint.h>

#include "libfleet/base/error.h"
#include "libfleet/program/program.h"

struct training_operator_list;

/* Which rows of an activation, its tokens of all samples, a rank has where ranks divide operators
 * in different ways. Tokens of all samples follow each other: if the samples of a micro-batch are a
 * multiple of the ranks, both divisions give a rank the same rows. */
enum builder_rows {
    BUILDER_ALL_ROWS, /* x [B,T,C] */
    BUILDER_TOKENS,   /* x [B·T/ranks,C] */
    BUILDER_SAMPLES,  /* x [B/ranks,T,C] */
};

/* Rows of `from` that were gathered or split before. */
struct builder_placed {
    int from, to, layer;
    enum builder_rows rows;
    bool alike;
};

#define BUILDER_PLACED_MAX 4

struct builder {
    struct program *program;
    struct program_cell cell; /* which part of divided layers; set by the caller */
    int layer;                /* number of the block, -1 outside */
    char prefix[64];          /* put before every name; "" outside blocks */
    uint64_t streams;         /* dropouts so far: each has its own stream of random numbers */
    int64_t samples, tokens;  /* of x [samples,tokens,C] while its rows are divided, else 0 */
    bool whole_heads; /* attention is on each rank with all heads, though the cell divides */
    enum builder_rows attention_rows;                 /* then: of the input of attention */
    struct builder_placed placed[BUILDER_PLACED_MAX]; /* the last ones, in a ring */
    int placed_count;
    const struct training_operator_list
        *given;       /* of a cell with by_operator, else NULL; borrowed */
    int64_t replicas; /* that `given` counts on: builder_give() */
    int rc;           /* 0 or the first error */
    struct fleet_error err;
};

/* Build into `program`, which is initialized and borrowed. There is nothing to release. */
void builder_init(struct builder *b, struct program *program);

/*
 * Divide operators as `given` says, which is borrowed. Strategies divide samples by a number of
 * replicas, which is the least of the first numbers of their activations: where all operators have
 * the samples of more ranks, one grid divides all. The number of ranks that train may be another at
 * times, so it says nothing.
 */
void builder_give(struct builder *b, const struct training_operator_list *given);

/* 0, or the first error of all calls: -EINVAL or -EOVERFLOW of op_infer(), -E2BIG for too many
 * variables. */
int builder_finish(const struct builder *b, struct fleet_error *err);

/* What follows belongs to block `layer`, names begin with `prefix`; -1 and "" go outside. */
void builder_enter(struct builder *b, int layer, const char *prefix);

/* A new variable of that role; its index, PROGRAM_NONE after an error. `deviation` of a normal or
 * uniform start, else 0. */
int builder_input(struct builder *b, const char *name, enum program_type type, int ndim,
                  const int64_t *shape);
int builder_parameter(struct builder *b, const char *name, enum program_initial initial,
                      double deviation, int ndim, const int64_t *shape);
/* A new activation of that name (and suffix), without a shape yet. */
int builder_activation(struct builder *b, const char *name, const char *suffix,
                       enum program_type type);

/* Append an operator and infer it. */
void builder_add_op(struct builder *b, const struct program_op *op);

/* Append an operator that moves or arranges x alone: of OP_GROUP_*, or TRANSPOSE. Returns what it
 * makes of x; NONE after an error. */
int builder_add_moved(struct builder *b, const char *name, const char *suffix, enum op_kind kind,
                      int x, const struct op_attributes *attributes);

/* ---- layers: the index of the output --------------------------------------------------------- */

/* How the ranks of a tensor-parallel group divide a linear layer (Shoeybi and others, 1909.08053,
 * section 3). COLUMNS is followed by layers on each rank's own features, then by ROWS, which sums
 * over the group. On one rank each is WHOLE. */
enum builder_division {
    BUILDER_WHOLE,
    BUILDER_COLUMNS, /* a rank has some of the features */
    BUILDER_ROWS,    /* a rank has some of the inputs */
};

struct builder_linear {
    int64_t features; /* M */
    bool bias;        /* add "name.bias", zero at first */
    bool transposed;  /* weight [M,K] */
    enum op_activation activation;
    enum program_initial initial; /* of weight */
    double deviation;
    double bias_deviation; /* > 0: bias starts uniform in ± this */
    int weight;            /* > 0: use this parameter instead of a new one */
    enum builder_division division;
    int blocks;     /* COLUMNS: the features are so many equal blocks (q, k, v), and each block is
                   divided; 0 counts as 1 */
    int64_t inputs; /* ROWS: K of the whole layer */
    /* With `given` the first of these layers that has a strategy decides for all of them:
     * NULL-terminated names of those that read the same x. NULL: this layer alone. */
    const char *const *siblings;
};

/* x [..,K] -> [..,M]: x · weight, plus a bias, then the activation. With COLUMNS M is this rank's
 * part of the features, with ROWS K is its part of the inputs, and there is no activation.
 *
 * With `given` a strategy of the user may ask for another division. Then x is gathered or split in
 * front of the layer, if it must be, and what ROWS would have left whole is whole. */
int builder_linear(struct builder *b, const char *name, int x, const struct builder_linear *l);

/* True if the cell divides layers. */
bool builder_divides(const struct builder *b);

/*
 * Where ranks divide operators in different ways (`given`), activations change between whole and
 * divided by columns or rows:
 *
 *   gather  a rank sends its columns or rows to all. Behind it all ranks compute the same, so a
 *           rank's gradient is its part of the result's. Layers that are divided by columns each
 *           compute a part of the gradient: rows in front of them receive the sum.
 *   split   a rank takes its columns or rows; nothing travels. The gradients of all are gathered.
 *
 * ALL_GATHER and OWN_ROWS work on the first dimension, so a transpose is beside them for columns.
 * Norms, dropouts, additions, SwiGLU, linear layers with all of their weight, attention by samples,
 * and the loss beside all words may be on a rank's rows. passes/divided_rows.h sums the gradients
 * of their parameters.
 *
 * builder_heads_divided(): call it before attention `name`, with what it reads (q, or q, k and v)
 *     and the columns of that in the whole model. True if ranks divide heads, by a strategy of
 *     `name` (NULL: none), else as x is. builder_heads() and the like follow in this block.
 * builder_convert(): x with `columns`, of `blocks` equal blocks, as attention reads it: divided or
 *     whole as `divided` says, and the samples that it attends to. x itself if it is so already.
 */
bool builder_heads_divided(struct builder *b, const char *name, int x, int64_t columns);
int builder_convert(struct builder *b, const char *name, int x, int blocks, int64_t columns,
                    bool divided);

/* The part of a model's heads that this rank attends with. */
int builder_heads(const struct builder *b, int heads);

/*
 * Grouped-query attention (Ainslie and others, 2305.13245): fewer heads make keys and values, and
 * each serves a group of attention heads. `kv_heads` are those of the model. Ranks divide them
 * like other heads. If there are fewer than ranks, several ranks have the same one, so either
 * number must be a multiple of the other.
 *
 * builder_kv_heads(): how many this rank attends with, at least 1.
 * builder_kv_linear(): the layer that makes keys or values, x [..,K] -> [..,kv·D] of this rank. If
 * there are fewer heads than ranks that share tensors, each rank has the whole layer and uses the
 * columns of one head; passes/tensor_parallel.c sums the gradients.
 * builder_join_kv(): builder_join_tokens() of one block. If there are fewer heads than ranks that
 * share sequences, each is repeated until every rank gets one.
 */
int builder_kv_heads(const struct builder *b, int kv_heads);
int builder_kv_linear(struct builder *b, const char *name, int x, const struct builder_linear *l,
                      int kv_heads);
int builder_join_kv(struct builder *b, const char *name, int x, int kv_heads);

/*
 * Between divided layers the ranks of a group may also divide the rows of x, which are the tokens
 * of all samples (Korthikanti and others, 2205.05198, section 4.2.2): norms, dropouts and additions
 * then work on [B·T/ranks,C]. builder_embedding() and ROWS give each rank its rows; this brings the
 * rows of all ranks together, x [B,T,C], for the next layers. x itself if the cell does not divide
 * rows.
 */
int builder_join_rows(struct builder *b, const char *name, int x);

/*
 * Ranks that share sequences (`sequence_ranks` S of a cell; Jacobs and others, DeepSpeed Ulysses,
 * 2309.14509, section 3.1). B·T tokens of a micro-batch follow each other; each rank has a part of
 * them, x [1,B·T/S,C], from builder_embedding() to the loss. Only attention needs all tokens: ranks
 * exchange them for heads in front of it, and back behind it.
 *
 * builder_join_tokens(): x [1,B·T/S,blocks·H·D] -> [B,T,blocks·H/S·D]. Each of the equal blocks (q,
 * k, v) has H heads.
 * builder_join_heads(): the reverse, x [B,T,H/S·D] -> [1,B·T/S,H·D].
 * Both give x itself if the cell does not share sequences.
 */
int builder_join_tokens(struct builder *b, const char *name, int x, int blocks);
int builder_join_heads(struct builder *b, const char *name, int x);

/* Rows of `table` by ids [B,T] -> [B,T,C], plus `position` [T,C] by place, unless that is
 * PROGRAM_NONE. Of these this rank's tokens, and rows, where the cell divides them. */
int builder_embedding(struct builder *b, const char *name, int ids, int table, int position);

/* A table [rows,columns] whose rows the cell divides: normal with `deviation`. `is_tied`: "lm_head"
 * reads it, too. */
int builder_table(struct builder *b, const char *name, int64_t rows, int64_t columns,
                  double deviation, bool is_tied);

/* Normalize the last dimension of x [..,C] by mean and deviation, with "name.weight" and
 * "name.bias"; by the root of the mean square, with "name.weight" alone. */
int builder_layer_norm(struct builder *b, const char *name, int x, double epsilon);
int builder_rms_norm(struct builder *b, const char *name, int x, double epsilon);

/* Causal attention over qkv [B,T,(heads+2·kv_heads)·D] -> [B,T,heads·D]. */
int builder_attention(struct builder *b, const char *name, int qkv, int heads, int kv_heads);

/* x itself if rate is 0. */
int builder_dropout(struct builder *b, const char *name, int x, double rate);

/* a + c, of the same shape. */
int builder_add(struct builder *b, const char *name, int a, int c);

/* SiLU(gate) · up, which have `features` in the whole model. */
int builder_swiglu(struct builder *b, const char *name, int gate, int up, int64_t features);

/* One input, one output of the same or inferred shape. */
int builder_unary(struct builder *b, const char *name, enum op_kind kind, int x,
                  const struct op_attributes *attributes);

/* The columns of all parts, side by side. */
int builder_concat(struct builder *b, const char *name, const int *parts, int count);

/* Mean cross-entropy of all tokens; sets the program's loss. Logits of a divided layer are the
 * words that this rank has: the ranks exchange three numbers a row, never the logits. Where ranks
 * share sequences, the logits are those of this rank's tokens, and the ranks add their means. */
void builder_cross_entropy(struct builder *b, int logits, int targets);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_OP_H
#define LIBFLEET_PROGRAM_OP_H

/*
 * Operators: the shapes of their outputs, their gradients and their cost. Each has a file in ops/.
 * Back ends have the kernels (agent/runtime/backend/backend.h).
 *
 * operators.def lists the kinds with their inputs, outputs and attributes, by position. The
 * following adds what that list leaves out.
 *
 * Layers
 *   EMBEDDING_GRAD  overwrites d_table and d_position. If two operators use one weight (tied
 *                   embeddings), autodiff sums the contributions with ADD. For a parameter that is
 *                   `add (p@GRAD, c) -> p@GRAD`: one variable is read and written.
 *   ROPE            rotates the first `heads` groups of head_dim of the last dimension, and copies
 *                   the rest. With heads = H + G it rotates q and k of a packed qkv. The two halves
 *                   of a head are a pair (Llama).
 *   OWN_ROWS        y is the part of x at this rank's `place` in the group. All its ranks hold the
 *                   same x, so nothing travels. Its gradient is ALL_GATHER.
 *   CAST            with `stream` rounds fp32 to bf16 at random: up with the probability that makes
 *                   the mean the number itself. Random bits follow from (seed, stream, step,
 *                   element); an evaluation rounds to the nearest.
 *   DROPOUT         with `ranks` x is such a part: the mask is that of the whole tensor.
 *   BATCH_NORM      stat_mean[C] and stat_var[C] are the mean and the unbiased variance of the
 *                   micro-batch; their role is SCALAR. The host folds them into the buffers mean
 *                   and var (inputs 3, 4) in the order of micro-batches:
 *                   r = (1 - momentum) · r + momentum · stat. An evaluation runs forward operators
 *                   only; BATCH_NORM then normalizes with mean and var, and DROPOUT copies.
 *   With `total`    BATCH_NORM takes the statistics from `total`, the sum of `own` over all ranks.
 *                   BATCH_NORM_SUMS computes `own`: Σ(x - mean) and Σ(x - mean)² of each channel,
 *                   then the number of elements of a channel. BATCH_NORM_GRAD also reads `total`:
 *                   Σd_y and Σd_y·x̂ of each channel. It computes d_scale and d_shift from `own`.
 *   With `divided`  a group of ranks divides a vocabulary. This rank's table or logits are the
 *                   words first_word … first_word + V - 1. EMBEDDING writes zeros for other words;
 *                   the sum over the group is the embedding. CROSS_ENTROPY reads the statistics
 *                   from `sums`, the outputs of CROSS_ENTROPY_SUMS of all ranks, rank after rank.
 *                   A row of it is the greatest logit m, Σ exp(logit - m), and the logit of the
 *                   target, 0 if another rank has the target.
 *   LINEAR_CROSS_ENTROPY  LINEAR, CROSS_ENTROPY and the gradients of both, without logits in
 *                   memory. A forward operator: the gradients are those of d_loss, which is there
 *                   before the forward part. An evaluation computes the loss alone. Only programs
 *                   for a GPU have it (libfleet/plan/gpu_program.h).
 *
 * Updates
 *   grads           is the gradient at flat offset 0; it represents the whole gradient space.
 *   Optimizers      update param and states in place. `norms`, the output of GRAD_NORM, follows the
 *                   last state. They use g = clip(S / leaves) · rescale, S the sum of the leaves'
 *                   gradients; then they apply decay as decay_kind says.
 *   GRAD_NORM       computes the sum of squares of each gradient tensor of S / leaves, in name
 *                   order, then the global norm: the root of the sum of all.
 *                   With `owned` it writes the sums of squares of the tensors that this rank
 *                   holds, as the bytes of doubles, and zeros for others.
 *   JOIN_NORMS      computes the same for whole tensors, from the GRAD_NORM of each rank. If ranks
 *                   hold parts of a tensor, it adds their sums in the order of the ranks. If all
 *                   ranks hold the whole tensor, it takes the sum of rank 0.
 *                   From bytes of doubles it computes what GRAD_NORM does.
 *   SPREAD_NORMS    (a stage of a pipeline) moves the norm of each parameter to its number in the
 *                   whole model. The others are 0, and so is that of a parameter that an earlier
 *                   stage has, too.
 *   TOTAL_NORM      copies sums of squares, and writes the root of their sum behind them.
 *   TRUST_SQUARES   (divided tensors) computes what LAMB (two states) or LARS (one) needs of a
 *                   parameter before its update: the sums of squares of the parameter and of the
 *                   step, of this rank's part, to places 2·norm_index and the next of `squares`.
 *                   It changes no state. LAMB and LARS with `squares` find there what all `ranks`
 *                   ranks computed, rank after rank, and add that of divided tensors in the order
 *                   of the ranks.
 *   CHECK_FINITE    writes 1 if any element is inf or nan, else 0. With `owned` it looks at what
 *                   this rank holds.
 *   DGC…            deep gradient compression (dgc.h). DGC_SELECT and DGC_GATHER run only in the
 *                   sparse phase, operators with phase dense only in the dense phase. DGC_SELECT
 *                   writes the largest elements of the new v to the rank's message; it changes
 *                   neither u nor v. DGC_GATHER sends the messages of all ranks to all ranks. DGC
 *                   updates u and v, and applies the messages. In the dense phase it is MOMENTUM
 *                   with velocity u. Afterwards grad holds the gradient that was applied.
 *
 * Communication
 *   An operator with a `group` runs together with the same operator of the other ranks of that
 *   group, in any section. `group` names the axes of the grid along which these ranks differ. The
 *   place of a rank in the group is topology_group()'s, with axes in the order of the grid. `ranks`
 *   is the size of the group, where shapes depend on it. An operator has
 *
 *     operands (x, y)      x is what a rank sends, y what it receives, with the listed shapes; or
 *     a range (space,      elements flat_first … + flat_count of a flat space, in place, without
 *     flat_first, _count)  operands (not ALL_TO_ALL).
 *
 *   ALL_REDUCE      each rank receives the reduction over all ranks.
 *   REDUCE_TO       the rank at place `root` receives it. At the others y is zero; a range does not
 *                   change.
 *   REDUCE_SCATTER  each rank receives its part of the reduction. Each rank's part of a range is
 *                   what it owns of the range.
 *   ALL_GATHER      each rank receives the parts of all. With `owned` in the UPDATE section it
 *                   follows the updates that each rank makes for what it owns; the trainer runs it
 *                   (agent/runtime/step/share.h). With `owned` in the micro-batch section it brings
 *                   a range of divided parameters into the arena, where the operators behind it
 *                   read them (libfleet/plan/gathers.h); what ranks hold does not change.
 *   BROADCAST       each rank receives the x, or the range, of the rank at `root`.
 *   SEND, RECEIVE   the peer is the rank whose place is greater by `shift`. With `owned` in the
 *                   CHECK section only ranks run it that hold the sum of the gradient's range.
 *   TREE_SUM        the deterministic sum: the partial sums of all ranks complete the tree of
 *                   libfleet/plan/tree.h over a range of the gradient space. With `owned` each rank
 *                   receives the elements that it owns, else all elements. In the micro-batch
 *                   section it adds the micro-batches of this round to the sums of the ranks that
 *                   add them up (libfleet/plan/adders.h); then the one of the EXCHANGE section
 *                   brings the complete sums to the other ranks that own them.
 *   `wire`          is the type that travels; OP_WIRE_OWN: the type of the elements. If gradients
 *                   travel as fp16, each rank divides its partial sum by the number of leaves
 *                   first, and multiplies the result by it. Of an ALL_GATHER of divided
 *                   parameters it is the type of those that are read through casts to it alone.
 *   Gradients       (the loss is the sum of the ranks' losses) ALL_REDUCE has itself (sum, avg);
 *                   REDUCE_TO (sum) and BROADCAST have each other; REDUCE_SCATTER (sum) and
 *                   ALL_GATHER, too; ALL_TO_ALL has itself. With `alike`, all ranks of the group
 *                   compute the same from the result: the gradient of x is that of y with
 *                   ALL_REDUCE (sum), and with ALL_GATHER the rows at this rank's `place` of it
 *                   (OWN_ROWS). SEND and RECEIVE have none: the pass that cuts a program adds both
 *                   directions.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define OP_INPUTS_MAX  8
#define OP_OUTPUTS_MAX 6

struct program;
struct program_op;
struct autodiff;
struct fleet_error;

enum op_kind {
#define OP(kind, name, kernel, axes, class) OP_##kind,
#include "libfleet/program/operators.def"
    OP_KIND_COUNT
};

enum op_activation {
    OP_ACTIVATION_NONE,
    OP_ACTIVATION_GELU,
    OP_ACTIVATION_RELU
};
enum op_clip {
    OP_CLIP_NONE,
    OP_CLIP_VALUE,
    OP_CLIP_NORM,
    OP_CLIP_GLOBAL_NORM
};
enum op_wire {
    OP_WIRE_OWN,
    OP_WIRE_FP16,
    OP_WIRE_BF16, /* ALL_GATHER of divided parameters */
};
enum op_reduction {
    OP_REDUCTION_SUM,
    OP_REDUCTION_MAX,
    OP_REDUCTION_MIN,
    OP_REDUCTION_PROD,
    OP_REDUCTION_AVG
};

/* Axes of the grid, a set: bit TOPOLOGY_x of strategy/topology.h. */
enum op_group {
    OP_GROUP_MODEL = 1,
    OP_GROUP_SEQUENCE = 2,
    OP_GROUP_SHARDING = 4,
    OP_GROUP_PIPELINE = 8,
    OP_GROUP_DATA = 16,
    OP_GROUP_REPLICAS = OP_GROUP_SHARDING | OP_GROUP_DATA,
    OP_GROUP_CELL = OP_GROUP_MODEL | OP_GROUP_SEQUENCE, /* ranks that share a stage */
    OP_GROUP_WORLD = 31
};

/* The flat space (program.h) that a range lies in. */
enum op_space {
    OP_SPACE_NONE,
    OP_SPACE_GRADIENTS,
    OP_SPACE_PARAMETERS,
    OP_SPACE_STATE0,
    OP_SPACE_STATE1,
    OP_SPACE_BUFFERS
};
enum op_phase {
    OP_PHASE_ANY,
    OP_PHASE_DENSE, /* dgc: before gradients are compressed, and on one worker */
};
enum op_decay {
    OP_DECAY_NONE,
    OP_DECAY_L2,
    OP_DECAY_L1,
    OP_DECAY_DECOUPLED
};

/* Plain data; an operator reads only what its row in the table above names, the rest is zero. */
struct op_attributes {
    double epsilon, scale, rate, base, momentum;
    int heads, kv_heads, head_dim;
    bool causal;
    bool transposed;   /* LINEAR: weight is [M,K] (PyTorch); false: [K,M] (GPT-2's Conv1D) */
    bool transposed_a; /* MATMUL: a is [K,M]; `transposed` is about b, [N,K] */
    bool fp8;          /* LINEAR: products of factors in 8 bits (fp8.h) */
    bool inverse;      /* ROPE: rotate back (its own gradient) */
    bool exact;        /* GELU: by the error function; false: its tanh form */
    bool mean;         /* REDUCE: instead of the sum */
    int kept;          /* REDUCE: leading dimensions that stay */
    int order[4];      /* TRANSPOSE: dimension i of y is dimension order[i] of x */
    enum op_activation activation;
    int64_t ignore_index;
    bool divided;       /* EMBEDDING, CROSS_ENTROPY…: the table, the logits are a part */
    int64_t first_word; /* the number of its first word, where it is divided */
    uint64_t stream;    /* DROPOUT, CAST: which of the model, part of the random key */
    int kernel[2], stride[2], padding[2];
    bool round_up;        /* pools: a last window that reaches beyond the image counts too */
    bool exclude_padding; /* AVG_POOL2D: the mean is over what lies in the image */
    /* Communication. */
    unsigned int group;  /* a set of enum op_group; 0: the operator does not communicate */
    enum op_space space; /* of the range; NONE: the operator has operands */
    int64_t flat_first, flat_count;
    enum op_wire wire;
    enum op_reduction reduction;
    int root;   /* REDUCE_TO, BROADCAST: a place in the group */
    int shift;  /* SEND, RECEIVE: the place of the peer minus the own place */
    int ranks;  /* REDUCE_SCATTER, ALL_GATHER, ALL_TO_ALL of operands, OWN_ROWS, DROPOUT of a part:
                   ranks of the group; LAMB, LARS with squares: the ranks that computed these */
    int place;  /* OWN_ROWS, DROPOUT of a part, ALL_GATHER with alike: this rank's place */
    bool owned; /* TREE_SUM, ALL_GATHER, SEND, RECEIVE of a range; GRAD_NORM, CHECK_FINITE */
    bool alike; /* ALL_REDUCE, ALL_GATHER of operands */
    enum op_phase phase; /* when it runs, of dgc */
    bool sampled;        /* DGC: the threshold is that of a sample */

    bool training; /* any kind: left out in an evaluation */
    struct {
        double beta1, beta2, epsilon, momentum, coefficient; /* coefficient: lars */
        double decay; /* strength of decay_kind: l1, l2 are added to g, decoupled shrinks p first */
        double lambda;     /* LAMB, LARS: weight decay inside the trust ratio, 0: excluded */
        bool always_adapt; /* LAMB: the ratio also where lambda is 0 */
        double rescale;    /* multiplier on the clipped gradient; 1 = none */
        bool nesterov;
        enum op_decay decay_kind;
        enum op_clip clip;
        double clip_limit;
        int norm_index; /* place of this tensor in GRAD_NORM's output; the last is the global one */
    } optimizer;
};

struct op_cost {
    double flops;         /* of one execution */
    double bytes;         /* read + written, each operand once */
    size_t scratch_bytes; /* working memory beyond operands, the same for any number of threads */
};

struct op_definition {
    const char *name;
    int input_min, input_max, output_min, output_max;

    /* Shapes and types of the outputs from the inputs: fill or check `program->vars[outputs]`.
     * -EINVAL with operator, operand and both shapes if they do not fit. */
    int (*infer)(struct program *program, const struct program_op *op, struct fleet_error *err);

    /* Append the operators that compute the gradients of `op`'s inputs, given those of its outputs.
     * NULL: has no gradient. `gradients` maps variable -> its gradient variable (autodiff.h). */
    int (*gradient)(struct program *program, const struct program_op *op, struct autodiff *autodiff,
                    struct fleet_error *err);

    void (*cost)(const struct program *program, const struct program_op *op, struct op_cost *out);

    /* Output 0 may be written over input 0 (elementwise). */
    bool in_place;

    bool is_communication;

    bool is_optimizer;
    int states;               /* optimizers: tensors of state beside the parameter */
    double flops_per_element; /* optimizers: operations for one element of the parameter */
};

/* The definition of a kind; never NULL for a kind of the table. */
const struct op_definition *op_definition(enum op_kind kind);

/* infer / cost of one operator. -EINVAL: too many or too few operands, or what the operator's
 * own infer refuses, with the operator's name in front; -EOVERFLOW: an output above
 * PROGRAM_ELEMENTS_MAX. A kind without a cost function of its own counts one operation an
 * element. */
int op_infer(struct program *program, const struct program_op *op, struct fleet_error *err);
void op_cost(const struct program *program, const struct program_op *op, struct op_cost *out);

/* Of a communication operator: elements that a rank gives (RECEIVE: gets), and bytes of one of them
 * on the wire. 0 elements of DGC_GATHER: dgc_words() has its size. */
int64_t op_payload(const struct program *program, const struct program_op *op);
size_t op_wire_size(const struct program *program, const struct program_op *op);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_OP_H
#define LIBFLEET_PROGRAM_OP_H

/*
 * Operators: what each takes and gives, its gradient and its cost. One file an operator in ops/;
 * kernels are the back end's business (agent/runtime/backend/backend.h).
 *
 * Operands are by position; the head of operators.def lists them, and its rows the kinds. Here is
 * what the list does not say.
 *
 * `grads` is the gradient at flat offset 0 and stands for the whole gradient space.
 * DGC_SELECT, DGC_GATHER, DGC: deep gradient compression (dgc.h). The first two run only in the
 * sparse phase, operators with phase dense only in the dense phase. DGC_SELECT writes the largest
 * elements of the new v to the rank's message; it changes neither u nor v. DGC_GATHER sends the
 * messages of all ranks to all ranks. DGC updates u and v and applies the messages; in the dense
 * phase it is MOMENTUM with velocity u. Afterwards grad holds the gradient that was applied.
 * GRAD_NORM gives the sums of squares of every gradient tensor in name order, then the global norm
 * (the root of their sum), of S / leaves. JOIN_NORMS gives the same for whole tensors, from what
 * GRAD_NORM of each rank gives: ranks that share tensors have parts of them. Sums of squares of a
 * divided tensor are added in the order of the ranks; those of a whole tensor are rank 0's.
 * CHECK_FINITE gives 1 if any element is inf or nan, else 0.
 * Optimizers update param and states in place. SGD, MOMENTUM, ADAM, ADAMW, LAMB and LARS have 0, 1,
 * 2, 2, 2 and 1 states; `norms` (GRAD_NORM's output) follows the last state.
 * g = clip(S / leaves) · rescale, then decay as decay_kind says.
 * ROPE turns the first `heads` groups of head_dim of the last dimension, the rest is copied; so it
 * turns q and k of a packed qkv with heads = H + G. The two halves of a head are a pair (Llama).
 * BATCH_NORM's stat_mean, stat_var[C] are the micro-batch's mean and unbiased variance, roles
 * SCALAR: the host folds them into the buffers mean, var (inputs 3, 4) in micro-batch order,
 * r = (1 - momentum) · r + momentum · stat. In an evaluation (forward operators only) it normalizes
 * with mean and var instead, and DROPOUT copies.
 * With `total` BATCH_NORM takes the statistics from the sum of the `own` of all ranks: what
 * BATCH_NORM_SUMS gives, per channel Σ(x - mean) and Σ(x - mean)², then the number of elements of a
 * channel. So does BATCH_NORM_GRAD: Σd_y and Σd_y·x̂; d_scale and d_shift come from `own` alone.
 *
 * With `divided` a table or logits are the words first_word … first_word + V - 1 of a vocabulary
 * that a group of ranks divides. EMBEDDING gives zeros for other words; the sum over the group is
 * the embedding. CROSS_ENTROPY then takes the statistics from `sums`, what CROSS_ENTROPY_SUMS of
 * each rank gives: for each row the greatest logit, Σ exp(logit - it), and the target's logit, 0 if
 * the target is another rank's. The rows of rank r follow those of rank r - 1.
 *
 * Communication: an operator with a group runs together with the same operator of the other ranks
 * of that group. It may stand in any section. `group` names the axes of the grid along which its
 * ranks differ; a rank's place in the group is that of topology_group(), axes in the grid's order.
 *
 *     operands (x, y)      what a rank gives and gets, as the row of the table says
 *     a range (space,      elements flat_first … + flat_count of a flat space, in place; no
 *     flat_first, _count)  operands. Not for ALL_TO_ALL.
 *
 * ALL_REDUCE gives every rank the reduction over all, REDUCE_TO the rank at place `root`; y is zero
 * at the others, a range stays as it is there. REDUCE_SCATTER gives each rank its part, ALL_GATHER
 * puts the parts together; the parts of a range are what each rank owns of it. BROADCAST: the x,
 * the range, of the rank at `root`. SEND and RECEIVE: with the rank whose place is greater by
 * `shift`. `ranks` is the size of the group where shapes depend on it.
 * `wire` is the type that travels. OP_WIRE_OWN: that of the elements.
 * Over the gradient space a rank gives the sum of its own partial sums, divided by the number of
 * leaves where the wire is fp16; the result is multiplied back.
 * TREE_SUM is the deterministic sum: the partial sums of all ranks complete the tree of
 * libfleet/plan/tree.h over a range of the gradient space; with `owned` each rank gets the elements
 * that it owns, else all ranks get all.
 * ALL_GATHER with `owned` in the UPDATE section stands behind the updates, which a rank makes by
 * itself: the trainer runs it (agent/runtime/share.h).
 * Gradients, with the loss understood as the sum over ranks: of ALL_REDUCE itself (sum, avg), of
 * REDUCE_TO (sum) BROADCAST and back, of REDUCE_SCATTER (sum) ALL_GATHER and back, of ALL_TO_ALL
 * itself. With `alike` all ranks of the group run alike on the result of ALL_REDUCE (sum), and on
 * its gradient, so each is given the gradient of y. SEND and RECEIVE have none: the pass that cuts
 * a program adds both directions.
 *
 * EMBEDDING_GRAD overwrites d_table and d_position; where a weight is used twice (tied embeddings)
 * autodiff sums the contributions with ADD: for a parameter `add (p@GRAD, c) -> p@GRAD`, one
 * variable read and written.
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
    OP_WIRE_FP16
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
    bool transposed_a; /* MATMUL: a is [K,M]; `transposed` speaks of b, [N,K] */
    bool inverse;      /* ROPE: rotate back (its own gradient) */
    bool exact;        /* GELU: by the error function; false: its tanh form */
    bool mean;         /* REDUCE: instead of the sum */
    int kept;          /* REDUCE: leading dimensions that stay */
    int order[4];      /* TRANSPOSE: dimension i of y is dimension order[i] of x */
    enum op_activation activation;
    int64_t ignore_index;
    bool divided;       /* EMBEDDING, CROSS_ENTROPY…: the table, the logits are a part */
    int64_t first_word; /* the number of its first word, where it is divided */
    uint64_t stream;    /* DROPOUT: which dropout of the model, part of the random key */
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
    int shift;  /* SEND, RECEIVE: the other's place less the own one */
    int ranks;  /* REDUCE_SCATTER, ALL_GATHER, ALL_TO_ALL of operands: ranks of the group */
    bool owned; /* TREE_SUM, ALL_GATHER of a range */
    bool alike; /* ALL_REDUCE of operands */
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

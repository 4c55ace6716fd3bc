/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_OP_H
#define LIBFLEET_PROGRAM_OP_H

/*
 * Operators: what each takes and gives, its gradient and its cost. One file an operator in ops/;
 * kernels are the back end's business (agent/runtime/backend/backend.h).
 *
 * Operands are by position; a row of the table below fixes them. `?` marks an optional operand
 * (PROGRAM_NONE). Letters: B micro-batch, T context, C width, H heads, V vocabulary, N rows (all
 * leading dimensions multiplied), K, M inner and outer features.
 *
 * kind                   inputs                          outputs                attributes
 * EMBEDDING              ids[B,T] table[V,C] position?[P,C]  out[B,T,C]   first_word
 * EMBEDDING_GRAD         ids d_out                       d_table d_position?    as above
 * LAYER_NORM             x[…,C] scale[C] shift[C]        y mean[N] rstd[N]      epsilon
 * LAYER_NORM_GRAD        d_y x scale mean rstd           d_x d_scale d_shift
 * RMS_NORM               x scale                         y rstd[N]              epsilon
 * RMS_NORM_GRAD          d_y x scale rstd                d_x d_scale
 * LINEAR                 x[…,K] weight bias?[M]          y[…,M] pre?[…,M]       transposed
 *                                                                               activation
 * LINEAR_GRAD            d_y x weight pre?               d_x? d_weight? d_bias? as above
 * MATMUL                 a[…,M,K] b[…,K,N]               y[…,M,N]               transposed_a,
 *                                                                               transposed (b)
 * ATTENTION              qkv[B,T,(H+2G)·D]               out[B,T,H·D] lse[B,H,T]
 *                                                                               heads kv_heads
 *                                                                               causal
 * ATTENTION_GRAD         d_out qkv out lse               d_qkv                  as above
 * CROSS_ENTROPY          logits[…,V] targets[…] sums?    loss[1] lse[N,2]       ignore_index
 *                                                                               first_word
 * CROSS_ENTROPY_GRAD     logits targets lse d_loss?      d_logits               as above
 * CROSS_ENTROPY_SUMS     logits targets                  sums[N,3]              as above
 * ADD                    a b: same shape, or b [C]       out                    activation
 * ADD_GRAD_B             d_out                           d_b[C]                 sum over rows
 * SCALE                  x                               y = scale · x          scale
 * GELU RELU SILU         x                               y                      exact (GELU: erf,
 *                                                                               not tanh)
 * GELU_GRAD SILU_GRAD    d_y x                           d_x                    as above
 * RELU_GRAD              d_y y                           d_x = d_y where y > 0, else 0
 * SWIGLU                 gate up                         y = silu(gate) · up
 * SWIGLU_GRAD            d_y gate up                     d_gate d_up
 * ROPE                   x[B,T,…]                        y                      heads head_dim base
 *                                                                               inverse
 * DROPOUT                x                               y                      rate stream
 * SOFTMAX                x                               y
 * SOFTMAX_GRAD           d_y y                           d_x
 * CAST                   x                               y of the output's type
 * RESHAPE                x                               y (same bytes, other shape)
 * TRANSPOSE              x                               y                      order
 * REDUCE                 x                               y: its first `kept`    kept mean
 *                        dimensions, [1] if that is 0; else a sum over the others
 * REDUCE_GRAD            d_y                             d_x                    as above
 * CONCAT                 x0[…,C0] x1[…,C1] …             y[…,C0+C1+…]           the last dimension
 * SPLIT                  x[…,C0+C1+…]                    y0[…,C0] y1[…,C1] …
 * CONV2D                 x[B,I,h,w] weight[O,I,kh,kw]    y[B,O,h',w']           stride padding
 * CONV2D_GRAD            d_y x weight                    d_x? d_weight
 * BATCH_NORM             x scale shift mean var          y batch_mean batch_rstd stat_mean stat_var
 *                        residual? total?                                       epsilon momentum
 *                                                                               activation
 * BATCH_NORM_GRAD        d_y x scale batch_mean batch_rstd   d_x d_scale d_shift
 *                        total? own?
 * BATCH_NORM_SUMS        x mean                          own[2C+1]
 * BATCH_NORM_GRAD_SUMS   d_y x batch_mean batch_rstd     own[2C+1]
 * MAX_POOL2D AVG_POOL2D  x                               y indices?             kernel stride
 *                                                                               padding round_up
 *                                                                               exclude_padding
 * …_GRAD                 d_y x indices?                  d_x
 * ADAPTIVE_AVG_POOL2D    x                               y: its size is given
 * ADAPTIVE_AVG_POOL2D_GRAD  d_y                          d_x
 * MEMCPY                 x                               y = x; one of them may lie in host memory
 * FILL                   -                               y = scale              scale
 * SUBTRACT               a b                             out = a - b
 * ALL_REDUCE REDUCE_TO   x                               y                      communication
 * BROADCAST
 * REDUCE_SCATTER         x[ranks·N,…]                    y[N,…]                 communication
 * ALL_GATHER             x[N,…]                          y[ranks·N,…]           communication
 * ALL_TO_ALL             x[ranks·N,…]                    y[ranks·N,…]           communication
 * SEND                   x                               -                      communication
 * RECEIVE                -                               y: its size is given   communication
 * TREE_SUM               -                               -                      communication
 * DGC_SELECT             param grad u v                  -                      optimizer sampled
 * DGC_GATHER             -                               -                      communication
 * GRAD_NORM              grads                           norms[trained + 1], fp32
 * JOIN_NORMS             all[ranks·(trained + 1)]        norms[trained + 1]
 * CHECK_FINITE           grads                           flag[1], fp32
 * SGD MOMENTUM ADAM      param grad state… norms?        param state…           hyper-parameters
 * ADAMW LAMB LARS
 * DGC                    param grad u v                  param u v              the same, sampled
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

/* X(KIND, name): OP_KIND is name_definition, which a file of ops/ exports. Print, plan and golden
 * tests use the name. */
#define OP_KINDS(X)                                       \
    X(EMBEDDING, embedding)                               \
    X(EMBEDDING_GRAD, embedding_grad)                     \
    X(LAYER_NORM, layer_norm)                             \
    X(LAYER_NORM_GRAD, layer_norm_grad)                   \
    X(RMS_NORM, rms_norm)                                 \
    X(RMS_NORM_GRAD, rms_norm_grad)                       \
    X(LINEAR, linear)                                     \
    X(LINEAR_GRAD, linear_grad)                           \
    X(MATMUL, matmul)                                     \
    X(ATTENTION, attention)                               \
    X(ATTENTION_GRAD, attention_grad)                     \
    X(CROSS_ENTROPY, cross_entropy)                       \
    X(CROSS_ENTROPY_GRAD, cross_entropy_grad)             \
    X(CROSS_ENTROPY_SUMS, cross_entropy_sums)             \
    X(ADD, add)                                           \
    X(ADD_GRAD_B, add_grad_b)                             \
    X(SCALE, scale)                                       \
    X(GELU, gelu)                                         \
    X(GELU_GRAD, gelu_grad)                               \
    X(RELU, relu)                                         \
    X(RELU_GRAD, relu_grad)                               \
    X(SILU, silu)                                         \
    X(SILU_GRAD, silu_grad)                               \
    X(SWIGLU, swiglu)                                     \
    X(SWIGLU_GRAD, swiglu_grad)                           \
    X(ROPE, rope)                                         \
    X(DROPOUT, dropout)                                   \
    X(SOFTMAX, softmax)                                   \
    X(SOFTMAX_GRAD, softmax_grad)                         \
    X(CAST, cast)                                         \
    X(RESHAPE, reshape)                                   \
    X(TRANSPOSE, transpose)                               \
    X(REDUCE, reduce)                                     \
    X(REDUCE_GRAD, reduce_grad)                           \
    X(CONCAT, concat)                                     \
    X(SPLIT, split)                                       \
    X(CONV2D, conv2d)                                     \
    X(CONV2D_GRAD, conv2d_grad)                           \
    X(BATCH_NORM, batch_norm)                             \
    X(BATCH_NORM_GRAD, batch_norm_grad)                   \
    X(BATCH_NORM_SUMS, batch_norm_sums)                   \
    X(BATCH_NORM_GRAD_SUMS, batch_norm_grad_sums)         \
    X(MAX_POOL2D, max_pool2d)                             \
    X(MAX_POOL2D_GRAD, max_pool2d_grad)                   \
    X(AVG_POOL2D, avg_pool2d)                             \
    X(AVG_POOL2D_GRAD, avg_pool2d_grad)                   \
    X(ADAPTIVE_AVG_POOL2D, adaptive_avg_pool2d)           \
    X(ADAPTIVE_AVG_POOL2D_GRAD, adaptive_avg_pool2d_grad) \
    X(MEMCPY, memcpy)                                     \
    X(FILL, fill)                                         \
    X(SUBTRACT, subtract)                                 \
    X(ALL_REDUCE, all_reduce)                             \
    X(REDUCE_TO, reduce_to)                               \
    X(REDUCE_SCATTER, reduce_scatter)                     \
    X(ALL_GATHER, all_gather)                             \
    X(BROADCAST, broadcast)                               \
    X(ALL_TO_ALL, all_to_all)                             \
    X(SEND, send)                                         \
    X(RECEIVE, receive)                                   \
    X(TREE_SUM, tree_sum)                                 \
    X(DGC_SELECT, dgc_select)                             \
    X(DGC_GATHER, dgc_gather)                             \
    X(GRAD_NORM, grad_norm)                               \
    X(JOIN_NORMS, join_norms)                             \
    X(CHECK_FINITE, check_finite)                         \
    X(SGD, sgd)                                           \
    X(MOMENTUM, momentum)                                 \
    X(ADAM, adam)                                         \
    X(ADAMW, adamw)                                       \
    X(LAMB, lamb)                                         \
    X(LARS, lars)                                         \
    X(DGC, dgc)

enum op_kind {
#define OP_KIND_ENUM(kind, name) OP_##kind,
    OP_KINDS(OP_KIND_ENUM)
#undef OP_KIND_ENUM
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

    bool is_communication, is_optimizer;
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

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_PROGRAM_H
#define LIBFLEET_PROGRAM_PROGRAM_H

/*
 * What a rank runs: variables and operators in order, as a value.
 *
 * A model builds the forward part for ONE micro-batch, autodiff appends its backward part, passes
 * rewrite the whole (one pass a strategy knob), infer and verify check it, memory_plan lays it into
 * memory, the executor walks it. Nothing here allocates a tensor or computes a number.
 *
 * Invariants, checked by verify_program() after every pass:
 *  (1) Operators are in execution order; each variable is written before it is read, and inputs,
 *      parameters, states and buffers are written before the first operator.
 *  (2) Sections follow each other in the order of enum program_section.
 *  (3) Every parameter with `trained` has exactly one gradient variable, written in the micro-batch
 *      section, of the parameter's shape.
 *  (4) Names are unique. Parameters carry the names under which they are exported.
 *  (5) Shapes and types of all variables are those that op_infer() gives.
 *  (6) The gradient of parameter p is called p@GRAD, its state number s p@STATEs.
 *
 * Owner: the caller holds `struct program`; program_release() frees everything below it.
 * Out of memory aborts (a program is small). Not thread safe; read-only sharing is fine.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libfleet/base/map.h"
#include "libfleet/program/op.h"

struct fleet_error;

#define PROGRAM_DIMS_MAX 4
#define PROGRAM_NONE     (-1) /* no variable: an optional operand that is absent */
#define PROGRAM_UNSHAPED (-1) /* as ndim: op_infer() of the writing operator gives the shape */
#define PROGRAM_VARS_MAX 1000000
#define PROGRAM_OPS_MAX  1000000
#define PROGRAM_ELEMENTS_MAX \
    ((int64_t)1 << 40)        /* of one variable, so that no sum of sizes overflows */
#define PROGRAM_NAME_MAX  200 /* bytes of a name */
#define PROGRAM_ALIGNMENT 64  /* bytes; every tensor starts at a multiple */

/* Elements between starts of tensors in the flat spaces are multiples of this (64 bytes of
 * fp32). */
#define PROGRAM_FLAT_ALIGNMENT 16

enum program_type {
    PROGRAM_FP32,
    PROGRAM_BF16,
    PROGRAM_FP16,
    PROGRAM_INT32,
    PROGRAM_UINT8,
};

/*
 * What a variable is for; decides in which segment of memory it lives.
 *
 * The flat spaces: parameters, gradients and each optimizer state are one array of fp32 each, in
 * which a tensor has the SAME element offset (`flat_offset`) everywhere: parameters in the order in
 * which the model defines them, starts aligned, gaps zero. So an exchange, a checkpoint or a copy
 * to a newcomer is a range of elements. Running buffers (ROLE_BUFFER) have a flat space of their
 * own.
 */
enum program_role {
    PROGRAM_ROLE_INPUT,     /* filled by the data loader for each micro-batch */
    PROGRAM_ROLE_PARAMETER, /* flat, fp32 (master) */
    PROGRAM_ROLE_GRADIENT,  /* flat, fp32: the gradient of variable `of` */
    PROGRAM_ROLE_STATE,     /* flat, fp32: optimizer state number `slot` of parameter `of` */
    PROGRAM_ROLE_BUFFER,    /* persistent, not trained: running statistics; flat space of buffers */
    PROGRAM_ROLE_ACTIVATION, /* lives in the arena between its first and last use */
    PROGRAM_ROLE_SCALAR,     /* small results that the host reads: loss, norms, flags */
    PROGRAM_ROLE_HOST,       /* in the memory of the host: offloaded checkpoints */
};

/* How a parameter or buffer starts. Normal values are keyed by (seed, name, element). */
enum program_initial {
    PROGRAM_INITIAL_ZERO,
    PROGRAM_INITIAL_ONE,
    PROGRAM_INITIAL_NORMAL,
    PROGRAM_INITIAL_UNIFORM /* in ±deviation */
};

/*
 * The part of a parameter that a rank has when tensor parallelism divides the parameter: some rows
 * or columns of the whole tensor, or those of the q, k and v that are packed in it. The variable's
 * shape is that of the part. slice.h finds the elements in the whole tensor.
 */
#define PROGRAM_SLICE_PARTS_MAX 3

struct program_slice {
    int parts;     /* 0: the variable is the whole tensor */
    int dimension; /* that is divided */
    int64_t whole; /* the whole tensor's size there */
    int64_t first[PROGRAM_SLICE_PARTS_MAX], count[PROGRAM_SLICE_PARTS_MAX]; /* ascending */
};

/* As `stage` of a cell: the program has all layers, and each parameter says which stage has it. */
#define PROGRAM_EVERY_STAGE (-1)

/* The ranks that share the tensors or sequences of a model, the stages of a pipeline, and which one
 * this is. */
struct program_cell {
    int model_ranks; /* 0 and 1: one rank has all of each tensor */
    int model_rank;
    bool divides_rows;  /* between divided layers each of these ranks has some of the tokens */
    bool by_operator;   /* operators are divided as training_config.operators says; not beside
                           divided rows or sequences */
    int sequence_ranks; /* 0 and 1: one rank has all tokens of a micro-batch */
    int sequence_rank;
    int stages;          /* 0 and 1: one rank has all layers */
    int stage;           /* or PROGRAM_EVERY_STAGE */
    int chunks;          /* of layers, on each stage; 0 counts as 1 */
    bool splits_weights; /* a backward pass without the gradients of weights, then these alone */
};

struct program_var {
    char *name;
    enum program_type type;
    enum program_role role;
    int ndim;                        /* 0 … PROGRAM_DIMS_MAX; 0 = one element */
    int64_t shape[PROGRAM_DIMS_MAX]; /* row-major */
    int of;                       /* GRADIENT, STATE: index of the parameter; else PROGRAM_NONE */
    int slot;                     /* STATE: 0, 1, … */
    bool trained;                 /* PARAMETER: gets a gradient */
    enum program_initial initial; /* PARAMETER, BUFFER */
    float deviation;              /* PROGRAM_INITIAL_NORMAL, _UNIFORM */
    int64_t flat_offset;          /* elements, in its flat space; -1 before program_layout() */
    int layer;                    /* number of the block it belongs to, -1 outside any */
    struct program_slice slice;   /* PARAMETER */
    /* PARAMETER of a stage of a pipeline (passes/pipeline.h). */
    int number;   /* among the trained parameters of the whole model, by name */
    bool is_copy; /* an earlier stage has it, too, and sums its gradient */
    int stage;    /* PARAMETER of a program of every stage: the first stage that has it */
};

/*
 * When an operator runs within a step:
 *   MICRO_BATCH  forward and backward, once a micro-batch
 *   EXCHANGE     gradients over ranks, once a step, bucket by bucket
 *   CHECK        norms, inf/nan flag of the complete gradient, before the vote
 *   UPDATE       optimizer; only after the vote, and only with count = world
 *   AVERAGE      localsgd: parameters over ranks, after updates that the interval names
 */
enum program_section {
    PROGRAM_SECTION_MICRO_BATCH,
    PROGRAM_SECTION_EXCHANGE,
    PROGRAM_SECTION_CHECK,
    PROGRAM_SECTION_UPDATE,
    PROGRAM_SECTION_AVERAGE,
    PROGRAM_SECTION_COUNT,
};

struct program_op {
    enum op_kind kind;
    enum program_section section;
    bool backward;             /* MICRO_BATCH: belongs to the backward part */
    bool weights;              /* backward: gradients of weights that run as a part of their own */
    int chunk;                 /* MICRO_BATCH: of a stage's layers */
    int inputs[OP_INPUTS_MAX]; /* variable indices, PROGRAM_NONE where absent */
    int input_count;
    int outputs[OP_OUTPUTS_MAX];
    int output_count;
    struct op_attributes attributes;
    int layer;  /* as in program_var; recompute segments and timings are by layer */
    int source; /* backward: index of the forward operator it differentiates, as autodiff found it;
                   of use to the passes right behind autodiff only, not printed */
};

struct program {
    char *name; /* of the model: "gpt" */
    struct program_var *vars;
    int var_count, var_capacity;
    struct program_op *ops;
    int op_count, op_capacity;
    struct fleet_map names; /* name -> index + 1; see program_find_var() */
    int loss;               /* variable [1] fp32: mean loss of the micro-batch */
    int loss_scaling;       /* amp: scalar [1] fp32 that the host fills with the loss scale before
                                  the step, the gradient of the loss starts from it; else NONE */
    int micro_batch_size;   /* samples of a micro-batch */
    int64_t tokens_per_sample; /* for tokens/s; 1 for images */
    int merge_steps;           /* gradient_merge k_steps, else 1 */
    bool merge_average;        /* gradient_merge avg */
    int64_t flat_count;        /* elements of the flat spaces, gaps included; 0 before layout */
    int64_t buffer_count;      /* elements of the flat space of buffers */
    int state_count;           /* optimizer states a parameter has (adamw 2, momentum 1, sgd 0) */
    int whole_trained;    /* a stage of a pipeline: trained parameters of the whole model; else 0 */
    bool offloads_states; /* optimizer states lie in memory of the host */
};

/* An empty program of that name, which is copied; and back to nothing (fine on a zeroed struct). */
void program_init(struct program *program, const char *name);
void program_release(struct program *program);

/* A deep copy into *out, which must be released. */
void program_copy(const struct program *program, struct program *out);

/* Append a variable; returns its index. `name` is copied and must be new (asserted). */
int program_add_var(struct program *program, const char *name, enum program_type type,
                    enum program_role role, int ndim, const int64_t *shape);

/* Append one of the type, shape and layer of `var`, with its name and a suffix. */
int program_add_like(struct program *program, int var, const char *suffix, enum program_role role);

/* Append an operator to the end / insert it before operator `at`; returns a borrowed pointer that
 * is valid until the next insertion. Sections stay in order (asserted). */
struct program_op *program_add_op(struct program *program, const struct program_op *op);
struct program_op *program_insert_op(struct program *program, int at, const struct program_op *op);

/* Operators to be inserted all at once: each insertion alone moves all operators behind it. */
struct program_insertions {
    struct program_insertion {
        int at; /* the operator as it is numbered before */
        struct program_op op;
    } * items;
    int count;
};

/* Append one to the list. Places ascend; of equal ones the first comes first (asserted). */
void program_insertions_add(struct program_insertions *list, int at, const struct program_op *op);

/* Insert them, and empty the list. */
void program_insert_ops(struct program *program, struct program_insertions *list);

/* Index of the variable called `name`, or PROGRAM_NONE. */
int program_find_var(const struct program *program, const char *name);

/* Append the gradient / state variable of parameter `parameter`, named as (6) says. */
int program_add_gradient(struct program *program, int parameter);
int program_add_state(struct program *program, int parameter, int slot);

/* Index of the gradient / state variable of parameter `parameter`, or PROGRAM_NONE. */
int program_gradient_of(const struct program *program, int parameter);
int program_state_of(const struct program *program, int parameter, int slot);

/*
 * Indices of the parameters (of the trained ones only) in ascending byte order of their names: the
 * order of GRAD_NORM and of every digest, which does not depend on the order in which a model
 * defines them. The flat space has them in the order of their indices. Heap list into *out; returns
 * its length.
 */
int program_parameters(const struct program *program, bool trained_only, int **out);

/* Product of the dimensions, cut at INT64_MAX; 0 while unshaped. */
int64_t program_var_elements(const struct program_var *var);

/* Bytes of one element; the names in printed programs ("fp32", "parameter", "update"). */
size_t program_type_size(enum program_type type);
const char *program_type_name(enum program_type type);
const char *program_role_name(enum program_role role);
const char *program_section_name(enum program_section section);

/* Elements times the size of their type. */
size_t program_var_bytes(const struct program_var *var);

/* The values of int32 variable `var` are in [0, limit): rows of the tables in which operators look
 * them up (embeddings, targets). INT32_MAX: in none. */
int64_t program_value_limit(const struct program *program, int var);

/* Give every parameter, gradient, state and buffer its flat_offset; sets flat_count, buffer_count.
 * Call once all of them exist; passes that add some call it again. */
void program_layout(struct program *program);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDA_KERNELS_KERNELS_UPDATE_H
#define CUDA_KERNELS_KERNELS_UPDATE_H

/*
 * The kernels for a complete gradient: its sum over micro-batches and ranks, its norms, and the
 * optimizers. The rules are those of kernels.h.
 */

#include "cuda/kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- grad_norm.cu, check_finite.cu: the whole gradient in one launch ----------------------- */

/* elements of a tensor that one block of sums or of updates takes */
#define FLEET_CUDA_BLOCK GPU_SCRATCH_BLOCK

/* A tensor of the gradient, in device memory, in the order of GRAD_NORM (byte order of the names).
 * Its blocks are first_block … of all tensors' blocks: ⌈count / FLEET_CUDA_BLOCK⌉ each. */
struct fleet_cuda_gradient {
    const float *data;
    int64_t count, first_block;
};

/* norms[i] = Σ (data·gradient_scale)², norms[count] = √Σ norms; or squares[i] = Σ (…)² alone, not
 * rounded to fp32. A tensor of no elements has 0. */
struct fleet_cuda_grad_norm {
    const struct fleet_cuda_gradient *tensors; /* device */
    int tensor_count;
    int64_t block_count;                      /* of all tensors */
    const struct fleet_cuda_scalars *scalars; /* gradient_scale */
    float *norms;                             /* [tensor_count + 1]; NULL: squares */
    double *squares;                          /* [tensor_count]; NULL: norms */
    double *scratch;                          /* [block_count + tensor_count] */
};
cudaError_t fleet_cuda_grad_norm(cudaStream_t stream, const struct fleet_cuda_grad_norm *n);

/* *flag = 1 if an element of x is inf or nan, else 0. With `unscale`, x is multiplied by it in the
 * same pass, and the products are checked. */
struct fleet_cuda_check_finite {
    float *x;
    int64_t count;
    const float *unscale; /* [1], device; NULL: x is only read */
    float *flag;          /* [1] */
};
cudaError_t fleet_cuda_check_finite(cudaStream_t stream, const struct fleet_cuda_check_finite *c);

/* ---- join_norms.cu: norms of the ranks that have parts of a model ---------------------------- */

/* whole[places[i]] = own[i] for i below `count`, and zeros elsewhere. */
struct fleet_cuda_spread_norms {
    const float *own; /* [count] */
    float *whole;     /* [whole_count] */
    int64_t whole_count;
    const int32_t *places; /* [count], the host's, different ones; -1: goes nowhere */
    int count;
};
cudaError_t fleet_cuda_spread_norms(cudaStream_t stream, const struct fleet_cuda_spread_norms *s);

/* norms[i] = squares[i], or Σ of all[r, i] over the ranks, of rank 0 alone where a tensor is not
 * divided; norms[count] = √Σ norms, as they are rounded. */
struct fleet_cuda_join_norms {
    const float *all;    /* [ranks, count + 1] */
    const bool *divided; /* [count], the host's */
    int ranks;
    const double *squares; /* [count]; NULL: `all` */
    float *norms;          /* [count + 1] */
    int count;
};
cudaError_t fleet_cuda_join_norms(cudaStream_t stream, const struct fleet_cuda_join_norms *j);

/* y[i] = x[i], y[count] = √Σ x; y may be x. */
cudaError_t fleet_cuda_total_norm(cudaStream_t stream, const float *x, float *y, int64_t count);

/* ---- optimizer.cu: one launch for all tensors ------------------------------------------------ */

/* A tensor to update, in device memory. `blocks` as in struct fleet_cuda_gradient, but counted from
 * the first tensor of the launch. */
struct fleet_cuda_parameter {
    float *param, *state[2]; /* states of the kind; NULL beyond */
    const float *gradient;
    void *narrow; /* the parameter again in narrow_type, written in the same pass; NULL: none */
    int64_t count, first_block;
    const float *clip_factor; /* device, instead of `clip`; NULL: as `clip` says */
    double beta1, beta2, epsilon, momentum, coefficient, decay, lambda, rescale, clip_limit;
    enum op_decay decay_kind;
    enum op_clip clip;
    int norm_index;    /* in `norms`, and of the pair in `squares` */
    int squares_ranks; /* LAMB, LARS: the ranks whose `squares` are added; 0: its own are enough */
    bool nesterov, always_adapt;
    enum program_type narrow_type;
};

struct fleet_cuda_optimizer {
    enum op_kind kind; /* OP_SGD … OP_LARS, the same for all tensors */
    const struct fleet_cuda_parameter *parameters; /* device */
    int parameter_count;
    int64_t block_count;
    const float *norms;     /* GRAD_NORM's; NULL: nothing clips by a norm */
    int norm_count;         /* its elements: the last is the global norm */
    const float *squares;   /* of all ranks, of TRUST_SQUARES; NULL: no tensor is divided */
    int64_t squares_stride; /* numbers from a rank's to the next rank's */
    float *own_squares;     /* fleet_cuda_trust_squares() alone */
    const struct fleet_cuda_scalars *scalars;
    double *scratch; /* gpu_scratch_optimizer() */
};

/* Writes nothing unless scalars->votes == scalars->world. */
cudaError_t fleet_cuda_optimizer(cudaStream_t stream, const struct fleet_cuda_optimizer *o);

/* own_squares[2·norm_index] and the one behind it = Σ of squares of the parameter, and of its step
 * (LAMB) or its gradient (LARS). Reads no vote, and changes neither parameter nor states. */
cudaError_t fleet_cuda_trust_squares(cudaStream_t stream, const struct fleet_cuda_optimizer *o);

/* ---- dgc.cu: deep gradient compression of one tensor (libfleet/program/dgc.h) ---------------- */

struct fleet_cuda_dgc {
    float *param, *gradient, *u, *v; /* [count] */
    int64_t count;                   /* 1 to INT32_MAX */
    float l1, l2, momentum;          /* l1·sign(param) and l2·param are added to the gradient */
    bool nesterov, clips;
    double clip_limit, rescale; /* clips: of the norm of the gradient, over √ranks */
    int ranks, rank;            /* that exchange, at least 1; our own place */
    int64_t kept;               /* elements that a rank sends */
    int64_t sampled; /* elements that give the threshold; 0: all, and the message is exact */
    int64_t wanted;  /* the threshold is this one of the largest among them, from 1 */
    uint32_t *part;  /* the tensor's part of rank 0's message, of the device or pinned */
    int64_t stride;  /* words from a rank's part to the next rank's */
    const struct fleet_cuda_scalars *scalars;
    void *scratch; /* gpu_scratch_dgc() */
};

/* Write this rank's part of the messages. u and v do not change. */
cudaError_t fleet_cuda_dgc_select(cudaStream_t stream, const struct fleet_cuda_dgc *d);

/* Add all parts in the order of the ranks and apply the sum; `gradient` gets it, divided by
 * gradient_scale. Indices are in range and ascending: the host has checked them
 * (dgc_check_messages()). Writes nothing unless votes == world. */
cudaError_t fleet_cuda_dgc(cudaStream_t stream, const struct fleet_cuda_dgc *d);

/* Write the factor that clips this rank's gradient to the first float of the scratch. Reads no
 * message. */
cudaError_t fleet_cuda_dgc_numbers(cudaStream_t stream, const struct fleet_cuda_dgc *d);

/* ---- tree_sum.cu ----------------------------------------------------------------------------- */

/* accumulator[i] += addend[i]; gradient accumulation and the only arithmetic of the tree. */
cudaError_t fleet_cuda_accumulate(cudaStream_t stream, float *accumulator, const float *addend,
                                  int64_t count);

#define FLEET_CUDA_TREE_NODES 128
#define FLEET_CUDA_TREE_DEPTH 16

/* to = the sum of the nodes in the order of the walk: a number pushes that node, -1 adds the two
 * on top. `to` may be a node. Depth of the stack at most FLEET_CUDA_TREE_DEPTH:
 * cudaErrorInvalidValue beyond. */
struct fleet_cuda_tree_sum {
    const float *nodes[FLEET_CUDA_TREE_NODES];
    int16_t walk[2 * FLEET_CUDA_TREE_NODES];
    int walk_count;
    float *to;
    int64_t count;
};
cudaError_t fleet_cuda_tree_sum(cudaStream_t stream, const struct fleet_cuda_tree_sum *t);

/* to[i] = scale·from[i], rounded to the nearest number of the type. Any address that the types
 * allow; the arrays do not overlap. */
cudaError_t fleet_cuda_convert(cudaStream_t stream, void *to, enum program_type to_type,
                               const void *from, enum program_type from_type, float scale,
                               int64_t count);

/* ---- fold.cu --------------------------------------------------------------------------------- */

/* Types and reductions by their numbers in agent/runtime/comm/comm.h. */
struct fleet_cuda_fold {
    int type, reduction;
    const void *inputs, *own_input; /* input r at inputs + r · stride; input `own` at own_input */
    size_t stride;                  /* bytes */
    int own, input_count;
    int64_t count;
    void *to; /* may be own_input */
};

/* to[i] = the reduction of element i of all inputs, in their order: integers wrap, fp16 and bf16
 * are added in fp32 and rounded once, the average is the sum divided by input_count.
 * cudaErrorInvalidValue: no such reduction of the type. */
cudaError_t fleet_cuda_fold(cudaStream_t stream, const struct fleet_cuda_fold *f);

#ifdef __cplusplus
}
#endif

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDA_PRODUCTS_INTERNAL_H
#define CUDA_PRODUCTS_INTERNAL_H

/*
 * What products.c and products_choice.c share, for them alone.
 *
 * Our matrices are row-major and cuBLASLt's column-major, so it computes the transposed product:
 * C' = B'·A', with B first. A bias is then one value a row, as it wants it.
 */

#include <stdbool.h>
#include <stdint.h>

#include "cuda/cublaslt_library.h"
#include "cuda/products.h"

/* How a product is computed; a shape takes the first that cuBLASLt has an algorithm for. */
enum form {
    FORM_WHOLE,        /* bias and activation in the product */
    FORM_WHOLE_NARROW, /* the same, the bias rounded to the result's type first */
    FORM_BIAS,         /* our kernel applies the activation */
    FORM_BIAS_NARROW,
    FORM_PLAIN, /* our kernels add the bias and apply the activation */
    FORM_OWN,   /* all of it by our kernel */
};

/* What an algorithm depends on. Of one type, so that it can be compared as bytes. */
struct shape {
    int64_t m, n, k, batch, a_ld, b_ld, a_batch, b_batch;
    int64_t type, c_type, bias_type; /* enum program_type */
    int64_t a_fp8, b_fp8;            /* enum fp8_type */
    int64_t a_turned, b_turned, has_bias, has_pre, activation, accumulates, alignment;
};

struct product {
    struct shape shape;
    enum form form;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algorithm;
    size_t workspace_bytes;
    struct product *next;
};

struct products {
    const struct cublaslt_library *lib;
    cublasLtHandle_t handle;
    cublasLtMatmulPreference_t preference;
    void *workspace;
    enum cublaslt_compute compute_of_fp32;
    bool has_said_own;
    struct product *first;
};

static inline bool form_is_whole(enum form form)
{
    return form == FORM_WHOLE || form == FORM_WHOLE_NARROW;
}

static inline bool form_is_narrow(enum form form)
{
    return form == FORM_WHOLE_NARROW || form == FORM_BIAS_NARROW;
}

/* False: no product for cuBLASLt, or an empty one. */
bool shape_of(const struct fleet_cuda_gemm *g, struct shape *out);
void shape_describe(const struct shape *shape, char *text, size_t size);

/* The product of a shape, chosen before or now. A status other than success: a call failed. */
cublasStatus_t product_choose(struct products *products, const struct shape *shape,
                              struct product **out);

/* Choose again, from `form` on; FORM_OWN if there is no other. */
cublasStatus_t product_choose_from(struct products *products, struct product *product,
                                   enum form form);

/* Operands that the library keeps in the descriptor. Only those that the form has are read. */
struct product_pointers {
    const void *bias;
    void *pre;
    const float *a_scale, *b_scale; /* of factors in fp8 */
};
cublasStatus_t product_set_pointers(struct products *products, struct product *product,
                                    const struct product_pointers *pointers);

void product_drop(struct products *products, struct product *product); /* its descriptors */

/* What a library says of an algorithm or a form that it does not have; it says it every time. */
bool product_is_refusal(cublasStatus_t status);

#endif

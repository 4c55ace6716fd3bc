/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/products.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/products_internal.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/base/log.h"

int products_prepare(struct products *products, const struct fleet_cuda_gemm *g,
                     struct fleet_error *err)
{
    struct product *product;
    cublasStatus_t status;
    struct shape shape;
    char text[160];

    if (!shape_of(g, &shape))
        return 0;
    status = product_choose(products, &shape, &product);
    if (status == CUBLAS_STATUS_SUCCESS)
        return 0;
    shape_describe(&shape, text, sizeof(text));
    return fleet_error(err, -EIO, "cuBLASLt: choose an algorithm for %s: %s", text,
                       products->lib->cublasLtGetStatusName(status));
}

/* ---- running --------------------------------------------------------------------------------- */

static cudaError_t narrow_bias(cudaStream_t stream, const struct fleet_cuda_gemm *g, void *scratch)
{
    struct fleet_cuda_elementwise cast = {.in = {g->bias},
                                          .in_type = {g->bias_type},
                                          .out = {scratch},
                                          .out_type = {g->c_type},
                                          .count = g->n};

    return fleet_cuda_cast(stream, &cast);
}

/* The kernels behind a product that lies in `from`: what the form left out. */
static cudaError_t finish(cudaStream_t stream, const struct fleet_cuda_gemm *g, enum form form,
                          void *from)
{
    struct fleet_cuda_elementwise add = {.in = {from, g->bias},
                                         .in_type = {g->c_type, g->bias_type},
                                         .out = {from},
                                         .out_type = {g->c_type},
                                         .count = g->batch * g->m * g->n,
                                         .period = g->n};
    struct fleet_cuda_elementwise activate = {.in = {from},
                                              .in_type = {g->c_type},
                                              .out = {g->c},
                                              .out_type = {g->c_type},
                                              .count = add.count};
    cudaError_t status = cudaSuccess;

    if (form == FORM_PLAIN && g->bias)
        status = fleet_cuda_add(stream, &add);
    if (status == cudaSuccess && g->activation == OP_ACTIVATION_GELU)
        status = fleet_cuda_gelu(stream, &activate);
    if (status == cudaSuccess && g->activation == OP_ACTIVATION_RELU)
        status = fleet_cuda_relu(stream, &activate);
    return status;
}

static cublasStatus_t multiply(struct products *p, struct product *product, cudaStream_t stream,
                               const struct fleet_cuda_gemm *g, const void *bias, void *to)
{
    const struct product_pointers pointers = {
        .bias = bias, .pre = g->pre, .a_scale = g->a.scale, .b_scale = g->b.scale};
    const float one = 1, before = g->accumulates ? 1 : 0;
    cublasStatus_t status = product_set_pointers(p, product, &pointers);

    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    return p->lib->cublasLtMatmul(p->handle, product->desc, &one, g->b.data, product->a, g->a.data,
                                  product->b, &before, to, product->c, to, product->c,
                                  &product->algorithm, p->workspace, product->workspace_bytes,
                                  stream);
}

/* A failed call that is no refusal has lost the device, as far as we can know. */
static cudaError_t failure(struct products *p, cublasStatus_t status)
{
    cudaError_t last = cudaGetLastError();

    fleet_log_error("Failed to start a matrix product",
                    FLEET_STR("err", p->lib->cublasLtGetStatusName(status)));
    return last != cudaSuccess ? last : cudaErrorUnknown;
}

static cudaError_t run_form(struct products *p, struct product *product, cudaStream_t stream,
                            const struct fleet_cuda_gemm *g, void *scratch, cublasStatus_t *out)
{
    void *to = !form_is_whole(product->form) && g->pre ? g->pre : g->c;
    cudaError_t status = cudaSuccess;

    *out = CUBLAS_STATUS_SUCCESS;
    if (form_is_narrow(product->form))
        status = narrow_bias(stream, g, scratch);
    if (status != cudaSuccess)
        return status;
    *out = multiply(p, product, stream, g, form_is_narrow(product->form) ? scratch : g->bias, to);
    if (*out != CUBLAS_STATUS_SUCCESS)
        return cudaSuccess;
    return form_is_whole(product->form) ? cudaSuccess : finish(stream, g, product->form, to);
}

cudaError_t products_run(struct products *products, cudaStream_t stream,
                         const struct fleet_cuda_gemm *g, void *scratch)
{
    struct product *product;
    cublasStatus_t refused;
    struct shape shape;

    if (!products || !shape_of(g, &shape))
        return fleet_cuda_gemm(stream, g);
    refused = product_choose(products, &shape, &product);
    if (refused != CUBLAS_STATUS_SUCCESS)
        return failure(products, refused);
    while (product->form != FORM_OWN) {
        cudaError_t status = run_form(products, product, stream, g, scratch, &refused);

        if (status != cudaSuccess || refused == CUBLAS_STATUS_SUCCESS)
            return status;
        if (!product_is_refusal(refused))
            return failure(products, refused);
        product_drop(products, product); /* proposed, and refused when it came to it */
        refused = product_choose_from(products, product, product->form + 1);
        if (refused != CUBLAS_STATUS_SUCCESS)
            return failure(products, refused);
    }
    return fleet_cuda_gemm(stream, g);
}

void products_count(const struct products *products, int *out_chosen, int *out_own)
{
    *out_chosen = *out_own = 0;
    for (const struct product *product = products->first; product; product = product->next) {
        (*out_chosen)++;
        *out_own += product->form == FORM_OWN;
    }
}

/* ---- the whole ------------------------------------------------------------------------------- */

static int read_tf32(enum cublaslt_compute *out, struct fleet_error *err)
{
    const char *text = getenv(PRODUCTS_TF32_ENV);

    *out = text && strcmp(text, "1") == 0 ? CUBLASLT_COMPUTE_TF32 : CUBLASLT_COMPUTE_FP32;
    if (!text || !text[0] || strcmp(text, "0") == 0 || strcmp(text, "1") == 0)
        return 0;
    return fleet_error(err, -EINVAL, PRODUCTS_TF32_ENV ": is \"%s\", must be 0 or 1", text);
}

static cublasStatus_t start(struct products *p)
{
    const struct cublaslt_library *lib = p->lib;
    uint64_t workspace = PRODUCTS_WORKSPACE_BYTES;
    uint32_t reductions = CUBLASLT_REDUCTION_COMPUTE_TYPE;
    cublasStatus_t status = lib->cublasLtCreate(&p->handle);

    if (status == CUBLAS_STATUS_SUCCESS)
        status = lib->cublasLtMatmulPreferenceCreate(&p->preference);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = lib->cublasLtMatmulPreferenceSetAttribute(
            p->preference, CUBLASLT_PREFER_WORKSPACE_MAX, &workspace, sizeof(workspace));
    if (status == CUBLAS_STATUS_SUCCESS)
        status = lib->cublasLtMatmulPreferenceSetAttribute(
            p->preference, CUBLASLT_PREFER_REDUCTIONS, &reductions, sizeof(reductions));
    return status;
}

int products_new(const struct cublaslt_library *library, void *workspace, struct products **out,
                 struct fleet_error *err)
{
    struct products *p;
    cublasStatus_t status;
    enum cublaslt_compute compute;
    int rc = read_tf32(&compute, err);

    if (rc < 0)
        return rc;
    p = calloc(1, sizeof(*p));
    fleet_assert(p != NULL);
    p->lib = library;
    p->workspace = workspace;
    p->compute_of_fp32 = compute;
    status = start(p);
    if (status != CUBLAS_STATUS_SUCCESS) {
        products_free(p);
        return fleet_error(err, -EIO, "cuBLASLt: start: %s",
                           library->cublasLtGetStatusName(status));
    }
    *out = p;
    return 0;
}

void products_free(struct products *products)
{
    struct product *next;

    if (!products)
        return;
    for (struct product *product = products->first; product; product = next) {
        next = product->next;
        product_drop(products, product);
        free(product);
    }
    if (products->preference)
        (void)products->lib->cublasLtMatmulPreferenceDestroy(products->preference);
    if (products->handle)
        (void)products->lib->cublasLtDestroy(products->handle);
    free(products);
}

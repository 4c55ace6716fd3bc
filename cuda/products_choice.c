/* SPDX-License-Identifier: Apache-2.0 */

/* A shape is tried in the forms of `enum form`, in their order, until the library has an algorithm
 * that adds in a fixed order. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/products_internal.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/log.h"

#define CANDIDATES    16
#define ALIGNMENT_MAX 16 /* bytes; more is of no use to any algorithm */

/* ---- shapes ---------------------------------------------------------------------------------- */

static int32_t type_of(int64_t type, int64_t fp8)
{
    if (fp8 != FP8_NONE)
        return fp8 == FP8_E4M3 ? CUBLASLT_E4M3 : CUBLASLT_E5M2;
    return type == PROGRAM_FP32   ? CUBLASLT_FP32
           : type == PROGRAM_FP16 ? CUBLASLT_FP16
                                  : CUBLASLT_BF16;
}

static bool is_float(enum program_type type)
{
    return type == PROGRAM_FP32 || type == PROGRAM_FP16 || type == PROGRAM_BF16;
}

static bool is_factor(const struct fleet_cuda_matrix *m)
{
    return m->fp8 != FP8_NONE || is_float(m->type);
}

/* Is it a product that cuBLASLt may have at all? An empty one is none. */
static bool is_candidate(const struct fleet_cuda_gemm *g)
{
    return g->m > 0 && g->n > 0 && g->k > 0 && g->batch > 0 && g->batch <= INT32_MAX &&
           g->a.type == g->b.type && is_factor(&g->a) && is_float(g->c_type) &&
           (!g->bias || is_float(g->bias_type)) && (g->a.row == 1 || g->a.column == 1) &&
           (g->b.row == 1 || g->b.column == 1);
}

static int32_t alignment_of(const void *const *pointers, size_t count)
{
    uintptr_t bits = ALIGNMENT_MAX;

    for (size_t i = 0; i < count; i++)
        bits |= (uintptr_t)pointers[i];
    return (int32_t)(bits & ~(bits - 1));
}

static int64_t at_least(int64_t ld, int64_t rows)
{
    return ld > rows ? ld : rows;
}

bool shape_of(const struct fleet_cuda_gemm *g, struct shape *out)
{
    const void *const pointers[] = {g->a.data, g->b.data, g->c, g->bias, g->pre};

    if (!is_candidate(g))
        return false;
    memset(out, 0, sizeof(*out));
    out->m = g->m;
    out->n = g->n;
    out->k = g->k;
    out->batch = g->batch;
    out->a_turned = g->a.column != 1;
    out->b_turned = g->b.column != 1;
    out->a_ld = out->a_turned ? at_least(g->a.column, g->m) : at_least(g->a.row, g->k);
    out->b_ld = out->b_turned ? at_least(g->b.column, g->k) : at_least(g->b.row, g->n);
    out->a_batch = g->batch > 1 ? g->a.batch : 0;
    out->b_batch = g->batch > 1 ? g->b.batch : 0;
    out->type = g->a.type;
    out->a_fp8 = g->a.fp8;
    out->b_fp8 = g->b.fp8;
    out->c_type = g->c_type;
    out->bias_type = g->bias ? g->bias_type : g->c_type;
    out->has_bias = g->bias != NULL;
    out->has_pre = g->pre != NULL;
    out->activation = g->activation;
    out->accumulates = g->accumulates;
    out->alignment = alignment_of(pointers, sizeof(pointers) / sizeof(pointers[0]));
    return true;
}

/* ---- forms ----------------------------------------------------------------------------------- */

/* Does the form differ from those before it, and can an epilogue express it? Of a kept
 * operand of RELU cuBLASLt stores only the signs. */
static bool fits(const struct shape *s, enum form form)
{
    if (form_is_narrow(form) && (!s->has_bias || s->bias_type == s->c_type))
        return false;
    if (form_is_whole(form))
        return s->activation == OP_ACTIVATION_NONE ||
               (s->activation == OP_ACTIVATION_RELU && !s->has_pre) ||
               (s->activation == OP_ACTIVATION_GELU && (!s->has_pre || s->n % 8 == 0));
    if (form == FORM_PLAIN)
        return s->has_bias || s->activation != OP_ACTIVATION_NONE;
    return s->has_bias && s->activation != OP_ACTIVATION_NONE;
}

static uint32_t epilogue_of(const struct shape *s, enum form form)
{
    uint32_t epilogue = 0;

    if (s->has_bias && form != FORM_PLAIN)
        epilogue |= CUBLASLT_EPILOGUE_BIAS;
    if (form_is_whole(form) && s->activation == OP_ACTIVATION_RELU)
        epilogue |= CUBLASLT_EPILOGUE_RELU;
    if (form_is_whole(form) && s->activation == OP_ACTIVATION_GELU)
        epilogue |= CUBLASLT_EPILOGUE_GELU | (s->has_pre ? CUBLASLT_EPILOGUE_AUXILIARY : 0u);
    return epilogue ? epilogue : CUBLASLT_EPILOGUE_NONE;
}

/* ---- descriptors ----------------------------------------------------------------------------- */

#define SET(products, product, attribute, value)                                          \
    (products)->lib->cublasLtMatmulDescSetAttribute((product)->desc, attribute, &(value), \
                                                    sizeof(value))

static cublasStatus_t make_layout(struct products *p, cublasLtMatrixLayout_t *out, int32_t type,
                                  int64_t rows, int64_t columns, int64_t ld, int64_t batch,
                                  int64_t stride)
{
    const struct cublaslt_library *lib = p->lib;
    int32_t count = (int32_t)batch;
    cublasStatus_t status =
        lib->cublasLtMatrixLayoutCreate(out, type, (uint64_t)rows, (uint64_t)columns, ld);

    if (status != CUBLAS_STATUS_SUCCESS || batch == 1)
        return status;
    status = lib->cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_LAYOUT_BATCH_COUNT, &count,
                                                   sizeof(count));
    if (status == CUBLAS_STATUS_SUCCESS)
        status = lib->cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_LAYOUT_BATCH_STRIDE, &stride,
                                                       sizeof(stride));
    return status;
}

/* a and b are the library's: its first operand is our second one. */
static cublasStatus_t make_layouts(struct products *p, struct product *product)
{
    const struct shape *s = &product->shape;
    cublasStatus_t status =
        make_layout(p, &product->a, type_of(s->type, s->b_fp8), s->b_turned ? s->k : s->n,
                    s->b_turned ? s->n : s->k, s->b_ld, s->batch, s->b_batch);

    if (status == CUBLAS_STATUS_SUCCESS)
        status = make_layout(p, &product->b, type_of(s->type, s->a_fp8), s->a_turned ? s->m : s->k,
                             s->a_turned ? s->k : s->m, s->a_ld, s->batch, s->a_batch);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = make_layout(p, &product->c, type_of(s->c_type, FP8_NONE), s->n, s->m, s->n,
                             s->batch, s->m * s->n);
    return status;
}

cublasStatus_t product_set_pointers(struct products *p, struct product *product,
                                    const struct product_pointers *pointers)
{
    uint32_t epilogue = epilogue_of(&product->shape, product->form);
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;

    if (epilogue & CUBLASLT_EPILOGUE_BIAS)
        status = SET(p, product, CUBLASLT_PRODUCT_BIAS, pointers->bias);
    if (status == CUBLAS_STATUS_SUCCESS && epilogue & CUBLASLT_EPILOGUE_AUXILIARY)
        status = SET(p, product, CUBLASLT_PRODUCT_AUXILIARY, pointers->pre);
    if (product->shape.a_fp8 == FP8_NONE)
        return status;
    if (status == CUBLAS_STATUS_SUCCESS)
        status = SET(p, product, CUBLASLT_PRODUCT_SCALE_A, pointers->b_scale);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = SET(p, product, CUBLASLT_PRODUCT_SCALE_B, pointers->a_scale);
    return status;
}

static cublasStatus_t set_epilogue(struct products *p, struct product *product)
{
    const struct shape *s = &product->shape;
    uint32_t epilogue = epilogue_of(s, product->form);
    int32_t bias_type = type_of(form_is_narrow(product->form) ? s->c_type : s->bias_type, FP8_NONE);
    cublasStatus_t status = SET(p, product, CUBLASLT_PRODUCT_EPILOGUE, epilogue);

    if (status == CUBLAS_STATUS_SUCCESS && epilogue & CUBLASLT_EPILOGUE_BIAS)
        status = SET(p, product, CUBLASLT_PRODUCT_BIAS_TYPE, bias_type);
    if (status == CUBLAS_STATUS_SUCCESS && epilogue & CUBLASLT_EPILOGUE_AUXILIARY)
        status = SET(p, product, CUBLASLT_PRODUCT_AUXILIARY_LD, s->n);
    return status;
}

static cublasStatus_t make_desc(struct products *p, struct product *product)
{
    const struct shape *s = &product->shape;
    int32_t turn_a = s->b_turned ? CUBLASLT_TURNED : CUBLASLT_AS_IT_IS;
    int32_t turn_b = s->a_turned ? CUBLASLT_TURNED : CUBLASLT_AS_IT_IS;
    void *at = (void *)(uintptr_t)(4096 + s->alignment); /* the choice reads its alignment */
    const struct product_pointers somewhere = {at, at, at, at};
    cublasStatus_t status = p->lib->cublasLtMatmulDescCreate(
        &product->desc, s->type == PROGRAM_FP32 ? p->compute_of_fp32 : CUBLASLT_COMPUTE_FP32,
        CUBLASLT_FP32);

    if (status == CUBLAS_STATUS_SUCCESS)
        status = SET(p, product, CUBLASLT_PRODUCT_TURN_A, turn_a);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = SET(p, product, CUBLASLT_PRODUCT_TURN_B, turn_b);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = set_epilogue(p, product);
    return status == CUBLAS_STATUS_SUCCESS ? product_set_pointers(p, product, &somewhere) : status;
}

void product_drop(struct products *p, struct product *product)
{
    if (product->desc)
        (void)p->lib->cublasLtMatmulDescDestroy(product->desc);
    if (product->a)
        (void)p->lib->cublasLtMatrixLayoutDestroy(product->a);
    if (product->b)
        (void)p->lib->cublasLtMatrixLayoutDestroy(product->b);
    if (product->c)
        (void)p->lib->cublasLtMatrixLayoutDestroy(product->c);
    product->desc = NULL;
    product->a = product->b = product->c = NULL;
}

/* ---- the choice ------------------------------------------------------------------------------ */

bool product_is_refusal(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE ||
           status == CUBLAS_STATUS_ARCH_MISMATCH;
}

/* Does it add in a fixed order, in fp32? */
static cublasStatus_t check_order(struct products *p, const cublasLtMatmulAlgo_t *algorithm,
                                  bool *out_is_fixed)
{
    uint32_t reduction = CUBLASLT_REDUCTION_NONE;
    size_t written;
    cublasStatus_t status = p->lib->cublasLtMatmulAlgoConfigGetAttribute(
        algorithm, CUBLASLT_ALGORITHM_REDUCTION, &reduction, sizeof(reduction), &written);

    *out_is_fixed =
        status == CUBLAS_STATUS_SUCCESS &&
        (reduction == CUBLASLT_REDUCTION_NONE || reduction == CUBLASLT_REDUCTION_COMPUTE_TYPE);
    return status;
}

static cublasStatus_t find_algorithm(struct products *p, struct product *product)
{
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    uint32_t alignment = (uint32_t)product->shape.alignment;
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    bool is_fixed = false;
    int count = 0;

    for (int i = 0; i < 4 && status == CUBLAS_STATUS_SUCCESS; i++)
        status = p->lib->cublasLtMatmulPreferenceSetAttribute(
            p->preference, CUBLASLT_PREFER_ALIGNMENT_A + i, &alignment, sizeof(alignment));
    if (status == CUBLAS_STATUS_SUCCESS)
        status = p->lib->cublasLtMatmulAlgoGetHeuristic(p->handle, product->desc, product->a,
                                                        product->b, product->c, product->c,
                                                        p->preference, CANDIDATES, found, &count);
    for (int i = 0; i < count && status == CUBLAS_STATUS_SUCCESS; i++) {
        if (found[i].state != CUBLAS_STATUS_SUCCESS ||
            found[i].workspaceSize > PRODUCTS_WORKSPACE_BYTES)
            continue;
        status = check_order(p, &found[i].algo, &is_fixed);
        if (!is_fixed)
            continue;
        product->algorithm = found[i].algo;
        product->workspace_bytes = found[i].workspaceSize;
        return CUBLAS_STATUS_SUCCESS;
    }
    return status == CUBLAS_STATUS_SUCCESS ? CUBLAS_STATUS_NOT_SUPPORTED : status;
}

static cublasStatus_t try_form(struct products *p, struct product *product)
{
    cublasStatus_t status = make_desc(p, product);

    if (status == CUBLAS_STATUS_SUCCESS)
        status = make_layouts(p, product);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = find_algorithm(p, product);
    if (status != CUBLAS_STATUS_SUCCESS)
        product_drop(p, product);
    return status;
}

static const char *name_of(int64_t type, int64_t fp8)
{
    if (fp8 != FP8_NONE)
        return fp8 == FP8_E4M3 ? "e4m3" : "e5m2";
    return type == PROGRAM_FP32 ? "fp32" : type == PROGRAM_FP16 ? "fp16" : "bf16";
}

void shape_describe(const struct shape *s, char *text, size_t size)
{
    (void)snprintf(text, size,
                   "%" PRId64 " of [%" PRId64 ",%" PRId64 "]%s by [%" PRId64 ",%" PRId64
                   "]%s, %s to %s",
                   s->batch, s->m, s->k, s->a_turned ? " transposed" : "", s->k, s->n,
                   s->b_turned ? " transposed" : "",
                   s->a_fp8 != s->b_fp8 ? "e4m3 and e5m2" : name_of(s->type, s->a_fp8),
                   name_of(s->c_type, FP8_NONE));
}

static void use_own(struct products *p, struct product *product)
{
    char text[160];

    product_drop(p, product);
    product->form = FORM_OWN;
    if (p->has_said_own)
        return;
    p->has_said_own = true;
    shape_describe(&product->shape, text, sizeof(text));
    fleet_log_warning("Computed matrix products by own kernels, cuBLASLt refused them",
                      FLEET_STR("first", text));
}

cublasStatus_t product_choose_from(struct products *p, struct product *product, enum form form)
{
    for (; form < FORM_OWN; form++) {
        cublasStatus_t status;

        if (!fits(&product->shape, form))
            continue;
        product->form = form;
        status = try_form(p, product);
        if (!product_is_refusal(status))
            return status;
    }
    use_own(p, product);
    return CUBLAS_STATUS_SUCCESS;
}

static struct product *known(const struct products *p, const struct shape *shape)
{
    struct product *product = p->first;

    while (product && memcmp(&product->shape, shape, sizeof(*shape)) != 0)
        product = product->next;
    return product;
}

cublasStatus_t product_choose(struct products *p, const struct shape *shape, struct product **out)
{
    struct product *product = known(p, shape);
    cublasStatus_t status;

    *out = product;
    if (product)
        return CUBLAS_STATUS_SUCCESS;
    product = calloc(1, sizeof(*product));
    fleet_assert(product != NULL);
    product->shape = *shape;
    status = product_choose_from(p, product, FORM_WHOLE);
    if (status != CUBLAS_STATUS_SUCCESS) {
        free(product);
        return status;
    }
    product->next = p->first;
    p->first = product;
    *out = product;
    return CUBLAS_STATUS_SUCCESS;
}

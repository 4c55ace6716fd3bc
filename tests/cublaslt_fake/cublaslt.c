/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The library's functions. The first algorithms that it proposes are wrong for us: they add in any
 * order, or rounded parts; the mask of the preference is a hint that it does not follow.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/cublaslt_fake/fake_cublaslt.h"
#include "tests/cuda_fake/external.h"

#define VERSION          130402
#define WORKSPACE_NEEDED 64

struct cublasLtContext {
    int unused;
};

struct cublasLtMatmulPreference {
    uint64_t workspace;
    uint32_t reductions, alignment[4];
};

/* cublasLtMatmulAlgo_t: the problem that it was proposed for. */
struct algorithm {
    uint64_t problem, way, alignment;
};

static unsigned refused;
static long calls, fail_at, products;
static int fail_status, held;
static bool is_set;

static void die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

static void die(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    (void)fprintf(stderr, "fake cuBLASLt: ");
    (void)vfprintf(stderr, format, arguments);
    (void)fprintf(stderr, "\n");
    va_end(arguments);
    abort();
}

/* ---- settings -------------------------------------------------------------------------------- */

static void read_environment(void)
{
    static const char *const words[] = {"wide_bias", "bias", "activation", "all", "late"};
    const char *text = getenv("FAKE_CUBLASLT_FAIL"), *refuses = getenv("FAKE_CUBLASLT_REFUSES");
    char *end;

    is_set = true;
    if (text)
        fail_at = strtol(text, &end, 10);
    if (text && *end == ':')
        fail_status = (int)strtol(end + 1, NULL, 10);
    for (size_t i = 0; refuses && i < sizeof(words) / sizeof(words[0]); i++)
        if (strstr(refuses, words[i]))
            refused |= 1u << i;
}

void fake_cublaslt_reset(unsigned refusals, long fail_call, int status)
{
    refused = refusals;
    fail_at = fail_call;
    fail_status = status;
    calls = 0;
    products = 0;
    is_set = true;
}

long fake_cublaslt_calls(void)
{
    return calls;
}

int fake_cublaslt_held(void)
{
    return held;
}

long fake_cublaslt_products(void)
{
    return products;
}

static cublasStatus_t call(void)
{
    if (!is_set)
        read_environment();
    return ++calls == fail_at ? (cublasStatus_t)fail_status : CUBLAS_STATUS_SUCCESS;
}

/* Zeroed, or the status of the call. */
static cublasStatus_t make(void *out, size_t bytes)
{
    cublasStatus_t status = call();
    void *made = status == CUBLAS_STATUS_SUCCESS ? calloc(1, bytes) : NULL;

    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    if (!made)
        die("no memory");
    held++;
    memcpy(out, &made, sizeof(made));
    return status;
}

/* It is gone even where the call reports an error. */
static cublasStatus_t drop(void *made)
{
    if (!made)
        die("destroy nothing");
    free(made);
    held--;
    return call();
}

static cublasStatus_t take(void *to, size_t wanted, const void *value, size_t bytes)
{
    cublasStatus_t status = call();

    if (bytes != wanted)
        die("an attribute of %zu bytes, it has %zu", bytes, wanted);
    if (status == CUBLAS_STATUS_SUCCESS)
        memcpy(to, value, bytes);
    return status;
}

/* ---- objects --------------------------------------------------------------------------------- */

size_t cublasLtGetVersion(void)
{
    return VERSION;
}

const char *cublasLtGetStatusName(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_INTERNAL_ERROR ? "CUBLAS_STATUS_INTERNAL_ERROR"
                                                  : "CUBLAS_STATUS_OTHER";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    return make((void *)handle, sizeof(struct cublasLtContext));
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    return drop(handle);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *product, int compute_type,
                                        int scale_type)
{
    cublasStatus_t status = make((void *)product, sizeof(**product));

    if (scale_type != CUBLASLT_FP32)
        die("a scale type of %d", scale_type);
    if (status == CUBLAS_STATUS_SUCCESS)
        **product = (struct cublasLtMatmulDesc){
            .compute = compute_type, .bias_type = -1, .epilogue = CUBLASLT_EPILOGUE_NONE};
    return status;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product)
{
    return drop(product);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product, int attribute,
                                              const void *value, size_t bytes)
{
    switch (attribute) {
    case CUBLASLT_PRODUCT_TURN_A:
        return take(&product->turn_a, sizeof(product->turn_a), value, bytes);
    case CUBLASLT_PRODUCT_TURN_B:
        return take(&product->turn_b, sizeof(product->turn_b), value, bytes);
    case CUBLASLT_PRODUCT_EPILOGUE:
        return take(&product->epilogue, sizeof(product->epilogue), value, bytes);
    case CUBLASLT_PRODUCT_BIAS:
        return take((void *)&product->bias, sizeof(product->bias), value, bytes);
    case CUBLASLT_PRODUCT_AUXILIARY:
        return take((void *)&product->auxiliary, sizeof(product->auxiliary), value, bytes);
    case CUBLASLT_PRODUCT_AUXILIARY_LD:
        return take(&product->auxiliary_ld, sizeof(product->auxiliary_ld), value, bytes);
    case CUBLASLT_PRODUCT_SCALE_A:
        return take((void *)&product->a_scale, sizeof(product->a_scale), value, bytes);
    case CUBLASLT_PRODUCT_SCALE_B:
        return take((void *)&product->b_scale, sizeof(product->b_scale), value, bytes);
    case CUBLASLT_PRODUCT_BIAS_TYPE:
        return take(&product->bias_type, sizeof(product->bias_type), value, bytes);
    default:
        die("attribute %d of a product", attribute);
    }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, int type, uint64_t rows,
                                          uint64_t columns, int64_t ld)
{
    cublasStatus_t status = make((void *)layout, sizeof(**layout));

    if (ld < (int64_t)rows || rows == 0 || columns == 0)
        die("a matrix of %llu by %llu with a leading dimension of %lld", (unsigned long long)rows,
            (unsigned long long)columns, (long long)ld);
    if (status == CUBLAS_STATUS_SUCCESS)
        **layout = (struct cublasLtMatrixLayout){
            .type = type, .batch = 1, .rows = rows, .columns = columns, .ld = ld};
    return status;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    return drop(layout);
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout, int attribute,
                                                const void *value, size_t bytes)
{
    if (attribute == CUBLASLT_LAYOUT_BATCH_COUNT)
        return take(&layout->batch, sizeof(layout->batch), value, bytes);
    if (attribute == CUBLASLT_LAYOUT_BATCH_STRIDE)
        return take(&layout->stride, sizeof(layout->stride), value, bytes);
    die("attribute %d of a layout", attribute);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference)
{
    cublasStatus_t status = make((void *)preference, sizeof(**preference));

    if (status == CUBLAS_STATUS_SUCCESS)
        **preference =
            (struct cublasLtMatmulPreference){.reductions = 7, .alignment = {256, 256, 256, 256}};
    return status;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    return drop(preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    int attribute, const void *value, size_t bytes)
{
    int which = attribute - CUBLASLT_PREFER_ALIGNMENT_A;

    if (attribute == CUBLASLT_PREFER_WORKSPACE_MAX)
        return take(&preference->workspace, sizeof(preference->workspace), value, bytes);
    if (attribute == CUBLASLT_PREFER_REDUCTIONS)
        return take(&preference->reductions, sizeof(preference->reductions), value, bytes);
    if (which >= 0 && which < 4)
        return take(&preference->alignment[which], sizeof(preference->alignment[which]), value,
                    bytes);
    die("preference %d", attribute);
}

/* ---- the choice ------------------------------------------------------------------------------ */

static uint64_t mix(uint64_t hash, uint64_t x)
{
    return (hash ^ x) * 0x100000001b3u;
}

static uint64_t mix_layout(uint64_t hash, const struct cublasLtMatrixLayout *l)
{
    hash = mix(mix(mix(hash, (uint64_t)l->type), (uint64_t)l->batch), l->rows);
    return mix(mix(mix(hash, l->columns), (uint64_t)l->ld), (uint64_t)l->stride);
}

static uint64_t problem_of(const struct cublasLtMatmulDesc *desc,
                           const struct cublasLtMatrixLayout *a,
                           const struct cublasLtMatrixLayout *b,
                           const struct cublasLtMatrixLayout *d)
{
    uint64_t hash = mix(0xcbf29ce484222325u, (uint64_t)desc->compute);

    hash = mix(mix(hash, (uint64_t)desc->turn_a), (uint64_t)desc->turn_b);
    hash = mix(mix(hash, desc->epilogue), (uint64_t)desc->bias_type);
    return mix_layout(mix_layout(mix_layout(hash, a), b), d);
}

static void check_sizes(const struct cublasLtMatmulDesc *desc, const struct cublasLtMatrixLayout *a,
                        const struct cublasLtMatrixLayout *b, const struct cublasLtMatrixLayout *d)
{
    uint64_t m = desc->turn_a ? a->columns : a->rows, k = desc->turn_a ? a->rows : a->columns;
    uint64_t k_of_b = desc->turn_b ? b->columns : b->rows;
    uint64_t n = desc->turn_b ? b->rows : b->columns;

    if (m != d->rows || n != d->columns || k != k_of_b)
        die("[%llu,%llu] by [%llu,%llu] to [%llu,%llu]", (unsigned long long)m,
            (unsigned long long)k, (unsigned long long)k_of_b, (unsigned long long)n,
            (unsigned long long)d->rows, (unsigned long long)d->columns);
    if (a->batch != d->batch || b->batch != d->batch)
        die("batches of %d, %d and %d", a->batch, b->batch, d->batch);
}

static bool is_fp8(int32_t type)
{
    return type == CUBLASLT_E4M3 || type == CUBLASLT_E5M2;
}

/* NVIDIA's conditions for fp8 on a device of compute capability 8.9 and 9.0: one factor is e4m3,
 * both have their common dimension first, and sizes are multiples of 16. */
static bool is_refused_fp8(const struct cublasLtMatmulDesc *desc,
                           const struct cublasLtMatrixLayout *a,
                           const struct cublasLtMatrixLayout *b,
                           const struct cublasLtMatrixLayout *d)
{
    if (!desc->a_scale || !desc->b_scale)
        die("a product in fp8 without scales");
    if (d->type != CUBLASLT_BF16 && d->type != CUBLASLT_FP32)
        return true;
    return !is_fp8(b->type) || (a->type == CUBLASLT_E5M2 && b->type == CUBLASLT_E5M2) ||
           !desc->turn_a || desc->turn_b || a->rows % 16 != 0 || a->columns % 16 != 0 ||
           b->columns % 16 != 0 ||
           (desc->epilogue & CUBLASLT_EPILOGUE_BIAS && desc->bias_type >= 0 &&
            desc->bias_type != CUBLASLT_BF16);
}

/* What NVIDIA's table of types allows, and the settings. */
static bool is_refused(const struct cublasLtMatmulDesc *desc, const struct cublasLtMatrixLayout *a,
                       const struct cublasLtMatrixLayout *b, const struct cublasLtMatrixLayout *d)
{
    bool has_bias = desc->epilogue & CUBLASLT_EPILOGUE_BIAS;
    bool is_wide = has_bias && desc->bias_type >= 0 && desc->bias_type != d->type;
    uint32_t activation = CUBLASLT_EPILOGUE_RELU | CUBLASLT_EPILOGUE_GELU;

    if (is_fp8(a->type) ? is_refused_fp8(desc, a, b, d)
                        : a->type != b->type || (d->type != a->type && d->type != CUBLASLT_FP32))
        return true;
    if (desc->epilogue & CUBLASLT_EPILOGUE_AUXILIARY &&
        (desc->auxiliary_ld % 8 != 0 || desc->auxiliary_ld < (int64_t)d->rows))
        die("an auxiliary matrix with a leading dimension of %lld", (long long)desc->auxiliary_ld);
    return refused & FAKE_CUBLASLT_ALL || (refused & FAKE_CUBLASLT_WIDE_BIAS && is_wide) ||
           (refused & FAKE_CUBLASLT_BIAS && has_bias) ||
           (refused & FAKE_CUBLASLT_ACTIVATION && desc->epilogue & activation);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int *count)
{
    cublasStatus_t status = call();
    bool has_workspace = preference->workspace >= WORKSPACE_NEEDED;

    if (!handle || c != d)
        die("no handle, or another layout of C than of D");
    check_sizes(product, a, b, d);
    *count = 0;
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    if (!(refused & FAKE_CUBLASLT_LATE) && is_refused(product, a, b, d))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    for (uint64_t way = has_workspace ? WAY_RANDOM : WAY_IN_ORDER; way < WAYS && *count < wanted;
         way++) {
        struct algorithm algorithm = {problem_of(product, a, b, d), way, preference->alignment[0]};
        cublasLtMatmulHeuristicResult_t *result = &results[(*count)++];
        memset(result, 0, sizeof(*result));
        memcpy(&result->algo, &algorithm, sizeof(algorithm));
        result->workspaceSize = way == WAY_IN_ORDER ? 0 : WORKSPACE_NEEDED;
    }
    return status;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algorithm,
                                                    int attribute, void *value, size_t bytes,
                                                    size_t *written)
{
    static const uint32_t reductions[WAYS] = {
        CUBLASLT_REDUCTION_IN_PLACE, CUBLASLT_REDUCTION_OUTPUT_TYPE,
        CUBLASLT_REDUCTION_COMPUTE_TYPE, CUBLASLT_REDUCTION_NONE};
    struct algorithm own;
    cublasStatus_t status = call();

    memcpy(&own, algorithm, sizeof(own));
    if (attribute != CUBLASLT_ALGORITHM_REDUCTION || bytes != sizeof(uint32_t))
        die("attribute %d of an algorithm, %zu bytes", attribute, bytes);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    memcpy(value, &reductions[own.way], sizeof(uint32_t));
    *written = sizeof(uint32_t);
    return status;
}

/* ---- products -------------------------------------------------------------------------------- */

static void check_pointers(const struct algorithm *own, const struct work *w)
{
    uintptr_t bits = (uintptr_t)w->a_data | (uintptr_t)w->b_data | (uintptr_t)w->d_data;

    if (w->desc.epilogue & CUBLASLT_EPILOGUE_BIAS)
        bits |= (uintptr_t)w->desc.bias;
    if (w->desc.epilogue & CUBLASLT_EPILOGUE_AUXILIARY)
        bits |= (uintptr_t)w->desc.auxiliary;
    if (is_fp8(w->a.type) && ((uintptr_t)w->desc.a_scale | (uintptr_t)w->desc.b_scale) % 16 != 0)
        die("a scale is not at a multiple of 16 bytes");
    if (bits % own->alignment != 0)
        die("an operand is not a multiple of the %llu bytes that were promised",
            (unsigned long long)own->alignment);
    if (own->way != WAY_IN_ORDER && !w->workspace)
        die("no workspace");
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                              const void *alpha, const void *a, cublasLtMatrixLayout_t a_layout,
                              const void *b, cublasLtMatrixLayout_t b_layout, const void *beta,
                              const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t *algorithm, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream)
{
    const struct external_stream *external = (const struct external_stream *)(const void *)stream;
    struct emulator_index one = {1, 1, 1};
    cublasStatus_t status = call();
    struct algorithm own;
    struct work w = {.desc = *product,
                     .a = *a_layout,
                     .b = *b_layout,
                     .d = *d_layout,
                     .a_data = a,
                     .b_data = b,
                     .d_data = d,
                     .workspace = workspace_bytes >= WORKSPACE_NEEDED ? workspace : NULL,
                     .m = d_layout->rows,
                     .n = d_layout->columns};

    if (!handle || *(const float *)alpha != 1.0f || c != d || c_layout != d_layout ||
        (*(const float *)beta != 0.0f && *(const float *)beta != 1.0f))
        die("a product that is not D = A·B, nor D = D + A·B");
    w.adds = *(const float *)beta == 1.0f;
    if (w.adds && (d_layout->type != CUBLASLT_FP32 || product->a_scale ||
                   product->epilogue != CUBLASLT_EPILOGUE_NONE))
        die("a product that adds to what is there, and is not of fp32, or has an epilogue");
    memcpy(&own, algorithm, sizeof(own));
    if (own.problem != problem_of(product, a_layout, b_layout, d_layout))
        die("an algorithm that was proposed for another product");
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    if (is_refused(product, a_layout, b_layout, d_layout))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    w.k = w.desc.turn_a ? w.a.rows : w.a.columns;
    w.way = (enum way)own.way;
    w.random = (uint64_t)time(NULL) ^ (uint64_t)getpid() << 20 ^ (uint64_t)(uintptr_t)&w;
    check_pointers(&own, &w);
    if (w.desc.bias_type < 0)
        w.desc.bias_type = w.d.type;
    products++;
    return external->launch(stream, "cublasLtMatmul", multiply, &w, sizeof(w), one, one, 0) == 0
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_EXECUTION_FAILED;
}

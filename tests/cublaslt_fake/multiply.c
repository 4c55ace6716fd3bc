/* SPDX-License-Identifier: Apache-2.0 */

/* The arithmetic of a product, one result after the other. Each way adds in another order, so that
 * the bits show which one ran. */
#include <math.h>
#include <string.h>

#include "tests/cublaslt_fake/fake_cublaslt.h"

#define PARTS 4

/* A number of 8 bits. Of e4m3 only the greatest code is no number. */
static float small(uint8_t code, int mantissa, int bias, bool has_infinity)
{
    int exponent = (code & 0x7f) >> mantissa, fraction = code & ((1 << mantissa) - 1);
    float size;

    if (has_infinity && exponent == 31)
        return fraction ? NAN : INFINITY;
    if (!has_infinity && (code & 0x7f) == 0x7f)
        return NAN;
    size = ldexpf((float)(fraction + (exponent > 0) * (1 << mantissa)),
                  (exponent > 0 ? exponent : 1) - bias - mantissa);
    return code & 0x80 ? -size : size;
}

static float get(const void *data, int32_t type, int64_t i)
{
    uint32_t bits;
    float x;

    if (type == CUBLASLT_FP32)
        return ((const float *)data)[i];
    if (type == CUBLASLT_FP16)
        return (float)((const _Float16 *)data)[i];
    if (type == CUBLASLT_E4M3)
        return small(((const uint8_t *)data)[i], 3, 7, false);
    if (type == CUBLASLT_E5M2)
        return small(((const uint8_t *)data)[i], 2, 15, true);
    bits = (uint32_t)((const uint16_t *)data)[i] << 16;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

static void set(void *data, int32_t type, int64_t i, float x)
{
    uint32_t bits;

    if (type == CUBLASLT_FP32) {
        ((float *)data)[i] = x;
    } else if (type == CUBLASLT_FP16) {
        ((_Float16 *)data)[i] = (_Float16)x;
    } else {
        memcpy(&bits, &x, sizeof(bits));
        bits = isnan(x) ? bits | 0x400000 : bits + 0x7fff + (bits >> 16 & 1);
        ((uint16_t *)data)[i] = (uint16_t)(bits >> 16);
    }
}

static float rounded(float x, int32_t type)
{
    uint32_t room = 0;

    set(&room, type, 0, x);
    return get(&room, type, 0);
}

/* fp32 with a significand of 10 bits */
static float factor(const struct work *w, float x)
{
    uint32_t bits;

    if (w->desc.compute != CUBLASLT_COMPUTE_TF32)
        return x;
    memcpy(&bits, &x, sizeof(bits));
    bits = (bits + 0x0fff + (bits >> 13 & 1)) & ~0x1fffu;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* Element (row, column) of an operand as it is multiplied, turned or not. */
static float element(const struct work *w, const struct cublasLtMatrixLayout *layout,
                     const void *data, int32_t turned, uint64_t row, uint64_t column, int64_t batch)
{
    int64_t r = (int64_t)(turned ? column : row), c = (int64_t)(turned ? row : column);

    return factor(w, get(data, layout->type, batch * layout->stride + c * layout->ld + r));
}

static float sum_of(const struct work *w, uint64_t row, uint64_t column, int64_t batch,
                    uint64_t first, uint64_t end)
{
    float sum = 0;

    for (uint64_t l = end; l-- > first;)
        sum += element(w, &w->a, w->a_data, w->desc.turn_a, row, l, batch) *
               element(w, &w->b, w->b_data, w->desc.turn_b, l, column, batch);
    return sum;
}

static float product_of(struct work *w, uint64_t row, uint64_t column, int64_t batch)
{
    uint64_t first_part = 0;
    float sum = 0;

    if (w->way == WAY_IN_ORDER)
        return sum_of(w, row, column, batch, 0, w->k);
    if (w->way == WAY_RANDOM) {
        w->random = w->random * 6364136223846793005u + 1442695040888963407u;
        first_part = w->random >> 33;
    }
    for (uint64_t i = 0; i < PARTS; i++) {
        uint64_t p = (first_part + i) % PARTS;
        float part = sum_of(w, row, column, batch, w->k * p / PARTS, w->k * (p + 1) / PARTS);
        if (w->way == WAY_PARTS)
            w->workspace[i] = part;
        sum += w->way == WAY_PARTS     ? w->workspace[i]
               : w->way == WAY_ROUNDED ? rounded(part, w->d.type)
                                       : part;
    }
    return sum;
}

static float gelu(float x)
{
    return 0.5f * x * (1 + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
}

static void finish(const struct work *w, uint64_t row, uint64_t column, int64_t batch, float x)
{
    int64_t at = batch * w->d.stride + (int64_t)column * w->d.ld + (int64_t)row;
    uint32_t epilogue = w->desc.epilogue;

    if (w->adds)
        x += get(w->d_data, w->d.type, at);
    if (w->desc.a_scale)
        x = x * *w->desc.a_scale * *w->desc.b_scale;
    if (epilogue & CUBLASLT_EPILOGUE_BIAS)
        x += get(w->desc.bias, w->desc.bias_type, (int64_t)row);
    if (epilogue & CUBLASLT_EPILOGUE_AUXILIARY)
        set(w->desc.auxiliary, w->d.type, (int64_t)column * w->desc.auxiliary_ld + (int64_t)row, x);
    if (epilogue & CUBLASLT_EPILOGUE_RELU)
        x = x > 0 ? x : isnan(x) ? x : 0;
    if (epilogue & CUBLASLT_EPILOGUE_GELU)
        x = gelu(x);
    set(w->d_data, w->d.type, at, x);
}

void multiply(const void *work)
{
    struct work w = *(const struct work *)work;

    for (int64_t batch = 0; batch < w.d.batch; batch++)
        for (uint64_t column = 0; column < w.n; column++)
            for (uint64_t row = 0; row < w.m; row++)
                finish(&w, row, column, batch, product_of(&w, row, column, batch));
}

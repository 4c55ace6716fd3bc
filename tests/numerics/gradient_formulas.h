/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_NUMERICS_GRADIENT_FORMULAS_H
#define TESTS_NUMERICS_GRADIENT_FORMULAS_H

/*
 * The formulas of operators, in double and straight from their definitions: forward only.
 * test_gradients.c compares kernels with them, and gradients with their slopes.
 */

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "tests/numerics/kernel_rig.h"

#define INPUTS_MAX 4

/* An operator under test. Shapes end with 0. */
struct formula {
    const char *name;
    enum op_kind kind, grad;
    struct op_attributes attributes;
    int64_t in[INPUTS_MAX][PROGRAM_DIMS_MAX + 1]; /* float inputs; {0}: none */
    int64_t out[2][PROGRAM_DIMS_MAX + 1];         /* results, and what is kept for backward */
    int kept;                                     /* outputs 1 … kept are inputs of `grad` */
    bool grad_reads_inputs;                       /* grad takes d_y, then all inputs */
    bool grad_reads_output;                       /* … and output 0 */
    int integers;                                 /* input that holds ids or classes, -1: none */
    int gradients;                                /* inputs 0 … that get one */
    void (*forward)(const struct formula *f, double *const in[], double *y);
};

static inline int ndim_of(const int64_t *shape)
{
    int ndim = 0;

    while (ndim <= PROGRAM_DIMS_MAX && shape[ndim] > 0)
        ndim++;
    return ndim;
}

static inline int64_t count_of(const int64_t *shape)
{
    int64_t count = 1;

    for (int i = 0; i < ndim_of(shape); i++)
        count *= shape[i];
    return count;
}

static inline int inputs_of(const struct formula *f)
{
    int count = 0;

    while (count < INPUTS_MAX && f->in[count][0] > 0)
        count++;
    return count;
}

/* ---- the formulas ---------------------------------------------------------------------------- */

static inline double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static inline double gelu(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static inline void linear_formula(const struct formula *f, double *const in[], double *y)
{
    int64_t rows = f->in[0][0], k = f->in[0][1], m = f->out[0][1];

    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < m; j++) {
            double sum = in[2][j];
            for (int64_t i = 0; i < k; i++)
                sum += in[0][r * k + i] *
                       (f->attributes.transposed ? in[1][j * k + i] : in[1][i * m + j]);
            if (f->attributes.activation == OP_ACTIVATION_GELU)
                sum = gelu(sum);
            if (f->attributes.activation == OP_ACTIVATION_RELU)
                sum = fmax(sum, 0);
            y[r * m + j] = sum;
        }
}

static inline void norm_formula(const struct formula *f, double *const in[], double *y)
{
    int64_t rows = f->in[0][0], c = f->in[0][1];
    bool centred = f->kind == OP_LAYER_NORM;

    for (int64_t r = 0; r < rows; r++) {
        const double *x = in[0] + r * c;
        double mean = 0, square = 0;
        for (int64_t j = 0; j < c && centred; j++)
            mean += x[j] / (double)c;
        for (int64_t j = 0; j < c; j++)
            square += (x[j] - mean) * (x[j] - mean) / (double)c;
        for (int64_t j = 0; j < c; j++)
            y[r * c + j] = (x[j] - mean) / sqrt(square + f->attributes.epsilon) * in[1][j] +
                           (centred ? in[2][j] : 0);
    }
}

static inline void batch_norm_formula(const struct formula *f, double *const in[], double *y)
{
    int64_t b = f->in[0][0], c = f->in[0][1], plane = f->in[0][2] * f->in[0][3];
    double n = (double)(b * plane);

    for (int64_t j = 0; j < c; j++) {
        double mean = 0, square = 0;
        for (int64_t i = 0; i < b * plane; i++)
            mean += in[0][(i / plane * c + j) * plane + i % plane] / n;
        for (int64_t i = 0; i < b * plane; i++) {
            double x = in[0][(i / plane * c + j) * plane + i % plane] - mean;
            square += x * x / n;
        }
        for (int64_t i = 0; i < b * plane; i++) {
            int64_t at = (i / plane * c + j) * plane + i % plane;
            y[at] = (in[0][at] - mean) / sqrt(square + f->attributes.epsilon) * in[1][j] + in[2][j];
        }
    }
}

static inline void elementwise_formula(const struct formula *f, double *const in[], double *y)
{
    for (int64_t i = 0; i < count_of(f->out[0]); i++)
        switch (f->kind) {
        case OP_GELU:
            y[i] = gelu(in[0][i]);
            break;
        case OP_SILU:
            y[i] = in[0][i] * sigmoid(in[0][i]);
            break;
        case OP_SWIGLU:
            y[i] = in[0][i] * sigmoid(in[0][i]) * in[1][i];
            break;
        default:
            y[i] = fmax(in[0][i], 0);
            break;
        }
}

static inline void softmax_formula(const struct formula *f, double *const in[], double *y)
{
    int64_t c = f->in[0][1];

    for (int64_t r = 0; r < f->in[0][0]; r++) {
        double sum = 0;
        for (int64_t j = 0; j < c; j++)
            sum += exp(in[0][r * c + j]);
        for (int64_t j = 0; j < c; j++)
            y[r * c + j] = exp(in[0][r * c + j]) / sum;
    }
}

static inline void rope_formula(const struct formula *f, double *const in[], double *y)
{
    int64_t t = f->in[0][1], width = f->in[0][2], d = f->attributes.head_dim;

    memcpy(y, in[0], (size_t)count_of(f->in[0]) * sizeof(*y));
    for (int64_t row = 0; row < f->in[0][0] * t; row++)
        for (int64_t h = 0; h < f->attributes.heads; h++)
            for (int64_t i = 0; i < d / 2; i++) {
                double angle =
                    (double)(row % t) * pow(f->attributes.base, -2 * (double)i / (double)d);
                int64_t at = row * width + h * d + i;
                y[at] = in[0][at] * cos(angle) - in[0][at + d / 2] * sin(angle);
                y[at + d / 2] = in[0][at + d / 2] * cos(angle) + in[0][at] * sin(angle);
            }
}

/* One query row of one head. */
static inline void attention_row(const struct formula *f, const double *qkv, int64_t b, int64_t h,
                                 int64_t q, double *y)
{
    int64_t t = f->in[0][1], width = f->in[0][2], heads = f->attributes.heads;
    int64_t groups = f->attributes.kv_heads, d = width / (heads + 2 * groups);
    int64_t g = h / (heads / groups), seen = f->attributes.causal ? q + 1 : t;
    double scores[128], sum = 0;

    for (int64_t k = 0; k < seen; k++) {
        double dot = 0;
        for (int64_t i = 0; i < d; i++)
            dot += qkv[(b * t + q) * width + h * d + i] *
                   qkv[(b * t + k) * width + (heads + g) * d + i];
        scores[k] = exp(dot / sqrt((double)d));
        sum += scores[k];
    }
    for (int64_t i = 0; i < d; i++) {
        double out = 0;
        for (int64_t k = 0; k < seen; k++)
            out += scores[k] / sum * qkv[(b * t + k) * width + (heads + groups + g) * d + i];
        y[((b * t + q) * heads + h) * d + i] = out;
    }
}

static inline void attention_formula(const struct formula *f, double *const in[], double *y)
{
    for (int64_t b = 0; b < f->in[0][0]; b++)
        for (int64_t h = 0; h < f->attributes.heads; h++)
            for (int64_t q = 0; q < f->in[0][1]; q++)
                attention_row(f, in[0], b, h, q, y);
}

static inline void cross_entropy_formula(const struct formula *f, double *const in[], double *y)
{
    int64_t c = f->in[0][1], count = 0;

    y[0] = 0;
    for (int64_t r = 0; r < f->in[0][0]; r++) {
        int64_t target = (int64_t)in[1][r];
        double sum = 0;
        if (target == f->attributes.ignore_index)
            continue;
        count++;
        for (int64_t j = 0; j < c; j++)
            sum += exp(in[0][r * c + j]);
        y[0] += log(sum) - in[0][r * c + target];
    }
    y[0] /= (double)count;
}

static inline void conv2d_formula(const struct formula *f, double *const in[], double *y)
{
    const int64_t *x = f->in[0], *w = f->in[1], *out = f->out[0];
    const int *s = f->attributes.stride, *p = f->attributes.padding;

    for (int64_t i = 0; i < count_of(out); i++) {
        int64_t c = i % out[3], r = i / out[3] % out[2];
        int64_t o = i / out[3] / out[2] % out[1], b = i / out[3] / out[2] / out[1];
        y[i] = 0;
        for (int64_t k = 0; k < w[1] * w[2] * w[3]; k++) {
            int64_t v = k % w[3], u = k / w[3] % w[2], ch = k / w[3] / w[2];
            int64_t row = r * s[0] + u - p[0], column = c * s[1] + v - p[1];
            if (row >= 0 && row < x[2] && column >= 0 && column < x[3])
                y[i] += in[1][(o * w[1] + ch) * w[2] * w[3] + u * w[3] + v] *
                        in[0][((b * x[1] + ch) * x[2] + row) * x[3] + column];
        }
    }
}

#endif

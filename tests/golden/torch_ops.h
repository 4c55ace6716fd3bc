/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_GOLDEN_TORCH_OPS_H
#define TESTS_GOLDEN_TORCH_OPS_H

/* What the readers of PyTorch's operators share: the recorded tensors of a case, a rig filled from
 * them, and the comparison. */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "tests/golden/runner.h"
#include "tests/numerics/kernel_rig.h"

struct ops_case {
    const char *op; /* as index.json calls it */
    const cJSON *json;
    void (*run)(struct ops_case *c);
    int number;
    const struct safetensors_file *file;
    enum fleet_isa level;
    bool exact;
};

static inline const struct safetensors_tensor *tensor(const struct ops_case *c, const char *name)
{
    char full[96];

    (void)snprintf(full, sizeof(full), "case%d.%s", c->number, name);
    return golden_tensor(c->file, full);
}

static inline float *floats(const struct ops_case *c, const char *name)
{
    return golden_floats(tensor(c, name));
}

static inline int32_t *integers(const struct ops_case *c, const char *name)
{
    return golden_integers(tensor(c, name));
}

static inline const cJSON *params_of(const struct ops_case *c)
{
    return golden_at(c->json, "params");
}

static inline double number(const struct ops_case *c, const char *name)
{
    return golden_number(params_of(c), name);
}

static inline bool holds(const struct ops_case *c, const char *what)
{
    const cJSON *item = NULL;

    cJSON_ArrayForEach(item,
                       cJSON_GetObjectItem(c->json, "grads")) if (strcmp(item->valuestring, what) ==
                                                                  0) return true;
    return false;
}

/* `actual` against the recorded tensor, element by element. */
static inline void check(const struct ops_case *c, const char *name, const float *actual)
{
    const cJSON *measured =
        cJSON_GetObjectItem(cJSON_GetObjectItem(c->json, "err_vs_float64"), name);
    int64_t count = safetensors_elements(tensor(c, name));
    float *expected = floats(c, name);
    double tolerance = 0;

    if (!c->exact && measured)
        tolerance = fmax(10 * golden_number(measured, "max_abs"),
                         4e-6 * golden_number(measured, "max_mag"));
    for (int64_t i = 0; i < count; i++)
        if (!(fabs((double)actual[i] - (double)expected[i]) <= tolerance) &&
            !(isnan(actual[i]) && isnan(expected[i])) && actual[i] != expected[i])
            golden_fail("%s case %d %s[%ld] at level %s: %.9g, expected %.9g ± %g", c->op,
                        c->number, name, (long)i, fleet_isa_names[c->level], (double)actual[i],
                        (double)expected[i], tolerance);
    free(expected);
}

/* ---- a rig filled from the recording --------------------------------------------------------- */

struct bench {
    struct rig rig;
    void *owned[2 * OP_INPUTS_MAX];
    int owned_count;
};

static inline void *own(struct bench *b, void *data)
{
    b->owned[b->owned_count++] = data;
    return data;
}

static inline void bench_release(struct bench *b)
{
    for (int i = 0; i < b->owned_count; i++)
        free(b->owned[i]);
    rig_release(&b->rig);
}

static inline void bench_init(struct bench *b, enum op_kind kind)
{
    memset(b, 0, sizeof(*b));
    rig_init(&b->rig, kind);
}

/* Its shape as ours may have it: what leads is one dimension when there are too many. */
struct ops_shape {
    int ndim;
    int64_t sizes[PROGRAM_DIMS_MAX];
};

static inline struct ops_shape shape_of(const struct safetensors_tensor *t)
{
    int leading = t->ndim > PROGRAM_DIMS_MAX ? t->ndim - PROGRAM_DIMS_MAX : 0;
    struct ops_shape s = {.ndim = t->ndim - leading};

    for (int i = 0; i < s.ndim; i++)
        s.sizes[i] = t->shape[leading + i];
    for (int i = 0; i < leading; i++)
        s.sizes[0] *= t->shape[i];
    return s;
}

static inline void give(struct bench *b, const struct ops_case *c, const char *name)
{
    struct ops_shape s = shape_of(tensor(c, name));

    rig_in(&b->rig, PROGRAM_FP32, s.ndim, s.sizes, own(b, floats(c, name)));
}

static inline void give_integers(struct bench *b, const struct ops_case *c, const char *name)
{
    struct ops_shape s = shape_of(tensor(c, name));

    rig_in(&b->rig, PROGRAM_INT32, s.ndim, s.sizes, own(b, integers(c, name)));
}

/* What another run gave, as an input. */
static inline void give_result(struct bench *b, const struct rig *from, int output)
{
    const struct program_var *var = &from->program.vars[from->op.outputs[output]];

    rig_in(&b->rig, var->type, var->ndim, var->shape, from->out[output]);
}

/* An output of the shape of the recorded tensor. */
static inline void want(struct bench *b, const struct ops_case *c, const char *name)
{
    struct ops_shape s = shape_of(tensor(c, name));

    rig_out(&b->rig, PROGRAM_FP32, s.ndim, s.sizes);
}

static inline void want_rows(struct bench *b, int64_t rows)
{
    rig_out(&b->rig, PROGRAM_FP32, 1, &rows);
}

static inline int64_t rows_of(const struct safetensors_tensor *t)
{
    return t->ndim ? safetensors_elements(t) / t->shape[t->ndim - 1] : 1;
}

static inline bool has_param(const struct ops_case *c, const char *name, bool value)
{
    const cJSON *item = cJSON_GetObjectItem(params_of(c), name);

    return item && cJSON_IsTrue(item) == value;
}

static inline void pair(const struct ops_case *c, const char *name, int out[2])
{
    const cJSON *list = golden_array(params_of(c), name);

    for (int i = 0; i < 2; i++)
        out[i] = (int)golden_item(list, i);
}

/* torch_ops_images.c */
void golden_run_conv2d(struct ops_case *c);
void golden_run_batchnorm(struct ops_case *c);
void golden_run_maxpool(struct ops_case *c);
void golden_run_avgpool(struct ops_case *c);
void golden_run_adaptive(struct ops_case *c);

#endif

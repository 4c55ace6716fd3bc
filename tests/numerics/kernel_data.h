/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_NUMERICS_KERNEL_DATA_H
#define TESTS_NUMERICS_KERNEL_DATA_H

/* Operands for tests of kernels, and the levels that they run at. */

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "agent/runtime/backend/cpu/kernels/typed.h"
#include "libfleet/base/random.h"
#include "tests/numerics/kernel_rig.h"

/* Normal numbers, by name; the caller frees them. */
static inline float *normal(const char *name, int64_t count)
{
    float *out = malloc((size_t)count * sizeof(*out) + 1);

    fleet_random_normal(fleet_random_key(5, name, 0), 0, (size_t)count, 0, 1, out);
    return out;
}

/* `count` floats as `type`, and the floats they became. */
static inline uint16_t *narrowed(float *values, int64_t count, enum program_type type)
{
    uint16_t *out = malloc((size_t)count * sizeof(*out) + 1);

    for (int64_t i = 0; i < count; i++) {
        out[i] = type == PROGRAM_BF16 ? typed_to_bf16(values[i]) : typed_to_fp16(values[i]);
        values[i] = type == PROGRAM_BF16 ? typed_of_bf16(out[i]) : typed_of_fp16(out[i]);
    }
    return out;
}

/* CHECK_FINITE finds each kind of value that is not finite in `element` of its operand, and nothing
 * without them. */
static inline void kernel_finds_values(struct backend *backend, struct kernel_call *call,
                                       float *element)
{
    const float values[] = {*element, INFINITY, -INFINITY, NAN, *element};
    kernel_fn check = backend->vtable->kernel(backend, OP_CHECK_FINITE);
    float flag;

    call->out[0] = &flag;
    for (size_t v = 0; v < sizeof(values) / sizeof(values[0]); v++) {
        *element = values[v];
        flag = -1.0f;
        assert_int_equal(check(backend, call, NULL), 0);
        assert_true(flag == (isfinite(values[v]) ? 0.0f : 1.0f));
    }
}

#endif

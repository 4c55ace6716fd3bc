/* SPDX-License-Identifier: Apache-2.0 */

/*
 * fleet_recompute.h through libfleet.so: a part with dropout gives the gradients that it gives
 * without recomputation, and keeps no activation between its two runs.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "include/fleet/fleet_recompute.h"

#define COUNT 100

static struct fleet_error err;

/* y = mask · x², with a mask of random bits. */
struct square {
    uint64_t random;
    double *kept; /* mask · 2x of a run with keep; else NULL */
    int runs, kept_runs;
    int fails; /* the run that fails; 0: none */
};

static int forward(void *context, const struct fleet_tensor *inputs,
                   const struct fleet_tensor *outputs, bool keep, struct fleet_error *error)
{
    struct square *square = context;
    const double *x = inputs[0].data;
    double *y = outputs[0].data;

    if (++square->runs == square->fails) {
        error->code = -EIO;
        (void)strcpy(error->text, "run fails");
        return -EIO;
    }
    square->kept = keep ? malloc(COUNT * sizeof(double)) : NULL;
    square->kept_runs += keep;
    for (int i = 0; i < COUNT; i++) {
        int bit;
        square->random = square->random * 6364136223846793005u + 1442695040888963407u;
        bit = (int)(square->random >> 63);
        y[i] = bit * x[i] * x[i];
        if (keep)
            square->kept[i] = bit * 2 * x[i];
    }
    return 0;
}

static int backward(void *context, const struct fleet_tensor *output_gradients,
                    const struct fleet_tensor *input_gradients, struct fleet_error *error)
{
    struct square *square = context;
    const double *d_y = output_gradients[0].data;
    double *d_x = input_gradients[0].data;

    (void)error;
    for (int i = 0; i < COUNT; i++)
        d_x[i] = square->kept[i] * d_y[i];
    free(square->kept);
    square->kept = NULL;
    return 0;
}

static struct fleet_tensor vector(double *data)
{
    return (struct fleet_tensor){data, FLEET_FP64, 1, {COUNT}};
}

static void test_recompute__gives_the_gradients_of_the_part(void **state)
{
    struct square direct = {.random = 7}, again = {.random = 7};
    struct fleet_recompute_part part = {forward, backward, &again, &again.random,
                                        sizeof(again.random)};
    double x[COUNT], y[COUNT], d_y[COUNT], expected[COUNT], d_x[COUNT], y_again[COUNT];
    struct fleet_tensor in = vector(x), out = vector(y), d_out = vector(d_y),
                        d_in = vector(expected);
    struct fleet_recompute *recompute;
    uint64_t before;

    (void)state;
    for (int i = 0; i < COUNT; i++) {
        x[i] = i * 0.5 - 20;
        d_y[i] = 1.0 / (i + 1);
    }
    assert_int_equal(forward(&direct, &in, &out, true, &err), 0);
    assert_int_equal(backward(&direct, &d_out, &d_in, &err), 0);
    out.data = y_again;
    assert_int_equal(fleet_recompute_forward(&part, &in, 1, &out, 1, &recompute, &err), 0);
    assert_memory_equal(y, y_again, sizeof(y));
    assert_int_equal(again.kept_runs, 0);
    assert_null(again.kept);
    memset(x, 0, sizeof(x)); /* the copy counts */
    again.random += 99;      /* another part has used the generator */
    before = again.random;
    d_in.data = d_x;
    assert_int_equal(fleet_recompute_backward(recompute, &d_out, &d_in, &err), 0);
    assert_memory_equal(d_x, expected, sizeof(d_x));
    assert_true(again.random == before);
    assert_int_equal(again.runs, 2);
    assert_int_equal(fleet_recompute_backward(recompute, &d_out, &d_in, &err), -EINVAL);
    assert_non_null(strstr(err.text, "it was called before"));
    fleet_recompute_free(recompute);
}

static void test_recompute__wrong_arguments(void **state)
{
    struct square square = {.fails = 1};
    struct fleet_recompute_part part = {forward, backward, &square, NULL, 0};
    double x[COUNT] = {0}, y[COUNT];
    struct fleet_tensor in = vector(x), out = vector(y), none = vector(NULL);
    struct fleet_recompute *recompute;

    (void)state;
    assert_int_equal(fleet_recompute_forward(&part, &in, 0, &out, 1, &recompute, &err), -EINVAL);
    assert_non_null(strstr(err.text, "0 inputs, allowed: 1 to 64"));
    assert_int_equal(fleet_recompute_forward(&part, &in, 1, &none, 1, &recompute, &err), -EINVAL);
    assert_non_null(strstr(err.text, "outputs[0] has no data"));
    assert_int_equal(fleet_recompute_forward(NULL, &in, 1, &out, 1, &recompute, &err), -EINVAL);
    assert_int_equal(fleet_recompute_forward(&part, &in, 1, &out, 1, &recompute, &err), -EIO);
    assert_string_equal(err.text, "run fails");
    square.fails = 3;
    assert_int_equal(fleet_recompute_forward(&part, &in, 1, &out, 1, &recompute, &err), 0);
    assert_int_equal(fleet_recompute_backward(recompute, &out, &none, &err), -EINVAL);
    assert_non_null(strstr(err.text, "no input needs a gradient"));
    assert_int_equal(fleet_recompute_backward(recompute, &out, &in, &err), -EIO);
    fleet_recompute_free(recompute);
    fleet_recompute_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recompute__gives_the_gradients_of_the_part),
        cmocka_unit_test(test_recompute__wrong_arguments),
    };

    return cmocka_run_group_tests_name("recompute", tests, NULL, NULL);
}

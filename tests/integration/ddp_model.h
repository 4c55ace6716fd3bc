/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_INTEGRATION_DDP_MODEL_H
#define TESTS_INTEGRATION_DDP_MODEL_H

/*
 * The model of the tests of fleet_ddp.h: four tensors, whose gradients are small integers that
 * divide by three, so that sums are exact and can be compared bit by bit with those that one
 * process computes.
 */
#include <errno.h>

#include "include/fleet/fleet_ddp.h"
#include "tests/integration/library_processes.h"

#define WORLD   3
#define TENSORS 4
#define WIDTH   6

static float values[TENSORS][WIDTH], gradients[TENSORS][WIDTH];
static struct fleet_ddp_tensor model[TENSORS];
static struct fleet_ddp *ddp;

/* Values that are those of rank 0 only there. */
static inline void make_model(void)
{
    static const char *const names[TENSORS] = {"a", "b", "c", "d"};

    for (int t = 0; t < TENSORS; t++) {
        for (int i = 0; i < WIDTH; i++)
            values[t][i] = (float)(100 * rank + 10 * t + i);
        model[t] = (struct fleet_ddp_tensor){.name = names[t],
                                             .value = {values[t], FLEET_FP32, 2, {2, WIDTH / 2}},
                                             .gradient = gradients[t]};
    }
}

static inline void open_model(const struct fleet_ddp_options *options)
{
    make_model();
    CHECK(fleet_env_init(&err) == 0);
    CHECK(fleet_ddp_new(model, TENSORS, NULL, options, &ddp, &err) == 0);
}

static inline void close_model(void)
{
    fleet_ddp_free(ddp);
    ddp = NULL;
}

/* A bucket for each tensor. */
static const struct fleet_ddp_options single = {.buffer_mb = 1e-6, .last_buffer_mb = 1e-6};

/* What rank r adds to the gradient of tensor t in a step: a multiple of 3: a third is exact. */
static inline float part(int r, int t, int step)
{
    return (float)(3 * (r + 1) * (t + 1) + 3 * step);
}

static inline void add(int t, int step)
{
    for (int i = 0; i < WIDTH; i++)
        gradients[t][i] += part(rank, t, step) * (float)(i + 1);
}

/* What one process has that adds the parts of all ranks: each × 1/world, in their order. */
static inline float expected(int t, int i, int step)
{
    float sum = 0;

    for (int r = 0; r < world; r++)
        sum += part(r, t, step) * (float)(i + 1) * (1.0f / (float)world);
    return sum;
}

static inline void expect_averages(int t, int step)
{
    for (int i = 0; i < WIDTH; i++)
        CHECK(gradients[t][i] == expected(t, i, step));
}

#endif

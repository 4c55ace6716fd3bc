/* SPDX-License-Identifier: Apache-2.0 */

/* torch/ops: convolution, batch normalization and pools; see torch_ops.c. */
#include "tests/golden/torch_ops.h"

static void set_window(struct bench *b, const struct ops_case *c)
{
    pair(c, "kernel", b->rig.op.attributes.kernel);
    pair(c, "stride", b->rig.op.attributes.stride);
    pair(c, "padding", b->rig.op.attributes.padding);
    b->rig.op.attributes.round_up = has_param(c, "ceil_mode", true);
    b->rig.op.attributes.exclude_padding = has_param(c, "count_include_pad", false);
}

/* Ours has no bias: a batch_norm follows. */
static void add_bias(const struct ops_case *c, float *y, const char *bias_name)
{
    const struct safetensors_tensor *output = tensor(c, "output");
    float *bias = floats(c, bias_name);
    int64_t plane = output->shape[2] * output->shape[3];

    for (int64_t i = 0; i < safetensors_elements(output); i++)
        y[i] += bias[i / plane % output->shape[1]];
    free(bias);
}

void golden_run_conv2d(struct ops_case *c)
{
    struct bench y, d;

    bench_init(&y, OP_CONV2D);
    set_window(&y, c);
    give(&y, c, "input");
    give(&y, c, "weight");
    want(&y, c, "output");
    rig_run(&y.rig, c->level);
    if (holds(c, "grad_bias"))
        add_bias(c, y.rig.out[0], "bias");
    check(c, "output", y.rig.out[0]);
    bench_init(&d, OP_CONV2D_GRAD);
    set_window(&d, c);
    give(&d, c, "grad_output");
    give(&d, c, "input");
    give(&d, c, "weight");
    want(&d, c, "input");
    want(&d, c, "weight");
    rig_run(&d.rig, c->level);
    check(c, "grad_input", d.rig.out[0]);
    check(c, "grad_weight", d.rig.out[1]);
    bench_release(&y);
    bench_release(&d);
}

/* r = (1 - momentum) · r + momentum · stat, as the host does it at the commit. */
static void check_running(const struct ops_case *c, const char *before, const char *after,
                          const float *stat)
{
    float *running = floats(c, before), momentum = (float)number(c, "momentum");

    for (int64_t i = 0; i < safetensors_elements(tensor(c, before)); i++)
        running[i] = (1 - momentum) * running[i] + momentum * stat[i];
    check(c, after, running);
    free(running);
}

void golden_run_batchnorm(struct ops_case *c)
{
    int64_t channels = tensor(c, "weight")->shape[0];
    bool evaluates = has_param(c, "training", false);
    struct bench y, d;

    bench_init(&y, OP_BATCH_NORM);
    y.rig.scalars.evaluation = evaluates;
    y.rig.op.attributes.epsilon = number(c, "eps");
    y.rig.op.attributes.momentum = number(c, "momentum");
    give(&y, c, "input");
    give(&y, c, "weight");
    give(&y, c, "bias");
    give(&y, c, "running_mean");
    give(&y, c, "running_var");
    want(&y, c, "output");
    for (int i = 0; i < 4; i++)
        want_rows(&y, channels);
    rig_run(&y.rig, c->level);
    check(c, "output", y.rig.out[0]);
    if (evaluates) { /* there is no backward part then */
        bench_release(&y);
        return;
    }
    check_running(c, "running_mean", "running_mean_after", y.rig.out[3]);
    check_running(c, "running_var", "running_var_after", y.rig.out[4]);
    bench_init(&d, OP_BATCH_NORM_GRAD);
    give(&d, c, "grad_output");
    give(&d, c, "input");
    give(&d, c, "weight");
    give_result(&d, &y.rig, 1);
    give_result(&d, &y.rig, 2);
    want(&d, c, "input");
    want(&d, c, "weight");
    want(&d, c, "bias");
    rig_run(&d.rig, c->level);
    check(c, "grad_input", d.rig.out[0]);
    check(c, "grad_weight", d.rig.out[1]);
    check(c, "grad_bias", d.rig.out[2]);
    bench_release(&y);
    bench_release(&d);
}

void golden_run_maxpool(struct ops_case *c)
{
    const struct safetensors_tensor *output = tensor(c, "output");
    int32_t *indices;
    struct bench y, d;

    c->exact = true;
    bench_init(&y, OP_MAX_POOL2D);
    set_window(&y, c);
    give(&y, c, "input");
    want(&y, c, "output");
    rig_out(&y.rig, PROGRAM_INT32, output->ndim, output->shape);
    rig_run(&y.rig, c->level);
    check(c, "output", y.rig.out[0]);
    indices = integers(c, "indices");
    golden_check(memcmp(y.rig.out[1], indices,
                        (size_t)safetensors_elements(output) * sizeof(*indices)) == 0);
    free(indices);
    c->exact = false;
    bench_init(&d, OP_MAX_POOL2D_GRAD);
    set_window(&d, c);
    give(&d, c, "grad_output");
    give(&d, c, "input");
    give_result(&d, &y.rig, 1);
    want(&d, c, "input");
    rig_run(&d.rig, c->level);
    check(c, "grad_input", d.rig.out[0]);
    bench_release(&y);
    bench_release(&d);
}

void golden_run_avgpool(struct ops_case *c)
{
    struct bench y, d;

    bench_init(&y, OP_AVG_POOL2D);
    set_window(&y, c);
    give(&y, c, "input");
    want(&y, c, "output");
    rig_run(&y.rig, c->level);
    check(c, "output", y.rig.out[0]);
    bench_init(&d, OP_AVG_POOL2D_GRAD);
    set_window(&d, c);
    give(&d, c, "grad_output");
    give(&d, c, "input");
    want(&d, c, "input");
    rig_run(&d.rig, c->level);
    check(c, "grad_input", d.rig.out[0]);
    bench_release(&y);
    bench_release(&d);
}

void golden_run_adaptive(struct ops_case *c)
{
    struct bench y, d;

    bench_init(&y, OP_ADAPTIVE_AVG_POOL2D);
    give(&y, c, "input");
    want(&y, c, "output");
    rig_run(&y.rig, c->level);
    check(c, "output", y.rig.out[0]);
    bench_init(&d, OP_ADAPTIVE_AVG_POOL2D_GRAD);
    give(&d, c, "grad_output");
    want(&d, c, "input");
    rig_run(&d.rig, c->level);
    check(c, "grad_input", d.rig.out[0]);
    bench_release(&y);
    bench_release(&d);
}

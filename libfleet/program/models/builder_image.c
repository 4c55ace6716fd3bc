/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/program/models/builder_image.h"

#include <math.h>

#include "libfleet/program/models/builder_internal.h"

/* He et al., "Delving deep into rectifiers" (2015): normal, by the fan-out. */
int builder_image_conv2d(struct builder *b, const char *name, int x, int64_t features, int kernel,
                         int stride, int padding)
{
    double deviation = sqrt(2.0 / ((double)features * kernel * kernel));
    struct program_op op = {
        .kind = OP_CONV2D,
        .input_count = 2,
        .output_count = 1,
        .attributes = {.stride = {stride, stride}, .padding = {padding, padding}}};

    if (b->rc < 0)
        return PROGRAM_NONE;
    op.inputs[0] = x;
    op.inputs[1] =
        builder_add_parameter(b, name, ".weight", PROGRAM_INITIAL_NORMAL, deviation, 4,
                              (int64_t[]){features, b->program->vars[x].shape[1], kernel, kernel});
    op.outputs[0] = builder_activation(b, name, "", PROGRAM_FP32);
    builder_add_op(b, &op);
    return op.outputs[0];
}

static int add_buffer(struct builder *b, const char *name, const char *suffix,
                      enum program_initial initial, int64_t elements)
{
    int index = builder_add_var(b, name, suffix, PROGRAM_FP32, PROGRAM_ROLE_BUFFER, 1, &elements);

    if (index != PROGRAM_NONE)
        b->program->vars[index].initial = initial;
    return index;
}

/* The micro-batch's statistics go to the host, which folds them into the buffers. */
int builder_image_batch_norm(struct builder *b, const char *name, int x, double epsilon,
                             double momentum)
{
    struct program_op op = {.kind = OP_BATCH_NORM,
                            .input_count = 5,
                            .output_count = 5,
                            .attributes = {.epsilon = epsilon, .momentum = momentum}};
    int64_t channels;

    if (b->rc < 0)
        return PROGRAM_NONE;
    channels = b->program->vars[x].shape[1];
    op.inputs[0] = x;
    op.inputs[1] = builder_add_parameter(b, name, ".weight", PROGRAM_INITIAL_ONE, 0, 1, &channels);
    op.inputs[2] = builder_add_parameter(b, name, ".bias", PROGRAM_INITIAL_ZERO, 0, 1, &channels);
    op.inputs[3] = add_buffer(b, name, ".running_mean", PROGRAM_INITIAL_ZERO, channels);
    op.inputs[4] = add_buffer(b, name, ".running_var", PROGRAM_INITIAL_ONE, channels);
    op.outputs[0] = builder_activation(b, name, "", PROGRAM_FP32);
    op.outputs[1] = builder_activation(b, name, ".mean", PROGRAM_FP32);
    op.outputs[2] = builder_activation(b, name, ".rstd", PROGRAM_FP32);
    op.outputs[3] =
        builder_add_var(b, name, ".batch_mean", PROGRAM_FP32, PROGRAM_ROLE_SCALAR, 1, &channels);
    op.outputs[4] =
        builder_add_var(b, name, ".batch_var", PROGRAM_FP32, PROGRAM_ROLE_SCALAR, 1, &channels);
    builder_add_op(b, &op);
    return op.outputs[0];
}

int builder_image_max_pool2d(struct builder *b, const char *name, int x, int kernel, int stride,
                             int padding)
{
    struct program_op op = {.kind = OP_MAX_POOL2D,
                            .inputs = {x},
                            .input_count = 1,
                            .outputs = {builder_activation(b, name, "", PROGRAM_FP32),
                                        builder_activation(b, name, ".indices", PROGRAM_INT32)},
                            .output_count = 2,
                            .attributes = {.kernel = {kernel, kernel},
                                           .stride = {stride, stride},
                                           .padding = {padding, padding}}};

    builder_add_op(b, &op);
    return op.outputs[0];
}

int builder_image_global_average(struct builder *b, const char *name, int x)
{
    int64_t shape[4] = {0, 0, 1, 1};
    struct program_op op = {.input_count = 1, .output_count = 1};

    if (b->rc < 0)
        return PROGRAM_NONE;
    shape[0] = b->program->vars[x].shape[0];
    shape[1] = b->program->vars[x].shape[1];
    op.kind = OP_ADAPTIVE_AVG_POOL2D;
    op.inputs[0] = x;
    op.outputs[0] = builder_add_var(b, name, "", PROGRAM_FP32, PROGRAM_ROLE_ACTIVATION, 4, shape);
    builder_add_op(b, &op);
    op.kind = OP_RESHAPE;
    op.inputs[0] = op.outputs[0];
    op.outputs[0] =
        builder_add_var(b, name, ".flat", PROGRAM_FP32, PROGRAM_ROLE_ACTIVATION, 2, shape);
    builder_add_op(b, &op);
    return op.outputs[0];
}

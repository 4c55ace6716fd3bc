/* SPDX-License-Identifier: Apache-2.0 */

/*
 *  images ─ conv1 ─ bn1 ─ relu [─ max-pool] ─ layer1 ─ layer2 ─ layer3 ─ layer4 ─ mean ─ fc
 *
 *  layerS.B:  x ─┬─ conv1 ─ bn1 ─ relu ─ conv2 ─ bn2 [─ relu ─ conv3 ─ bn3] ─ + ─ relu ─▶
 *                └─ [downsample.0 ─ downsample.1] ──────────────────────────┘
 *
 * He et al., 1512.03385; a bottleneck's stride is in its 3x3 convolution, as torchvision has it.
 * The stem is 3x3 for images of 32 by 32, or 7x7 with stride 2 and a max-pool.
 */
#include "libfleet/program/models/resnet.h"

#include <math.h>
#include <stdio.h>

#include "libfleet/program/models/builder.h"
#include "libfleet/program/models/builder_image.h"
#include "libfleet/training/training.h"

#define EPSILON    1e-5
#define MOMENTUM   0.1
#define IMAGE_SIZE 32 /* of CIFAR, the only images there are loaders for */
#define EXPANSION  4  /* of a bottleneck's output */

static int relu(struct builder *b, const char *name, int x)
{
    return builder_unary(b, name, OP_RELU, x, NULL);
}

/* conv `number` and its norm within a block; a relu behind it unless it is the last. */
static int convolve(struct builder *b, int number, int x, int64_t features, int kernel, int stride,
                    bool last)
{
    char conv[16], norm[16], act[16];

    (void)snprintf(conv, sizeof(conv), "conv%d", number);
    (void)snprintf(norm, sizeof(norm), "bn%d", number);
    (void)snprintf(act, sizeof(act), "relu%d", number);
    x = builder_image_conv2d(b, conv, x, features, kernel, stride, kernel / 2);
    x = builder_image_batch_norm(b, norm, x, EPSILON, MOMENTUM);
    return last ? x : relu(b, act, x);
}

static int block(struct builder *b, const char *name, int x, int64_t width, int stride,
                 bool bottleneck)
{
    int64_t out = bottleneck ? width * EXPANSION : width;
    int shortcut = x, h;

    if (b->rc < 0)
        return PROGRAM_NONE;
    if (bottleneck) {
        h = convolve(b, 1, x, width, 1, 1, false);
        h = convolve(b, 2, h, width, 3, stride, false);
        h = convolve(b, 3, h, out, 1, 1, true);
    } else {
        h = convolve(b, 1, x, width, 3, stride, false);
        h = convolve(b, 2, h, width, 3, 1, true);
    }
    if (stride != 1 || b->program->vars[x].shape[1] != out) {
        shortcut = builder_image_conv2d(b, "downsample.0", x, out, 1, stride, 0);
        shortcut = builder_image_batch_norm(b, "downsample.1", shortcut, EPSILON, MOMENTUM);
    }
    x = builder_add(b, "add", h, shortcut);
    builder_enter(b, b->layer, "");
    return relu(b, name, x);
}

static int stem(struct builder *b, const struct training_model *m, int x)
{
    bool small = m->stem == TRAINING_STEM_CIFAR;

    x = builder_image_conv2d(b, "conv1", x, m->base_width, small ? 3 : 7, small ? 1 : 2,
                             small ? 1 : 3);
    x = builder_image_batch_norm(b, "bn1", x, EPSILON, MOMENTUM);
    x = relu(b, "relu", x);
    return small ? x : builder_image_max_pool2d(b, "maxpool", x, 3, 2, 1);
}

void resnet_build(struct builder *b, const struct training_config *config)
{
    const struct training_model *m = &config->model;
    int64_t batch = config->micro_batch_size;
    int x =
        builder_input(b, "images", PROGRAM_FP32, 4, (int64_t[]){batch, 3, IMAGE_SIZE, IMAGE_SIZE});
    int labels = builder_input(b, "labels", PROGRAM_INT32, 1, &batch), layer = 0;
    double range;

    x = stem(b, m, x);
    for (size_t stage = 0; stage < m->depths.count; stage++)
        for (int64_t i = 0; i < m->depths.items[stage]; i++) {
            char name[40], prefix[48];

            (void)snprintf(name, sizeof(name), "layer%zu.%d", stage + 1, (int)i);
            (void)snprintf(prefix, sizeof(prefix), "%s.", name);
            builder_enter(b, layer++, prefix);
            x = block(b, name, x, m->base_width << stage, stage > 0 && i == 0 ? 2 : 1,
                      m->bottleneck);
        }
    builder_enter(b, -1, "");
    x = builder_image_global_average(b, "avgpool", x);
    if (b->rc < 0)
        return;
    range = 1 / sqrt((double)b->program->vars[x].shape[1]); /* as torch.nn.Linear starts */
    x = builder_linear(b, "fc", x,
                       &(struct builder_linear){.features = m->classes,
                                                .bias = true,
                                                .transposed = true,
                                                .initial = PROGRAM_INITIAL_UNIFORM,
                                                .deviation = range,
                                                .bias_deviation = range});
    builder_cross_entropy(b, x, labels);
}

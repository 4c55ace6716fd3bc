/* SPDX-License-Identifier: Apache-2.0 */

/* images ─ layers.0, activation ─ layers.1, activation ─ … ─ layers.n ─ cross-entropy with
 * labels */
#include "libfleet/program/models/mlp.h"

#include <math.h>
#include <stdio.h>

#include "libfleet/program/models/builder.h"
#include "libfleet/training/training.h"

void mlp_build(struct builder *b, const struct training_config *config)
{
    const struct training_int_list *sizes = &config->model.sizes;
    int64_t batch = config->micro_batch_size;
    int x = builder_input(b, "images", PROGRAM_FP32, 2, (int64_t[]){batch, sizes->items[0]});
    int labels = builder_input(b, "labels", PROGRAM_INT32, 1, &batch);
    enum op_activation activation = config->model.activation == TRAINING_ACTIVATION_GELU
                                        ? OP_ACTIVATION_GELU
                                        : OP_ACTIVATION_RELU;

    for (size_t i = 1; i < sizes->count; i++) {
        double range = 1 / sqrt((double)sizes->items[i - 1]); /* as torch.nn.Linear starts */
        char name[32];

        (void)snprintf(name, sizeof(name), "layers.%zu", i - 1);
        builder_enter(b, (int)i - 1, "");
        x = builder_linear(b, name, x,
                           &(struct builder_linear){
                               .features = sizes->items[i],
                               .bias = true,
                               .transposed = true,
                               .activation = i + 1 < sizes->count ? activation : OP_ACTIVATION_NONE,
                               .initial = PROGRAM_INITIAL_UNIFORM,
                               .deviation = range,
                               .bias_deviation = range});
    }
    builder_enter(b, -1, "");
    builder_cross_entropy(b, x, labels);
}

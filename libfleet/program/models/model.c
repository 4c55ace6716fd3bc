/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/program/models/model.h"

#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/program/models/builder.h"
#include "libfleet/program/models/gpt.h"
#include "libfleet/program/models/llama.h"
#include "libfleet/program/models/mlp.h"
#include "libfleet/program/models/resnet.h"
#include "libfleet/training/training.h"

static void (*const builders[])(struct builder *b, const struct training_config *config) = {
    [TRAINING_MODEL_GPT] = gpt_build,
    [TRAINING_MODEL_LLAMA] = llama_build,
    [TRAINING_MODEL_RESNET] = resnet_build,
    [TRAINING_MODEL_MLP] = mlp_build,
};

int model_build(const struct training_config *config, struct program *out, struct fleet_error *err)
{
    const char *name = training_model_text(config->model.name);
    struct builder b;
    int rc;

    fleet_assert((size_t)config->model.name < FLEET_COUNT(builders));
    fleet_assert(!training_lacks_vocabulary(config));
    program_init(out, name);
    out->micro_batch_size = (int)config->micro_batch_size;
    builder_init(&b, out);
    builders[config->model.name](&b, config);
    if ((rc = builder_finish(&b, err)) < 0) {
        (void)fleet_error_wrap(err, "build model %s", name);
        program_release(out);
    }
    return rc;
}

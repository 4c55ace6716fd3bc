/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/training/training_precision.h"

#include "libfleet/base/cleanup.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/training/training.h"

enum training_precision training_precision(const struct training_config *config, bool amp)
{
    if (config->precision_given)
        return config->precision;
    return amp ? TRAINING_FP16 : TRAINING_FP32;
}

static void refuse(struct fleet_errors *errors, const char *path, const char *field,
                   const char *why)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf where = {0};

    fleet_strbuf_appendf(&where, "%s%s%s", path, path[0] ? "." : "", field);
    fleet_errors_add(errors, where.text, "%s", why);
}

void training_precision_check(const struct training_config *config, const char *path, bool amp,
                              struct fleet_errors *errors)
{
    bool has_bf16 = config->precision_given &&
                    (config->precision == TRAINING_BF16 || config->precision == TRAINING_FP8);

    if (amp && config->precision_given && config->precision == TRAINING_FP32)
        refuse(errors, path, "precision",
               "fp32 contradicts strategy.amp, which asks for bf16 or fp16; drop one of them");
    if (config->stochastic_rounding && !has_bf16)
        refuse(errors, path, "stochasticRounding", "needs precision: bf16 or precision: fp8");
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/strategy/strategy_options.h"

#include "libfleet/base/field.h"

static const char *const overflows[] = {"skip", "zeroGrad", NULL};
static const char *const adacomms[] = {"reference", "paper", NULL};
static const char *const dgc_selects[] = {"exact", "sampled", NULL};
static const char *const partitions[] = {"ordered", "greedy", NULL};

static const struct fleet_field options_fields[] = {
    {.name = "overflowAction",
     .kind = FLEET_FIELD_ENUM,
     .offset = offsetof(struct strategy_options, overflow_action),
     .default_text = "\"skip\"",
     .choices = overflows,
     .description = "What a step with inf or nan gradients does under amp: skip the update, or "
                    "apply it with zero gradients as Paddle does."},
    {.name = "alwaysAdapt",
     .kind = FLEET_FIELD_BOOL,
     .offset = offsetof(struct strategy_options, always_adapt),
     .default_text = "true",
     .description = "lamb: apply the trust ratio to tensors without decay too (Paddle 2.0); "
                    "false is what later versions do."},
    {.name = "adacommFormula",
     .kind = FLEET_FIELD_ENUM,
     .offset = offsetof(struct strategy_options, adacomm_formula),
     .default_text = "\"reference\"",
     .choices = adacomms,
     .description = "adaptive_localsgd: Paddle's formula for the next interval, or the paper's."},
    {.name = "dgcSelect",
     .kind = FLEET_FIELD_ENUM,
     .offset = offsetof(struct strategy_options, dgc_select),
     .default_text = "\"exact\"",
     .choices = dgc_selects,
     .description = "dgc: choose the largest elements exactly, or by a threshold found on a "
                    "sample."},
    {.name = "partition",
     .kind = FLEET_FIELD_ENUM,
     .offset = offsetof(struct strategy_options, partition),
     .default_text = "\"ordered\"",
     .choices = partitions,
     .description = "sharding: give parameters to ranks in order, as Paddle does, or each to the "
                    "lightest rank. Only `fleetjob plan` reads it until sharding runs."},
    {0},
};

const struct fleet_object strategy_options_type = {
    .name = "strategyOptions",
    .description = "FleetJob's own choices where Paddle has no setting.",
    .fields = options_fields,
    .size = sizeof(struct strategy_options),
};

void strategy_options_init(struct strategy_options *options)
{
    fleet_object_init(&strategy_options_type, options);
}

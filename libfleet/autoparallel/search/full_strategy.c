/* SPDX-License-Identifier: Apache-2.0 */

/* The strategy of a combination, its words, and why it lost. */
#include <inttypes.h>
#include <math.h>

#include "libfleet/autoparallel/search/full_search.h"
#include "libfleet/base/memory.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/strategy/choices.h"

#define SET(message, member, value)             \
    do {                                        \
        (message)->member = (value);            \
        (message)->has_##member = KNOB_BY_NAME; \
    } while (0)

/* Degrees have one place: hybrid_configs. */
static void forget_degrees(struct strategy *s)
{
    struct strategy_sharding_config *sharding = &s->sharding_configs;

    sharding->mp_degree = sharding->dp_degree = sharding->pp_degree = 1;
    sharding->has_mp_degree = sharding->has_dp_degree = sharding->has_pp_degree = 0;
    sharding->has_sharding_group_size = 0;
    sharding->sharding_group_size = 8;
    sharding->hybrid_dp = false;
    sharding->has_hybrid_dp = 0;
    s->tensor_parallel_configs.tensor_parallel_degree = 1;
    s->tensor_parallel_configs.has_tensor_parallel_degree = 0;
    s->hybrid_configs.sep_degree = 1;
    s->hybrid_configs.has_sep_degree = 0;
    s->auto_ = false;
    s->has_auto_ = 0;
}

static void set_pipeline(struct strategy *s, const struct full_choice *choice)
{
    SET(s, pipeline, true);
    s->has_pipeline_configs = KNOB_BY_NAME;
    fleet_set_text(&s->pipeline_configs.schedule_mode,
                   choices_schedule_text(choice->all_forward ? CHOICES_SCHEDULE_F_THEN_B
                                                             : CHOICES_SCHEDULE_1F1B));
    s->pipeline_configs.has_schedule_mode = KNOB_BY_NAME;
}

void full_strategy(const struct strategy *base, const struct full_choice *choice,
                   struct strategy *out)
{
    if (base)
        strategy_copy(out, base);
    else
        strategy_init(out);
    forget_degrees(out);
    SET(&out->hybrid_configs, dp_degree, choice->data);
    SET(&out->hybrid_configs, mp_degree, choice->model);
    SET(&out->hybrid_configs, pp_degree, choice->pipeline);
    if (choice->sequence > 1)
        SET(&out->hybrid_configs, sep_degree, choice->sequence);
    SET(&out->hybrid_configs, sharding_degree, choice->sharding);
    out->has_hybrid_configs = KNOB_BY_NAME;
    out->sharding = out->pipeline = out->tensor_parallel = false;
    out->has_sharding = out->has_pipeline = out->has_tensor_parallel = 0;
    if (choice->sharding > 1) {
        SET(out, sharding, true);
        SET(&out->sharding_configs, stage, choice->stage);
        out->has_sharding_configs = KNOB_BY_NAME;
    }
    if (choice->pipeline > 1)
        set_pipeline(out, choice);
    if (choice->model > 1)
        SET(out, tensor_parallel, true);
    if (choice->recompute)
        SET(out, recompute, true);
}

void full_describe(const struct full_choice *choice, struct fleet_strbuf *out)
{
    fleet_strbuf_appendf(out, "data %d", choice->data);
    if (choice->sharding > 1)
        fleet_strbuf_appendf(out, ", sharding %d stage %d", choice->sharding, choice->stage);
    if (choice->pipeline > 1)
        fleet_strbuf_appendf(out, ", pipeline %d %s", choice->pipeline,
                             choice->all_forward ? "F-then-B" : "1F1B");
    if (choice->sequence > 1)
        fleet_strbuf_appendf(out, ", sequence %d", choice->sequence);
    if (choice->model > 1)
        fleet_strbuf_appendf(out, ", model %d", choice->model);
    fleet_strbuf_appendf(out, ", micro-batch %" PRId64 "%s", choice->micro_batch,
                         choice->recompute ? ", recompute" : "");
}

enum step_part full_reason(const struct full_rival *best, const struct full_rival *rival)
{
    enum step_part worst = STEP_COMPUTE;
    double most = -INFINITY;

    for (int part = 0; part < STEP_PARTS; part++)
        if (rival->time.seconds[part] - best->time.seconds[part] > most) {
            most = rival->time.seconds[part] - best->time.seconds[part];
            worst = (enum step_part)part;
        }
    return worst;
}

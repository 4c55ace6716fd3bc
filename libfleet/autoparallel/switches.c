/* SPDX-License-Identifier: Apache-2.0 */

#include "libfleet/autoparallel/switches.h"

#include <stdbool.h>
#include <stdint.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"

struct look {
    const cJSON *context;
    const char *path;
    struct fleet_errors *warnings;
    bool has_data, has_graph; /* data or hybrid parallelism; semi_auto or auto parallelism */
    bool may_divide;          /* the mode has enable_parallel_optimizer */
};

static void warn(const struct look *look, const char *key, const char *reason)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf full = {0};

    fleet_strbuf_appendf(&full, "%s%s%s", look->path, *look->path ? "." : "", key);
    fleet_errors_add(look->warnings, full.text, "%s", reason);
}

static const cJSON *at(const struct look *look, const char *key)
{
    return fleet_json_at(look->context, key);
}

static int64_t number_at(const struct look *look, const char *key, int64_t fallback)
{
    (void)fleet_json_opt_int(look->context, key, &fallback, NULL);
    return fallback;
}

static bool divides(const struct look *look)
{
    return look->may_divide && cJSON_IsTrue(at(look, "enable_parallel_optimizer"));
}

static void look_at_optimizer(const struct look *look)
{
    static const char size[] = "parallel_optimizer_config.optimizer_weight_shard_size";
    int64_t shard = number_at(look, size, -1);

    if (!look->may_divide)
        return;
    if (!divides(look) && at(look, "parallel_optimizer_config"))
        warn(look, "parallel_optimizer_config",
             "has no effect without enable_parallel_optimizer: true");
    else if (shard == 0 || shard == 1)
        warn(look, size, "has no effect: a size of at least 2 divides a group, -1 takes all of it");
}

static void look_at_fusion(const struct look *look)
{
    static const char *const kinds[] = {"comm_fusion.allreduce", "comm_fusion.allgather",
                                        "comm_fusion.reducescatter"};
    bool is_open = !cJSON_IsFalse(at(look, "comm_fusion.openstate"));

    for (size_t i = 0; i < FLEET_COUNT(kinds); i++) {
        if (!at(look, kinds[i]))
            continue;
        if (!is_open)
            warn(look, kinds[i], "has no effect with openstate: false");
        else if (i > 0 && look->has_data)
            warn(look, kinds[i],
                 "has no effect in data_parallel and hybrid_parallel: only allreduce is fused");
        else if (i == 0 && divides(look) && context_fusion(look->context) == CONTEXT_FUSION_INDEX)
            warn(look, kinds[i],
                 "has no effect: enable_parallel_optimizer ignores fusion by index");
    }
    if (divides(look) && at(look, "all_reduce_fusion_config"))
        warn(look, "all_reduce_fusion_config",
             "has no effect: enable_parallel_optimizer ignores fusion by index");
}

static void look_at_stages(const struct look *look)
{
    static const char *const of_stages[] = {"pipeline_config", "pipeline_result_broadcast"};

    for (size_t i = 0; i < FLEET_COUNT(of_stages); i++)
        if (number_at(look, "pipeline_stages", 1) == 1 && at(look, of_stages[i]) &&
            !cJSON_IsFalse(at(look, of_stages[i])))
            warn(look, of_stages[i], "has no effect without pipeline_stages above 1");
}

void switches_warn(const cJSON *context, enum context_mode mode, const char *path,
                   struct fleet_errors *warnings)
{
    bool is_data = mode == CONTEXT_DATA_PARALLEL;
    struct look look = {.context = context,
                        .path = path,
                        .warnings = warnings,
                        .has_data = is_data || mode == CONTEXT_HYBRID_PARALLEL,
                        .has_graph =
                            mode == CONTEXT_SEMI_AUTO_PARALLEL || mode == CONTEXT_AUTO_PARALLEL};

    look.may_divide = is_data || look.has_graph;
    if (look.has_data || look.has_graph) {
        look_at_optimizer(&look);
        look_at_fusion(&look);
    }
    if (look.has_graph)
        look_at_stages(&look);
}

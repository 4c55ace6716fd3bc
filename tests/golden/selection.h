/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_GOLDEN_SELECTION_H
#define TESTS_GOLDEN_SELECTION_H

/* Rows of paddle/selection_gpu_build.json in our words, for the test and for the reference
 * pages. */

#include <string.h>

#include <cjson/cJSON.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/strategy/strategy_json.h"

/* "RawProgramOptimizer" and the like are no units of 2.0. */
static const char *const selection_classes[][2] = {
    {"AMPOptimizer", "amp"},
    {"AdaptiveLocalSGDOptimizer", "adaptive_localsgd"},
    {"DGCOptimizer", "dgc"},
    {"FP16AllReduceOptimizer", "fp16_allreduce"},
    {"GradientMergeOptimizer", "gradient_merge"},
    {"LambOptimizer", "lamb"},
    {"LarsOptimizer", "lars"},
    {"LocalSGDOptimizer", "localsgd"},
    {"PipelineOptimizer", "pipeline"},
    {"RecomputeOptimizer", "recompute"},
    {"ShardingOptimizer", "sharding"},
    {"TensorParallelOptimizer", "tensor_parallel"},
    {"ASPOptimizer", "asp"},
    {"QATOptimizer", "qat"},
};

static inline void selection_chain(const cJSON *row, struct fleet_strbuf *out)
{
    const cJSON *item;

    fleet_strbuf_append(out, "");
    cJSON_ArrayForEach(item, cJSON_GetObjectItem(row, "applied_meta"))
    {
        for (size_t i = 0; i < FLEET_COUNT(selection_classes); i++)
            if (strcmp(item->valuestring, selection_classes[i][0]) == 0)
                fleet_strbuf_appendf(out, "%s%s", out->length ? ">" : "", selection_classes[i][1]);
    }
}

/* The strategy of a recorded row, and "a+b Optimizer workers" for it. */
static inline void selection_strategy(const cJSON *row, struct strategy *s,
                                      struct fleet_strbuf *out)
{
    cJSON *json = cJSON_Duplicate(cJSON_GetObjectItem(row, "configs"), true);
    struct fleet_errors errors = {0};
    const cJSON *item;

    if (!cJSON_IsObject(json)) {
        cJSON_Delete(json);
        json = cJSON_CreateObject();
    }
    cJSON_ArrayForEach(item, cJSON_GetObjectItem(row, "requested"))
    {
        cJSON_AddBoolToObject(json, item->valuestring, true);
        fleet_strbuf_appendf(out, "%s%s", out->length ? "+" : "", item->valuestring);
    }
    fleet_strbuf_appendf(out, " %s %d", cJSON_GetObjectItem(row, "optimizer")->valuestring,
                         cJSON_GetObjectItem(row, "workers")->valueint);
    fleet_assert(strategy_json_decode(json, "", s, &errors) == 0);
    cJSON_Delete(json);
}

#endif

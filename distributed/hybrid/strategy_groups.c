/* SPDX-License-Identifier: Apache-2.0 */

/* auto_parallel's Strategy(config): its groups as settings of DistributedStrategy. */
#include <errno.h>
#include <string.h>

#include "distributed/hybrid/hybrid.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/json.h"

#define CONFIG_BYTES ((size_t)1 << 20)

/* "group.key" and the setting; "" is refused if it is switched on. */
static const struct {
    const char *group, *key, *setting;
} keys[] = {
    {"sharding", "enable", "sharding"},
    {"sharding", "stage", "sharding_configs.stage"},
    {"sharding", "degree", "sharding_configs.sharding_group_size"},
    {"gradient_merge", "enable", "gradient_merge"},
    {"gradient_merge", "k_steps", "gradient_merge_configs.k_steps"},
    {"gradient_merge", "avg", "gradient_merge_configs.avg"},
    {"pipeline", "enable", "pipeline"},
    {"pipeline", "schedule_mode", "pipeline_configs.schedule_mode"},
    {"pipeline", "micro_batch_size", "pipeline_configs.micro_batch_size"},
    {"pipeline", "accumulate_steps", "pipeline_configs.accumulate_steps"},
    {"amp", "enable", "amp"},
    {"amp", "init_loss_scaling", "amp_configs.init_loss_scaling"},
    {"amp", "incr_every_n_steps", "amp_configs.incr_every_n_steps"},
    {"amp", "decr_every_n_nan_or_inf", "amp_configs.decr_every_n_nan_or_inf"},
    {"amp", "incr_ratio", "amp_configs.incr_ratio"},
    {"amp", "decr_ratio", "amp_configs.decr_ratio"},
    {"amp", "use_dynamic_loss_scaling", "amp_configs.use_dynamic_loss_scaling"},
    {"amp", "custom_white_list", "amp_configs.custom_white_list"},
    {"amp", "custom_black_list", "amp_configs.custom_black_list"},
    {"amp", "custom_black_varnames", "amp_configs.custom_black_varnames"},
    {"amp", "use_fp16_guard", "amp_configs.use_fp16_guard"},
    {"fused_passes", "enable", ""},
    {"fused_passes", "gemm_epilogue", ""},
    {"fused_passes", "dropout_add", ""},
};

static int refuse(const char *group, const char *key, const char *because, struct fleet_error *err)
{
    return fleet_error(err, -EINVAL, "fleet_strategy_from_groups: %.60s%s%.60s: %s", group,
                       key[0] ? "." : "", key, because);
}

static int set_key(struct fleet_strategy *strategy, const char *group, const cJSON *value,
                   struct fleet_error *err)
{
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        FLEET_AUTO_FREE char *text = NULL;

        if (strcmp(keys[i].group, group) != 0 || strcmp(keys[i].key, value->string) != 0)
            continue;
        if (!keys[i].setting[0])
            return cJSON_IsFalse(value)
                       ? 0
                       : refuse(group, value->string,
                                "fused kernels need the program of the model; allowed: false", err);
        text = cJSON_PrintUnformatted(value);
        if (!text)
            return fleet_error(err, -ENOMEM, "fleet_strategy_from_groups: out of memory");
        return fleet_strategy_set(strategy, keys[i].setting, text, err) < 0
                   ? fleet_error_wrap(err, "fleet_strategy_from_groups: %s.%s", group,
                                      value->string)
                   : 0;
    }
    return refuse(group, value->string, "no such key", err);
}

static bool is_group(const char *name)
{
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        if (strcmp(keys[i].group, name) == 0)
            return true;
    return false;
}

static int set_groups(struct fleet_strategy *strategy, const cJSON *config, struct fleet_error *err)
{
    const cJSON *group, *value;
    int rc;

    cJSON_ArrayForEach(group, config)
    {
        if (!is_group(group->string))
            return refuse(group->string, "",
                          "no such group, allowed: sharding, fused_passes, gradient_merge, "
                          "pipeline, amp",
                          err);
        if (!cJSON_IsObject(group))
            return refuse(group->string, "", "must be an object", err);
        cJSON_ArrayForEach(value, group)
        {
            rc = set_key(strategy, group->string, value, err);
            if (rc < 0)
                return rc;
        }
    }
    return 0;
}

int fleet_strategy_from_groups(const char *json, struct fleet_strategy **out,
                               struct fleet_error *err)
{
    const char *what = "fleet_strategy_from_groups";
    FLEET_AUTO_JSON cJSON *config = NULL;
    struct fleet_strategy *strategy;
    int rc;

    if (!json)
        return fleet_error(err, -EINVAL, "%s: json is NULL", what);
    if (fleet_json_parse(json, strlen(json), CONFIG_BYTES, &config, err) < 0)
        return fleet_error_wrap(err, "%s", what);
    if (!cJSON_IsObject(config))
        return fleet_error(err, -EINVAL, "%s: the config must be an object", what);
    rc = fleet_strategy_new(&strategy, err);
    if (rc < 0)
        return rc;
    rc = set_groups(strategy, config, err);
    if (rc < 0)
        fleet_strategy_free(strategy);
    else
        *out = strategy;
    return rc;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/autoparallel/context_files.h"

#include <stddef.h>

#include "libfleet/autoparallel/context.h"
#include "libfleet/base/json.h"

static bool take(const cJSON *context, const char *key, struct context_file *out)
{
    const char *path = cJSON_GetStringValue(fleet_json_at(context, key));

    if (!path || path[0] == '\0')
        return false;
    *out = (struct context_file){path, key};
    return true;
}

void context_files_of(const cJSON *context, struct context_files *out)
{
    enum context_mode mode = context_mode(context);

    *out = (struct context_files){.only_trainable = true};
    if (mode != CONTEXT_SEMI_AUTO_PARALLEL && mode != CONTEXT_AUTO_PARALLEL)
        return;
    if (!take(context, "strategy_ckpt_config.load_file", &out->load))
        (void)take(context, "strategy_ckpt_load_file", &out->load);
    if (!take(context, "strategy_ckpt_config.save_file", &out->save))
        (void)take(context, "strategy_ckpt_save_file", &out->save);
    (void)take(context, "group_ckpt_save_file", &out->groups);
    out->only_trainable =
        !cJSON_IsFalse(fleet_json_at(context, "strategy_ckpt_config.only_trainable_params"));
}

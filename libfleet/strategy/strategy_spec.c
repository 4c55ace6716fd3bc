/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/strategy/strategy_spec.h"

#include <stdio.h>
#include <string.h>

#include "libfleet/base/errors.h"
#include "libfleet/base/field.h"
#include "libfleet/strategy/strategy_json.h"

#define PATH_SIZE 32

const char *const strategy_policies[] = {"Full", "Paddle", NULL};

void strategy_spec_decode(const cJSON *json, const char *prefix, struct strategy_spec *out,
                          struct fleet_errors *errors)
{
    const cJSON *strategy = cJSON_GetObjectItemCaseSensitive(json, "strategy");
    const char *policy =
        cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, "strategyPolicy"));
    char path[PATH_SIZE];

    *out = (struct strategy_spec){.policy = STRATEGY_FULL};
    if (policy && strcmp(policy, strategy_policies[STRATEGY_PADDLE]) == 0)
        out->policy = STRATEGY_PADDLE;
    (void)snprintf(path, sizeof(path), "%sstrategy", prefix);
    if (strategy)
        (void)strategy_json_decode(strategy, path, &out->strategy, errors);
    else
        strategy_init(&out->strategy);
    (void)snprintf(path, sizeof(path), "%sstrategyOptions", prefix);
    (void)fleet_object_decode(&strategy_options_type,
                              cJSON_GetObjectItemCaseSensitive(json, "strategyOptions"), path,
                              &out->options, errors);
}

void strategy_spec_release(struct strategy_spec *spec)
{
    strategy_release(&spec->strategy);
    fleet_object_release(&strategy_options_type, &spec->options);
}

/* SPDX-License-Identifier: Apache-2.0 */

/* Any JSON as spec.autoParallel: errors with paths, or nothing; the same the second time. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "libfleet/autoparallel/context.h"
#include "libfleet/autoparallel/context_strategy.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/strategy/strategy.h"
#include "libfleet/strategy/strategy_options.h"

#define SIZE_MAX_FUZZED 4096
#define PATH            "spec.autoParallel"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void look(const cJSON *json, struct fleet_strbuf *out)
{
    struct fleet_errors errors = {0}, warnings = {0};
    int rc = context_check(json, PATH, &errors, &warnings);

    fleet_assert((rc < 0) == (errors.count > 0));
    for (size_t i = 0; i < errors.count && i < FLEET_ERRORS_MAX; i++)
        fleet_assert(strncmp(errors.items[i].path, PATH, strlen(PATH)) == 0);
    fleet_errors_print(&errors, out);
    fleet_errors_print(&warnings, out);
    fleet_errors_release(&errors);
    fleet_errors_release(&warnings);
}

/* What a context asks for, asked for again, changes nothing and contradicts nothing new. */
static void apply(const cJSON *json)
{
    struct context_job job = {.strategy_path = "spec.strategy", .world = 4};
    struct fleet_errors errors = {0}, again = {0};
    STRATEGY_AUTO struct strategy s = {0}, before = {0};
    struct strategy_options options;
    struct context_outcome outcome = {
        .strategy_path = "spec.strategy", .world = 4, .strategy = &s, .options = &options};

    strategy_init(&s);
    strategy_options_init(&options);
    context_apply(json, PATH, &job, &s, &options, &errors);
    strategy_copy(&before, &s);
    context_apply(json, PATH, &job, &s, &options, &again);
    fleet_assert(strategy_means_same(&s, &before) && errors.count == again.count);
    context_warn(json, PATH, &outcome, &errors);
    fleet_errors_release(&errors);
    fleet_errors_release(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf first = {0}, second = {0};
    FLEET_AUTO_JSON cJSON *json = NULL;

    if (fleet_json_parse((const char *)data, size, SIZE_MAX_FUZZED, &json, NULL) < 0)
        return 0;
    look(json, &first);
    look(json, &second);
    fleet_assert(strcmp(fleet_strbuf_text(&first), fleet_strbuf_text(&second)) == 0);
    apply(json);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/plan_search_operators.h"

#include <errno.h>
#include <stdio.h>

#include "cli/search_print.h"
#include "cli/yaml_print.h"
#include "libfleet/api/divisions.h"
#include "libfleet/api/fleetjob.h"
#include "libfleet/autoparallel/context.h"
#include "libfleet/autoparallel/search/operator_search.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_build.h"
#include "libfleet/strategy/choices.h"
#include "libfleet/strategy/strategy_json.h"

/* ---- the block ------------------------------------------------------------------------------- */

/* The job's context, in the mode that runs strategies of operators. Without one the trainer takes
 * the mean of the gradients, unless the strategy says otherwise. */
static cJSON *encode_context(const struct fleetjob *job)
{
    static const char *const searches[] = {"search", "search_mode", "auto_parallel_search_mode",
                                           "links"};
    const cJSON *given = job->spec.auto_parallel;
    cJSON *context = given ? fleet_json_copy(given) : fleet_json_new_object();

    for (size_t i = 0; i < FLEET_COUNT(searches); i++)
        cJSON_DeleteItemFromObjectCaseSensitive(context, searches[i]);
    cJSON_DeleteItemFromObjectCaseSensitive(context, "parallel_mode");
    fleet_json_set_string(context, "parallel_mode", "semi_auto_parallel");
    if (!given)
        fleet_json_set_bool(context, "gradients_mean",
                            choices_scale(&job->spec.strategy) != CHOICES_SCALE_SUM);
    return context;
}

/* The job's own entries come first, as they do while it is searched. */
static cJSON *encode_entries(const struct fleetjob *job, const cJSON *found)
{
    const cJSON *given = fleet_json_at(job->spec.training_json, "operatorStrategies"), *item;
    cJSON *list = given ? fleet_json_copy(given) : fleet_json_new_list();

    cJSON_ArrayForEach(item, found) fleet_json_add(list, fleet_json_copy(item));
    return list;
}

/* The text to paste below `spec`. */
static cJSON *encode_block(const struct fleetjob *job, const struct full_request *request,
                           const struct operator_division *division)
{
    STRATEGY_AUTO struct strategy strategy;
    cJSON *root = fleet_json_new_object();

    full_strategy(request->strategy, &division->rival.choice, &strategy);
    fleet_json_set(root, "strategy", strategy_json_encode(&strategy));
    if (division->entries) {
        fleet_json_set(root, "autoParallel", encode_context(job));
        fleet_json_set(fleet_json_set_object(root, "training"), "operatorStrategies",
                       encode_entries(job, division->entries));
    }
    return root;
}

static cJSON *encode_division(const struct fleetjob *job, const struct full_request *request,
                              const struct operator_division *division)
{
    const struct full_rival *rival = &division->rival;
    cJSON *json = encode_block(job, request, division);

    fleet_json_set_number(json, "stepSeconds", rival->time.total);
    fleet_json_set(json, "parts", search_print_encode(&rival->time));
    fleet_json_set_number(json, "bytesPerRank", rival->bytes);
    fleet_json_set_number(json, "sentBytesPerUpdate", rival->sent_bytes);
    return json;
}

static int save(const char *path, const struct fleetjob *job, const struct full_request *request,
                const struct operator_division *best, struct fleet_errors *errors)
{
    FLEET_AUTO_JSON cJSON *block = encode_block(job, request, best);
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    struct fleet_error err;

    fleet_strbuf_appendf(&text, "# Below spec. Predicted on %d devices: ", request->devices);
    search_print_rival(&text, &best->rival);
    fleet_strbuf_append(&text, "\n");
    yaml_print(block, &text);
    if (fleet_file_write(path, text.text, text.length, &err) < 0) {
        fleet_errors_add(errors, "", "%s", err.text);
        return -EINVAL;
    }
    return 0;
}

/* ---- printing -------------------------------------------------------------------------------- */

static void print_json(const struct fleetjob *job, const struct full_request *request,
                       const struct operator_search_result *result)
{
    const struct operator_division one_way = {.rival = result->one_way};
    FLEET_AUTO_JSON cJSON *root = fleet_json_new_object();
    FLEET_AUTO_FREE char *text = NULL;

    fleet_json_set_number(root, "devices", request->devices);
    fleet_json_set_number(root, "memoryPerDevice", request->memory);
    fleet_json_set_number(root, "combinations", result->combinations);
    fleet_json_set(root, "best", encode_division(job, request, &result->best));
    if (result->has_one_way)
        fleet_json_set(root, "oneWay", encode_division(job, request, &one_way));
    text = fleet_json_print(root);
    (void)puts(text);
}

static void append_entries(const cJSON *entries, struct fleet_strbuf *out)
{
    const cJSON *entry;

    cJSON_ArrayForEach(entry, entries)
    {
        FLEET_AUTO_FREE char *in = fleet_json_print(fleet_json_at(entry, "in"));

        fleet_strbuf_appendf(out, "           %s in %s\n",
                             cJSON_GetStringValue(fleet_json_at(entry, "operator")), in);
    }
}

static void print_text(const struct full_request *request, const char *links,
                       const struct operator_search_result *result)
{
    const struct full_rival *best = &result->best.rival;
    FLEET_AUTO_STRBUF struct fleet_strbuf out = {0};

    search_print_rates(&out, links);
    fleet_strbuf_appendf(&out, "%d devices; %d combinations of ways to divide operators\n",
                         request->devices, result->combinations);
    fleet_strbuf_append(&out, "best       ");
    search_print_rival(&out, best);
    fleet_strbuf_append(&out, "\n           ");
    search_print_parts(&out, &best->time);
    append_entries(result->best.entries, &out);
    if (!result->best.entries)
        fleet_strbuf_append(&out, "           all operators are divided in one way\n");
    else if (result->has_one_way) {
        fleet_strbuf_append(&out, "one way    ");
        search_print_rival(&out, &result->one_way);
        fleet_strbuf_append(&out, "\n           ");
        search_print_parts(&out, &result->one_way.time);
    }
    (void)fputs(fleet_strbuf_text(&out), stdout);
}

/* ---- the whole ------------------------------------------------------------------------------- */

static int refuse(const char *path, const char *reason, struct fleet_errors *errors)
{
    fleet_errors_add(errors, path, "%s", reason);
    return -EINVAL;
}

int plan_search_operators(const struct fleetjob *job, const struct full_request *request,
                          const struct plan_search_options *options, struct fleet_errors *errors)
{
    struct full_choice grid = divisions_of(job);
    struct operator_search_result result;
    int rc = 0;

    if (job->spec.worker.elastic)
        return refuse("spec.worker.minReplicas",
                      "strategies of operators are for a fixed number of workers: leave it out, or "
                      "use --search full",
                      errors);
    if (grid.sequence > 1 || job->spec.strategy.tensor_parallel_configs.sequence_parallel)
        return refuse(fleetjob_strategy_path(job),
                      "has sep_degree or sequence_parallel, beside which no single operator is "
                      "divided in another way: use --search full",
                      errors);
    if (grid.model == 1)
        grid.model = 0;
    if (operator_search(request, &grid, &result, errors) < 0)
        return -EINVAL;
    if (options->save)
        rc = save(options->save, job, request, &result.best, errors);
    if (rc == 0 && options->is_json)
        print_json(job, request, &result);
    else if (rc == 0)
        print_text(request, options->links, &result);
    operator_search_release(&result);
    return rc;
}

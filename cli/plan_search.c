/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/plan_search.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/links_file.h"
#include "cli/plan_search_operators.h"
#include "cli/search_print.h"
#include "cli/yaml_print.h"
#include "libfleet/api/fleetjob.h"
#include "libfleet/autoparallel/search/full_search.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_build.h"
#include "libfleet/base/yaml.h"
#include "libfleet/kube/meta.h"
#include "libfleet/strategy/strategy_json.h"

/* ---- what is given --------------------------------------------------------------------------- */

/* Those that were measured on this machine, if no file is named. */
int plan_search_links(const char *file, struct links *out, struct fleet_errors *errors)
{
    FLEET_AUTO_FREE char *place = NULL;
    struct fleet_error err;

    if (file)
        return links_file_read(file, out, errors);
    if (links_file_place(&place, &err) < 0) {
        fleet_errors_add(errors, "", "%s", err.text);
        return -EINVAL;
    }
    if (access(place, F_OK) != 0) {
        fleet_errors_add(errors, "",
                         "no rates of devices and links: give --links FILE, or measure this "
                         "machine with --calibrate, which stores them in %s",
                         place);
        return -EINVAL;
    }
    return links_file_read(place, out, errors);
}

int plan_search_memory(const char *text, double *out, struct fleet_errors *errors)
{
    struct fleet_error err;
    int64_t bytes;

    if (!text)
        return 0;
    if (kube_quantity_parse(text, 1, &bytes, &err) < 0 || bytes == 0) {
        fleet_errors_add(errors, "",
                         "--memory must be bytes as Kubernetes writes them (80G, 24Gi), not \"%s\"",
                         text);
        return -EINVAL;
    }
    *out = (double)bytes;
    return 0;
}

/* ---- printing -------------------------------------------------------------------------------- */

static void append_best(struct fleet_strbuf *out, const struct full_rival *best)
{
    fleet_strbuf_append(out, "best       ");
    search_print_rival(out, best);
    fleet_strbuf_append(out, "\n           ");
    search_print_parts(out, &best->time);
}

static void append_lost(struct fleet_strbuf *out, const struct full_rival *best,
                        const struct full_rival *rival)
{
    enum step_part part = full_reason(best, rival);
    double more = rival->time.total - best->time.total;

    fleet_strbuf_append(out, "\n           ");
    if (more <= 0) {
        fleet_strbuf_append(out, rival->bytes > best->bytes ? "as fast, but needs more memory"
                                                            : "as fast, listed later");
    } else {
        fleet_strbuf_append(out, "lost by ");
        search_print_seconds(out, more);
        fleet_strbuf_appendf(out, ": %s +", step_part_name(part));
        search_print_seconds(out, rival->time.seconds[part] - best->time.seconds[part]);
    }
    fleet_strbuf_append(out, "\n");
}

/* Names of the knobs that the built-in trainer has no pass for. */
static void append_cannot_run(struct fleet_strbuf *out, const struct full_result *result)
{
    const struct full_choice *c = &result->rivals[0].choice;

    if (!result->rivals[0].cannot_run)
        return;
    fleet_strbuf_appendf(out, "refused    the built-in trainer cannot run the best yet:%s%s%s%s%s",
                         c->sharding > 1 ? " sharding" : "", c->pipeline > 1 ? " pipeline" : "",
                         c->sequence > 1 ? " sep_degree" : "",
                         c->model > 1 ? " tensor_parallel" : "", " (`fleetjob plan` explains it)");
    if (result->has_runnable) {
        fleet_strbuf_append(out, "; of those that it can run the best is\n           ");
        search_print_rival(out, &result->runnable);
    } else {
        fleet_strbuf_append(out, ", and nothing that it can run fits");
    }
    fleet_strbuf_append(out, "\n");
}

static void append_result(struct fleet_strbuf *out, const struct full_request *request,
                          const struct full_result *result)
{
    fleet_strbuf_appendf(out, "%d devices of ", request->devices);
    fleet_strbuf_append_size(out, request->memory);
    fleet_strbuf_appendf(out,
                         " each; %" PRId64 " combinations, %" PRId64 " planned, no other can be "
                         "among the best\n",
                         result->combinations, result->looked_at);
    append_best(out, &result->rivals[0]);
    append_cannot_run(out, result);
    for (int i = 1; i < result->count; i++) {
        fleet_strbuf_appendf(out, "%-10d ", i + 1);
        search_print_rival(out, &result->rivals[i]);
        append_lost(out, &result->rivals[0], &result->rivals[i]);
    }
    for (int i = 0; i < result->misfit_count; i++) {
        if (result->misfits[i].time.total >= result->rivals[0].time.total)
            continue;
        fleet_strbuf_append(out, "too large  ");
        search_print_rival(out, &result->misfits[i]);
        fleet_strbuf_append(out, "\n");
    }
}

/* ---- JSON and the block ---------------------------------------------------------------------- */

/* The text to paste below `spec`: the strategy, and the micro-batch size of the training block. */
static cJSON *encode_block(const struct full_request *request, const struct full_choice *choice)
{
    STRATEGY_AUTO struct strategy strategy;
    cJSON *root = fleet_json_new_object(), *training = fleet_json_new_object();

    full_strategy(request->strategy, choice, &strategy);
    fleet_json_set(root, "strategy", strategy_json_encode(&strategy));
    fleet_json_set_number(training, "microBatchSize", (double)choice->micro_batch);
    fleet_json_set(root, "training", training);
    return root;
}

static cJSON *encode_rival(const struct full_request *request, const struct full_rival *rival)
{
    cJSON *json = encode_block(request, &rival->choice);

    fleet_json_set_number(json, "stepSeconds", rival->time.total);
    fleet_json_set(json, "parts", search_print_encode(&rival->time));
    fleet_json_set_number(json, "bytesPerRank", rival->bytes);
    fleet_json_set_number(json, "sentBytesPerUpdate", rival->sent_bytes);
    fleet_json_set_bool(json, "cannotRun", rival->cannot_run);
    return json;
}

static cJSON *encode_rivals(const struct full_request *request, const struct full_rival *list,
                            int count)
{
    cJSON *array = cJSON_CreateArray();

    for (int i = 0; i < count; i++)
        (void)cJSON_AddItemToArray(array, encode_rival(request, &list[i]));
    return array;
}

static void print_json(const struct full_request *request, const struct full_result *result)
{
    FLEET_AUTO_JSON cJSON *root = fleet_json_new_object();
    FLEET_AUTO_FREE char *text = NULL;

    fleet_json_set_number(root, "devices", request->devices);
    fleet_json_set_number(root, "memoryPerDevice", request->memory);
    fleet_json_set_number(root, "combinations", (double)result->combinations);
    fleet_json_set_number(root, "planned", (double)result->looked_at);
    fleet_json_set(root, "best", encode_rivals(request, result->rivals, result->count));
    fleet_json_set(root, "tooLarge", encode_rivals(request, result->misfits, result->misfit_count));
    if (result->has_runnable)
        fleet_json_set(root, "runnable", encode_rival(request, &result->runnable));
    text = fleet_json_print(root);
    (void)puts(text);
}

/* The best that can run, if one can: the user pastes it to train. */
static int save(const char *path, const struct full_request *request,
                const struct full_result *result, struct fleet_errors *errors)
{
    bool is_second = result->rivals[0].cannot_run && result->has_runnable;
    const struct full_rival *best = is_second ? &result->runnable : &result->rivals[0];
    FLEET_AUTO_JSON cJSON *block = encode_block(request, &best->choice);
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    struct fleet_error err;

    fleet_strbuf_appendf(&text, "# Below spec. Predicted on %d devices: ", request->devices);
    search_print_rival(&text, best);
    fleet_strbuf_appendf(&text, "\n%s",
                         best->cannot_run ? "# The built-in trainer cannot run it yet.\n"
                         : is_second
                             ? "# The built-in trainer cannot run the best one yet; this is "
                               "the best that it can run.\n"
                             : "");
    yaml_print(block, &text);
    if (fleet_file_write(path, text.text, text.length, &err) < 0) {
        fleet_errors_add(errors, "", "%s", err.text);
        return -EINVAL;
    }
    return 0;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static int refuse_memory(const struct full_request *request, const struct full_result *result,
                         struct fleet_errors *errors)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    fleet_strbuf_appendf(&text, "none of %" PRId64 " combinations fits into ",
                         result->combinations);
    fleet_strbuf_append_size(&text, request->memory);
    fleet_strbuf_appendf(&text, " on each of %d devices: each needs at least ", request->devices);
    fleet_strbuf_append_size(&text, result->least_bytes);
    fleet_errors_add(errors, "", "%s", text.text);
    return -EINVAL;
}

static int search(const struct full_request *request, const struct plan_search_options *options,
                  struct fleet_errors *errors)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf out = {0};
    struct full_result result;

    if (full_search(request, &result, errors) < 0)
        return -EINVAL;
    if (result.count == 0)
        return refuse_memory(request, &result, errors);
    if (options->save && save(options->save, request, &result, errors) < 0)
        return -EINVAL;
    if (options->is_json) {
        print_json(request, &result);
    } else {
        search_print_rates(&out, options->links);
        append_result(&out, request, &result);
        (void)fputs(fleet_strbuf_text(&out), stdout);
    }
    return 0;
}

int plan_search_predict(const struct fleetjob *job, const struct plan *plan, const char *file,
                        struct fleet_strbuf *out, cJSON *json, struct fleet_errors *errors)
{
    struct plan_request request =
        plan_request_of(&job->spec.training, &job->spec.strategy, job->spec.strategy_policy,
                        &job->spec.strategy_options, plan->world);
    struct step_time time;
    struct links links;

    request.has_buddies = plan->has_buddies;
    if (plan_search_links(file, &links, errors) < 0 ||
        step_time_predict(&request, &links, &time, errors) < 0)
        return -EINVAL;
    if (json) {
        fleet_json_set_number(json, "stepSeconds", time.total);
        fleet_json_set(json, "stepParts", search_print_encode(&time));
        return 0;
    }
    search_print_rates(out, file);
    fleet_strbuf_append(out, "predicted  ");
    search_print_seconds(out, time.total);
    fleet_strbuf_append(out, " an update: ");
    search_print_parts(out, &time);
    return 0;
}

int plan_search(const struct fleetjob *job, const struct plan_search_options *options,
                struct fleet_errors *errors)
{
    struct links links;
    struct full_request request = {.training = &job->spec.training,
                                   .strategy = &job->spec.strategy,
                                   .policy = options->policy,
                                   .options = &job->spec.strategy_options,
                                   .has_buddies = job->spec.run_policy.elastic.replicas > 0,
                                   .devices = (int)options->devices,
                                   .links = &links};

    if (plan_search_links(options->links, &links, errors) < 0)
        return -EINVAL;
    request.memory = links.memory;
    if (plan_search_memory(options->memory, &request.memory, errors) < 0)
        return -EINVAL;
    return options->of_operators ? plan_search_operators(job, &request, options, errors)
                                 : search(&request, options, errors);
}

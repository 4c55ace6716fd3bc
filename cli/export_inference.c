/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/export_inference.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/runtime/inference/inference_model.h"
#include "agent/runtime/inference/weights.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_build.h"
#include "libfleet/base/memory.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/base/variable.h"

#define CHECK_RUNS 3

/* ---- names ----------------------------------------------------------------------------------- */

struct names {
    char *text; /* owned; list[i] points into it */
    const char *list[INFERENCE_NAMES_MAX];
    int count;
};

static int split(const char *option, const char *text, struct names *out, struct fleet_error *err)
{
    if (!text)
        return 0;
    out->text = fleet_dup_text(text);
    for (char *at = out->text, *comma; at; at = comma) {
        comma = strchr(at, ',');
        if (comma)
            *comma++ = '\0';
        if (!at[0])
            return fleet_error(err, -EINVAL, "--%s %s: a name is empty", option, text);
        if (out->count == INFERENCE_NAMES_MAX)
            return fleet_error(err, -EINVAL, "--%s: more than %d names", option,
                               INFERENCE_NAMES_MAX);
        out->list[out->count++] = at;
    }
    return 0;
}

/* ---- the report ------------------------------------------------------------------------------ */

typedef const struct inference_tensor *(*tensor_of)(const struct inference_model *model, int i);

static void print_json(const struct export_inference *request, const struct weights *weights,
                       const struct inference_summary *summary, const struct inference_model *model,
                       const char *outputs)
{
    static const tensor_of both[] = {inference_model_feed, inference_model_fetch};
    FLEET_AUTO_JSON cJSON *json = fleet_json_new_object();
    FLEET_AUTO_FREE char *text = NULL;

    fleet_json_set_string(json, "path", request->out);
    if (weights->step >= 0)
        fleet_json_set_number(json, "step", (double)weights->step);
    for (int b = 0; b < 2; b++) {
        cJSON *list = fleet_json_set_list(json, b ? "fetch" : "feed");
        const struct inference_tensor *tensor;
        for (int i = 0; (tensor = both[b](model, i)) != NULL; i++) {
            cJSON *item = fleet_json_add_object(list), *shape;
            fleet_json_set_string(item, "name", tensor->name);
            fleet_json_set_string(item, "type", program_type_name(tensor->type));
            shape = fleet_json_set_list(item, "shape");
            for (int d = 0; d < tensor->ndim; d++)
                fleet_json_add_number(shape, (double)tensor->shape[d]);
        }
    }
    fleet_json_set_number(json, "operators", summary->operators);
    fleet_json_set_number(json, "parameters", summary->parameters);
    fleet_json_set_number(json, "buffers", summary->buffers);
    fleet_json_set_number(json, "weightsBytes", (double)summary->weights_bytes);
    fleet_json_set_string(json, "sha256", summary->sha256);
    fleet_json_set_number(json, "checkedRuns", CHECK_RUNS);
    fleet_json_set_string(json, "outputsSha256", outputs);
    text = fleet_json_print(json);
    (void)printf("%s\n", text);
}

static void print_tensors(const char *title, const struct inference_model *model, tensor_of get)
{
    const struct inference_tensor *tensor;

    for (int i = 0; (tensor = get(model, i)) != NULL; i++) {
        (void)printf("%s %s %s [", title, tensor->name, program_type_name(tensor->type));
        for (int d = 0; d < tensor->ndim; d++)
            (void)printf("%s%lld", d ? ", " : "", (long long)tensor->shape[d]);
        (void)printf("]\n");
    }
}

static void print_text(const struct export_inference *request, const struct weights *weights,
                       const struct inference_summary *summary, const struct inference_model *model,
                       const char *outputs)
{
    (void)printf("Exported a model for inference to %s", request->out);
    if (weights->step >= 0)
        (void)printf(", step %lld", (long long)weights->step);
    (void)printf("\n%d operators, %d parameters, %d buffers, %.1f MB\n", summary->operators,
                 summary->parameters, summary->buffers, (double)summary->weights_bytes / 1e6);
    print_tensors("feed ", model, inference_model_feed);
    print_tensors("fetch", model, inference_model_fetch);
    (void)printf("read back: the same bits as the job's own program in %d runs, SHA-256 of all "
                 "results %s\n",
                 CHECK_RUNS, outputs);
}

/* ---- the work -------------------------------------------------------------------------------- */

static int check_and_report(const struct export_inference *request, const struct weights *weights,
                            const struct inference_summary *summary, int threads,
                            struct fleet_error *err)
{
    char outputs[FLEET_SHA256_HEX_SIZE];
    struct inference_model *model = NULL;
    int rc = inference_model_check(weights, request->out, CHECK_RUNS, threads, outputs, err);

    if (rc == 0)
        rc = inference_model_open(request->out, threads, &model, err);
    if (rc < 0) {
        (void)unlink(request->out);
        return rc;
    }
    (request->is_json ? print_json : print_text)(request, weights, summary, model, outputs);
    inference_model_free(model);
    return 0;
}

static int write_and_check(const struct export_inference *request, const struct names *feeds,
                           const struct names *fetches, struct fleet_error *err)
{
    const struct inference_request asked = {.feeds = feeds->list,
                                            .feed_count = feeds->count,
                                            .fetches = fetches->list,
                                            .fetch_count = fetches->count,
                                            .batch = request->batch};
    struct inference_summary summary;
    struct weights weights;
    int threads, rc = fleet_variable_threads(&threads, err);

    if (rc == 0)
        rc = fleet_file_prepare(request->out, err);
    if (rc == 0)
        rc = weights_open(request->checkpoint, NULL, &weights, err);
    if (rc < 0)
        return rc;
    rc = inference_model_save(&weights, &asked, request->out, &summary, err);
    if (rc == 0)
        rc = check_and_report(request, &weights, &summary, threads, err);
    weights_release(&weights);
    return rc;
}

int export_inference(const struct export_inference *request, struct fleet_error *err)
{
    struct names feeds = {0}, fetches = {0};
    int rc = split("feed", request->feed, &feeds, err);

    if (rc == 0)
        rc = split("fetch", request->fetch, &fetches, err);
    if (rc == 0)
        rc = write_and_check(request, &feeds, &fetches, err);
    free(feeds.text);
    free(fetches.text);
    return rc;
}

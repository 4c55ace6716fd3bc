/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/plan_calibrate.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/runtime/calibrate/calibrate.h"
#include "cli/links_file.h"
#include "cli/plan_search.h"
#include "cli/system/machine_memory.h"
#include "cli/system/processors.h"
#include "libfleet/api/fleetjob.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"
#include "libfleet/training/training.h"

/* Without a job: a gpt of the size of the first example. */
static const char small_model[] =
    "{\"model\":{\"name\":\"gpt\",\"layers\":4,\"heads\":8,\"width\":256,\"context\":128,"
    "\"vocabulary\":4096},\"data\":{\"tokenizer\":\"synthetic-markov\"},\"optimizer\":{\"name\":"
    "\"adamw\",\"learningRate\":0.001,\"clip\":{\"globalNorm\":1}},\"globalBatchSize\":64,"
    "\"microBatchSize\":2,\"steps\":1}";

/* ---- printing -------------------------------------------------------------------------------- */

static void append_seconds(struct fleet_strbuf *out, double seconds)
{
    fleet_strbuf_appendf(out, "%8.1f µs", seconds * 1e6);
}

static void append_class(const struct calibrate_result *result, enum links_class class_,
                         struct fleet_strbuf *out)
{
    const struct links_compute *compute = &result->links.compute;
    double rate = class_ < LINKS_OTHER    ? compute->flops[class_]
                  : class_ == LINKS_OTHER ? compute->bytes
                                          : compute->more[class_ - LINKS_ACTIVATION];

    if (result->share[class_] <= 0)
        return;
    fleet_strbuf_appendf(out, "  %-16s %8.2f %-9s", links_class_name(class_), rate * 1e-9,
                         class_ < LINKS_OTHER ? "GFLOP/s" : "GB/s");
    append_seconds(out, compute->start[class_]);
    fleet_strbuf_appendf(out, " each %6.1f %% of an update\n", 100 * result->share[class_]);
    if (class_ == LINKS_MATRIX && compute->weight_bytes > 0)
        fleet_strbuf_appendf(out, "    their weights  %8.2f GB/s\n", compute->weight_bytes * 1e-9);
}

static void append_link(const char *name, const struct links_link *link, struct fleet_strbuf *out)
{
    fleet_strbuf_appendf(out, "  %-4s     a message", name);
    append_seconds(out, link->latency);
    fleet_strbuf_appendf(out, " %7.2f GB/s\n", link->bytes * 1e-9);
    for (size_t i = 0; i < link->groups.count; i++) {
        const struct links_group *group = &link->groups.items[i];

        fleet_strbuf_appendf(out, "  %-4s %2" PRId64 " ranks: sum ", name, group->ranks);
        append_seconds(out, group->sum_seconds);
        append_seconds(out, group->sum_round_seconds);
        fleet_strbuf_appendf(out, " a round more %7.2f GB/s, gather", group->sum_bytes * 1e-9);
        append_seconds(out, group->gather_seconds);
        fleet_strbuf_appendf(out, " %7.2f GB/s\n", group->gather_bytes * 1e-9);
    }
}

static void append_result(const struct calibrate_request *request, const char *model,
                          const struct calibrate_result *result, struct fleet_strbuf *out)
{
    fleet_strbuf_appendf(out,
                         "%d ranks on %d processors, measured in %.1f s with the operators of %s; "
                         "the rates predict them within %.1f %%\n",
                         request->ranks, request->processors, result->seconds, model,
                         100 * result->fit);
    for (int class_ = 0; class_ < LINKS_CLASSES; class_++)
        append_class(result, (enum links_class)class_, out);
    append_link("shm", &result->links.inside, out);
    append_link("tcp", &result->links.between, out);
}

static void print_json(const struct links *links)
{
    FLEET_AUTO_JSON cJSON *json = fleet_object_encode(&links_type, links);
    FLEET_AUTO_FREE char *text = fleet_json_print(json);

    (void)puts(text);
}

/* ---- the whole ------------------------------------------------------------------------------- */

static void append_comment(const struct fleet_strbuf *table, struct fleet_strbuf *out)
{
    fleet_strbuf_append(out, "# Measured by `fleetjob plan --calibrate`. betweenNodes is TCP over "
                             "the loopback of this\n# machine: write the rates of your network "
                             "there.\n");
    for (const char *line = fleet_strbuf_text(table); *line;) {
        int length = (int)strcspn(line, "\n");

        fleet_strbuf_appendf(out, "# %.*s\n", length, line);
        line += length + (line[length] == '\n');
    }
}

static int store(const struct plan_calibrate_options *options,
                 const struct calibrate_result *result, struct fleet_strbuf *table,
                 struct fleet_errors *errors)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf comment = {0};
    FLEET_AUTO_FREE char *place = NULL;
    struct fleet_error err;
    int rc = 0;

    append_comment(table, &comment);
    if (!options->links)
        rc = links_file_place(&place, &err);
    if (rc == 0)
        rc = links_file_write(options->links ? options->links : place, &result->links, comment.text,
                              &err);
    if (rc < 0) {
        fleet_errors_add(errors, "", "store the rates: %s", err.text);
        return -EINVAL;
    }
    fleet_strbuf_appendf(table, "stored in %s\n", options->links ? options->links : place);
    return 0;
}

static int measure(struct calibrate_request *request, const char *model,
                   const struct plan_calibrate_options *options, struct fleet_errors *errors)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf table = {0};
    struct calibrate_result result;
    struct fleet_error err;

    request->ranks = (int)options->devices;
    request->processors = processors_count();
    request->threads = processors_per_trainer(request->ranks);
    request->memory = (double)machine_memory_limit("", NULL) / request->ranks;
    if (plan_search_memory(options->memory, &request->memory, errors) < 0)
        return -EINVAL;
    if (calibrate(request, &result, &err) < 0) {
        fleet_errors_add(errors, "", "calibrate: %s", err.text);
        return -EINVAL;
    }
    append_result(request, model, &result, &table);
    if (store(options, &result, &table, errors) < 0)
        return -EINVAL;
    if (options->is_json && !options->is_quiet)
        print_json(&result.links);
    else if (!options->is_quiet)
        (void)fputs(table.text, stdout);
    return 0;
}

int plan_calibrate(const struct fleetjob *job, const struct plan_calibrate_options *options,
                   struct fleet_errors *errors)
{
    FLEET_AUTO_JSON cJSON *json = NULL;
    struct calibrate_request request = {.training = NULL};
    struct training_config small = {0};
    int rc;

    if (options->devices > CALIBRATE_RANKS_MAX) {
        fleet_errors_add(errors, "",
                         "--calibrate measures the ranks of this machine, at most %d, not %lld: "
                         "give --devices",
                         CALIBRATE_RANKS_MAX, options->devices);
        return -EINVAL;
    }
    if (job) {
        request.training = &job->spec.training;
        request.strategy = &job->spec.strategy;
        request.policy = job->spec.strategy_policy;
        request.options = &job->spec.strategy_options;
        return measure(&request, job->metadata.name, options, errors);
    }
    json = cJSON_Parse(small_model);
    fleet_assert(training_config_decode(json, "", &small, errors) == 0);
    request.training = &small;
    rc = measure(&request, "a small gpt", options, errors);
    training_config_release(&small);
    return rc;
}

/* SPDX-License-Identifier: Apache-2.0 */

/* `fleetjob select`: which knobs of a strategy take effect at a size, and why the others do not. */
#include "libfleet/strategy/select.h"

#include <stdio.h>
#include <string.h>

#include "cli/arguments.h"
#include "cli/errors_json.h"
#include "cli/strategy_commands.h"
#include "cli/yaml_print.h"
#include "libfleet/api/document.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json_build.h"
#include "libfleet/plan/support.h"
#include "libfleet/strategy/strategy_json.h"
#include "libfleet/strategy/topology.h"

static const char usage[] =
    "Usage: fleetjob select FILE --world-size N [--policy full|paddle] [--optimizer NAME]\n"
    "                       [--output yaml|json]\n"
    "\n"
    "Prints which settings of the strategy in FILE take effect on N ranks, outermost first, what "
    "is\n"
    "dropped or has nothing to do and why, what the built-in runtime cannot run, and the "
    "effective\n"
    "strategy. FILE is a strategy alone or a whole FleetJob, as YAML, JSON or prototxt; - reads\n"
    "standard input. Exits 1 and prints the errors if the strategy is refused.\n"
    "\n"
    "  --world-size N    ranks, 1 to 65536\n"
    "  --policy P        full: contradictions are refused; paddle: what Paddle 2.0 would drop is\n"
    "                    dropped; default: what the job says, else full\n"
    "  --optimizer NAME  the user's optimizer (sgd, momentum, adam, …); default: the job's, else\n"
    "                    the one that the settings need\n"
    "  --output FORM     yaml (the default) or json\n";

struct arguments {
    const char *file;
    long long world_size; /* 0: not given */
    const char *policy;   /* NULL: not given */
    const char *optimizer;
    bool json;
};

/* Returns the exit code, or -1 to continue. */
static int parse_arguments(int argc, char **argv, struct arguments *out)
{
    static const char *const policies[] = {"full", "paddle", NULL};
    static const char *const forms[] = {"yaml", "json", NULL};
    const char *form = "yaml";
    const struct arguments_option options[] = {
        {.name = "world-size",
         .kind = ARGUMENTS_NUMBER,
         .out = &out->world_size,
         .min = 1,
         .max = TOPOLOGY_WORLD_MAX},
        {.name = "policy", .kind = ARGUMENTS_WORD, .out = &out->policy, .words = policies},
        {.name = "optimizer", .kind = ARGUMENTS_TEXT, .out = &out->optimizer},
        {.name = "output", .kind = ARGUMENTS_WORD, .out = &form, .words = forms, .letter = 'o'},
        {0},
    };
    int code = arguments_parse(argc, argv, usage, options, 1, &out->file);

    if (code < 0 && out->world_size == 0) {
        (void)fputs(usage, stderr);
        code = ARGUMENTS_USAGE;
    }
    out->json = strcmp(form, "json") == 0;
    return code;
}

/* ---- results as JSON ------------------------------------------------------------------------- */

static cJSON *names_json(const struct select_names *names)
{
    cJSON *list = cJSON_CreateStringArray(names->items, (int)names->count);

    fleet_assert(list);
    return list;
}

static cJSON *notes_json(const struct select_notes *notes)
{
    cJSON *list = fleet_json_new_list();

    for (size_t i = 0; i < notes->count; i++) {
        cJSON *note = fleet_json_new_object();

        fleet_json_set_string(note, "setting", notes->items[i].knob);
        fleet_json_set_string(note, "because", notes->items[i].because);
        fleet_json_add(list, note);
    }
    return list;
}

/* Knobs that take effect and that the built-in runtime refuses; none for an own trainer. */
static void add_refused(cJSON *json, const struct document *document, int world,
                        const struct select_result *result)
{
    const struct fleetjob_spec *spec = &document->job.spec;
    bool has_training = document->kind == DOCUMENT_JOB && spec->has_training;
    struct topology topology;
    struct support_question question = {.selection = result,
                                        .topology = &topology,
                                        .training = has_training ? &spec->training : NULL};
    struct select_notes refused = {0};
    struct fleet_errors ignored = {0}; /* already built by the selection */

    if (document->kind == DOCUMENT_JOB && !has_training)
        return;
    if (topology_build(&result->final, world, NULL, "", &topology, &ignored) == 0)
        (void)support_list(&question, &refused);
    if (refused.count > 0)
        fleet_json_set(json, "cannotRun", notes_json(&refused));
    select_notes_release(&refused);
    fleet_errors_release(&ignored);
}

static cJSON *result_json(const struct document *document, int world,
                          const struct select_result *result)
{
    cJSON *json = fleet_json_new_object();

    fleet_json_set(json, "applied", names_json(&result->applied));
    fleet_json_set(json, "dropped", notes_json(&result->dropped));
    fleet_json_set(json, "withoutEffect", notes_json(&result->without_effect));
    fleet_json_set(json, "dependsOnWorkers", names_json(&result->depends_on_workers));
    fleet_json_set(json, "notes", notes_json(&result->notes));
    if (result->warnings.count > 0)
        fleet_json_set(json, "warnings", notes_json(&result->warnings));
    add_refused(json, document, world, result);
    fleet_json_set(json, "final", strategy_json_encode(&result->final));
    return json;
}

static void print_json(const cJSON *json, bool as_json)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf out = {0};

    if (as_json) {
        FLEET_AUTO_FREE char *text = cJSON_Print(json);
        fleet_assert(text);
        fleet_strbuf_appendf(&out, "%s\n", text);
    } else {
        yaml_print(json, &out);
    }
    (void)fputs(fleet_strbuf_text(&out), stdout);
}

/* ---- the command ----------------------------------------------------------------------------- */

static struct select_options options_of(const struct document *document,
                                        const struct arguments *arguments)
{
    const struct fleetjob_spec *spec = &document->job.spec;
    struct select_options options = {.policy = STRATEGY_FULL,
                                     .world_size = (int)arguments->world_size,
                                     .optimizer = arguments->optimizer};

    if (document->kind == DOCUMENT_JOB) {
        options.policy = spec->strategy_policy;
        if (!options.optimizer && spec->has_training) {
            options.optimizer = training_optimizer_text(spec->training.optimizer.name);
            options.has_decay = spec->training.optimizer.weight_decay > 0;
            options.steps = spec->training.steps;
            options.lacks_batch_norm = !training_has_batch_norm(&spec->training);
        }
    }
    if (arguments->policy)
        options.policy = strcmp(arguments->policy, "paddle") == 0 ? STRATEGY_PADDLE : STRATEGY_FULL;
    return options;
}

static const char *path_of(const struct document *document)
{
    if (document->kind != DOCUMENT_JOB)
        return "";
    return document->job.spec.strategy_json ? "spec.strategy" : "spec.strategyText";
}

int cli_select(int argc, char **argv)
{
    FLEET_AUTO_JSON cJSON *json = NULL;
    SELECT_AUTO_RESULT struct select_result result = {0};
    struct fleet_errors errors = {0};
    struct arguments arguments = {0};
    struct document document;
    int code = parse_arguments(argc, argv, &arguments);

    if (code >= 0)
        return code;
    if (arguments_document(arguments.file, &document, &errors) == 0) {
        struct select_options options = options_of(&document, &arguments);
        (void)strategy_select(document_strategy(&document), &options, path_of(&document), &result,
                              &errors);
    }
    if (errors.count == 0)
        arguments_note_no_strategy("select", arguments.file, &document);
    json = errors.count > 0 ? errors_json(&errors)
                            : result_json(&document, (int)arguments.world_size, &result);
    print_json(json, arguments.json);
    code = errors.count > 0 ? ARGUMENTS_NO : ARGUMENTS_GOOD;
    document_release(&document);
    fleet_errors_release(&errors);
    return code;
}

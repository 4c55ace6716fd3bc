/* SPDX-License-Identifier: Apache-2.0 */

/* `fleetjob plan`: print the plan that controller and trainer compute, without running the job.
 * Also explains knobs that the built-in runtime would refuse. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/errors_json.h"
#include "cli/job_check.h"
#include "cli/plan_calibrate.h"
#include "cli/plan_search.h"
#include "cli/plan_table.h"
#include "cli/strategy_load.h"
#include "cli/system/processors.h"
#include "libfleet/api/document.h"
#include "libfleet/api/memory_limit.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_build.h"
#include "libfleet/program/print.h"

static const char usage[] =
    "Usage: fleetjob plan FILE [--world-size N] [--rank R] [--policy full|paddle]\n"
    "                     [--output table|json] [--program] [--print-schedule]\n"
    "       fleetjob plan FILE --search [full|dynamic_programming] [--links FILE] [--devices N]\n"
    "                     [--memory B] [--save FILE] [--policy full|paddle]\n"
    "                     [--output table|json]\n"
    "       fleetjob plan [FILE] --calibrate [--links FILE] [--devices N] [--memory B]\n"
    "       fleetjob plan FILE --predict [--links FILE] [--world-size N]\n"
    "\n"
    "Prints what a job will run on each rank and what that costs: degrees, groups, bytes by kind,\n"
    "communication, settings that are dropped or cannot run here. FILE is a FleetJob, or a "
    "strategy\n"
    "alone (then bytes are not known), as YAML, JSON or prototxt; - reads standard input. Exits 1\n"
    "and prints the errors if the job or the strategy is refused.\n"
    "\n"
    "  --world-size N  ranks, 1 to 65536; default: what the job says\n"
    "  --rank R        what rank R does, too: its coordinates, groups, stage, shard, "
    "micro-batches,\n"
    "                  bytes and communication\n"
    "  --policy P      full: contradictions are refused; paddle: what Paddle 2.0 would drop is\n"
    "                  dropped; default: what the job says, else full\n"
    "  --output FORM   table (the default) or json\n"
    "  --program       print the program of a rank, too: one line a variable, one an operator\n"
    "  --print-schedule  print only the order of passes of each pipeline stage: f3 is the forward\n"
    "                  pass of micro-batch 3, b3 its backward pass, f3' of its second chunk\n"
    "\n"
    "  --search [full] find the fastest division of the job over devices that fits into their\n"
    "                  memory: degrees, sharding stage, recompute, micro-batch, schedule.\n"
    "                  Prints the ten best, the time that is predicted, why each other one lost\n"
    "  --search dynamic_programming  find the fastest way to divide each operator of a gpt or\n"
    "                  llama over the ranks that share tensors: whole, by columns, by rows\n"
    "  --calibrate     measure what N ranks compute here, with the job's operators, and\n"
    "                  what the links between them carry; print it, store it in the links file.\n"
    "                  With --search, search with it then\n"
    "  --predict       print the predicted time of an update of the job as it is, too\n"
    "  --links FILE    what devices compute and links carry (docs/reference/plan.md); default:\n"
    "                  what --calibrate stored, fleetjob/links.yaml in XDG_CACHE_HOME or ~/.cache\n"
    "  --devices N     1 to 65536; default: the ranks of the job; without a job the processors\n"
    "  --memory B      bytes of one device, 80G or 24Gi; default: what the links file says\n"
    "  --save FILE     write the strategy of the best, to be pasted below spec\n";

struct arguments {
    const char *file;
    long long world;    /* 0 = as in the job */
    long long rank;     /* -1 = no particular one */
    const char *policy; /* NULL = as in the job */
    bool is_json, with_program, print_schedule, calibrate, predict;
    const char *search; /* NULL: print the plan */
    struct plan_search_options of_search;
};

/* An option of the other form of the command, or a missing one. */
static const char *misplaced(const struct arguments *arguments)
{
    const struct plan_search_options *of_search = &arguments->of_search;

    if (!arguments->file && (!arguments->calibrate || arguments->search))
        return "FILE is missing";
    if (arguments->calibrate && arguments->predict)
        return "--predict does not go with --calibrate: run it afterwards";
    if (arguments->search && arguments->predict)
        return "--predict does not go with --search, which predicts, too";
    if (arguments->calibrate && !arguments->search)
        return arguments->world            ? "--world-size does not go with --calibrate: give "
                                             "--devices"
               : arguments->rank >= 0      ? "--rank does not go with --calibrate"
               : arguments->with_program   ? "--program does not go with --calibrate"
               : arguments->print_schedule ? "--print-schedule does not go with --calibrate"
               : of_search->save           ? "--save goes with --search"
                                           : NULL;
    if (arguments->search)
        return arguments->world          ? "--world-size does not go with --search: give --devices"
               : arguments->rank >= 0    ? "--rank does not go with --search"
               : arguments->with_program ? "--program does not go with --search"
               : arguments->print_schedule ? "--print-schedule does not go with --search"
                                           : NULL;
    return of_search->links && !arguments->predict
               ? "--links goes with --search, --calibrate or --predict"
           : of_search->devices ? "--devices goes with --search; a plan takes --world-size"
           : of_search->memory  ? "--memory goes with --search"
           : of_search->save    ? "--save goes with --search"
                                : NULL;
}

/* Returns the exit code, or -1 to continue. */
static int check_together(const struct arguments *arguments)
{
    const char *what = misplaced(arguments);

    if (!what)
        return -1;
    (void)fprintf(stderr, "fleetjob plan: %s\n", what);
    return ARGUMENTS_USAGE;
}

/* Returns the exit code, or -1 to continue. */
static int parse_arguments(int argc, char **argv, struct arguments *out)
{
    static const char *const policies[] = {"full", "paddle", NULL};
    static const char *const forms[] = {"table", "json", NULL};
    static const char *const searches[] = {"full", "dynamic_programming", NULL};
    const char *form = "table";
    const struct arguments_option options[] = {
        {.name = "world-size",
         .kind = ARGUMENTS_NUMBER,
         .out = &out->world,
         .min = 1,
         .max = TOPOLOGY_WORLD_MAX},
        {.name = "rank",
         .kind = ARGUMENTS_NUMBER,
         .out = &out->rank,
         .min = 0,
         .max = TOPOLOGY_WORLD_MAX - 1},
        {.name = "policy", .kind = ARGUMENTS_WORD, .out = &out->policy, .words = policies},
        {.name = "output", .kind = ARGUMENTS_WORD, .out = &form, .words = forms, .letter = 'o'},
        {.name = "program", .kind = ARGUMENTS_FLAG, .out = &out->with_program},
        {.name = "print-schedule", .kind = ARGUMENTS_FLAG, .out = &out->print_schedule},
        {.name = "search",
         .kind = ARGUMENTS_WORD,
         .out = &out->search,
         .words = searches,
         .fallback = "full"},
        {.name = "calibrate", .kind = ARGUMENTS_FLAG, .out = &out->calibrate},
        {.name = "predict", .kind = ARGUMENTS_FLAG, .out = &out->predict},
        {.name = "links", .kind = ARGUMENTS_TEXT, .out = &out->of_search.links},
        {.name = "devices",
         .kind = ARGUMENTS_NUMBER,
         .out = &out->of_search.devices,
         .min = 1,
         .max = TOPOLOGY_WORLD_MAX},
        {.name = "memory", .kind = ARGUMENTS_TEXT, .out = &out->of_search.memory},
        {.name = "save", .kind = ARGUMENTS_TEXT, .out = &out->of_search.save},
        {0},
    };
    int code = arguments_parse_optional(argc, argv, usage, options, &out->file);

    out->is_json = out->of_search.is_json = strcmp(form, "json") == 0;
    return code >= 0 ? code : check_together(out);
}

/* ---- printing -------------------------------------------------------------------------------- */

static void print_json(const cJSON *json)
{
    FLEET_AUTO_FREE char *text = fleet_json_print(json);

    (void)puts(text);
}

static void print_schedule(const struct plan *plan)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf out = {0};

    pipeline_print_all(&plan->schedule, &out);
    (void)fputs(fleet_strbuf_text(&out), stdout);
}

static bool is_for_gpu(const struct document *document)
{
    const char *backend = getenv("FLEET_BACKEND");

    return (document->kind == DOCUMENT_JOB && memory_limit_is_on_gpu(&document->job)) ||
           (backend && strcmp(backend, "cuda") == 0);
}

static void print_plan(const struct document *document, const struct plan *plan,
                       const struct arguments *arguments, struct fleet_errors *errors)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf out = {0}, program = {0};

    if (arguments->is_json) {
        FLEET_AUTO_JSON cJSON *json = plan_encode_whole(plan);
        if (arguments->rank >= 0)
            fleet_json_set(json, "rank", plan_encode_rank(plan, (int)arguments->rank));
        if (arguments->predict &&
            plan_search_predict(&document->job, plan, arguments->of_search.links, NULL, json,
                                errors) < 0)
            return;
        if (arguments->with_program) {
            print_program(&plan->program, &program);
            fleet_json_set_string(json, "program", fleet_strbuf_text(&program));
        }
        print_json(json);
    } else {
        if (document->kind == DOCUMENT_JOB)
            fleet_strbuf_appendf(&out, "%s: ", document->job.metadata.name);
        if (plan->has_program)
            plan_table_headline(&document->job, plan, &out);
        else
            fleet_strbuf_appendf(&out, "%d ranks\n", plan->world);
        plan_table_whole(plan, &out);
        if (plan->has_program && is_for_gpu(document))
            plan_table_gpu(plan, &out);
        if (arguments->rank >= 0)
            plan_table_rank(plan, (int)arguments->rank, &out);
        if (arguments->predict &&
            plan_search_predict(&document->job, plan, arguments->of_search.links, &out, NULL,
                                errors) < 0)
            return;
        if (arguments->with_program)
            print_program(&plan->program, &out);
    }
    (void)fputs(fleet_strbuf_text(&out), stdout);
}

/* Print errors: as JSON in place of the plan, or on standard error. */
static void print_errors(const struct fleet_errors *errors, const struct arguments *arguments)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    if (arguments->is_json) {
        FLEET_AUTO_JSON cJSON *json = errors_json(errors);
        print_json(json);
    } else {
        fleet_errors_print(errors, &text);
        (void)fputs(fleet_strbuf_text(&text), stderr);
    }
}

/* Print warnings on standard error. The plan itself has the warnings about the strategy. */
static void print_beside(const char *word, const struct fleet_errors *list,
                         const char *strategy_path)
{
    size_t length = strlen(strategy_path);

    for (size_t i = 0; i < list->count && i < FLEET_ERRORS_MAX; i++) {
        const char *path = list->items[i].path;

        if (strncmp(path, strategy_path, length) != 0 || path[length] != '.')
            (void)fprintf(stderr, "%s: %s: %s\n", word, path, list->items[i].message);
    }
}

/* ---- the command ----------------------------------------------------------------------------- */

static const enum strategy_policy *policy_of(const struct arguments *arguments)
{
    static const enum strategy_policy full = STRATEGY_FULL, paddle = STRATEGY_PADDLE;

    if (!arguments->policy)
        return NULL;
    return strcmp(arguments->policy, "paddle") == 0 ? &paddle : &full;
}

/* Does the plan have the parts that the options ask for? */
static bool check_arguments(const struct arguments *arguments, const struct plan *plan,
                            bool has_model, struct fleet_errors *errors)
{
    size_t before = errors->count;

    if (arguments->rank >= plan->world)
        fleet_errors_add(errors, "", "there is no rank %lld: ranks are 0 to %d", arguments->rank,
                         plan->world - 1);
    if (arguments->with_program && !has_model)
        fleet_errors_add(errors, "spec.training",
                         "there is none: without a model there is no program to print");
    else if (arguments->with_program && !plan->has_program)
        fleet_errors_add(errors, "spec.training.model.vocabulary",
                         "not known: without it there is no program to print");
    if (arguments->predict && !has_model)
        fleet_errors_add(errors, "spec.training",
                         "there is none: without a model there is no time to predict");
    if (arguments->print_schedule && pipeline_step_count(&plan->schedule) > PIPELINE_STEPS_PRINTED)
        fleet_errors_add(errors, "", "a stage has %zu passes; --print-schedule prints at most %d",
                         pipeline_step_count(&plan->schedule), PIPELINE_STEPS_PRINTED);
    return errors->count == before;
}

static void plan_strategy(const struct document *document, const struct arguments *arguments,
                          struct job_check *check)
{
    const enum strategy_policy *policy = policy_of(arguments);
    struct plan_request request =
        plan_request_of(NULL, document_strategy(document), policy ? *policy : STRATEGY_FULL, NULL,
                        (int)arguments->world);

    request.strategy_path = "";
    if (!arguments->world)
        fleet_errors_add(&check->errors, "",
                         "a strategy alone does not say how many ranks there are: "
                         "give --world-size");
    if (check->errors.count == 0)
        check->has_plan = plan_build(&request, &check->plan, &check->errors) == 0;
}

static void plan_job(struct document *document, const struct arguments *arguments,
                     struct job_check *check)
{
    struct job_check_options options = {.command = JOB_CHECK_PLAN,
                                        .file = arguments->file,
                                        .world_size = arguments->world,
                                        .policy = policy_of(arguments)};

    strategy_load(document->json, arguments->file, &document->job, &check->errors,
                  &check->warnings);
    if (!arguments->search)
        strategy_load_found(document->json, &document->job, &check->errors);
    job_check(&document->job, &options, check);
    if (arguments->search || arguments->calibrate) /* they describe the unchanged job */
        return;
    print_beside("warning", &check->warnings, fleetjob_strategy_path(&document->job));
    print_beside("note", &check->notes, "");
}

/* Of the job, or of a small model. */
static int measure(const struct fleetjob *job, const struct arguments *arguments,
                   struct fleet_errors *errors)
{
    struct plan_calibrate_options options = {.devices = arguments->of_search.devices,
                                             .memory = arguments->of_search.memory,
                                             .links = arguments->of_search.links,
                                             .is_json = arguments->is_json,
                                             .is_quiet = arguments->is_json && arguments->search};

    if (!options.devices)
        options.devices =
            job ? fleetjob_world_size(job, job->spec.worker.replicas) : processors_count();
    return plan_calibrate(job, &options, errors);
}

/* Called only if the job's own plan is possible: other errors of the search are not the job's. */
static void find_strategy(struct document *document, const struct arguments *arguments,
                          struct job_check *check)
{
    struct plan_search_options options = arguments->of_search;
    const struct fleetjob_spec *spec = &document->job.spec;

    if (document->kind != DOCUMENT_JOB) {
        fleet_errors_add(&check->errors, "",
                         "a strategy alone has no model: --search and --calibrate need a "
                         "FleetJob");
        return;
    }
    plan_job(document, arguments, check);
    if (check->errors.count > 0)
        return;
    if (!spec->has_training) {
        fleet_errors_add(&check->errors, "spec.training",
                         "there is none: without a model there is nothing to search");
        return;
    }
    if (arguments->calibrate && measure(&document->job, arguments, &check->errors) < 0)
        return;
    if (!arguments->search)
        return;
    options.of_operators = strcmp(arguments->search, "full") != 0;
    options.policy = arguments->policy ? *policy_of(arguments) : spec->strategy_policy;
    if (!options.devices)
        options.devices = fleetjob_world_size(&document->job, spec->worker.replicas);
    (void)plan_search(&document->job, &options, &check->errors);
}

static void explain(struct document *document, const struct arguments *arguments,
                    struct job_check *check)
{
    bool is_job = document->kind == DOCUMENT_JOB;

    if (is_job)
        plan_job(document, arguments, check);
    else if (check->errors.count == 0)
        plan_strategy(document, arguments, check);
    /* As JSON, the errors replace the plan; with a table they go to standard error. */
    if (check->has_plan &&
        check_arguments(arguments, &check->plan, is_job && document->job.spec.has_training,
                        &check->errors) &&
        (check->errors.count == 0 || !arguments->is_json)) {
        if (arguments->print_schedule)
            print_schedule(&check->plan);
        else
            print_plan(document, &check->plan, arguments, &check->errors);
    }
}

static int measure_alone(const struct arguments *arguments)
{
    struct fleet_errors errors = {0};
    int rc = measure(NULL, arguments, &errors);

    if (rc < 0)
        print_errors(&errors, arguments);
    fleet_errors_release(&errors);
    return rc < 0 ? ARGUMENTS_NO : ARGUMENTS_GOOD;
}

int cli_plan(int argc, char **argv)
{
    struct arguments arguments = {.rank = -1};
    struct job_check check = {0};
    struct document document;
    int code = parse_arguments(argc, argv, &arguments);

    if (code >= 0)
        return code;
    if (!arguments.file)
        return measure_alone(&arguments);
    (void)arguments_document(arguments.file, &document, &check.errors);
    if (cJSON_IsObject(document.json) || check.errors.count == 0)
        (arguments.search || arguments.calibrate ? find_strategy : explain)(&document, &arguments,
                                                                            &check);
    if (check.errors.count > 0)
        print_errors(&check.errors, &arguments);
    code = check.errors.count > 0 ? ARGUMENTS_NO : ARGUMENTS_GOOD;
    document_release(&document);
    job_check_release(&check);
    return code;
}

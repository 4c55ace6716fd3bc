/* SPDX-License-Identifier: Apache-2.0 */

/* `fleetjob validate FILE [--world-size N]`: is it good, and if not, everything that is wrong. */
#include "cli/validate.h"

#include <stdio.h>

#include "cli/arguments.h"
#include "cli/job_file.h"
#include "libfleet/api/document.h"
#include "libfleet/api/validation.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/errors.h"
#include "libfleet/strategy/check.h"
#include "libfleet/strategy/select.h"
#include "libfleet/strategy/topology.h"

static const char usage[] =
    "Usage: fleetjob validate FILE [--world-size N] [--cluster]\n"
    "\n"
    "Checks a FleetJob, or a strategy alone, as YAML, JSON or prototxt; - reads standard input.\n"
    "Prints one error a line, \"path: message\", and exits 1 if there are any, else 0. Knobs of a\n"
    "job that the built-in runtime cannot run are errors: `fleetjob plan` explains them. Knobs that\n"
    "change nothing are warnings, on standard error.\n"
    "\n"
    "  --world-size N  check for N ranks (1 to 65536) instead of what the job says\n"
    "  --cluster       also check what only a cluster refuses: relative paths, checkpoints that\n"
    "                  lie on no volume\n";

struct arguments {
    const char *file;
    long long world_size; /* 0: not given */
    bool cluster;
};

/* A strategy without a job: its values, and with a world size its knobs together. */
static void check_strategy(const struct strategy *strategy, long long world_size,
                           struct fleet_errors *errors, struct fleet_errors *warnings)
{
    struct select_options options = {.policy = STRATEGY_FULL, .world_size = (int)world_size};
    struct select_result selected = {0};

    if (world_size == 0)
        (void)strategy_check(strategy, 0, "", errors, warnings);
    else if (strategy_select(strategy, &options, "", &selected, errors) == 0) {
        select_warn(&selected, "", warnings);
        select_result_release(&selected);
    }
}

static void warn_of(const struct fleetjob *job, const struct select_notes *notes, const char *what,
                    struct fleet_errors *warnings)
{
    for (size_t i = 0; i < notes->count; i++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf path = {0};

        fleet_strbuf_appendf(&path, "spec.%s.%s",
                             job->spec.strategy_text ? "strategyText" : "strategy",
                             notes->items[i].knob);
        fleet_errors_add(warnings, path.text, "%s: %s", what, notes->items[i].because);
    }
}

/* What only the plan knows: knobs that the built-in runtime cannot run or that change nothing, models
 * that do not fit. */
static void check_plan(const struct fleetjob *job, long long world_size,
                       struct fleet_errors *errors, struct fleet_errors *warnings)
{
    struct plan plan;

    if (!job->spec.has_training ||
        job_file_plan(job, world_size ? (int)world_size : job_file_world(job), &plan, errors) < 0)
        return;
    warn_of(job, &plan.selection.dropped, "is dropped", warnings);
    warn_of(job, &plan.selection.without_effect, "has no effect", warnings);
    plan_release(&plan);
}

static void check_document(struct document *document, const struct arguments *arguments,
                           struct fleet_errors *errors, struct fleet_errors *warnings)
{
    struct validation_options options = {.in_cluster = arguments->cluster,
                                         .world_size = arguments->world_size};

    if (document->kind != DOCUMENT_JOB)
        check_strategy(&document->strategy, arguments->world_size, errors, warnings);
    else if (validation_check(&document->job, &options, errors, warnings) == 0) {
        if (!arguments->cluster) /* where the job will train, the file may be another */
            (void)job_file_complete(&document->job, arguments->file, warnings);
        check_plan(&document->job, arguments->world_size, errors, warnings);
    }
}

int cli_validate(int argc, char **argv)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf bad = {0};
    struct fleet_errors errors = {0}, warnings = {0};
    struct arguments arguments = {0};
    const struct arguments_option options[] = {
        {.name = "world-size",
         .kind = ARGUMENTS_NUMBER,
         .out = &arguments.world_size,
         .min = 1,
         .max = TOPOLOGY_WORLD_MAX},
        {.name = "cluster", .kind = ARGUMENTS_FLAG, .out = &arguments.cluster},
        {0},
    };
    struct document document;
    int code = arguments_parse(argc, argv, usage, options, 1, &arguments.file);

    if (code >= 0)
        return code;
    if (arguments_document(arguments.file, &document, &errors) == 0)
        check_document(&document, &arguments, &errors, &warnings);
    fleet_errors_print(&errors, &bad);
    (void)fputs(fleet_strbuf_text(&bad), stdout);
    for (size_t i = 0; i < warnings.count && i < FLEET_ERRORS_MAX; i++)
        (void)fprintf(stderr, "warning: %s: %s\n", warnings.items[i].path,
                      warnings.items[i].message);
    code = errors.count > 0 ? ARGUMENTS_NO : ARGUMENTS_GOOD;
    document_release(&document);
    fleet_errors_release(&errors);
    fleet_errors_release(&warnings);
    return code;
}

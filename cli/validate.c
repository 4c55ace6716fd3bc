/* SPDX-License-Identifier: Apache-2.0 */

/* `fleetjob validate FILE [--world-size N]`: is it good, and if not, everything that is wrong. */
#include "cli/validate.h"

#include <stdio.h>

#include "cli/arguments.h"
#include "cli/job_file.h"
#include "libfleet/api/document.h"
#include "libfleet/api/validation.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/file.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/base/yaml.h"
#include "libfleet/strategy/check.h"
#include "libfleet/strategy/select.h"
#include "libfleet/strategy/topology.h"

static const char usage[] =
    "Usage: fleetjob validate FILE [--world-size N] [--cluster]\n"
    "\n"
    "Checks a FleetJob, or a strategy alone, as YAML, JSON or prototxt; - reads standard input.\n"
    "Prints \"FILE: valid\" and exits 0, or prints one error a line, \"path: message\", and exits 1.\n"
    "Every FleetJob of a file with several documents is checked; documents of other kinds are not.\n"
    "Settings that the built-in runtime cannot run are errors; `fleetjob plan` explains them.\n"
    "Settings without an effect are warnings, on standard error.\n"
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

/* What the lines are about: the file, or one of its jobs. */
static void name_document(const struct arguments *arguments, const struct document *document,
                          int jobs, struct fleet_strbuf *out)
{
    const char *job = document->job.metadata.name;

    fleet_strbuf_append(out, arguments->file);
    if (jobs > 1)
        fleet_strbuf_appendf(out, ", FleetJob %s", job ? job : "without a name");
}

/* Check and print document `number` of the file. True: it is valid. */
static bool validate_one(const char *text, size_t size, int number, int jobs,
                         const struct arguments *arguments)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf bad = {0}, name = {0};
    struct fleet_errors errors = {0}, warnings = {0};
    struct document document;
    bool is_valid;

    if (document_is_blank(text, size)) {
        (void)printf("%s: the file is empty, or has only comments\n", arguments->file);
        return false;
    }
    if (document_read_number(arguments->file, text, size, number, &document, &errors) == 0)
        check_document(&document, arguments, &errors, &warnings);
    name_document(arguments, &document, jobs, &name);
    fleet_errors_print(&errors, &bad);
    if (errors.count > 0 && jobs > 1)
        (void)printf("%s:\n", name.text);
    (void)fputs(fleet_strbuf_text(&bad), stdout);
    for (size_t i = 0; i < warnings.count && i < FLEET_ERRORS_MAX; i++)
        (void)fprintf(stderr, "warning: %s: %s\n", warnings.items[i].path,
                      warnings.items[i].message);
    is_valid = errors.count == 0;
    if (is_valid)
        (void)printf("%s: valid%s\n", name.text, warnings.count > 0 ? ", with warnings" : "");
    document_release(&document);
    fleet_errors_release(&errors);
    fleet_errors_release(&warnings);
    return is_valid;
}

int cli_validate(int argc, char **argv)
{
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
    FLEET_AUTO_FREE char *text = NULL;
    struct fleet_error err;
    int code = arguments_parse(argc, argv, usage, options, 1, &arguments.file), jobs;
    size_t size;

    if (code >= 0)
        return code;
    if (fleet_file_read(arguments.file, FLEET_YAML_SIZE_MAX, &text, &size, &err) < 0) {
        (void)puts(err.text);
        return ARGUMENTS_NO;
    }
    jobs = document_jobs(text, size);
    code = ARGUMENTS_GOOD;
    for (int i = 0; i < (jobs > 1 ? jobs : 1); i++)
        if (!validate_one(text, size, i, jobs, &arguments))
            code = ARGUMENTS_NO;
    return code;
}

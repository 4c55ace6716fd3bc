/* SPDX-License-Identifier: Apache-2.0 */

/* `fleetjob validate FILE [--world-size N]`: check a job or a strategy and print every error. */
#include "cli/validate.h"

#include <stdio.h>

#include "cli/arguments.h"
#include "cli/job_check.h"
#include "cli/strategy_load.h"
#include "libfleet/api/document.h"
#include "libfleet/autoparallel/context_strategy.h"
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
    "Prints \"FILE: valid\" and exits 0, or prints every error, one a line, \"path: message\", "
    "and exits\n"
    "1. Then come lines that begin with \"warning: \", for what is legal and probably not meant, "
    "and with\n"
    "\"note: \", for what cannot be seen from here. Every FleetJob of a file with several "
    "documents is\n"
    "checked; documents of other kinds are passed over and named. Settings that the built-in "
    "trainer\n"
    "cannot run yet are errors; `fleetjob plan` explains them. Data, weights and folders are "
    "looked at\n"
    "if they are on this machine: what `fleetjob run` would refuse here is an error.\n"
    "\n"
    "  --world-size N  check for N ranks (1 to 65536) instead of those of the job\n"
    "  --cluster       also check what only a cluster refuses: relative paths, checkpoints that\n"
    "                  lie on no volume\n";

struct arguments {
    const char *file;
    long long world_size; /* 0: not given */
    bool cluster;
};

/* Check a strategy without a job: its values and, with a world size, whether its knobs can be
 * combined. */
static void check_strategy(const struct strategy *strategy, long long world_size,
                           struct fleet_errors *errors, struct fleet_errors *warnings)
{
    struct select_options options = {.policy = STRATEGY_FULL, .world_size = (int)world_size};
    struct select_result selected = {0};

    if (world_size == 0)
        (void)strategy_check(strategy, 0, false, "", errors, warnings);
    else if (strategy_select(strategy, &options, "", &selected, errors) == 0) {
        select_warn(&selected, "", warnings);
        select_result_release(&selected);
    }
}

/* Report settings that have no effect in the built-in runtime; an own trainer may use them. */
static void warn_of(const struct fleetjob *job, const struct select_notes *notes, const char *what,
                    struct fleet_errors *warnings)
{
    for (size_t i = 0; i < notes->count; i++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf path = {0};
        const char *knob = notes->items[i].knob;
        const char *key = context_key_of(job->spec.auto_parallel, knob);

        if (key)
            fleet_strbuf_appendf(&path, "spec.autoParallel%s%s", *key ? "." : "", key);
        else
            fleet_strbuf_appendf(&path, "spec.%s.%s",
                                 job->spec.strategy_text ? "strategyText" : "strategy", knob);
        fleet_errors_add(warnings, path.text, "%s: %s", what, notes->items[i].because);
    }
}

static void check_document(struct document *document, const struct arguments *arguments,
                           struct job_check *check)
{
    struct job_check_options options = {.command = JOB_CHECK_VALIDATE,
                                        .file = arguments->file,
                                        .in_cluster = arguments->cluster,
                                        .world_size = arguments->world_size};

    if (document->kind != DOCUMENT_JOB) {
        if (check->errors.count == 0)
            check_strategy(&document->strategy, arguments->world_size, &check->errors,
                           &check->warnings);
        return;
    }
    if (!arguments->cluster) { /* there the file may be another one, and nothing is searched */
        strategy_load(document->json, arguments->file, &document->job, &check->errors,
                      &check->warnings);
        strategy_load_found(document->json, &document->job, &check->errors);
    }
    job_check(&document->job, &options, check);
    if (!check->has_plan || !document->job.spec.has_training)
        return;
    warn_of(&document->job, &check->plan.selection.dropped, "is dropped", &check->warnings);
    warn_of(&document->job, &check->plan.selection.without_effect, "has no effect",
            &check->warnings);
}

/* The subject of the output: the file, or one of its jobs. */
static void name_document(const struct arguments *arguments, const struct document *document,
                          int jobs, struct fleet_strbuf *out)
{
    const char *job = document->job.metadata.name;

    fleet_strbuf_append(out, arguments->file);
    if (jobs > 1)
        fleet_strbuf_appendf(out, ", FleetJob %s", job ? job : "without a name");
}

static void print_lines(const char *word, const struct fleet_errors *list)
{
    for (size_t i = 0; i < list->count && i < FLEET_ERRORS_MAX; i++)
        (void)printf("%s%s%s%s\n", word, list->items[i].path, list->items[i].path[0] ? ": " : "",
                     list->items[i].message);
    if (list->count > FLEET_ERRORS_MAX)
        (void)printf("and %zu more\n", list->count - FLEET_ERRORS_MAX);
}

static void print_verdict(const char *name, int jobs, const struct job_check *check)
{
    if (check->errors.count == 0)
        (void)printf("%s: valid%s\n", name, check->warnings.count > 0 ? ", with warnings:" : "");
    else if (jobs > 1)
        (void)printf("%s:\n", name);
    print_lines("", &check->errors);
    print_lines("warning: ", &check->warnings);
    print_lines("note: ", &check->notes);
}

/* Check and print document `number` of the file. True: it is valid. */
static bool validate_one(const char *text, size_t size, int number, int jobs,
                         const struct arguments *arguments)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf name = {0};
    struct job_check check = {0};
    struct document document;
    bool is_valid;

    if (document_is_blank(text, size)) {
        (void)printf("%s: the file is empty, or has only comments\n", arguments->file);
        return false;
    }
    (void)document_read_number(arguments->file, text, size, number, &document, &check.errors);
    if (cJSON_IsObject(document.json) || check.errors.count == 0)
        check_document(&document, arguments, &check);
    else if (document.is_broken)
        fleet_errors_add(&check.notes, "",
                         "%s: nothing else was looked at: text that cannot be parsed hides what "
                         "comes before and after it",
                         arguments->file);
    name_document(arguments, &document, jobs, &name);
    print_verdict(name.text, jobs, &check);
    is_valid = check.errors.count == 0;
    document_release(&document);
    job_check_release(&check);
    return is_valid;
}

/* List the objects of a file that are not FleetJobs and were not checked. */
static void print_others(const char *text, size_t size, const char *file)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf others = {0};

    document_others(text, size, &others);
    if (others.length > 0)
        (void)printf("note: %s: passed over: %s\n", file, others.text);
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
    if (jobs > 0)
        print_others(text, size, arguments.file);
    return code;
}

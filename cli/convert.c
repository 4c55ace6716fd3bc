/* SPDX-License-Identifier: Apache-2.0 */

/* `fleetjob convert`: convert a strategy between any two forms. Checks only its grammar. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/arguments.h"
#include "cli/strategy_commands.h"
#include "cli/yaml_print.h"
#include "libfleet/api/document.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"
#include "libfleet/base/yaml.h"
#include "libfleet/strategy/knobs.h"
#include "libfleet/strategy/prototxt.h"
#include "libfleet/strategy/strategy_json.h"
#include "libfleet/strategy/topology.h"

static const char usage[] =
    "Usage: fleetjob convert FILE --to prototxt|yaml|json [--schema 2.0|2.1] [--world-size N]\n"
    "\n"
    "Prints the strategy of FILE in another form. FILE is a strategy alone or a whole FleetJob, "
    "as\n"
    "YAML, JSON or prototxt (found by its content); - reads standard input. Only fields that are\n"
    "set are printed. Values are not judged: see `fleetjob validate`.\n"
    "\n"
    "  --to FORM       prototxt, yaml or json\n"
    "  --schema V      the names of Paddle 2.0, or of 2.1 and later; default: as they were given\n"
    "  --world-size N  ranks of the job, from which 2.1 has dp_degree where 2.0 has hybrid_dp\n";

struct arguments {
    const char *file;
    const char *to; /* NULL: not given */
    enum strategy_dialect dialect;
    long long world_size; /* 0: not given */
};

/* Returns the exit code, or -1 to continue. */
static int parse_arguments(int argc, char **argv, struct arguments *out)
{
    static const char *const forms[] = {"prototxt", "yaml", "json", NULL};
    static const char *const versions[] = {"2.0", "2.1", NULL};
    const char *version = NULL;
    const struct arguments_option options[] = {
        {.name = "to", .kind = ARGUMENTS_WORD, .out = &out->to, .words = forms},
        {.name = "schema", .kind = ARGUMENTS_WORD, .out = &version, .words = versions},
        {.name = "world-size",
         .kind = ARGUMENTS_NUMBER,
         .out = &out->world_size,
         .min = 1,
         .max = TOPOLOGY_WORLD_MAX},
        {0},
    };
    int code = arguments_parse(argc, argv, usage, options, 1, &out->file);

    if (code < 0 && !out->to) {
        (void)fputs(usage, stderr);
        code = ARGUMENTS_USAGE;
    }
    if (version)
        out->dialect = strcmp(version, "2.0") == 0 ? STRATEGY_2_0 : STRATEGY_2_1;
    return code;
}

/*
 * `mode` is a field of the text format, not of the resource. This command writes it into JSON and
 * YAML, so it must also read it back. Removes it from the JSON or YAML text and returns it; 0 if
 * absent.
 */
static int take_mode(char **text, size_t *size)
{
    FLEET_AUTO_JSON cJSON *root = NULL;
    cJSON *mode;
    int number = 0;

    if (fleet_yaml_to_json(*text, *size, &root, NULL) < 0 || cJSON_GetObjectItem(root, "spec"))
        return 0;
    mode = cJSON_GetObjectItemCaseSensitive(root, "mode");
    if (cJSON_IsString(mode))
        number = knob_mode_number(mode->valuestring);
    if (number == 0)
        return 0;
    cJSON_DeleteItemFromObjectCaseSensitive(root, "mode");
    free(*text);
    *text = fleet_json_print(root);
    *size = strlen(*text);
    return number;
}

static void print_strategy(const struct strategy *s, const char *to, struct fleet_strbuf *out)
{
    FLEET_AUTO_JSON cJSON *json = strategy_json_encode(s);

    if (strcmp(to, "prototxt") == 0) {
        (void)prototxt_print(s, STRATEGY_AS_READ, out, NULL); /* as read: cannot fail */
    } else if (strcmp(to, "yaml") == 0) {
        yaml_print(json, out);
    } else {
        FLEET_AUTO_FREE char *text = cJSON_Print(json);
        fleet_assert(text);
        fleet_strbuf_appendf(out, "%s\n", text);
    }
}

static long long world_of(const struct document *document, const struct arguments *arguments)
{
    const struct fleetjob *job = &document->job;

    if (arguments->world_size || document->kind != DOCUMENT_JOB)
        return arguments->world_size;
    return fleetjob_world_size(job, job->spec.worker.replicas);
}

static void warn_of_own_fields(const struct strategy *s, const char *to,
                               struct fleet_errors *warnings)
{
    if (strcmp(to, "prototxt") == 0 && s->hybrid_configs.has_order)
        fleet_errors_add(warnings, "hybrid_configs.order", "is left out: the text format lacks it");
}

static void convert(const struct document *document, const struct arguments *arguments, int mode,
                    struct fleet_strbuf *out, struct fleet_errors *errors,
                    struct fleet_errors *warnings)
{
    STRATEGY_AUTO struct strategy s;

    strategy_copy(&s, document_strategy(document));
    if (mode) {
        s.mode = mode;
        s.has_mode = KNOB_BY_NAME;
    }
    if (dialect_convert(&s, arguments->dialect, (int)world_of(document, arguments), "", warnings,
                        errors) < 0)
        return;
    warn_of_own_fields(&s, arguments->to, warnings);
    print_strategy(&s, arguments->to, out);
}

int cli_convert(int argc, char **argv)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf out = {0}, bad = {0};
    struct fleet_errors errors = {0}, warnings = {0};
    FLEET_AUTO_FREE char *text = NULL;
    struct arguments arguments = {0};
    struct document document;
    struct fleet_error err;
    size_t size;
    int code = parse_arguments(argc, argv, &arguments), mode;

    if (code >= 0)
        return code;
    if (fleet_file_read(arguments.file, FLEET_YAML_SIZE_MAX, &text, &size, &err) < 0) {
        (void)fprintf(stderr, "fleetjob convert: %s\n", err.text);
        return ARGUMENTS_NO;
    }
    mode = take_mode(&text, &size);
    if (document_read(arguments.file, text, size, &document, &errors) == 0)
        convert(&document, &arguments, mode, &out, &errors, &warnings);
    if (errors.count == 0)
        arguments_note_no_strategy("convert", arguments.file, &document);
    code = errors.count > 0 ? ARGUMENTS_NO : ARGUMENTS_GOOD;
    for (size_t i = 0; i < warnings.count; i++)
        (void)fprintf(stderr, "warning: %s %s\n", warnings.items[i].path,
                      warnings.items[i].message);
    fleet_errors_print(&errors, &bad);
    (void)fputs(fleet_strbuf_text(&bad), stderr);
    (void)fputs(fleet_strbuf_text(&out), stdout);
    document_release(&document);
    fleet_errors_release(&errors);
    fleet_errors_release(&warnings);
    return code;
}

/* SPDX-License-Identifier: Apache-2.0 */

/* `fleetjob export CHECKPOINT OUT.safetensors`: the weights of a checkpoint as one plain file. */
#include "cli/export.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/arguments.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"
#include "libfleet/program/export.h"

static const char usage[] =
    "Usage: fleetjob export CHECKPOINT OUT.safetensors [--json]\n"
    "\n"
    "Writes the weights of a checkpoint, under the names that Hugging Face (gpt, llama) and torchvision\n"
    "(resnet) use, as one safetensors file. CHECKPOINT is a checkpoint's folder, or the folder that\n"
    "training.checkpoint.path names: then it is the newest sound one in it.\n"
    "OUT \"-\" is standard output, a pipe or a file; what is said then goes to standard error.\n"
    "Otherwise OUT is a new file, or a regular file that is replaced when all is written.\n"
    "\n"
    "  --json  print one JSON object instead of text\n";

static void print_json(FILE *to, const char *out_path, const struct export_result *result)
{
    struct fleet_strbuf text = {0};

    fleet_strbuf_appendf(
        &text, "{\"step\":%lld,\"tensors\":%zu,\"bytes\":%llu,\"path\":", (long long)result->step,
        result->tensor_count, (unsigned long long)result->bytes);
    fleet_json_append_string(&text, out_path);
    fleet_strbuf_appendf(&text, ",\"weightsSha256\":\"%s\"}", result->weights_sha256);
    (void)fprintf(to, "%s\n", text.text);
    fleet_strbuf_release(&text);
}

int cli_export(int argc, char **argv)
{
    bool is_json = false;
    const struct arguments_option options[] = {
        {.name = "json", .kind = ARGUMENTS_FLAG, .out = &is_json}, {0}};
    struct export_result result;
    struct fleet_error err;
    const char *files[2];
    bool is_stdout;
    FILE *to;
    int code = arguments_parse(argc, argv, usage, options, 2, files);

    if (code >= 0)
        return code;
    is_stdout = strcmp(files[1], "-") == 0;
    if (is_stdout && isatty(STDOUT_FILENO)) {
        (void)fputs("fleetjob export: \"-\" writes binary data, and standard output is a terminal: "
                    "redirect it to a file or a pipe\n",
                    stderr);
        return ARGUMENTS_NO;
    }
    /* before all files are verified, which may take long */
    if (!is_stdout && fleet_file_prepare(files[1], &err) < 0) {
        (void)fprintf(stderr, "fleetjob export: %s\n", err.text);
        return ARGUMENTS_NO;
    }
    if (export_checkpoint(files[0], files[1], &result, &err) < 0) {
        (void)fprintf(stderr, "fleetjob export: %s\n", err.text);
        return ARGUMENTS_NO;
    }
    to = is_stdout ? stderr : stdout;
    if (is_json)
        print_json(to, files[1], &result);
    else
        (void)fprintf(to, "Exported %zu tensors of step %lld (%.1f MB) to %s\nweights SHA-256 %s\n",
                      result.tensor_count, (long long)result.step, (double)result.bytes / 1e6,
                      files[1], result.weights_sha256);
    return ARGUMENTS_GOOD;
}

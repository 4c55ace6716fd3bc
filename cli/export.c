/* SPDX-License-Identifier: Apache-2.0 */

/* `fleetjob export CHECKPOINT OUT`: write the weights of a checkpoint as a folder for transformers,
 * as one file, or as a model for inference. */
#include "cli/export.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "agent/runtime/inference/fetch.h"
#include "cli/arguments.h"
#include "cli/export_inference.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_build.h"
#include "libfleet/checkpoint/export_folder.h"

static const char usage[] =
    "Usage: fleetjob export CHECKPOINT OUT [--tokenizer FOLDER] [--tar] [--json]\n"
    "       fleetjob export CHECKPOINT FILE --inference [--fetch NAMES] [--feed NAMES]\n"
    "                       [--batch N] [--json]\n"
    "\n"
    "Writes the weights of a checkpoint in safetensors format, under the names that Hugging\n"
    "Face (gpt, llama) and torchvision (resnet) use. CHECKPOINT is a checkpoint's folder, or\n"
    "the folder that training.checkpoint.path names: then it is the newest sound one in it.\n"
    "It may be in a store (s3://…, webhdfs://…, hdfs://…): then it is copied to FLEET_CACHE\n"
    "first, and the store's variables are needed, as for the job.\n"
    "\n"
    "OUT decides what is written:\n"
    "\n"
    "  FOLDER            model.safetensors; for gpt and llama also config.json, and with the\n"
    "                    tokenizers bytes and bpe vocab.json, merges.txt and\n"
    "                    tokenizer_config.json: what transformers' from_pretrained(FOLDER)\n"
    "                    reads. The folder is made if need be.\n"
    "  NAME.safetensors  the weights alone, a new file or a regular file that is replaced\n"
    "  -                 the weights alone to standard output, a pipe or a file; the report\n"
    "                    then goes to standard error\n"
    "\n"
    "  --tokenizer FOLDER  where vocab.json and merges.txt are (tokenizer bpe), if they are\n"
    "                      not where the job read them\n"
    "  --tar               with OUT \"-\": the files of the folder as a tar archive\n"
    "  --json              print one JSON object instead of text\n"
    "\n"
    "With --inference FILE gets the forward program, pruned, with the weights that it reads:\n"
    "all that predictions need. The file is read back and must give the same bits as the\n"
    "job's own program; if it does not, it is removed. CHECKPOINT may also be an export.\n"
    "\n"
    "  --fetch NAMES       the variables that a run returns, with commas between; default: the\n"
    "                      logits\n"
    "  --feed NAMES        the variables that a run is given; default: the inputs that the\n"
    "                      fetched ones need\n"
    "  --batch N           samples of a run; default: the job's microBatchSize\n";

#define BATCH_MAX 1000000

struct request {
    bool is_json, is_tar, is_folder, is_inference;
    const char *tokenizer;    /* folder, or NULL */
    const char *fetch, *feed; /* of --inference */
    long long batch;
    const char *files[2]; /* CHECKPOINT, OUT */
};

static bool is_stdout(const struct request *request)
{
    return strcmp(request->files[1], "-") == 0;
}

static bool is_weights_file(const char *path)
{
    static const char suffix[] = ".safetensors";
    size_t length = strlen(path), n = sizeof(suffix) - 1;

    return length > n && strcmp(path + length - n, suffix) == 0;
}

/* ---- the report ------------------------------------------------------------------------------ */

static void print_json(FILE *to, const struct request *request, const struct export_files *files,
                       const struct export_result *result)
{
    FLEET_AUTO_JSON cJSON *json = fleet_json_new_object();
    FLEET_AUTO_FREE char *text = NULL;
    cJSON *list;

    fleet_json_set_number(json, "step", (double)result->step);
    fleet_json_set_number(json, "tensors", (double)result->tensor_count);
    fleet_json_set_number(json, "bytes", (double)result->bytes);
    fleet_json_set_string(json, "path", request->files[1]);
    list = fleet_json_set_list(json, "files");
    fleet_json_add_string(list, "model.safetensors");
    for (size_t i = 0; i < files->count; i++)
        fleet_json_add_string(list, files->items[i].name);
    fleet_json_set_string(json, "weightsSha256", result->weights_sha256);
    text = fleet_json_print(json);
    (void)fprintf(to, "%s\n", text);
}

static void print_text(FILE *to, const struct request *request, const struct export_files *files,
                       const struct export_result *result)
{
    (void)fprintf(to, "Exported %zu tensors of step %lld (%.1f MB) to %s\n", result->tensor_count,
                  (long long)result->step, (double)result->bytes / 1e6, request->files[1]);
    if (request->is_folder && files->count == 0)
        (void)fputs("model.safetensors only: transformers has no such model under these names\n",
                    to);
    else if (request->is_folder) {
        (void)fputs("model.safetensors", to);
        for (size_t i = 0; i < files->count; i++)
            (void)fprintf(to, ", %s", files->items[i].name);
        (void)fputs("\n", to);
    }
    (void)fprintf(to, "weights SHA-256 %s\n", result->weights_sha256);
}

/* ---- the work -------------------------------------------------------------------------------- */

static int write_out(const struct request *request, const struct export_source *source,
                     const struct export_files *files, struct export_result *out,
                     struct fleet_error *err)
{
    if (!request->is_folder)
        return export_file(source, request->files[1], out, err);
    if (!request->is_tar)
        return export_folder(source, files, request->files[1], out, err);
    return export_archive(source, files, STDOUT_FILENO, out, err) < 0
               ? fleet_error_wrap(err, "standard output")
               : 0;
}

/* Is OUT writable? This is checked before all files are verified, which may take long. */
static int prepare(const struct request *request, struct fleet_error *err)
{
    if (is_stdout(request))
        return 0;
    if (request->is_folder)
        return export_folder_prepare(request->files[1], &(struct export_files){0}, err);
    return fleet_file_prepare(request->files[1], err);
}

static int do_export(const struct request *request, struct fleet_error *err)
{
    struct export_source *source = NULL;
    struct export_files files = {0};
    struct export_result result;
    FLEET_AUTO_FREE char *fetched = NULL;
    int rc = prepare(request, err);

    if (rc == 0 && fleet_path_is_remote(request->files[0]))
        rc = fetch_checkpoint(request->files[0], &fetched, err);
    if (rc == 0)
        rc = export_open(fetched ? fetched : request->files[0], &source, err);
    if (rc == 0 && request->is_folder)
        rc = export_files_make(source, request->tokenizer, &files, err);
    if (rc == 0 && request->is_folder && !request->is_tar)
        rc = export_folder_prepare(request->files[1], &files, err);
    if (rc == 0)
        rc = write_out(request, source, &files, &result, err);
    if (rc == 0)
        (request->is_json ? print_json : print_text)(is_stdout(request) ? stderr : stdout, request,
                                                     &files, &result);
    export_files_release(&files);
    export_close(source);
    return rc;
}

static int refuse_usage(const char *text)
{
    (void)fprintf(stderr, "fleetjob export: %s\n", text);
    return ARGUMENTS_USAGE;
}

/* What does not fit together; 0: nothing. */
static int check_usage(const struct request *request)
{
    if (request->is_inference && (request->is_tar || request->tokenizer))
        return refuse_usage("--inference writes one file of a program and its weights: --tar and "
                            "--tokenizer cannot be given");
    if (request->is_inference && is_stdout(request))
        return refuse_usage("--inference reads the file back: OUT must be a file");
    if (!request->is_inference && (request->fetch || request->feed || request->batch))
        return refuse_usage("--fetch, --feed and --batch have no effect without --inference");
    if (request->is_tar && !is_stdout(request))
        return refuse_usage("--tar writes to standard output: OUT must be \"-\"");
    if (request->tokenizer && !request->is_folder)
        return refuse_usage(
            "--tokenizer has no effect: only the weights are written to OUT; give a "
            "folder");
    return 0;
}

static int run(const struct request *request, struct fleet_error *err)
{
    const struct export_inference inference = {.checkpoint = request->files[0],
                                               .out = request->files[1],
                                               .fetch = request->fetch,
                                               .feed = request->feed,
                                               .batch = request->batch,
                                               .is_json = request->is_json};

    return request->is_inference ? export_inference(&inference, err) : do_export(request, err);
}

int cli_export(int argc, char **argv)
{
    struct request request = {0};
    const struct arguments_option options[] = {
        {.name = "json", .kind = ARGUMENTS_FLAG, .out = &request.is_json},
        {.name = "tar", .kind = ARGUMENTS_FLAG, .out = &request.is_tar},
        {.name = "tokenizer", .kind = ARGUMENTS_TEXT, .out = &request.tokenizer},
        {.name = "inference", .kind = ARGUMENTS_FLAG, .out = &request.is_inference},
        {.name = "fetch", .kind = ARGUMENTS_TEXT, .out = &request.fetch},
        {.name = "feed", .kind = ARGUMENTS_TEXT, .out = &request.feed},
        {.name = "batch",
         .kind = ARGUMENTS_NUMBER,
         .out = &request.batch,
         .min = 1,
         .max = BATCH_MAX},
        {0}};
    struct fleet_error err;
    int code = arguments_parse(argc, argv, usage, options, 2, request.files);

    if (code >= 0)
        return code;
    request.is_folder =
        request.is_tar || (!is_stdout(&request) && !is_weights_file(request.files[1]));
    code = check_usage(&request);
    if (code)
        return code;
    if (is_stdout(&request) && isatty(STDOUT_FILENO)) {
        (void)fputs("fleetjob export: \"-\" writes binary data, and standard output is a terminal: "
                    "redirect it to a file or a pipe\n",
                    stderr);
        return ARGUMENTS_NO;
    }
    if (run(&request, &err) < 0) {
        (void)fprintf(stderr, "fleetjob export: %s\n", err.text);
        return ARGUMENTS_NO;
    }
    return ARGUMENTS_GOOD;
}

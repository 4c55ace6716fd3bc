/* SPDX-License-Identifier: Apache-2.0 */

/* `fleetjob eval WEIGHTS DATA`: print the loss of trained weights on data. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "agent/runtime/inference/evaluate_weights.h"
#include "agent/runtime/inference/weights.h"
#include "cli/arguments.h"
#include "cli/inference_commands.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_build.h"
#include "libfleet/base/variable.h"

static const char usage[] =
    "Usage: fleetjob eval WEIGHTS DATA [--held-out|--all] [--batches N]\n"
    "                     [--tokenizer FOLDER] [--json]\n"
    "\n"
    "Prints the mean loss (nats a token) and the perplexity of trained weights on data.\n"
    "WEIGHTS is a checkpoint's folder, a folder of checkpoints (the newest sound one is\n"
    "taken), what `fleetjob export` wrote, or a gpt2 or llama of others with its config.json.\n"
    "DATA is a file, a folder or a quoted glob in the format that the job was trained on; -\n"
    "with tokenizer synthetic-markov.\n"
    "\n"
    "On the job's own data the share is evaluated that the job held out (data.validation),\n"
    "with the job's evaluation.batches: the number is that of the job's own evaluation, bit\n"
    "for bit, on processors of the same instruction-set level. On other data all samples are\n"
    "evaluated.\n"
    "\n"
    "  --held-out          the last share data.validation of DATA, for any DATA\n"
    "  --all               all samples of DATA\n"
    "  --batches N         the first N global batches of these at most; 0: all\n"
    "  --tokenizer FOLDER  where vocab.json and merges.txt are (tokenizer bpe)\n"
    "  --json              print one JSON object instead of text\n"
    "\n"
    "FLEET_THREADS is the number of threads; default: as many as the processors allow.\n";

#define BATCHES_MAX 1000000000

struct request {
    bool is_json, is_all, is_held_out;
    const char *tokenizer; /* folder, or NULL */
    const char *files[2];  /* WEIGHTS, DATA */
    struct evaluate_request evaluate;
};

static void print_json(const struct weights *weights, const struct evaluate_result *result)
{
    FLEET_AUTO_JSON cJSON *json = fleet_json_new_object();
    FLEET_AUTO_FREE char *text = NULL;

    fleet_json_set_string(json, "weights", weights->path);
    if (weights->step >= 0)
        fleet_json_set_number(json, "step", (double)weights->step);
    fleet_json_set_number(json, "loss", result->loss);
    if (!isnan(result->perplexity)) {
        fleet_json_set_number(json, "perplexity", result->perplexity);
        fleet_json_set_number(json, "tokens", (double)result->tokens);
    }
    fleet_json_set_number(json, "samples", (double)result->samples);
    fleet_json_set_bool(json, "heldOut", result->is_held_out);
    fleet_json_set_bool(json, "ownData", result->is_own_data);
    fleet_json_set_string(json, "level", result->level);
    fleet_json_set_number(json, "seconds", result->seconds);
    text = fleet_json_print(json);
    (void)printf("%s\n", text);
}

static void print_text(const struct request *request, const struct weights *weights,
                       const struct evaluate_result *result)
{
    (void)printf("loss %.6f\n", result->loss);
    if (!isnan(result->perplexity))
        (void)printf("perplexity %.4f\n", result->perplexity);
    (void)printf("%lld %s of %s: %s\n", (long long)result->samples,
                 result->samples == 1 ? "sample" : "samples", request->files[1],
                 !result->is_held_out  ? "from its first one on"
                 : result->is_own_data ? "held out by the job"
                                       : "the last share, as data.validation says");
    (void)printf("weights %s", weights->path);
    if (weights->step >= 0)
        (void)printf(", step %lld", (long long)weights->step);
    (void)printf("\n");
    if (weights->instruction_set[0] && strcmp(weights->instruction_set, result->level) != 0)
        (void)printf("note: the job computed at level %s, this machine at %s: the last digits may "
                     "differ from the job's\n",
                     weights->instruction_set, result->level);
}

static int evaluate(struct request *request, struct fleet_error *err)
{
    struct evaluate_result result;
    struct weights weights;
    int rc;

    if (fleet_variable_threads(&request->evaluate.threads, err) < 0)
        return err->code;
    rc = weights_open(request->files[0], request->tokenizer, &weights, err);
    if (rc < 0)
        return rc;
    rc = evaluate_weights(&weights, &request->evaluate, &result, err);
    if (rc == 0 && request->is_json)
        print_json(&weights, &result);
    else if (rc == 0)
        print_text(request, &weights, &result);
    weights_release(&weights);
    return rc;
}

int cli_eval(int argc, char **argv)
{
    struct request request = {0};
    long long batches = -1;
    const struct arguments_option options[] = {
        {.name = "held-out", .kind = ARGUMENTS_FLAG, .out = &request.is_held_out},
        {.name = "all", .kind = ARGUMENTS_FLAG, .out = &request.is_all},
        {.name = "batches", .kind = ARGUMENTS_NUMBER, .out = &batches, .max = BATCHES_MAX},
        {.name = "tokenizer", .kind = ARGUMENTS_TEXT, .out = &request.tokenizer},
        {.name = "json", .kind = ARGUMENTS_FLAG, .out = &request.is_json},
        {0}};
    struct fleet_error err;
    int code = arguments_parse(argc, argv, usage, options, 2, request.files);

    if (code >= 0)
        return code;
    if (request.is_all && request.is_held_out) {
        (void)fputs("fleetjob eval: --held-out and --all cannot both be given\n", stderr);
        return ARGUMENTS_USAGE;
    }
    request.evaluate = (struct evaluate_request){.data = request.files[1],
                                                 .range = request.is_all        ? EVALUATE_ALL
                                                          : request.is_held_out ? EVALUATE_HELD_OUT
                                                                                : EVALUATE_AUTO,
                                                 .batches = batches};
    if (evaluate(&request, &err) < 0) {
        (void)fprintf(stderr, "fleetjob eval: %s\n", err.text);
        return ARGUMENTS_NO;
    }
    return ARGUMENTS_GOOD;
}

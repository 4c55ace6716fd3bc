/* SPDX-License-Identifier: Apache-2.0 */

/* `fleetjob generate WEIGHTS --prompt TEXT`: continue a text with a trained gpt or llama. */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/runtime/inference/codec.h"
#include "agent/runtime/inference/generator.h"
#include "agent/runtime/inference/weights.h"
#include "cli/arguments.h"
#include "cli/inference_commands.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/base/variable.h"

static const char usage[] =
    "Usage: fleetjob generate WEIGHTS --prompt TEXT [--tokens N] [--temperature T] [--top-k K]\n"
    "                         [--seed S] [--tokenizer FOLDER] [--raw] [--json]\n"
    "\n"
    "Prints the prompt and what a trained gpt or llama writes after it. WEIGHTS is a\n"
    "checkpoint's folder, a folder of checkpoints (the newest sound one is taken), what\n"
    "`fleetjob export` wrote, or a gpt2 or llama of others with its config.json. Without\n"
    "--temperature every token is the likeliest one (greedy). The same command gives the same\n"
    "text on processors of the same instruction-set level.\n"
    "\n"
    "  --prompt TEXT        where to begin; - reads standard input\n"
    "  --prompt-tokens IDS  the same as token ids, \"1 2 3\": for models without text\n"
    "  --tokens N           how many tokens to write (default 100); <|endoftext|> ends the text\n"
    "  --temperature T      0: the likeliest token (default); above 0: choose by\n"
    "                       softmax(logits / T)\n"
    "  --top-k K            choose among the K likeliest; needs --temperature above 0\n"
    "  --seed S             of the choice (default 0); needs --temperature above 0\n"
    "  --tokenizer FOLDER   where vocab.json and merges.txt are: use byte-pair encoding\n"
    "  --raw                print the bytes as they are; without it bytes that are not UTF-8,\n"
    "                       and control characters, are printed as U+FFFD\n"
    "  --json               print one JSON object with prompt, text and tokens instead\n"
    "\n"
    "Every token runs the whole model in fp32 on FLEET_THREADS threads. This shows what a\n"
    "model has learnt; to serve it, export it.\n";

#define TOKENS_DEFAULT 100
#define TOKENS_MAX     1000000
#define PROMPT_MAX     (16u << 20) /* bytes */
#define TOP_K_MAX      10000000

struct request {
    const char *weights, *prompt, *prompt_tokens, *temperature_text, *tokenizer;
    long long tokens, top_k, seed; /* -1 = not given */
    bool is_raw, is_json;
    struct generator_options options;
};

struct session {
    const struct request *request;
    struct weights weights;
    struct codec *codec;
    struct generator *generator;
    struct bpe_tokens tokens;    /* the prompt and the generated tokens */
    int64_t prompt_count;        /* of them */
    struct fleet_strbuf pending; /* bytes of an incomplete character */
    double seconds;
};

/* ---- the prompt ------------------------------------------------------------------------------ */

static void append_token(struct bpe_tokens *tokens, int32_t token)
{
    if (tokens->count == tokens->capacity) {
        tokens->capacity = 2 * tokens->capacity + 64;
        tokens->ids = realloc(tokens->ids, (size_t)tokens->capacity * sizeof(*tokens->ids));
        fleet_assert(tokens->ids != NULL);
    }
    tokens->ids[tokens->count++] = token;
}

static int read_ids(const char *text, struct bpe_tokens *out, struct fleet_error *err)
{
    while (*text) {
        char *end;
        long id;
        if (isspace((unsigned char)*text) || *text == ',') {
            text++;
            continue;
        }
        errno = 0;
        id = strtol(text, &end, 10);
        if (end == text || errno != 0 || id < 0 || id > INT32_MAX)
            return fleet_error(err, -EINVAL, "--prompt-tokens: \"%.20s\" is not a token id", text);
        append_token(out, (int32_t)id);
        text = end;
    }
    return 0;
}

static int read_text(struct session *s, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *input = NULL;
    const char *prompt = s->request->prompt;
    size_t size = strlen(prompt);

    if (!codec_has_text(s->codec))
        return fleet_error(err, -EINVAL,
                           "--prompt: the model was trained on token ids, not on text; give "
                           "--prompt-tokens, or --tokenizer with its vocab.json and merges.txt");
    if (strcmp(prompt, "-") == 0) {
        if (fleet_file_read("-", PROMPT_MAX, &input, &size, err) < 0)
            return err->code;
        prompt = input;
    }
    codec_encode(s->codec, prompt, size, &s->tokens);
    return 0;
}

static int read_prompt(struct session *s, struct fleet_error *err)
{
    int64_t vocabulary = generator_vocabulary(s->generator);
    int rc = s->request->prompt ? read_text(s, err)
                                : read_ids(s->request->prompt_tokens, &s->tokens, err);

    if (rc < 0)
        return rc;
    if (s->tokens.count == 0)
        return fleet_error(err, -EINVAL,
                           "the prompt is empty: a model needs a token to begin with");
    for (int64_t i = 0; i < s->tokens.count; i++)
        if (s->tokens.ids[i] >= vocabulary)
            return fleet_error(err, -EINVAL,
                               "the prompt has token %d, the model's vocabulary ends before %lld",
                               s->tokens.ids[i], (long long)vocabulary);
    s->prompt_count = s->tokens.count;
    return 0;
}

/* ---- the output ------------------------------------------------------------------------------ */

/* Append the printable form of a token to `out`. */
static void decode(struct session *s, int64_t index, bool is_last, struct fleet_strbuf *out)
{
    if (!codec_has_text(s->codec)) {
        fleet_strbuf_appendf(out, "%s%d", index > 0 ? " " : "", s->tokens.ids[index]);
        return;
    }
    codec_decode(s->codec, s->tokens.ids[index], &s->pending);
    if (s->request->is_raw) {
        fleet_strbuf_append_bytes(out, fleet_strbuf_text(&s->pending), s->pending.length);
        fleet_strbuf_clear(&s->pending);
    } else {
        codec_printable(&s->pending, is_last, out);
    }
}

static void print_tokens(struct session *s, int64_t first, int64_t end)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf out = {0};

    if (s->request->is_json)
        return;
    for (int64_t i = first; i < end; i++)
        decode(s, i, false, &out);
    (void)fwrite(fleet_strbuf_text(&out), 1, out.length, stdout);
    (void)fflush(stdout);
}

static void append_range(struct session *s, const char *name, int64_t first, int64_t end,
                         struct fleet_strbuf *out)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    if (codec_has_text(s->codec)) {
        for (int64_t i = first; i < end; i++)
            decode(s, i, i + 1 == end, &text);
        fleet_strbuf_appendf(out, "\"%s\":", name);
        fleet_json_append_string(out, fleet_strbuf_text(&text));
        fleet_strbuf_append(out, ",");
    }
    fleet_strbuf_appendf(out, "\"%sTokens\":[", name);
    for (int64_t i = first; i < end; i++)
        fleet_strbuf_appendf(out, "%s%d", i > first ? "," : "", s->tokens.ids[i]);
    fleet_strbuf_append(out, "],");
}

static double rate(const struct session *s)
{
    int64_t made = s->tokens.count - s->prompt_count;

    return s->seconds > 0 ? (double)made / s->seconds : 0;
}

static void print_json(struct session *s)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    fleet_strbuf_append(&text, "{");
    append_range(s, "prompt", 0, s->prompt_count, &text);
    append_range(s, "text", s->prompt_count, s->tokens.count, &text);
    fleet_strbuf_append(&text, "\"tokensPerSecond\":");
    fleet_json_append_number(&text, rate(s));
    (void)printf("%s}\n", text.text);
}

static void print_end(struct session *s)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf rest = {0};

    if (s->request->is_json) {
        print_json(s);
        return;
    }
    codec_printable(&s->pending, true, &rest);
    (void)printf("%s\n", fleet_strbuf_text(&rest));
    (void)fflush(stdout);
    (void)fprintf(stderr, "%lld tokens in %.1f s, %.1f tokens/s, %s\n",
                  (long long)(s->tokens.count - s->prompt_count), s->seconds, rate(s),
                  s->request->options.temperature > 0 ? "sampled" : "greedy");
    if (s->tokens.count > generator_context(s->generator))
        (void)fprintf(
            stderr,
            "note: the text is longer than the model's context of %lld tokens; each token "
            "was chosen from the last %lld\n",
            (long long)generator_context(s->generator), (long long)generator_context(s->generator));
}

/* ---- the work -------------------------------------------------------------------------------- */

static int generate(struct session *s, struct fleet_error *err)
{
    double started_ms;

    print_tokens(s, 0, s->prompt_count);
    started_ms = fleet_monotonic_ms();
    for (int64_t i = 0; i < s->request->tokens; i++) {
        int32_t token;
        int rc = generator_next(s->generator, s->tokens.ids, s->tokens.count, &s->request->options,
                                i, &token, err);
        if (rc < 0)
            return rc;
        if (token == codec_end_of_text(s->codec))
            break;
        append_token(&s->tokens, token);
        print_tokens(s, s->tokens.count - 1, s->tokens.count);
    }
    s->seconds = (fleet_monotonic_ms() - started_ms) * 1e-3;
    print_end(s);
    return ferror(stdout) ? fleet_error(err, -EIO, "standard output: cannot be written") : 0;
}

static int run(const struct request *request, struct fleet_error *err)
{
    struct session s = {.request = request};
    int threads, rc = fleet_variable_threads(&threads, err);

    if (rc == 0)
        rc = weights_open(request->weights, request->tokenizer, &s.weights, err);
    if (rc < 0)
        return rc;
    rc = generator_open(&s.weights, threads, &s.generator, err);
    if (rc == 0)
        rc = codec_open(&s.weights, &s.codec, err);
    if (rc == 0)
        rc = read_prompt(&s, err);
    if (rc == 0)
        rc = generate(&s, err);
    codec_free(s.codec);
    generator_free(s.generator);
    weights_release(&s.weights);
    fleet_strbuf_release(&s.pending);
    free(s.tokens.ids);
    return rc;
}

static int refuse_usage(const char *text)
{
    (void)fprintf(stderr, "fleetjob generate: %s\n", text);
    return ARGUMENTS_USAGE;
}

/* ARGUMENTS_GOOD, or the error. */
static int complete(struct request *request)
{
    char *end;

    if (!request->prompt == !request->prompt_tokens)
        return refuse_usage("give either --prompt TEXT or --prompt-tokens IDS");
    if (request->temperature_text) {
        errno = 0;
        request->options.temperature = strtod(request->temperature_text, &end);
        if (end == request->temperature_text || *end || errno != 0 ||
            !isfinite(request->options.temperature) || request->options.temperature < 0)
            return refuse_usage("--temperature: a number from 0 on is expected");
    }
    if (request->options.temperature <= 0 && (request->top_k >= 0 || request->seed >= 0))
        return refuse_usage("--top-k and --seed have no effect without --temperature above 0");
    request->options.top_k = request->top_k > 0 ? request->top_k : 0;
    request->options.seed = request->seed > 0 ? (uint64_t)request->seed : 0;
    return ARGUMENTS_GOOD;
}

int cli_generate(int argc, char **argv)
{
    struct request request = {.tokens = TOKENS_DEFAULT, .top_k = -1, .seed = -1};
    const struct arguments_option options[] = {
        {.name = "prompt", .kind = ARGUMENTS_TEXT, .out = &request.prompt},
        {.name = "prompt-tokens", .kind = ARGUMENTS_TEXT, .out = &request.prompt_tokens},
        {.name = "tokens", .kind = ARGUMENTS_NUMBER, .out = &request.tokens, .max = TOKENS_MAX},
        {.name = "temperature", .kind = ARGUMENTS_TEXT, .out = &request.temperature_text},
        {.name = "top-k",
         .kind = ARGUMENTS_NUMBER,
         .out = &request.top_k,
         .min = 1,
         .max = TOP_K_MAX},
        {.name = "seed", .kind = ARGUMENTS_NUMBER, .out = &request.seed, .max = INT64_MAX},
        {.name = "tokenizer", .kind = ARGUMENTS_TEXT, .out = &request.tokenizer},
        {.name = "raw", .kind = ARGUMENTS_FLAG, .out = &request.is_raw},
        {.name = "json", .kind = ARGUMENTS_FLAG, .out = &request.is_json},
        {0}};
    struct fleet_error err;
    int code = arguments_parse(argc, argv, usage, options, 1, &request.weights);

    if (code < 0)
        code = complete(&request) == ARGUMENTS_GOOD ? -1 : ARGUMENTS_USAGE;
    if (code >= 0)
        return code;
    if (run(&request, &err) < 0) {
        (void)fprintf(stderr, "fleetjob generate: %s\n", err.text);
        return ARGUMENTS_NO;
    }
    return ARGUMENTS_GOOD;
}

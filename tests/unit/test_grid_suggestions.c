/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Random jobs whose grid of ranks is not possible. Each error that is about the grid suggests other
 * numbers, and the job with any one of these suggestions is accepted.
 *
 * SUGGESTIONS and FIRST in the environment choose how many jobs are drawn, and the first seed:
 *
 *     SUGGESTIONS=100000 build/release/tests/unit/test_grid_suggestions
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/api/fleetjob.h"
#include "libfleet/api/judge.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/strbuf.h"
#include "tests/support/seeds.h"

#define NEAREST  "; nearest possible: "
#define JOBS     1500
#define LEAST_OF 5 /* at least one of so many jobs is refused for its grid */

/* ---- drawing --------------------------------------------------------------------------------- */

/* splitmix64 (Steele and others, Fast Splittable Pseudorandom Number Generators, 2014). */
static int roll(uint64_t *state, int sides)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return (int)((z ^ z >> 31) % (uint64_t)sides);
}

static bool chance(uint64_t *dice, int percent)
{
    return roll(dice, 100) < percent;
}

/* 0 in `percent` of all cases. */
static int number(uint64_t *dice, int zero_percent, const char *numbers)
{
    return chance(dice, zero_percent) ? 0 : numbers[roll(dice, (int)strlen(numbers))] - '0';
}

/* A degree of 0 is not given. */
struct degree {
    const char *name;
    int value;
};

struct drawn {
    int workers, processes;
    const char *model;
    int heads, kv_heads, layers, context, micro, batch;
    struct degree degrees[5];
    int stage, chunks, merge, block;
    bool sharding, pipeline, all_forward, zero_bubble, divides_tokens;
};

static void draw(uint64_t seed, struct drawn *job)
{
    static const char *const models[] = {"gpt", "llama", "mlp", "resnet"};
    uint64_t dice = seed;
    int kind = roll(&dice, 20);

    *job = (struct drawn){
        .workers = 1 + roll(&dice, 12),
        .processes = chance(&dice, 85) ? 1 : 2 + roll(&dice, 2),
        .model = models[kind < 9    ? 0
                        : kind < 17 ? 1
                        : kind < 19 ? 2
                                    : 3],
        .heads = number(&dice, 0, "123468"),
        .layers = number(&dice, 0, "12345678"),
        .context = 4 * number(&dice, 0, "12345678") - roll(&dice, 2),
        .micro = number(&dice, 0, "1112346"),
        .degrees = {{"mp_degree", number(&dice, 50, "123468")},
                    {"sep_degree", number(&dice, 70, "123468")},
                    {"sharding_degree", number(&dice, 75, "12346")},
                    {"pp_degree", number(&dice, 45, "123456789")},
                    {"dp_degree", number(&dice, 80, "123468")}},
        .stage = 1 + roll(&dice, 3),
        .chunks = chance(&dice, 85) ? 1 : 2 + roll(&dice, 2),
        .merge = chance(&dice, 85) ? 1 : 2 + roll(&dice, 2),
        .block = chance(&dice, 95) ? 0 : 2 + roll(&dice, 2),
        .sharding = chance(&dice, 30),
        .pipeline = chance(&dice, 10),
        .all_forward = chance(&dice, 10),
        .zero_bubble = chance(&dice, 10),
        .divides_tokens = chance(&dice, 20),
    };
    job->batch = job->micro * (1 + roll(&dice, 16));
    job->kv_heads = job->heads;
    if (job->heads % 2 == 0 && strcmp(job->model, "llama") == 0)
        job->kv_heads /= 1 + roll(&dice, 2);
    if (job->processes > 1)
        job->block = 0; /* no grid may have blocks that are no multiple of a worker's ranks */
    job->sharding |= job->degrees[2].value > 1;
    job->pipeline |= job->degrees[3].value > 1;
}

/* ---- judging --------------------------------------------------------------------------------- */

static void write_model(const struct drawn *job, struct fleet_strbuf *out)
{
    bool is_mlp = strcmp(job->model, "mlp") == 0;

    fleet_strbuf_appendf(out, "{\"name\":\"%s\"", job->model);
    if (is_mlp) {
        fleet_strbuf_append(out, ",\"sizes\":[3072");
        for (int i = 1; i < job->layers; i++)
            fleet_strbuf_append(out, ",16");
        fleet_strbuf_append(out, ",10]");
    } else if (strcmp(job->model, "resnet") == 0) {
        fleet_strbuf_append(out, ",\"depths\":[1,1,1,1],\"baseWidth\":8");
    } else {
        fleet_strbuf_appendf(out, ",\"layers\":%d,\"heads\":%d,\"width\":%d,\"context\":%d",
                             job->layers, job->heads, 8 * job->heads, job->context);
        if (job->kv_heads != job->heads)
            fleet_strbuf_appendf(out, ",\"kvHeads\":%d", job->kv_heads);
    }
    fleet_strbuf_appendf(out, "},\"data\":{\"path\":\"t\"%s}",
                         is_mlp || strcmp(job->model, "resnet") == 0 ? ",\"tokenizer\":\"cifar10\""
                                                                     : "");
}

static void write_strategy(const struct drawn *job, struct fleet_strbuf *out)
{
    const char *comma = "";

    fleet_strbuf_append(out, "\"strategy\":{\"hybrid_configs\":{");
    for (size_t i = 0; i < FLEET_COUNT(job->degrees); i++)
        if (job->degrees[i].value > 0) {
            fleet_strbuf_appendf(out, "%s\"%s\":%d", comma, job->degrees[i].name,
                                 job->degrees[i].value);
            comma = ",";
        }
    fleet_strbuf_append(out, "}");
    if (job->sharding)
        fleet_strbuf_appendf(out, ",\"sharding\":true,\"sharding_configs\":{\"stage\":%d}",
                             job->stage);
    if (job->pipeline)
        fleet_strbuf_appendf(out,
                             ",\"pipeline\":true,\"pipeline_configs\":{\"schedule_mode\":\"%s\"}",
                             job->all_forward ? "F-then-B" : "1F1B");
    if (job->divides_tokens)
        fleet_strbuf_append(out, ",\"tensor_parallel_configs\":{\"sequence_parallel\":true}");
    if (job->merge > 1)
        fleet_strbuf_appendf(out,
                             ",\"gradient_merge\":true,\"gradient_merge_configs\":{\"k_steps\":%d}",
                             job->merge);
    if (job->block > 0)
        fleet_strbuf_appendf(out,
                             ",\"use_hierarchical_allreduce\":true,"
                             "\"hierarchical_allreduce_inter_nranks\":%d",
                             job->block);
    fleet_strbuf_append(out, "},\"strategyOptions\":{");
    if (job->pipeline && job->chunks > 1)
        fleet_strbuf_appendf(out, "\"pipelineChunks\":%d%s", job->chunks,
                             job->zero_bubble ? "," : "");
    if (job->pipeline && job->zero_bubble)
        fleet_strbuf_append(out, "\"pipelineSchedule\":\"zeroBubble\"");
    fleet_strbuf_append(out, "}");
}

static void judge(const struct drawn *job, struct fleet_strbuf *text, struct fleet_errors *errors)
{
    struct fleetjob read;
    struct plan plan;

    fleet_strbuf_appendf(text,
                         "{\"apiVersion\":\"fleetjob.dev/v1alpha1\",\"kind\":\"FleetJob\","
                         "\"metadata\":{\"name\":\"drawn\"},\"spec\":{\"worker\":{\"replicas\":%d,"
                         "\"processesPerPod\":%d},",
                         job->workers, job->processes);
    write_strategy(job, text);
    fleet_strbuf_append(text, ",\"training\":{\"model\":");
    write_model(job, text);
    fleet_strbuf_appendf(text,
                         ",\"optimizer\":{\"name\":\"sgd\",\"learningRate\":0.1},"
                         "\"globalBatchSize\":%d,\"microBatchSize\":%d,\"steps\":100}}}",
                         job->batch, job->micro);
    (void)fleetjob_read(text->text, text->length, &read, errors);
    if (judge_job(&read, &(struct judge_options){.without_image = true}, &plan, errors, NULL))
        plan_release(&plan);
    fleetjob_release(&read);
}

/* ---- suggestions ----------------------------------------------------------------------------- */

static int *value_named(struct drawn *job, const char *name)
{
    for (size_t i = 0; i < FLEET_COUNT(job->degrees); i++)
        if (strcmp(job->degrees[i].name, name) == 0)
            return &job->degrees[i].value;
    return strcmp(name, "globalBatchSize") == 0  ? &job->batch
           : strcmp(name, "microBatchSize") == 0 ? &job->micro
           : strcmp(name, "pipelineChunks") == 0 ? &job->chunks
                                                 : NULL;
}

/* The number at *at, which moves behind it. */
static int take_number(const char **at)
{
    char *end;
    long value = strtol(*at, &end, 10);

    if (end == *at)
        fail_msg("no number: \"%s\"", *at);
    *at = end;
    return (int)value;
}

static bool take_word(const char **at, const char *word)
{
    size_t length = strlen(word);

    if (strncmp(*at, word, length) != 0)
        return false;
    *at += length;
    return true;
}

/* "name number", with " × " or " and " between several. */
static void take_values(const char *text, struct drawn *job)
{
    while (*text) {
        size_t length = strcspn(text, " ");
        FLEET_AUTO_FREE char *name = strndup(text, length);

        if (text[length] != ' ' || !value_named(job, name))
            fail_msg("no suggestion: \"%s\"", text);
        text += length + 1;
        *value_named(job, name) = take_number(&text);
        (void)(take_word(&text, " × ") || take_word(&text, " and "));
    }
}

/* Apply one suggestion: "4 workers", "4 workers with pp_degree 2", or values. */
static void take(const char *text, struct drawn *job)
{
    if (*text >= '0' && *text <= '9') {
        job->workers = take_number(&text);
        if (!take_word(&text, " workers") && !take_word(&text, " worker"))
            fail_msg("no workers: \"%s\"", text);
        (void)take_word(&text, " with ");
    }
    take_values(text, job);
}

static void expect_accepted(uint64_t seed, const struct drawn *job, const char *message,
                            const char *suggestion)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    struct fleet_errors errors = {0};
    struct drawn changed = *job;

    take(suggestion, &changed);
    judge(&changed, &text, &errors);
    if (errors.count > 0)
        fail_msg("FIRST=%llu: %s\n\"%s\" gives: %s: %s\n%s", (unsigned long long)seed, message,
                 suggestion, errors.items[0].path, errors.items[0].message, text.text);
    fleet_errors_release(&errors);
}

/* "2 or 4 workers; or mp_degree 1, or globalBatchSize 8": returns how many. */
static int try_each(uint64_t seed, const struct drawn *job, const char *message)
{
    const char *at = strstr(message, NEAREST) + strlen(NEAREST), *rest = at;
    int count = 0;

    if (*at >= '0' && *at <= '9') { /* two numbers may have one unit */
        FLEET_AUTO_STRBUF struct fleet_strbuf first = {0};
        fleet_strbuf_appendf(&first, "%d workers", take_number(&rest));
        if (take_word(&rest, " or ")) {
            expect_accepted(seed, job, message, first.text);
            at = rest;
            count++;
        }
    }
    for (; at; count++) {
        const char *end = strstr(at, ", or "), *other = strstr(at, "; or ");
        FLEET_AUTO_FREE char *one = NULL;

        end = !end || (other && other < end) ? other : end;
        one = end ? strndup(at, (size_t)(end - at)) : strdup(at);
        expect_accepted(seed, job, message, one);
        at = end ? end + strlen(", or ") : NULL;
    }
    return count;
}

/* Errors that no number of the grid mends, or that name what does in their own words. */
static bool has_own_words(const char *message)
{
    static const char *const words[] = {
        "running statistics",
        "tensor parallelism divides gpt and llama",
        "ranks share sequences of gpt and llama",
        "has no blocks of layers",
        "zero-bubble is an order of its own",
        "with use_hierarchical_allreduce",
        "use 1 chunk, or stage 1",
    };

    for (size_t i = 0; i < FLEET_COUNT(words); i++)
        if (strstr(message, words[i]))
            return true;
    return false;
}

/* Are all errors about the grid? */
static bool is_about_grid(uint64_t seed, const struct fleet_errors *errors, const char *text)
{
    bool is = errors->count > 0;

    for (size_t i = 0; i < errors->count; i++) {
        const char *message = errors->items[i].message;
        if (has_own_words(message))
            is = false;
        else if (!strstr(message, NEAREST))
            fail_msg("FIRST=%llu: nothing is suggested: %s: %s\n%s", (unsigned long long)seed,
                     errors->items[i].path, message, text);
    }
    return is;
}

static unsigned long from_environment(const char *name, unsigned long otherwise)
{
    const char *text = getenv(name);

    return text ? strtoul(text, NULL, 10) : otherwise;
}

static void test_grid_suggestions__are_accepted(void **state)
{
    unsigned long first = from_environment("FIRST", 1), refused = 0, tried = 0;
    unsigned long count = from_environment("SUGGESTIONS", seeds_count(JOBS));

    (void)state;
    for (unsigned long seed = first; seed < first + count; seed++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
        struct fleet_errors errors = {0};
        struct drawn job;

        draw(seed, &job);
        judge(&job, &text, &errors);
        if (is_about_grid(seed, &errors, text.text)) {
            refused++;
            for (size_t i = 0; i < errors.count; i++)
                tried += (unsigned long)try_each(seed, &job, errors.items[i].message);
        }
        fleet_errors_release(&errors);
    }
    print_message("%lu of %lu jobs were refused, %lu suggestions were tried\n", refused, count,
                  tried);
    assert_true(count < 100 || refused > count / LEAST_OF);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_grid_suggestions__are_accepted),
    };
    return cmocka_run_group_tests_name("grid_suggestions", tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */

/* Which job made a checkpoint, and is it like ours? */
#include "agent/runtime/origin.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/digest.h"
#include "libfleet/base/error.h"
#include "libfleet/base/field.h"
#include "libfleet/base/file.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/checkpoint/vocabulary.h"
#include "libfleet/strategy/strategy_json.h"
#include "libfleet/strategy/strategy_options.h"
#include "libfleet/strategy/strategy_spec.h"
#include "libfleet/training/training.h"

#define NAMED_MAX 8 /* fields of a warning */
#define STRATEGY  "spec.strategy."

/* ---- ours ------------------------------------------------------------------------------------ */

/* Keys of spec.training, "block.key" or a whole block, that the weights after a step do not depend
 * on. */
static const char *const left_out[][2] = {
    {NULL, "steps"},     {NULL, "checkpoint"},   {NULL, "log"},      {NULL, "evaluation"},
    {"data", "path"},    {"data", "vocabulary"}, {"data", "merges"}, {"model", "initialWeights"},
    {"model", "preset"},
};

/* How operators are divided changes the order of sums where it differs between them. */
static cJSON *encode_training(const struct training_config *config,
                              const struct strategy_options *options)
{
    cJSON *training = training_config_encode(config);

    fleet_assert(training != NULL);
    for (size_t i = 0; i < sizeof(left_out) / sizeof(left_out[0]); i++) {
        cJSON *block =
            left_out[i][0] ? cJSON_GetObjectItemCaseSensitive(training, left_out[i][0]) : training;
        cJSON_DeleteItemFromObjectCaseSensitive(block, left_out[i][1]);
    }
    if (!options->operator_divisions)
        cJSON_DeleteItemFromObjectCaseSensitive(training, "operatorStrategies");
    return training;
}

static int read_file(const char *path, struct job_record_file *out, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *text = NULL;
    uint8_t digest[FLEET_SHA256_SIZE];
    size_t size;
    int rc = fleet_file_read(path, VOCABULARY_FILE_MAX, &text, &size, err);

    if (rc < 0)
        return rc;
    fleet_sha256(text, size, digest);
    fleet_hex_encode(digest, sizeof(digest), out->sha256);
    out->path = realpath(path, NULL);
    return out->path ? 0 : fleet_error(err, -errno, "%s: %s", path, strerror(errno));
}

int origin_tokenizer_read(const struct training_data *data, struct job_record_tokenizer *out,
                          struct fleet_error *err)
{
    int rc;

    memset(out, 0, sizeof(*out));
    rc = read_file(data->vocabulary, &out->vocabulary, err);
    if (rc == 0)
        rc = read_file(data->merges, &out->merges, err);
    if (rc < 0)
        origin_tokenizer_release(out);
    return rc;
}

void origin_tokenizer_release(struct job_record_tokenizer *tokenizer)
{
    free(tokenizer->vocabulary.path);
    free(tokenizer->merges.path);
    memset(tokenizer, 0, sizeof(*tokenizer));
}

cJSON *origin_encode(const struct origin *origin)
{
    const struct training_config *training = origin->training;
    struct job_record_text text = {
        .uid = (char *)origin->uid,
        .name = (char *)origin->name,
        .training = encode_training(training, origin->options),
        .strategy = strategy_json_encode(origin->strategy),
        .options = fleet_object_encode(&strategy_options_type, origin->options),
        .policy = origin->policy,
        .evaluation_batches = training->has_evaluation ? training->evaluation.batches : -1,
        .has_tokenizer = origin->tokenizer != NULL,
    };
    cJSON *json;

    if (origin->tokenizer)
        text.tokenizer = *origin->tokenizer;
    fleet_hex_encode(origin->data, FLEET_SHA256_SIZE, text.data_sha256);
    json = fleet_object_encode(&job_record_text_type, &text);
    cJSON_Delete(text.training);
    cJSON_Delete(text.strategy);
    cJSON_Delete(text.options);
    return json;
}

/* ---- theirs ---------------------------------------------------------------------------------- */

struct differences {
    struct fleet_strbuf *out; /* NULL: they are only counted */
    int count;
};

/* What only divides the work over ranks, and changes no bit of the weights; with a dot at the end:
 * all below. The number of ranks that share tensors is not among these. */
static const char *const dividing[] = {
    "spec.strategy.pipeline",
    "spec.strategy.pipeline_configs.",
    "spec.strategy.sharding",
    "spec.strategy.sharding_configs.dp_degree",
    "spec.strategy.sharding_configs.fuse_broadcast_MB",
    "spec.strategy.sharding_configs.hybrid_dp",
    "spec.strategy.sharding_configs.pp_degree",
    "spec.strategy.sharding_configs.segment_broadcast_MB",
    "spec.strategy.sharding_configs.sharding_degree",
    "spec.strategy.sharding_configs.sharding_group_size",
    "spec.strategy.sharding_configs.stage",
    "spec.strategy.hybrid_configs.dp_degree",
    "spec.strategy.hybrid_configs.order",
    "spec.strategy.hybrid_configs.pp_configs.",
    "spec.strategy.hybrid_configs.pp_degree",
    "spec.strategy.hybrid_configs.sharding_configs.",
    "spec.strategy.hybrid_configs.sharding_degree",
    "spec.strategyOptions.partition",
    "spec.strategyOptions.pipelineChunks",
    "spec.strategyOptions.pipelineLayers",
    "spec.strategyOptions.pipelineSchedule",
};

static bool divides(const char *field)
{
    for (size_t i = 0; i < sizeof(dividing) / sizeof(dividing[0]); i++) {
        size_t length = strlen(dividing[i]);
        if (dividing[i][length - 1] == '.' ? strncmp(field, dividing[i], length) == 0
                                           : strcmp(field, dividing[i]) == 0)
            return true;
    }
    return false;
}

static void name_one(struct differences *d, const char *field)
{
    if (divides(field))
        return;
    d->count++;
    if (!d->out)
        return;
    if (d->count <= NAMED_MAX)
        fleet_strbuf_appendf(d->out, "%s%s", d->count > 1 ? ", " : "", field);
    else if (d->count == NAMED_MAX + 1)
        fleet_strbuf_append(d->out, ", …");
}

static void compare_values(const cJSON *theirs, const cJSON *ours, const char *path,
                           struct differences *d);

/* The depth is bounded by our own block, which comes from tables. */
static void compare_objects(const cJSON *theirs, const cJSON *ours, const char *path,
                            struct differences *d)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, ours)
    {
        FLEET_AUTO_STRBUF struct fleet_strbuf field = {0};
        fleet_strbuf_appendf(&field, "%s.%s", path, item->string);
        compare_values(cJSON_GetObjectItemCaseSensitive(theirs, item->string), item, field.text, d);
    }
    cJSON_ArrayForEach(item, theirs)
    {
        FLEET_AUTO_STRBUF struct fleet_strbuf field = {0};
        fleet_strbuf_appendf(&field, "%s.%s", path, item->string);
        if (!cJSON_GetObjectItemCaseSensitive(ours, item->string))
            compare_values(item, NULL, field.text, d);
    }
}

/* A block of the strategy that one of two jobs has: has it something that does not only divide? */
static bool differs(const cJSON *theirs, const cJSON *ours, const char *path)
{
    const cJSON *block = theirs ? theirs : ours;
    struct differences d = {0};

    if ((theirs && ours) || !cJSON_IsObject(block) ||
        strncmp(path, STRATEGY, strlen(STRATEGY)) != 0)
        return true;
    compare_objects(theirs, ours, path, &d);
    return d.count > 0;
}

static void compare_values(const cJSON *theirs, const cJSON *ours, const char *path,
                           struct differences *d)
{
    if (cJSON_IsObject(theirs) && cJSON_IsObject(ours))
        compare_objects(theirs, ours, path, d);
    else if (!cJSON_Compare(theirs, ours, true) && differs(theirs, ours, path))
        name_one(d, path);
}

void origin_compare(const cJSON *theirs, const cJSON *ours, struct fleet_strbuf *out)
{
    static const char *const blocks[][2] = {{"training", "spec.training"},
                                            {"strategy", "spec.strategy"},
                                            {"strategyOptions", "spec.strategyOptions"},
                                            {"dataSha256", "the data of spec.training.data.path"}};
    struct differences d = {.out = out};

    for (size_t i = 0; theirs && i < sizeof(blocks) / sizeof(blocks[0]); i++)
        compare_values(cJSON_GetObjectItemCaseSensitive(theirs, blocks[i][0]),
                       cJSON_GetObjectItemCaseSensitive(ours, blocks[i][0]), blocks[i][1], &d);
}

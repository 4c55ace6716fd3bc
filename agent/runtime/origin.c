/* SPDX-License-Identifier: Apache-2.0 */

/* Whose checkpoint is it, and is that job like ours? */
#include "agent/runtime/origin.h"

#include "libfleet/base/assert.h"
#include "libfleet/base/digest.h"
#include "libfleet/base/field.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/program/training.h"
#include "libfleet/strategy/strategy_json.h"
#include "libfleet/strategy/strategy_options.h"

#define NAMED_MAX 8 /* fields of a warning */

/* ---- ours ------------------------------------------------------------------------------------ */

/* Keys of spec.training, "block.key" or a whole block, that the weights after a step do not depend
 * on. */
static const char *const left_out[][2] = {
    {NULL, "steps"},     {NULL, "checkpoint"},   {NULL, "log"},      {NULL, "evaluation"},
    {"data", "path"},    {"data", "vocabulary"}, {"data", "merges"}, {"model", "initialWeights"},
    {"model", "preset"},
};

static cJSON *encode_training(const struct training_config *config)
{
    cJSON *training = training_config_encode(config);

    fleet_assert(training != NULL);
    for (size_t i = 0; i < sizeof(left_out) / sizeof(left_out[0]); i++) {
        cJSON *block =
            left_out[i][0] ? cJSON_GetObjectItemCaseSensitive(training, left_out[i][0]) : training;
        cJSON_DeleteItemFromObjectCaseSensitive(block, left_out[i][1]);
    }
    return training;
}

cJSON *origin_encode(const struct origin *origin)
{
    cJSON *root = cJSON_CreateObject();
    char data[FLEET_SHA256_HEX_SIZE];

    fleet_assert(root != NULL);
    fleet_hex_encode(origin->data, FLEET_SHA256_SIZE, data);
    (void)cJSON_AddStringToObject(root, "uid", origin->uid);
    (void)cJSON_AddStringToObject(root, "name", origin->name);
    (void)cJSON_AddStringToObject(root, "dataSha256", data);
    cJSON_AddItemToObject(root, "training", encode_training(origin->training));
    cJSON_AddItemToObject(root, "strategy", strategy_json_encode(origin->strategy));
    cJSON_AddItemToObject(root, "strategyOptions",
                          fleet_object_encode(&strategy_options_type, origin->options));
    return root;
}

/* ---- theirs ---------------------------------------------------------------------------------- */

struct differences {
    struct fleet_strbuf *out;
    int count;
};

static void name_one(struct differences *d, const char *field)
{
    d->count++;
    if (d->count <= NAMED_MAX)
        fleet_strbuf_appendf(d->out, "%s%s", d->count > 1 ? ", " : "", field);
    else if (d->count == NAMED_MAX + 1)
        fleet_strbuf_append(d->out, ", …");
}

static void compare_values(const cJSON *theirs, const cJSON *ours, const char *path,
                           struct differences *d);

/* As deep as ours, which comes from tables. */
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
            name_one(d, field.text);
    }
}

static void compare_values(const cJSON *theirs, const cJSON *ours, const char *path,
                           struct differences *d)
{
    if (cJSON_IsObject(theirs) && cJSON_IsObject(ours))
        compare_objects(theirs, ours, path, d);
    else if (!cJSON_Compare(theirs, ours, true))
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

/* SPDX-License-Identifier: Apache-2.0 */

/* A table of keys, each with the function that judges its value. */
#include "libfleet/autoparallel/context.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "libfleet/autoparallel/context_internal.h"
#include "libfleet/autoparallel/search/links.h"
#include "libfleet/autoparallel/switches.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/base/value_path.h"

#define DEVICES_MAX 4096
#define LIST_MAX    4096 /* elements of a list */
#define SHOWN       60   /* bytes of a value in a message */

/* Parallel modes, as bits of where a key has an effect. */
enum {
    IN_STAND_ALONE = 1,
    IN_DATA = 2,
    IN_HYBRID = 4,
    IN_SEMI = 8,
    IN_AUTO = 16,
    IN_ALL = 31,
    IN_MANY = IN_DATA | IN_HYBRID | IN_SEMI | IN_AUTO,
    IN_GRAPH = IN_SEMI | IN_AUTO,
};

static const char *const searches[] = {"recursive_programming", "dynamic_programming",
                                       "sharding_propagation", NULL};
static const char *const datasets[] = {"data_parallel", "full_batch", NULL};
static const char *const schedulers[] = {"1f1b", "gpipe", NULL};

struct check {
    struct fleet_strbuf path; /* of the value being looked at */
    struct fleet_errors *errors;
};

/* ---- values ---------------------------------------------------------------------------------- */

static bool refuse(struct check *c, const cJSON *item, const char *wanted)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf shown = {0};

    if (cJSON_IsString(item))
        fleet_json_append_string(&shown, item->valuestring);
    else if (cJSON_IsNumber(item))
        fleet_json_append_number(&shown, item->valuedouble);
    else
        fleet_strbuf_append(&shown, cJSON_IsObject(item)  ? "an object"
                                    : cJSON_IsArray(item) ? "a list"
                                    : cJSON_IsNull(item)  ? "null"
                                    : cJSON_IsTrue(item)  ? "true"
                                                          : "false");
    fleet_errors_add(c->errors, c->path.text, "must be %s, not %.*s", wanted, SHOWN,
                     fleet_strbuf_text(&shown));
    return false;
}

static bool check_bool(struct check *c, const cJSON *item)
{
    return cJSON_IsBool(item) || refuse(c, item, "true or false");
}

static bool check_text(struct check *c, const cJSON *item)
{
    return cJSON_IsString(item) || refuse(c, item, "a string");
}

static bool check_int(struct check *c, const cJSON *item, int64_t low, int64_t high,
                      const char *wanted)
{
    int64_t value;

    return (cJSON_IsNumber(item) && fleet_json_item_int(item, &value) == 0 && value >= low &&
            value <= high) ||
           refuse(c, item, wanted);
}

static bool check_word(struct check *c, const cJSON *item, const char *const *words)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf wanted = {0};
    size_t count = 0;
    const char *closest;

    for (; words[count]; count++) {
        if (cJSON_IsString(item) && strcmp(item->valuestring, words[count]) == 0)
            return true;
        fleet_strbuf_appendf(&wanted, "%s%s", count ? ", " : "one of ", words[count]);
    }
    closest = cJSON_IsString(item) ? fleet_closest_word(item->valuestring, words, count) : NULL;
    if (closest)
        fleet_errors_add(c->errors, c->path.text, "must be %s, not \"%.*s\"; did you mean \"%s\"?",
                         wanted.text, SHOWN, item->valuestring, closest);
    else
        (void)refuse(c, item, wanted.text);
    return false;
}

static bool check_devices(struct check *c, const cJSON *item)
{
    return check_int(c, item, 1, DEVICES_MAX, "an integer from 1 to 4096");
}

static bool check_rank(struct check *c, const cJSON *item)
{
    return check_int(c, item, 0, DEVICES_MAX - 1, "an integer from 0 to 4095");
}

static bool check_stages(struct check *c, const cJSON *item)
{
    return check_int(c, item, 1, DEVICES_MAX, "an integer from 1 to 4096");
}

static bool check_mode(struct check *c, const cJSON *item)
{
    return check_word(c, item, context_mode_words);
}

static bool check_search(struct check *c, const cJSON *item)
{
    return check_word(c, item, searches);
}

/* Not MindSpore's: our own search. */
static bool check_own_search(struct check *c, const cJSON *item)
{
    static const char *const words[] = {"full", NULL};

    return check_word(c, item, words);
}

/* Not MindSpore's: rates of devices and links (search/links.h). */
static bool check_links(struct check *c, const cJSON *item)
{
    struct fleet_errors found = {0};
    struct links links;

    if (!cJSON_IsObject(item))
        return refuse(c, item, "an object, as `fleetjob plan --calibrate` writes it");
    if (links_decode(item, &links, &found) == 0)
        return true;
    for (size_t i = 0; i < found.count && i < FLEET_ERRORS_MAX; i++) {
        size_t length = fleet_value_path_enter(&c->path, found.items[i].path);

        fleet_errors_add(c->errors, c->path.text, "%s", found.items[i].message);
        fleet_value_path_leave(&c->path, length);
    }
    fleet_errors_release(&found);
    return false;
}

/* Indices in ascending order, none twice. */
static bool check_indices(struct check *c, const cJSON *item)
{
    const cJSON *index;
    int64_t before = -1, value;

    if (!cJSON_IsArray(item) || cJSON_GetArraySize(item) == 0 ||
        cJSON_GetArraySize(item) > LIST_MAX)
        return refuse(c, item, "a list of 1 to 4096 integers");
    cJSON_ArrayForEach(index, item)
    {
        if (!cJSON_IsNumber(index) || fleet_json_item_int(index, &value) < 0 || value < 0 ||
            value > UINT32_MAX)
            return refuse(c, index, "a list of integers from 0 to 4294967295");
        if (value <= before)
            return refuse(c, index, "a list whose numbers rise, none twice");
        before = value;
    }
    return true;
}

/* ---- values that are objects ----------------------------------------------------------------- */

struct key {
    const char *name;
    bool (*check)(struct check *c, const cJSON *item);
    unsigned int modes; /* in which it has an effect; not used below the first level */
};

static bool check_object(struct check *c, const cJSON *object, const struct key *table,
                         size_t count);

static bool check_threshold(struct check *c, const cJSON *item)
{
    return check_int(c, item, 0, INT32_MAX, "an integer from 0 to 2147483647");
}

static bool check_shard(struct check *c, const cJSON *item)
{
    return check_int(c, item, -1, DEVICES_MAX, "an integer from -1 (the whole group) to 4096");
}

static bool check_level(struct check *c, const cJSON *item)
{
    static const char *const levels[] = {"level1", "level2", "level3", NULL};

    return check_word(c, item, levels);
}

static bool check_scheduler(struct check *c, const cJSON *item)
{
    static const char *const newer[] = {"seqpipe", "seqvpp", "seqsmartvpp", "zero_bubble_v"};

    for (size_t i = 0; i < FLEET_COUNT(newer); i++)
        if (cJSON_IsString(item) && strcmp(item->valuestring, newer[i]) == 0)
            return refuse(c, item, "1f1b or gpipe: newer schedulers are not supported");
    return check_word(c, item, schedulers);
}

static const struct key checkpoint_keys[] = {
    {"load_file", check_text, 0},
    {"save_file", check_text, 0},
    {"only_trainable_params", check_bool, 0},
};
static const struct key optimizer_keys[] = {
    {"gradient_accumulation_shard", check_bool, 0},
    {"parallel_optimizer_threshold", check_threshold, 0},
    {"optimizer_weight_shard_size", check_shard, 0},
    {"optimizer_level", check_level, 0},
};
static const struct key pipeline_keys[] = {
    {"pipeline_interleave", check_bool, 0},
    {"pipeline_scheduler", check_scheduler, 0},
};

static bool check_checkpoint(struct check *c, const cJSON *item)
{
    return check_object(c, item, checkpoint_keys, FLEET_COUNT(checkpoint_keys));
}

static bool check_optimizer(struct check *c, const cJSON *item)
{
    return check_object(c, item, optimizer_keys, FLEET_COUNT(optimizer_keys));
}

static bool require(struct check *c, const cJSON *item, const char *key)
{
    size_t length;

    if (cJSON_GetObjectItemCaseSensitive(item, key))
        return true;
    length = fleet_value_path_enter(&c->path, key);
    fleet_errors_add(c->errors, c->path.text, "required");
    fleet_value_path_leave(&c->path, length);
    return false;
}

static bool check_pipeline(struct check *c, const cJSON *item)
{
    const cJSON *scheduler = cJSON_GetObjectItemCaseSensitive(item, "pipeline_scheduler");
    bool both;

    if (!check_object(c, item, pipeline_keys, FLEET_COUNT(pipeline_keys)))
        return false;
    both = require(c, item, "pipeline_interleave");
    both = require(c, item, "pipeline_scheduler") && both;
    if (both && strcmp(scheduler->valuestring, "gpipe") == 0 &&
        !cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(item, "pipeline_interleave")))
        fleet_errors_add(c->errors, c->path.text, "gpipe needs pipeline_interleave: true");
    return both;
}

/* One kind of collective: {"mode": …, "config": …}. */
static bool check_fusion(struct check *c, const cJSON *item, bool may_index)
{
    static const char *const without[] = {"auto", "size", NULL};
    const cJSON *mode = cJSON_GetObjectItemCaseSensitive(item, "mode");
    const cJSON *config = cJSON_GetObjectItemCaseSensitive(item, "config");
    bool good = cJSON_IsObject(item) || refuse(c, item, "an object of mode and config");
    size_t length;

    if (!good || !require(c, item, "mode") || !require(c, item, "config"))
        return false;
    length = fleet_value_path_enter(&c->path, "mode");
    good = check_word(c, mode, may_index ? context_fusion_words : without);
    fleet_value_path_leave(&c->path, length);
    if (!good)
        return false;
    length = fleet_value_path_enter(&c->path, "config");
    if (strcmp(mode->valuestring, "size") == 0)
        good = check_int(c, config, 1, INT32_MAX, "megabytes, an integer from 1 to 2147483647");
    else if (strcmp(mode->valuestring, "index") == 0)
        good = check_indices(c, config);
    else
        good = cJSON_IsNull(config) ||
               refuse(c, config,
                      "null with mode auto (which is always 64 MB; mode size takes a number)");
    fleet_value_path_leave(&c->path, length);
    return good;
}

static bool check_fusion_index(struct check *c, const cJSON *item)
{
    return check_fusion(c, item, true);
}

static bool check_fusion_size(struct check *c, const cJSON *item)
{
    return check_fusion(c, item, false);
}

static const struct key fusion_keys[] = {
    {"openstate", check_bool, 0},
    {"allreduce", check_fusion_index, 0},
    {"allgather", check_fusion_size, 0},
    {"reducescatter", check_fusion_size, 0},
};

static bool check_fusions(struct check *c, const cJSON *item)
{
    return check_object(c, item, fusion_keys, FLEET_COUNT(fusion_keys));
}

/* A word, or for each input the number of cuts of each dimension. */
static bool check_dataset(struct check *c, const cJSON *item)
{
    static const char wanted[] =
        "data_parallel, full_batch, or a list of lists of integers above 0";
    const cJSON *input, *cuts;
    int64_t value;

    if (cJSON_IsString(item))
        return check_word(c, item, datasets);
    if (!cJSON_IsArray(item) || cJSON_GetArraySize(item) > LIST_MAX)
        return refuse(c, item, wanted);
    cJSON_ArrayForEach(input, item)
    {
        if (!cJSON_IsArray(input))
            return refuse(c, input, wanted);
        cJSON_ArrayForEach(cuts, input)
        {
            if (!cJSON_IsNumber(cuts) || fleet_json_item_int(cuts, &value) < 0 || value < 1)
                return refuse(c, cuts, wanted);
        }
    }
    return true;
}

/* ---- the keys -------------------------------------------------------------------------------- */

static const struct key keys[] = {
    {"device_num", check_devices, IN_ALL},
    {"global_rank", check_rank, IN_ALL},
    {"gradients_mean", check_bool, IN_MANY},
    {"gradient_fp32_sync", check_bool, IN_GRAPH},
    {"loss_repeated_mean", check_bool, IN_GRAPH},
    {"parallel_mode", check_mode, IN_ALL},
    {"search", check_own_search, IN_ALL}, /* not MindSpore's; refused where it has no effect */
    {"links", check_links, IN_ALL},
    {"search_mode", check_search, IN_AUTO},
    {"auto_parallel_search_mode", check_search, IN_AUTO},
    {"parameter_broadcast", check_bool, IN_MANY},
    {"strategy_ckpt_load_file", check_text, IN_GRAPH},
    {"strategy_ckpt_save_file", check_text, IN_GRAPH},
    {"strategy_ckpt_config", check_checkpoint, IN_GRAPH},
    {"group_ckpt_save_file", check_text, IN_GRAPH},
    {"full_batch", check_bool, IN_GRAPH},
    {"dataset_strategy", check_dataset, IN_GRAPH},
    {"enable_parallel_optimizer", check_bool, IN_DATA | IN_GRAPH},
    {"parallel_optimizer_config", check_optimizer, IN_DATA | IN_GRAPH},
    {"enable_alltoall", check_bool, IN_GRAPH},
    {"force_fp32_communication", check_bool, IN_MANY},
    {"all_reduce_fusion_config", check_indices, IN_MANY},
    {"comm_fusion", check_fusions, IN_MANY},
    {"pipeline_stages", check_stages, IN_GRAPH},
    {"pipeline_result_broadcast", check_bool, IN_GRAPH},
    {"pipeline_config", check_pipeline, IN_GRAPH},
};

static const struct key *find(const struct key *table, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(table[i].name, name) == 0)
            return &table[i];
    return NULL;
}

static void refuse_unknown(struct check *c, const struct key *table, size_t count, const char *name)
{
    const char *names[FLEET_COUNT(keys)], *closest;

    fleet_assert(count <= FLEET_COUNT(names));
    for (size_t i = 0; i < count; i++)
        names[i] = table[i].name;
    closest = c->errors->count < FLEET_ERRORS_MAX ? fleet_closest_word(name, names, count) : NULL;
    if (closest)
        fleet_errors_add(c->errors, c->path.text, "unknown key; did you mean \"%s\"?", closest);
    else
        fleet_errors_add(c->errors, c->path.text, "unknown key");
}

static bool check_object(struct check *c, const cJSON *object, const struct key *table,
                         size_t count)
{
    size_t before = c->errors->count;
    const cJSON *item;

    if (!cJSON_IsObject(object))
        return refuse(c, object, "an object");
    cJSON_ArrayForEach(item, object)
    {
        const struct key *key = find(table, count, item->string);
        size_t length = fleet_value_path_enter(&c->path, item->string);

        if (key)
            (void)key->check(c, item);
        else
            refuse_unknown(c, table, count, item->string);
        fleet_value_path_leave(&c->path, length);
    }
    return c->errors->count == before;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static void warn_of_idle(const cJSON *json, const char *path, struct fleet_errors *warnings)
{
    enum context_mode mode = context_mode(json);
    const cJSON *item;

    cJSON_ArrayForEach(item, json)
    {
        const struct key *key = find(keys, FLEET_COUNT(keys), item->string);
        FLEET_AUTO_STRBUF struct fleet_strbuf full = {0};

        if (!key || (key->modes & 1U << mode))
            continue;
        fleet_strbuf_appendf(&full, "%s%s%s", path, *path ? "." : "", item->string);
        fleet_errors_add(warnings, full.text, "has no effect with parallel_mode %s",
                         context_mode_text(mode));
    }
    switches_warn(json, mode, path, warnings);
}

int context_check(const cJSON *json, const char *path, struct fleet_errors *errors,
                  struct fleet_errors *warnings)
{
    struct check c = {.errors = errors};
    size_t before = errors->count;

    fleet_strbuf_append(&c.path, path);
    if (check_object(&c, json, keys, FLEET_COUNT(keys))) {
        context_together(json, path, errors);
        if (warnings)
            warn_of_idle(json, path, warnings);
    }
    fleet_strbuf_release(&c.path);
    return errors->count > before ? -EINVAL : 0;
}

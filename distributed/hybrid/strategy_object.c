/* SPDX-License-Identifier: Apache-2.0 */

/* fleet.DistributedStrategy: the table of libfleet/strategy behind names and JSON values. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "distributed/hybrid/hybrid.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"
#include "libfleet/strategy/check.h"
#include "libfleet/strategy/knobs.h"
#include "libfleet/strategy/prototxt.h"
#include "libfleet/strategy/strategy_json.h"

#define VALUE_BYTES ((size_t)1 << 20)

int fleet_strategy_new(struct fleet_strategy **out, struct fleet_error *err)
{
    struct fleet_strategy *strategy;

    if (argument_check(out, "fleet_strategy_new", "out", err) < 0)
        return -EINVAL;
    strategy = malloc(sizeof(*strategy));
    if (!strategy)
        return fleet_error(err, -ENOMEM, "fleet_strategy_new: out of memory");
    strategy_init(&strategy->values);
    *out = strategy;
    return 0;
}

void fleet_strategy_free(struct fleet_strategy *strategy)
{
    if (!strategy)
        return;
    strategy_release(&strategy->values);
    free(strategy);
}

/* ---- names ----------------------------------------------------------------------------------- */

/* The field at a dotted name, and the struct that holds it. NULL: there is none. */
static const struct knob_field *find(const struct strategy *values, const char *name,
                                     const void **out_message)
{
    const struct knob_message *message = knobs_root();
    const void *at = values;

    for (;;) {
        size_t length = strcspn(name, ".");
        FLEET_AUTO_FREE char *part = strndup(name, length);
        const struct knob_field *field = part ? knobs_find(message, part, NULL) : NULL;

        if (!field || !name[length]) {
            *out_message = at;
            return field;
        }
        if (field->kind != KNOB_MESSAGE)
            return NULL;
        at = knob_value(field, at);
        message = field->message();
        name += length + 1;
    }
}

static int unknown(const char *what, const char *name, struct fleet_error *err)
{
    const char *close = name ? knobs_closest(knobs_root(), name) : NULL;

    return fleet_error(err, -EINVAL, "%s: %.100s: no such setting%s%s%s", what,
                       name ? name : "NULL", close ? ", did you mean " : "", close ? close : "",
                       close ? "?" : "");
}

/* ---- values ---------------------------------------------------------------------------------- */

/* Put `value` at the dotted name below `root`; an object keeps the keys that it does not name.
 * Takes `value`. */
static void put(cJSON *root, const char *name, cJSON *value)
{
    for (;;) {
        size_t length = strcspn(name, ".");
        FLEET_AUTO_FREE char *part = strndup(name, length);
        cJSON *there;

        fleet_assert(part);
        there = cJSON_GetObjectItemCaseSensitive(root, part);
        if (!name[length] && cJSON_IsObject(there) && cJSON_IsObject(value)) {
            while (value->child) {
                cJSON *child = cJSON_DetachItemViaPointer(value, value->child);
                cJSON_DeleteItemFromObjectCaseSensitive(there, child->string);
                cJSON_AddItemToObject(there, child->string, child);
            }
            cJSON_Delete(value);
            return;
        }
        if (!name[length]) {
            cJSON_DeleteItemFromObjectCaseSensitive(root, part);
            cJSON_AddItemToObject(root, part, value);
            return;
        }
        if (!cJSON_IsObject(there))
            there = cJSON_AddObjectToObject(root, part);
        root = there;
        name += length + 1;
    }
}

/* `values` becomes what the settings in `json` say. */
/* Takes `next`: it becomes *values if the checks found no errors, and is released otherwise. */
static int take(struct strategy *values, struct strategy *next, struct fleet_errors *errors,
                struct fleet_error *err)
{
    int rc = fleet_errors_result(errors, err);

    fleet_errors_release(errors);
    strategy_release(rc < 0 ? next : values);
    if (rc == 0)
        *values = *next;
    return rc;
}

static int replace(struct strategy *values, const cJSON *json, struct fleet_error *err)
{
    struct fleet_errors errors = {0};
    struct strategy next;

    if (strategy_json_decode(json, "", &next, &errors) == 0)
        (void)strategy_check_values(&next, "", &errors);
    return take(values, &next, &errors, err);
}

int fleet_strategy_set(struct fleet_strategy *strategy, const char *name, const char *json,
                       struct fleet_error *err)
{
    const char *what = "fleet_strategy_set";
    FLEET_AUTO_JSON cJSON *all = NULL;
    cJSON *value = NULL;
    const void *message;

    if (!strategy || !json)
        return fleet_error(err, -EINVAL, "%s: %s is NULL", what, strategy ? "json" : "strategy");
    if (!name || !find(&strategy->values, name, &message))
        return unknown(what, name, err);
    if (fleet_json_parse(json, strlen(json), VALUE_BYTES, &value, err) < 0)
        return fleet_error_wrap(err, "%s: %s", what, name);
    all = strategy_json_encode(&strategy->values);
    if (strcmp(name, "a_sync") == 0)
        cJSON_DeleteItemFromObjectCaseSensitive(
            cJSON_GetObjectItemCaseSensitive(all, "a_sync_configs"), "k_steps");
    put(all, name, value);
    return replace(&strategy->values, all, err) < 0 ? fleet_error_wrap(err, "%s", what) : 0;
}

int fleet_strategy_get(const struct fleet_strategy *strategy, const char *name, char **out,
                       struct fleet_error *err)
{
    const char *what = "fleet_strategy_get";
    FLEET_AUTO_JSON cJSON *all = NULL;
    const struct knob_field *field;
    const void *message;
    struct strategy copy;
    const cJSON *at;
    char *text;

    if (!strategy)
        return fleet_error(err, -EINVAL, "%s: strategy is NULL", what);
    strategy_copy(&copy, &strategy->values);
    field = name ? find(&copy, name, &message) : NULL;
    if (!field) {
        strategy_release(&copy);
        return unknown(what, name, err);
    }
    /* Only set fields are written: this one, and the blocks around it. */
    *knob_has(field, message) |= *knob_has(field, message) ? 0 : KNOB_BY_NAME;
    for (const char *dot = strchr(name, '.'); dot; dot = strchr(dot + 1, '.')) {
        FLEET_AUTO_FREE char *block = strndup(name, (size_t)(dot - name));
        const void *around;
        const struct knob_field *outer = block ? find(&copy, block, &around) : NULL;

        fleet_assert(outer);
        *knob_has(outer, around) |= *knob_has(outer, around) ? 0 : KNOB_BY_NAME;
    }
    all = strategy_json_encode(&copy);
    strategy_release(&copy);
    at = all;
    for (const char *part = name; part && at; part = strchr(part, '.')) {
        FLEET_AUTO_FREE char *key = NULL;

        part += *part == '.';
        key = strndup(part, strcspn(part, "."));
        fleet_assert(key);
        at = cJSON_GetObjectItemCaseSensitive(at, key);
    }
    text = at ? cJSON_PrintUnformatted(at) : strdup("null");
    if (!text)
        return fleet_error(err, -ENOMEM, "%s: out of memory", what);
    *out = text;
    return 0;
}

/* ---- files ----------------------------------------------------------------------------------- */

int strategy_object_load(struct strategy *values, const char *path, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *text = NULL;
    struct fleet_errors errors = {0};
    struct strategy next;
    size_t size;
    int rc = fleet_file_read(path, PROTOTXT_SIZE_MAX, &text, &size, err);

    if (rc < 0)
        return rc;
    strategy_copy(&next, values);
    rc = prototxt_merge(&next, path, text, size, err);
    if (rc < 0) {
        strategy_release(&next);
        return rc;
    }
    (void)strategy_check_values(&next, "", &errors);
    return take(values, &next, &errors, err);
}

int strategy_of_job(struct strategy *values, struct fleet_error *err)
{
    const char *path = getenv("FLEET_STRATEGY_FILE");

    if (!path || !path[0])
        return 0;
    return strategy_object_load(values, path, err) < 0
               ? fleet_error_wrap(err, "FLEET_STRATEGY_FILE")
               : 1;
}

int fleet_strategy_load(struct fleet_strategy *strategy, const char *path, struct fleet_error *err)
{
    if (!strategy || !path)
        return fleet_error(err, -EINVAL, "fleet_strategy_load: %s is NULL",
                           strategy ? "path" : "strategy");
    return strategy_object_load(&strategy->values, path, err) < 0
               ? fleet_error_wrap(err, "fleet_strategy_load")
               : 0;
}

int fleet_strategy_save(const struct fleet_strategy *strategy, const char *path,
                        struct fleet_error *err)
{
    const char *what = "fleet_strategy_save";
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    if (!strategy || !path)
        return fleet_error(err, -EINVAL, "%s: %s is NULL", what, strategy ? "path" : "strategy");
    if (prototxt_print(&strategy->values, STRATEGY_AS_READ, &text, err) < 0 ||
        fleet_file_write(path, fleet_strbuf_text(&text), text.length, err) < 0)
        return fleet_error_wrap(err, "%s", what);
    return 0;
}

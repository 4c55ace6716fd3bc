/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Metadata, conditions, quantities and names, by the Kubernetes API conventions. These functions
 * keep no state; getters return NULL or false if a value is missing or has another type.
 */
#include "libfleet/kube/meta.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_build.h"
#include "libfleet/base/strbuf.h"

/* ---- metadata -------------------------------------------------------------------------------- */

static int view_time(const cJSON *object, const char *path, int64_t *out, struct fleet_error *err)
{
    const char *text = NULL;

    *out = 0;
    if (fleet_json_opt_string(object, path, &text, err) < 0)
        return err ? err->code : -EINVAL;
    if (text && fleet_rfc3339_parse(text, out) < 0)
        return fleet_error(err, -EINVAL, "%s: \"%.40s\" is not a time", path, text);
    return 0;
}

int kube_meta_view(const cJSON *object, struct kube_meta *out, struct fleet_error *err)
{
    struct kube_meta meta = {.namespace_ = "", .uid = "", .resource_version = ""};
    int rc = 0;

    if ((rc = fleet_json_get_string(object, "metadata.name", &meta.name, err)) < 0 ||
        (rc = fleet_json_opt_string(object, "metadata.namespace", &meta.namespace_, err)) < 0 ||
        (rc = fleet_json_opt_string(object, "metadata.uid", &meta.uid, err)) < 0 ||
        (rc = fleet_json_opt_string(object, "metadata.resourceVersion", &meta.resource_version,
                                    err)) < 0 ||
        (rc = fleet_json_opt_int(object, "metadata.generation", &meta.generation, err)) < 0 ||
        (rc = view_time(object, "metadata.creationTimestamp", &meta.created_wall_ms, err)) < 0 ||
        (rc = view_time(object, "metadata.deletionTimestamp", &meta.deleted_wall_ms, err)) < 0)
        return rc == -ENOENT ? fleet_error(err, -EINVAL, "metadata.name: is missing") : rc;
    if (!*meta.name)
        return fleet_error(err, -EINVAL, "metadata.name: is empty");
    *out = meta;
    return 0;
}

static const char *entry(const cJSON *object, const char *map, const char *key)
{
    const cJSON *meta = cJSON_GetObjectItemCaseSensitive(object, "metadata");
    const cJSON *entries = cJSON_GetObjectItemCaseSensitive(meta, map);

    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(entries, key));
}

const char *kube_meta_label(const cJSON *object, const char *key)
{
    return entry(object, "labels", key);
}

const char *kube_meta_annotation(const cJSON *object, const char *key)
{
    return entry(object, "annotations", key);
}

static cJSON *child_object(cJSON *parent, const char *name)
{
    cJSON *child = cJSON_GetObjectItemCaseSensitive(parent, name);

    if (!cJSON_IsObject(child))
        child = fleet_json_set_object(parent, name);
    return child;
}

static void set_entry(cJSON *object, const char *map, const char *key, const char *value)
{
    cJSON *entries = child_object(child_object(object, "metadata"), map);

    if (value)
        fleet_json_set_string(entries, key, value);
    else
        cJSON_DeleteItemFromObjectCaseSensitive(entries, key);
}

void kube_meta_set_label(cJSON *object, const char *key, const char *value)
{
    set_entry(object, "labels", key, value);
}

void kube_meta_set_annotation(cJSON *object, const char *key, const char *value)
{
    set_entry(object, "annotations", key, value);
}

const cJSON *kube_meta_controller(const cJSON *object)
{
    const cJSON *owner;

    cJSON_ArrayForEach(owner, fleet_json_at(object, "metadata.ownerReferences"))
    {
        if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(owner, "controller")))
            return owner;
    }
    return NULL;
}

bool kube_meta_is_controlled_by(const cJSON *object, const char *uid)
{
    const cJSON *owner = kube_meta_controller(object);
    const char *owner_uid = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(owner, "uid"));

    return owner_uid && *uid && strcmp(owner_uid, uid) == 0;
}

cJSON *kube_owner_reference(const char *api_version, const char *kind,
                            const struct kube_meta *owner)
{
    cJSON *reference = fleet_json_new_object();

    fleet_assert(*owner->name && *owner->uid);
    fleet_json_set_string(reference, "apiVersion", api_version);
    fleet_json_set_string(reference, "kind", kind);
    fleet_json_set_string(reference, "name", owner->name);
    fleet_json_set_string(reference, "uid", owner->uid);
    fleet_json_set_bool(reference, "controller", true);
    fleet_json_set_bool(reference, "blockOwnerDeletion", true);
    return reference;
}

char *kube_meta_key(const char *namespace_, const char *name)
{
    struct fleet_strbuf key = {0};

    if (*namespace_)
        fleet_strbuf_appendf(&key, "%s/", namespace_);
    fleet_strbuf_append(&key, name);
    return fleet_strbuf_take(&key);
}

/* ---- conditions ------------------------------------------------------------------------------ */

static const char *field(const cJSON *object, const char *name)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, name));

    return text ? text : "";
}

const cJSON *kube_condition_find(const cJSON *conditions, const char *type)
{
    const cJSON *condition;

    cJSON_ArrayForEach(condition, conditions)
    {
        if (strcmp(field(condition, "type"), type) == 0)
            return condition;
    }
    return NULL;
}

bool kube_condition_is_true(const cJSON *conditions, const char *type)
{
    return strcmp(field(kube_condition_find(conditions, type), "status"), "True") == 0;
}

char *kube_message_cut(const char *message)
{
    size_t size = strnlen(message, KUBE_MESSAGE_MAX + 1);

    if (size > KUBE_MESSAGE_MAX) {
        size = KUBE_MESSAGE_MAX;
        while (size > 0 && ((unsigned char)message[size] & 0xc0) == 0x80)
            size--;
    }
    return strndup(message, size);
}

static cJSON *condition_build(const struct kube_condition *c, const char *message,
                              const char *since)
{
    cJSON *item = fleet_json_new_object();

    fleet_json_set_string(item, "type", c->type);
    fleet_json_set_string(item, "status", c->status);
    fleet_json_set_string(item, "reason", c->reason);
    fleet_json_set_string(item, "message", message);
    fleet_json_set_string(item, "lastTransitionTime", since);
    if (c->observed_generation > 0)
        fleet_json_set_number(item, "observedGeneration", (double)c->observed_generation);
    return item;
}

bool kube_condition_set(cJSON *conditions, const struct kube_condition *c, int64_t now_wall_ms)
{
    const cJSON *old = kube_condition_find(conditions, c->type);
    FLEET_AUTO_FREE char *message = kube_message_cut(c->message ? c->message : "");
    FLEET_AUTO_JSON cJSON *item = NULL;
    char now[FLEET_RFC3339_SIZE];
    bool moved = strcmp(field(old, "status"), c->status) != 0 || !*field(old, "lastTransitionTime");

    fleet_assert(message != NULL);
    fleet_rfc3339_format(now_wall_ms - now_wall_ms % 1000, now); /* metav1.Time has whole seconds */
    item = condition_build(c, message, moved ? now : field(old, "lastTransitionTime"));
    if (old && fleet_json_equal(old, item))
        return false;
    if (old)
        fleet_json_replace(conditions, old, item);
    else
        fleet_json_add(conditions, item);
    item = NULL; /* moved into the list */
    return true;
}

/* ---- quantities ------------------------------------------------------------------------------ */

/*
 * The value of a suffix, as mantissa · 2^power2 · 10^power10; false: no such suffix.
 */
static bool read_suffix(const char *suffix, int *power2, int *power10)
{
    static const char decimal[] = "num.kMGTPE"; /* 10^-9 10^-6 10^-3 10^0 10^3 … */
    static const char binary[] = "KMGTPE";
    const char *found;

    *power2 = *power10 = 0;
    if (!*suffix)
        return true;
    if (suffix[1] == 'i' && !suffix[2] && (found = strchr(binary, suffix[0]))) {
        *power2 = 10 * (int)(found - binary + 1);
        return true;
    }
    if (suffix[1] == '\0' && suffix[0] != '.' && (found = strchr(decimal, suffix[0]))) {
        *power10 = 3 * ((int)(found - decimal) - 3);
        return true;
    }
    if ((suffix[0] == 'e' || suffix[0] == 'E') && strlen(suffix) <= 4) {
        char *end;
        long exponent = strtol(suffix + 1, &end, 10);
        *power10 = (int)exponent;
        return end != suffix + 1 && !*end && !isspace((unsigned char)suffix[1]);
    }
    return false;
}

/* digits · 2^power2 · 10^power10 · scale, rounded up; false if it does not fit into int64. */
static bool scale_up(unsigned __int128 digits, int power2, int power10, int64_t scale, int64_t *out)
{
    const unsigned __int128 max = (unsigned __int128)INT64_MAX;
    const unsigned __int128 room = ~(unsigned __int128)0;

    if (digits == 0) {
        *out = 0;
        return true;
    }
    if (digits > room / (unsigned __int128)scale)
        return false;
    digits *= (unsigned __int128)scale;
    /* divide last, so that the result is rounded only once */
    if (power2 > 0) {
        if (digits > room >> power2)
            return false;
        digits <<= power2;
    }
    for (; power10 > 0; power10--) {
        if (digits > room / 10)
            return false;
        digits *= 10;
    }
    bool rest = false;
    for (; power10 < 0 && digits > 0; power10++) {
        rest = rest || digits % 10 != 0;
        digits /= 10;
    }
    digits += rest;
    *out = (int64_t)digits;
    return digits <= max;
}

int kube_quantity_parse(const char *text, int64_t scale, int64_t *out, struct fleet_error *err)
{
    const char *p = text + (*text == '+' || *text == '-');
    unsigned __int128 digits = 0;
    int count = 0, fraction = 0, power2, power10;
    bool after_point = false;
    int64_t value;

    fleet_assert(scale > 0);
    for (; isdigit((unsigned char)*p) || (*p == '.' && !after_point); p++) {
        if (*p == '.') {
            after_point = true;
            continue;
        }
        digits = digits * 10 + (unsigned)(*p - '0');
        fraction += after_point;
        if (++count > 24)
            return fleet_error(err, -ERANGE, "quantity \"%.40s\" has more than 24 digits", text);
    }
    if (count == 0 || !read_suffix(p, &power2, &power10))
        return fleet_error(err, -EINVAL,
                           "\"%.40s\" is not a quantity (such as 2, 500m, 1.5Gi or 12e3)", text);
    if (*text == '-' && digits > 0)
        return fleet_error(err, -ERANGE, "quantity \"%.40s\" is negative", text);
    if (!scale_up(digits, power2, power10 - fraction, scale, &value))
        return fleet_error(err, -ERANGE, "quantity \"%.40s\" is too large", text);
    *out = value;
    return 0;
}

/* ---- names ----------------------------------------------------------------------------------- */

static bool is_lower_alphanumeric(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
}

/* name[0 … size) is one label. */
static bool is_label(const char *name, size_t size)
{
    if (size == 0 || size > KUBE_LABEL_MAX || !is_lower_alphanumeric(name[0]) ||
        !is_lower_alphanumeric(name[size - 1]))
        return false;
    for (size_t i = 0; i < size; i++)
        if (!is_lower_alphanumeric(name[i]) && name[i] != '-')
            return false;
    return true;
}

bool kube_name_is_label(const char *name)
{
    return is_label(name, strnlen(name, KUBE_LABEL_MAX + 1));
}

static bool is_subdomain(const char *name, size_t size)
{
    if (size > KUBE_SUBDOMAIN_MAX)
        return false;
    for (const char *at = name, *end = name + size;;) {
        const char *dot = memchr(at, '.', (size_t)(end - at));
        const char *stop = dot ? dot : end;
        /* Kubernetes allows parts of more than 63 letters; DNS does not, and neither do we */
        if (!is_label(at, (size_t)(stop - at)))
            return false;
        if (!dot)
            return true;
        at = dot + 1;
    }
}

bool kube_name_is_subdomain(const char *name)
{
    return is_subdomain(name, strnlen(name, KUBE_SUBDOMAIN_MAX + 1));
}

/* Letters of both cases, digits, '-', '_', '.', alphanumeric at both ends, 1 to 63 bytes. */
static bool is_qualified_name(const char *name)
{
    size_t size = strnlen(name, KUBE_LABEL_MAX + 1);

    if (size == 0 || size > KUBE_LABEL_MAX || !isalnum((unsigned char)name[0]) ||
        !isalnum((unsigned char)name[size - 1]))
        return false;
    for (size_t i = 0; i < size; i++)
        if (!isalnum((unsigned char)name[i]) && !strchr("-_.", name[i]))
            return false;
    return true;
}

bool kube_label_key_is_valid(const char *key)
{
    const char *slash = strchr(key, '/');

    if (!slash)
        return is_qualified_name(key);
    return slash > key && is_subdomain(key, (size_t)(slash - key)) && is_qualified_name(slash + 1);
}

bool kube_label_value_is_valid(const char *value)
{
    return !*value || is_qualified_name(value);
}

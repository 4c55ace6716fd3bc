/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A strategy in text format may also be valid YAML ("amp: true"). So the text is read as YAML
 * first, and as text format if that fails. If both fail, the errors are those of the form that the
 * text resembles.
 */
#include "libfleet/api/document.h"

#include <errno.h>
#include <string.h>

#include "libfleet/api/wellknown.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/base/yaml.h"
#include "libfleet/strategy/check.h"
#include "libfleet/strategy/prototxt.h"
#include "libfleet/strategy/strategy_json.h"

static bool is_job(const cJSON *json)
{
    static const char *const keys[] = {"apiVersion", "kind", "metadata", "spec"};

    for (size_t i = 0; i < FLEET_COUNT(keys); i++)
        if (cJSON_GetObjectItemCaseSensitive(json, keys[i]))
            return true;
    return false;
}

static bool contains(const char *text, size_t size, const char *part)
{
    return memmem(text, size, part, strlen(part)) != NULL;
}

/* Broken YAML has no tree: a line that starts with a key of a job decides. */
static bool looks_like_job(const char *text, size_t size)
{
    return (size > 11 && memcmp(text, "apiVersion:", 11) == 0) ||
           (size > 5 && memcmp(text, "kind:", 5) == 0) || contains(text, size, "\napiVersion:") ||
           contains(text, size, "\nkind:") || contains(text, size, "\"kind\"");
}

/* The first character that is not blank; a space if there is none. */
static char first_character(const char *text, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (text[i] == '\0' || !strchr(" \t\r\n", text[i]))
            return text[i] ? text[i] : ' ';
    return ' ';
}

/*
 * Both readers have failed: which error is more helpful? A text format never starts with a bracket,
 * a dash or a percent sign, and rarely ends a line with a colon, as the mappings of YAML do.
 */
static bool looks_like_yaml(const char *text, size_t size)
{
    if (strchr("{[-%\xff\xfe", first_character(text, size)) || contains(text, size, "\n---"))
        return true;
    for (size_t i = 1; i < size; i++)
        if (text[i] == '\n' && text[i - 1] == ':')
            return true;
    return size > 0 && text[size - 1] == ':';
}

/* Try the text format; true if *out was filled. Otherwise *err has the reason. */
static bool read_text(const char *name, const char *text, size_t size, struct document *out,
                      struct fleet_error *err)
{
    struct strategy read;

    strategy_init(&read);
    if (prototxt_merge(&read, name, text, size, err) < 0) {
        strategy_release(&read);
        return false;
    }
    strategy_release(&out->strategy);
    out->strategy = read; /* moved */
    cJSON_Delete(out->json);
    out->json = NULL;
    out->kind = DOCUMENT_STRATEGY_TEXT;
    return true;
}

/* Is a key not a name? YAML reads "amp_configs { k: 1 }" as a value after one long key. */
static bool has_odd_key(const cJSON *json)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, json)
    {
        if (item->string[strcspn(item->string, " {}<>[]:,;#\t")])
            return true;
    }
    return false;
}

static int read_strategy(const char *name, const char *text, size_t size, struct document *out,
                         struct fleet_errors *errors)
{
    struct fleet_errors found = {0};
    struct fleet_error err;
    int rc;

    out->kind = DOCUMENT_STRATEGY_JSON;
    strategy_release(&out->strategy);
    rc = strategy_json_decode(out->json, "", &out->strategy, &found);
    if (rc == 0 && out->strategy.has_a_sync &&
        !cJSON_GetObjectItemCaseSensitive(out->json, "a_sync_configs"))
        (void)read_text(name, text, size, out, &err); /* a_sync does not set k_steps there */
    if (rc < 0)                                       /* so that one run shows all errors */
        (void)strategy_check_values(&out->strategy, "", &found);
    if (rc < 0 && read_text(name, text, size, out, &err))
        rc = 0;
    else if (rc < 0 && has_odd_key(out->json) && first_character(text, size) != '{')
        fleet_errors_add(errors, "", "%s", err.text);
    else if (rc < 0)
        fleet_errors_append(errors, &found);
    fleet_errors_release(&found);
    return rc;
}

/*
 * A file with only "strategy: {…}", as on the reference pages, is a strategy without a job.
 */
static void unwrap_strategy(cJSON **json)
{
    cJSON *only = (*json)->child;

    if (!only || only->next || strcmp(only->string, "strategy") != 0 || !cJSON_IsObject(only))
        return;
    only = cJSON_DetachItemViaPointer(*json, only);
    cJSON_Delete(*json);
    *json = only;
}

static bool is_fleetjob(const cJSON *json)
{
    const char *kind = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, "kind"));

    return kind && strcmp(kind, WELLKNOWN_KIND) == 0;
}

/* The index of the wanted document: if there are several, the FleetJob with that number. */
static int find_number(const cJSON *documents, int number, struct fleet_error *err)
{
    int count = cJSON_GetArraySize(documents), jobs = 0, at = 0;
    const cJSON *item;

    if (count == 1)
        return 0;
    cJSON_ArrayForEach(item, documents)
    {
        if (is_fleetjob(item) && jobs++ == number)
            return at;
        at++;
    }
    return fleet_error(err, -ENOENT, "%d documents, and none is a FleetJob", count);
}

/* All documents, including those with values that cannot be read. */
static int read_loosely(const char *text, size_t size, cJSON **out, struct fleet_error *err)
{
    struct fleet_errors ignored = {0};
    int rc = fleet_yaml_tolerate(text, size, 0, out, &ignored, err);

    fleet_errors_release(&ignored);
    return rc;
}

int document_jobs(const char *text, size_t size)
{
    FLEET_AUTO_JSON cJSON *documents = NULL;
    const cJSON *item;
    int count = 0;

    if (read_loosely(text, size, &documents, NULL) < 0)
        return 0;
    cJSON_ArrayForEach(item, documents) count += is_fleetjob(item);
    return count;
}

void document_others(const char *text, size_t size, struct fleet_strbuf *out)
{
    FLEET_AUTO_JSON cJSON *documents = NULL;
    const cJSON *item;

    if (read_loosely(text, size, &documents, NULL) < 0 || cJSON_GetArraySize(documents) < 2)
        return;
    cJSON_ArrayForEach(item, documents)
    {
        const char *kind = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "kind"));
        const char *name = cJSON_GetStringValue(fleet_json_at(item, "metadata.name"));

        if (is_fleetjob(item))
            continue;
        fleet_strbuf_appendf(out, "%s%s%s%s", out->length ? ", " : "",
                             kind ? kind : "a document without a kind", name ? " " : "",
                             name ? name : "");
    }
}

/* The FleetJob with that number, or the only document, of any kind. */
static int read_number(const char *text, size_t size, int number, cJSON **out,
                       struct fleet_errors *faults, struct fleet_error *err)
{
    FLEET_AUTO_JSON cJSON *documents = NULL, *again = NULL;
    int place;

    if (read_loosely(text, size, &documents, err) < 0)
        return -EINVAL;
    place = find_number(documents, number, err);
    if (place < 0)
        return place;
    if (fleet_yaml_tolerate(text, size, place, &again, faults, err) < 0)
        return -EINVAL;
    *out = cJSON_DetachItemFromArray(documents, place);
    return 0;
}

int document_pick(const char *text, size_t size, cJSON **out, struct fleet_errors *faults,
                  struct fleet_error *err)
{
    int jobs = document_jobs(text, size);

    if (jobs > 1)
        return fleet_error(err, -EINVAL, "the file has %d FleetJobs; one is expected", jobs);
    return read_number(text, size, 0, out, faults, err);
}

void document_report_faults(const char *name, const struct fleet_errors *faults,
                            struct fleet_errors *errors)
{
    for (size_t i = 0; i < faults->count && i < FLEET_ERRORS_MAX; i++) {
        if (faults->items[i].path[0])
            fleet_errors_drop(errors, faults->items[i].path, "");
        fleet_errors_add(errors, "", "%s: %s", name, faults->items[i].message);
    }
}

bool document_is_blank(const char *text, size_t size)
{
    bool is_comment = false;

    for (size_t i = 0; i < size; i++) {
        is_comment = text[i] != '\n' && (is_comment || text[i] == '#');
        if (!is_comment && (text[i] == '\0' || !strchr(" \t\r\n", text[i])))
            return false;
    }
    return true;
}

int document_read(const char *name, const char *text, size_t size, struct document *out,
                  struct fleet_errors *errors)
{
    int jobs = document_jobs(text, size);

    if (jobs > 1) {
        *out = (struct document){0};
        fleet_errors_add(errors, "", "%s: the file has %d FleetJobs; one is expected", name, jobs);
        return -EINVAL;
    }
    return document_read_number(name, text, size, 0, out, errors);
}

/* A job, or a strategy as YAML or JSON. */
static int decode(const char *name, const char *text, size_t size, struct document *out,
                  struct fleet_errors *errors)
{
    if (!is_job(out->json)) {
        unwrap_strategy(&out->json);
        return read_strategy(name, text, size, out, errors);
    }
    strategy_release(&out->job.spec.strategy);
    return fleetjob_decode(out->json, &out->job, errors);
}

/* The text is neither an object nor the text format: report the error of the more likely one. */
static void refuse_text(const char *name, const char *text, size_t size, const cJSON *json,
                        const struct fleet_error *yaml, const struct fleet_error *prototxt,
                        struct fleet_errors *errors)
{
    if (!json && document_is_blank(text, size) && size > 0)
        fleet_errors_add(errors, "", "%s: the file is empty, or has only comments", name);
    else if (!json && (looks_like_job(text, size) || looks_like_yaml(text, size)))
        fleet_errors_add(errors, "", "%s: %s", name, yaml->text);
    else if (json && (looks_like_yaml(text, size) || !memchr(text, ':', size)))
        fleet_errors_add(errors, "",
                         "%s:1:1: not a FleetJob: a mapping (\"key: value\") is expected", name);
    else
        fleet_errors_add(errors, "", "%s", prototxt->text);
}

int document_read_number(const char *name, const char *text, size_t size, int number,
                         struct document *out, struct fleet_errors *errors)
{
    struct fleet_errors faults = {0};
    struct fleet_error yaml, prototxt;
    bool is_parsed;
    int rc;

    *out = (struct document){0};
    strategy_init(&out->strategy);
    strategy_init(&out->job.spec.strategy);
    rc = read_number(text, size, number, &out->json, &faults, &yaml);
    is_parsed = rc != -EINVAL;
    if (rc == 0 && cJSON_IsObject(out->json)) {
        rc = decode(name, text, size, out, errors);
    } else if (read_text(name, text, size, out, &prototxt)) {
        rc = 0;
    } else {
        rc = -EINVAL;
        out->is_broken = !is_parsed && !document_is_blank(text, size);
        refuse_text(name, text, size, out->json, &yaml, &prototxt, errors);
    }
    if (out->kind != DOCUMENT_STRATEGY_TEXT && faults.count > 0) {
        document_report_faults(name, &faults, errors);
        rc = -EINVAL;
    }
    fleet_errors_release(&faults);
    return rc;
}

void document_release(struct document *document)
{
    strategy_release(&document->strategy);
    fleetjob_release(&document->job);
    cJSON_Delete(document->json);
    *document = (struct document){0};
}

const struct strategy *document_strategy(const struct document *document)
{
    return document->kind == DOCUMENT_JOB ? &document->job.spec.strategy : &document->strategy;
}

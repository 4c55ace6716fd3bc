/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/fleetjob/status_writer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "controller/fleetjob/hub_view.h"
#include "controller/fleetjob/projection.h"
#include "libfleet/api/wellknown.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_build.h"
#include "libfleet/base/memory.h"
#include "libfleet/kube/api_error.h"
#include "libfleet/kube/meta.h"
#include "libfleet/kube/rest.h"

#define RECORD_TRIES      5
#define RECORD_TIMEOUT_MS 5000.0 /* the members wait for it */
#define VERSION_DIGITS    20

struct status_writer {
    struct kube_io *io;
    char *namespace_, *name, *uid;
    char *version; /* the newest known resourceVersion */
    bool is_awaited;
    double awaited_until_ms;

    struct kube_rest_call *write; /* of a pass; NULL = none */
    status_writer_done *write_done;
    void *write_user;

    struct kube_rest_call *record_call; /* NULL = none */
    bool has_record;                    /* the request is sent and not answered */
    struct fleet_generation record, known;
    cJSON *record_status; /* the patch of .status */
    int record_tries;
    status_writer_recorded *record_done;
    void *record_user;
};

/* ---- versions -------------------------------------------------------------------------------- */

static bool is_number(const char *text)
{
    size_t length = strlen(text);

    return length > 0 && length <= VERSION_DIGITS && strspn(text, "0123456789") == length;
}

/* Is `a` at least as new as `b`? Versions are increasing numbers; any other kind is compared for
 * equality. */
static bool is_as_new(const char *a, const char *b)
{
    size_t length_a = strlen(a), length_b = strlen(b);

    if (!is_number(a) || !is_number(b))
        return strcmp(a, b) == 0;
    return length_a != length_b ? length_a > length_b : strcmp(a, b) >= 0;
}

void status_writer_seen(struct status_writer *w, const char *resource_version)
{
    if (!w->version[0] || is_as_new(resource_version, w->version)) {
        fleet_set_text(&w->version, resource_version);
        w->is_awaited = false;
    }
}

bool status_writer_is_current(const struct status_writer *w, double now_ms)
{
    return !w->write && !w->has_record && (!w->is_awaited || now_ms >= w->awaited_until_ms);
}

static void await(struct status_writer *w, const char *version)
{
    fleet_set_text(&w->version, version);
    w->is_awaited = true;
    w->awaited_until_ms = kube_now_ms(w->io) + STATUS_WRITER_PATIENCE_MS;
}

/* Our own write made this version; the cache will get it. */
static void note_written(struct status_writer *w, const cJSON *object)
{
    const char *version = "";

    (void)fleet_json_opt_string(object, "metadata.resourceVersion", &version, NULL);
    if (!version[0] || strcmp(version, w->version) == 0 || is_as_new(w->version, version))
        return; /* the write changed nothing, or the watch was faster */
    await(w, version);
}

/* ---- writing --------------------------------------------------------------------------------- */

static struct kube_rest_call *send_patch(struct status_writer *w, const char *version,
                                         cJSON *status, double timeout_ms, bool is_urgent,
                                         kube_rest_done *done)
{
    FLEET_AUTO_JSON cJSON *body = fleet_json_new_object();
    cJSON *metadata = fleet_json_set_object(body, "metadata");
    struct kube_rest_request request = {.verb = KUBE_MERGE_PATCH,
                                        .resource = &projection_fleetjobs,
                                        .namespace_ = w->namespace_,
                                        .name = w->name,
                                        .subresource = "status",
                                        .body = body,
                                        .only_metadata = true,
                                        .timeout_ms = timeout_ms,
                                        .urgent = is_urgent,
                                        .field_manager = WELLKNOWN_FIELD_MANAGER};

    fleet_json_set_string(metadata, "uid", w->uid);
    fleet_json_set_string(metadata, "resourceVersion", version);
    fleet_json_set(body, "status", status);
    return kube_rest_start(w->io, &request, done, w);
}

static void try_record(struct status_writer *w);

static void on_written(void *user, const cJSON *object, const struct fleet_error *err)
{
    struct status_writer *w = user;

    w->write = NULL;
    if (!err)
        note_written(w, object);
    if (w->has_record)
        try_record(w);
    w->write_done(w->write_user, err); /* may free w */
}

/* The index in `list` of the entry with the same key as `item` (a type, or a generation and its
 * epoch); -1: none. */
static int find_same(const cJSON *list, const cJSON *item)
{
    static const char *const names[] = {"type", "generation", "epoch"};
    const cJSON *other;
    int index = 0;

    cJSON_ArrayForEach(other, list)
    {
        bool is_same = cJSON_IsObject(item) && cJSON_IsObject(other);
        int named = 0;
        for (size_t i = 0; is_same && i < FLEET_COUNT(names); i++) {
            const cJSON *a = cJSON_GetObjectItemCaseSensitive(item, names[i]);
            const cJSON *b = cJSON_GetObjectItemCaseSensitive(other, names[i]);
            named += a != NULL;
            is_same = !a == !b && (!a || fleet_json_equal(a, b));
        }
        if (is_same && named > 0)
            return index;
        index++;
    }
    return -1;
}

/*
 * A merge patch replaces a whole list. Keep members that a newer version of the resource has added
 * to entries: those of `raw` that are not in `old`, the part that this version knows.
 */
static void keep_unknown(cJSON *patch, const cJSON *old, const cJSON *raw)
{
    cJSON *now;

    cJSON_ArrayForEach(now, patch)
    {
        const cJSON *old_list = cJSON_GetObjectItemCaseSensitive(old, now->string);
        const cJSON *raw_list = cJSON_GetObjectItemCaseSensitive(raw, now->string), *member;
        cJSON *item;
        if (cJSON_IsObject(now))
            keep_unknown(now, old_list, raw_list);
        if (!cJSON_IsArray(now) || cJSON_GetArraySize(old_list) != cJSON_GetArraySize(raw_list))
            continue;
        cJSON_ArrayForEach(item, now)
        {
            int index = find_same(old_list, item);
            if (index < 0)
                continue;
            cJSON_ArrayForEach(member, cJSON_GetArrayItem(raw_list, index))
            {
                if (!cJSON_HasObjectItem(cJSON_GetArrayItem(old_list, index), member->string) &&
                    !cJSON_HasObjectItem(item, member->string))
                    fleet_json_set(item, member->string, fleet_json_copy(member));
            }
        }
    }
}

void status_writer_write(struct status_writer *w, const char *version,
                         const struct fleetjob_status *before, const cJSON *raw,
                         const struct fleetjob_status *after, status_writer_done *done, void *user)
{
    FLEET_AUTO_JSON cJSON *old = fleetjob_status_encode(before);
    FLEET_AUTO_JSON cJSON *new = fleetjob_status_encode(after);
    FLEET_AUTO_JSON cJSON *patch = fleet_json_merge_patch(old, new);
    struct fleet_error err;

    if (w->write || w->record_call) {
        (void)fleet_error(&err, -ENOTRECOVERABLE,
                          "a write of the status was asked for while another one is on its way");
        done(user, &err);
        return;
    }
    if (cJSON_GetArraySize(patch) == 0) {
        done(user, NULL);
        return;
    }
    keep_unknown(patch, old, raw);
    w->write_done = done;
    w->write_user = user;
    w->write = send_patch(w, version ? version : w->version, patch, 0, false, on_written);
    patch = NULL; /* moved into the body */
}

/* ---- recording ------------------------------------------------------------------------------- */

static void finish_record(struct status_writer *w, enum status_writer_result result)
{
    w->has_record = false;
    cJSON_Delete(w->record_status);
    w->record_status = NULL;
    w->record_done(w->record_user, w->record, result);
}

/* Does the history lack the cause of the recorded generation? */
static bool has_untold_restart(const cJSON *object)
{
    const cJSON *history = fleet_json_at(object, "status.restarts.history");
    const cJSON *newest = cJSON_GetArrayItem(history, cJSON_GetArraySize(history) - 1);
    int64_t begun = 0, reported = 0;

    (void)fleet_json_opt_int(object, "status.restarts.begun.generation", &begun, NULL);
    if (newest)
        (void)fleet_json_opt_int(newest, "generation", &reported, NULL);
    return begun > reported;
}

static bool is_over(const cJSON *object)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, fleet_json_at(object, "status.conditions"))
    {
        const char *type = fleet_json_text_at(item, "type");
        if ((strcmp(type, WELLKNOWN_CONDITION_SUCCEEDED) == 0 ||
             strcmp(type, WELLKNOWN_CONDITION_FAILED) == 0) &&
            strcmp(fleet_json_text_at(item, "status"), "True") == 0)
            return true;
    }
    return false;
}

/* The job has changed meanwhile: decide with the current version. */
static void on_read(void *user, const cJSON *object, const struct fleet_error *err)
{
    struct status_writer *w = user;
    struct fleet_generation there = {0};
    const char *uid = "", *version = "";

    w->record_call = NULL;
    if (err) {
        finish_record(w, STATUS_WRITER_FAILED);
        return;
    }
    (void)fleet_json_opt_string(object, "metadata.uid", &uid, NULL);
    (void)fleet_json_opt_string(object, "metadata.resourceVersion", &version, NULL);
    (void)fleet_json_opt_int(object, "status.rendezvous.epoch", &there.epoch, NULL);
    (void)fleet_json_opt_int(object, "status.rendezvous.generation", &there.counter, NULL);
    if (strcmp(uid, w->uid) != 0 || there.epoch > w->record.epoch) {
        finish_record(w, STATUS_WRITER_FAILED); /* another job, or another hub (2) */
        return;
    }
    if (is_over(object) ||
        (there.epoch < w->record.epoch &&
         (fleet_generation_compare(there, w->known) > 0 || has_untold_restart(object)))) {
        await(w, version);
        finish_record(w, STATUS_WRITER_OUTDATED);
        return;
    }
    if (fleet_generation_compare(there, w->record) >= 0) {
        finish_record(w, STATUS_WRITER_RECORDED);
        return;
    }
    if (is_as_new(version, w->version))
        fleet_set_text(&w->version, version);
    try_record(w);
}

static void on_recorded(void *user, const cJSON *object, const struct fleet_error *err)
{
    struct status_writer *w = user;
    struct kube_rest_request request = {.verb = KUBE_GET,
                                        .resource = &projection_fleetjobs,
                                        .namespace_ = w->namespace_,
                                        .name = w->name,
                                        .timeout_ms = RECORD_TIMEOUT_MS,
                                        .urgent = true};

    w->record_call = NULL;
    if (err && kube_is_conflict(err) && w->record_tries < RECORD_TRIES) {
        w->record_call = kube_rest_start(w->io, &request, on_read, w);
        return;
    }
    if (!err)
        note_written(w, object);
    finish_record(w, err ? STATUS_WRITER_FAILED : STATUS_WRITER_RECORDED);
}

static void try_record(struct status_writer *w)
{
    cJSON *status = fleet_json_copy(w->record_status);

    w->record_tries++;
    w->record_call = send_patch(w, w->version, status, RECORD_TIMEOUT_MS, true, on_recorded);
}

/* Replaces the whole object in the status: absent fields become null. */
static cJSON *encode_begun(const cJSON *restarts)
{
    static const char *const optional[] = {"member", "exitCode", "message"};
    cJSON *begun = fleet_json_copy(fleet_json_at(restarts, "begun"));

    if (!begun)
        return cJSON_CreateNull();
    for (size_t i = 0; i < FLEET_COUNT(optional); i++)
        if (!cJSON_HasObjectItem(begun, optional[i]))
            fleet_json_set_null(begun, optional[i]);
    return begun;
}

static cJSON *encode_record(const struct hub_record *record, const struct fleet_lineage *lineage,
                            int64_t now_wall_ms)
{
    char message[HUB_VIEW_UNTOLD_SIZE];
    struct fleetjob_status status = {
        .rendezvous = {.newest = record->generation,
                       .members = record->members,
                       .lineage = {(struct fleet_lineage_entry *)lineage->entries, lineage->count}},
        .restarts = {.has_begun = record->cause[0] != '\0',
                     .begun = hub_view_begun(record, now_wall_ms, message)}};
    FLEET_AUTO_JSON cJSON *all = fleetjob_status_encode(&status);
    cJSON *patch = fleet_json_new_object(), *restarts = fleet_json_set_object(patch, "restarts");

    fleet_json_set_number(restarts, "count", record->restarts_total);
    fleet_json_set_number(restarts, "sinceReset", record->restarts);
    fleet_json_set(restarts, "begun", encode_begun(fleet_json_at(all, "restarts")));
    if (record->restarts_ignored > 0)
        fleet_json_set_number(restarts, "ignored", record->restarts_ignored);
    fleet_json_set(patch, "rendezvous", cJSON_DetachItemFromObjectCaseSensitive(all, "rendezvous"));
    return patch;
}

void status_writer_record(struct status_writer *w, const struct hub_record *record,
                          const struct fleet_lineage *lineage, struct fleet_generation known,
                          status_writer_recorded *done, void *user)
{
    kube_rest_cancel(&w->record_call);
    cJSON_Delete(w->record_status);
    w->has_record = true;
    w->record = record->generation;
    w->known = known;
    w->record_status = encode_record(record, lineage, kube_wall_ms(w->io));
    w->record_tries = 0;
    w->record_done = done;
    w->record_user = user;
    if (!w->write)
        try_record(w);
}

/* ---- life ------------------------------------------------------------------------------------ */

struct status_writer *status_writer_new(struct kube_io *io, const char *namespace_,
                                        const char *name, const char *uid)
{
    struct status_writer *w = calloc(1, sizeof(*w));

    fleet_assert(w);
    w->io = io;
    fleet_set_text(&w->namespace_, namespace_);
    fleet_set_text(&w->name, name);
    fleet_set_text(&w->uid, uid);
    fleet_set_text(&w->version, "");
    return w;
}

void status_writer_free(struct status_writer *w)
{
    if (!w)
        return;
    kube_rest_cancel(&w->write);
    kube_rest_cancel(&w->record_call);
    cJSON_Delete(w->record_status);
    free(w->namespace_);
    free(w->name);
    free(w->uid);
    free(w->version);
    free(w);
}

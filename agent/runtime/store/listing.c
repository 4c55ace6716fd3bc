/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/store/listing.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/file.h"
#include "libfleet/base/memory.h"

#define LIST_MAX ((size_t)64 << 20) /* bytes of JSON */

void listing_release(struct listing *list)
{
    for (size_t i = 0; i < list->count; i++)
        free(list->files[i].name);
    free(list->files);
    *list = (struct listing){0};
}

static void add(struct listing *list, const char *name, const struct fleet_fs_info *info)
{
    list->files = fleet_grow(list->files, list->count, sizeof(*list->files));
    list->files[list->count++] = (struct listing_file){fleet_dup_text(name), *info};
}

static bool is_name(const char *name)
{
    return name[0] != '\0' && name[0] != '.' && !strchr(name, '/');
}

static int ask_folder(const struct store *store, struct listing *out, struct fleet_error *err)
{
    struct fleet_fs_names folders = {0}, files = {0};
    int rc = store_list(store, "", &folders, &files, err);

    for (size_t i = 0; i < files.count && rc == 0; i++) {
        struct fleet_fs_info info;
        if (!is_name(files.list[i]))
            continue;
        rc = store_look(store, files.list[i], &info, err);
        if (rc == 0)
            rc = fleet_error(err, -EAGAIN, "%s/%s has gone", store_url(store), files.list[i]);
        if (rc < 0)
            break;
        add(out, files.list[i], &info);
        rc = 0;
    }
    store_names_release(store, &folders);
    store_names_release(store, &files);
    if (rc == 0 && out->count == 0)
        rc = fleet_error(err, -ENOENT, "%s has no files", store_url(store));
    return rc;
}

int listing_ask(const struct store *store, struct listing *out, struct fleet_error *err)
{
    const char *url = store_url(store), *slash = strrchr(url, '/');
    struct fleet_fs_info info;
    int rc = store_look(store, "", &info, err);

    if (rc < 0)
        return rc;
    if (rc == 0)
        return fleet_error(err, -ENOENT, "%s does not exist", url);
    *out = (struct listing){.is_file = !info.is_folder};
    if (!info.is_folder && !is_name(slash + 1))
        return fleet_error(err, -EINVAL, "%s cannot be the name of a local file", url);
    if (!info.is_folder)
        add(out, slash + 1, &info);
    rc = info.is_folder ? ask_folder(store, out, err) : 0;
    if (rc < 0)
        listing_release(out);
    return rc;
}

/* ---- in the cache ---------------------------------------------------------------------------- */

int listing_write(const char *place, const struct listing *list, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *path = fleet_file_join(place, LISTING_NAME), *text = NULL;
    FLEET_AUTO_JSON cJSON *json = cJSON_CreateObject();
    cJSON *files = cJSON_AddArrayToObject(json, "files");

    (void)cJSON_AddBoolToObject(json, "isFile", list->is_file);
    for (size_t i = 0; i < list->count; i++) {
        cJSON *one = cJSON_CreateObject();
        char bytes[32];
        (void)snprintf(bytes, sizeof(bytes), "%llu", (unsigned long long)list->files[i].info.bytes);
        (void)cJSON_AddStringToObject(one, "name", list->files[i].name);
        (void)cJSON_AddStringToObject(one, "bytes", bytes);
        (void)cJSON_AddStringToObject(one, "tag", list->files[i].info.tag);
        (void)cJSON_AddItemToArray(files, one);
    }
    text = cJSON_PrintUnformatted(json);
    fleet_assert(text != NULL);
    return fleet_file_write(path, text, strlen(text), err);
}

static const char *text_of(const cJSON *object, const char *name)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, name));

    return text ? text : "";
}

int listing_read(const char *place, struct listing *out, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *path = fleet_file_join(place, LISTING_NAME), *text = NULL;
    FLEET_AUTO_JSON cJSON *json = NULL;
    const cJSON *files, *one;
    size_t size;
    int rc = fleet_file_read(path, LIST_MAX, &text, &size, err);

    if (rc < 0)
        return rc;
    json = cJSON_ParseWithLength(text, size);
    files = cJSON_GetObjectItemCaseSensitive(json, "files");
    *out =
        (struct listing){.is_file = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(json, "isFile"))};
    cJSON_ArrayForEach(one, files)
    {
        struct fleet_fs_info info = {.bytes = strtoull(text_of(one, "bytes"), NULL, 10)};
        (void)snprintf(info.tag, sizeof(info.tag), "%s", text_of(one, "tag"));
        if (!is_name(text_of(one, "name"))) {
            listing_release(out);
            return fleet_error(err, -EBADMSG, "%s is damaged", path);
        }
        add(out, text_of(one, "name"), &info);
    }
    if (out->count == 0 || (out->is_file && out->count != 1)) {
        listing_release(out);
        return fleet_error(err, -EBADMSG, "%s is damaged", path);
    }
    return 0;
}

bool listing_has(const struct listing *list, const struct listing_file *file)
{
    for (size_t i = 0; i < list->count; i++)
        if (strcmp(list->files[i].name, file->name) == 0)
            return list->files[i].info.bytes == file->info.bytes &&
                   strcmp(list->files[i].info.tag, file->info.tag) == 0;
    return false;
}

bool listing_equals(const struct listing *a, const struct listing *b)
{
    if (a->count != b->count || a->is_file != b->is_file)
        return false;
    for (size_t i = 0; i < a->count; i++)
        if (!listing_has(b, &a->files[i]))
            return false;
    return true;
}

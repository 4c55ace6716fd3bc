/* SPDX-License-Identifier: Apache-2.0 */

#include "libfleet/autoparallel/files/group_file.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/autoparallel/files/wire.h"
#include "libfleet/base/error.h"
#include "libfleet/base/limits.h"
#include "libfleet/base/strbuf.h"

enum {
    MAP_GROUP = 1,
    MAP_RESTORE = 2
};
enum {
    GROUP_NAME = 1,
    GROUP_RANKS = 2
};

static int read_ranks(const struct fleet_protobuf_field *field, struct numbers *out,
                      struct fleet_error *err)
{
    int rc = wire_read_list(field, FLEET_WORLD_MAX, out, err);

    for (size_t i = 0; rc == 0 && i < out->count; i++)
        if (out->items[i] < 0 || out->items[i] >= FLEET_WORLD_MAX)
            return fleet_error(err, -EINVAL, "rank %" PRId64 ", must be 0 to %d", out->items[i],
                               FLEET_WORLD_MAX - 1);
    return rc;
}

static int read_group(const struct fleet_protobuf_field *message, struct group_file *file,
                      struct fleet_error *err)
{
    struct fleet_protobuf_reader reader = fleet_protobuf_reader_of(message);
    struct group_file_group *group;
    struct fleet_protobuf_field field;
    bool has_ranks = false;
    int rc;

    if (wire_need(message, FLEET_PROTOBUF_BYTES, err) < 0)
        return -EINVAL;
    if (file->count == GROUP_FILE_GROUPS_MAX)
        return fleet_error(err, -E2BIG, "more than %d groups", GROUP_FILE_GROUPS_MAX);
    file->groups = numbers_grow(file->groups, file->count, sizeof(*file->groups));
    group = &file->groups[file->count++];
    *group = (struct group_file_group){.name = NULL};
    while ((rc = fleet_protobuf_next(&reader, &field, err)) > 0) {
        if (field.number == GROUP_NAME) {
            rc = wire_read_name(&field, &group->name, err);
        } else if (field.number == GROUP_RANKS) {
            rc = read_ranks(&field, &group->ranks, err);
            has_ranks = true;
        }
        if (rc < 0)
            return rc;
    }
    if (rc == 0 && (!group->name || strlen(group->name) > GROUP_FILE_NAME_MAX))
        return fleet_error(err, -EINVAL, "group_name: required, of at most %d bytes",
                           GROUP_FILE_NAME_MAX);
    if (rc == 0 && !has_ranks)
        return fleet_error(err, -EINVAL, "parallel_group_ranks: required");
    return rc;
}

static int read_map(const void *bytes, size_t size, struct group_file *file,
                    struct fleet_error *err)
{
    struct fleet_protobuf_reader reader = {bytes, size, 0};
    struct fleet_protobuf_field field;
    bool has_restore = false;
    int rc;

    while ((rc = fleet_protobuf_next(&reader, &field, err)) > 0) {
        if (field.number == MAP_GROUP && (rc = read_group(&field, file, err)) < 0)
            return fleet_error_wrap(err, "parallel_group_item[%zu]",
                                    file->count ? file->count - 1 : 0);
        if (field.number == MAP_RESTORE) {
            if ((rc = read_ranks(&field, &file->restore, err)) < 0)
                return fleet_error_wrap(err, "ckpt_restore_rank_list");
            has_restore = true;
        }
    }
    if (rc == 0 && !has_restore)
        return fleet_error(err, -EINVAL, "ckpt_restore_rank_list: required");
    return rc;
}

int group_file_decode(const void *bytes, size_t size, struct group_file *out,
                      struct fleet_error *err)
{
    struct group_file file = {.groups = NULL};
    int rc;

    if (size > GROUP_FILE_SIZE_MAX)
        return fleet_error(err, -EFBIG, "%zu bytes, may have %u", size, GROUP_FILE_SIZE_MAX);
    rc = read_map(bytes, size, &file, err);
    if (rc < 0) {
        group_file_release(&file);
        return rc;
    }
    *out = file;
    return 0;
}

void group_file_encode(const struct group_file *file, struct fleet_strbuf *out)
{
    for (size_t i = 0; i < file->count; i++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf group = {0};

        fleet_protobuf_append_bytes(&group, GROUP_NAME, file->groups[i].name,
                                    strlen(file->groups[i].name));
        wire_append_list(&group, GROUP_RANKS, &file->groups[i].ranks);
        wire_append_message(out, MAP_GROUP, &group);
    }
    wire_append_list(out, MAP_RESTORE, &file->restore);
}

void group_file_release(struct group_file *file)
{
    for (size_t i = 0; i < file->count; i++) {
        free(file->groups[i].name);
        numbers_release(&file->groups[i].ranks);
    }
    free(file->groups);
    numbers_release(&file->restore);
    *file = (struct group_file){.groups = NULL};
}

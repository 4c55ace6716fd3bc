/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_AUTOPARALLEL_FILES_GROUP_FILE_H
#define LIBFLEET_AUTOPARALLEL_FILES_GROUP_FILE_H

/*
 * group_ckpt_save_file: the groups of ranks that a program communicates in, and the ranks that hold
 * the same slices of parameters as the one that wrote the file. A lost checkpoint can be restored
 * from each of these. The message ParallelGroupMap of mindspore/train/node_strategy.proto.
 */

#include <stddef.h>

#include "libfleet/autoparallel/files/numbers.h"

struct fleet_error;
struct fleet_strbuf;

#define GROUP_FILE_SIZE_MAX   (64u << 20)
#define GROUP_FILE_GROUPS_MAX 65536
#define GROUP_FILE_NAME_MAX   1024 /* bytes */

struct group_file {
    struct group_file_group {
        char *name;
        struct numbers ranks; /* 0 … FLEET_WORLD_MAX - 1 */
    } * groups;
    size_t count;
    struct numbers restore;
};

/* Read a file into *out, to be released. -EINVAL: no such message, a required member is missing, a
 * rank out of range; -E2BIG, -EFBIG: beyond the limits. */
int group_file_decode(const void *bytes, size_t size, struct group_file *out,
                      struct fleet_error *err);

/* Append the file. */
void group_file_encode(const struct group_file *file, struct fleet_strbuf *out);

void group_file_release(struct group_file *file);

#endif

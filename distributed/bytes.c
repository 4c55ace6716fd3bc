/* SPDX-License-Identifier: Apache-2.0 */

/* Paddle's object collectives: bytes of any length. The sizes travel first. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/runtime/comm/comm.h"
#include "distributed/distributed.h"

int fleet_all_gather_bytes(const void *mine, size_t bytes, size_t *sizes, void **out,
                           struct fleet_group *group, struct fleet_error *err)
{
    const char *what = "fleet_all_gather_bytes";
    double deadline;
    size_t total = 0;
    void *all;
    int rc = group_ready(what, group, &group, err);

    if (rc < 0)
        return rc;
    if ((!mine && bytes > 0) || !sizes || !out)
        return fleet_error(err, -EINVAL, "%s: an argument is NULL", what);
    deadline = group_deadline(group);
    rc = comm_all_gather(group->comm, &bytes, sizeof(bytes), sizes, deadline, err);
    if (rc < 0)
        return fleet_error_wrap(err, "%s", what);
    for (int i = 0; i < group->count; i++)
        total += sizes[i];
    all = malloc(total + 1);
    if (!all) /* the other ranks are on their way into the second part */
        comm_abort(group->comm);
    if (!all)
        return fleet_error(err, -ENOMEM, "%s: no memory for %zu bytes", what, total);
    rc = comm_all_gather_varying(group->comm, mine, sizes, all, deadline, err);
    if (rc < 0) {
        free(all);
        return fleet_error_wrap(err, "%s", what);
    }
    *out = all;
    return 0;
}

int fleet_broadcast_bytes(void **data, size_t *bytes, int src, struct fleet_group *group,
                          struct fleet_error *err)
{
    const char *what = "fleet_broadcast_bytes";
    double deadline;
    size_t size;
    void *copy;
    int root, rc = group_ready(what, group, &group, err);

    if (rc == 0)
        rc = group_place(what, group, src, &root, err);
    if (rc < 0)
        return rc;
    if (!data || !bytes || (root == group->comm->rank && !*data && *bytes > 0))
        return fleet_error(err, -EINVAL, "%s: an argument is NULL", what);
    deadline = group_deadline(group);
    size = root == group->comm->rank ? *bytes : 0;
    rc = comm_broadcast(group->comm, &size, sizeof(size), root, deadline, err);
    if (rc < 0)
        return fleet_error_wrap(err, "%s", what);
    copy = root == group->comm->rank ? *data : malloc(size + 1);
    if (!copy && size > 0) {
        comm_abort(group->comm);
        return fleet_error(err, -ENOMEM, "%s: no memory for %zu bytes", what, size);
    }
    rc = comm_broadcast(group->comm, copy, size, root, deadline, err);
    if (rc < 0 && root != group->comm->rank)
        free(copy);
    if (rc < 0)
        return fleet_error_wrap(err, "%s", what);
    *data = copy;
    *bytes = size;
    return 0;
}

/* Check src's parts; their sizes from its rank of the group, which is `root`. */
static int parts_sizes(const char *what, const void *const *parts, const size_t *sizes,
                       const struct fleet_group *group, uint64_t *out, struct fleet_error *err)
{
    if (!parts || !sizes)
        return fleet_error(err, -EINVAL, "%s: parts or sizes is NULL on src", what);
    for (int i = 0; i < group->count; i++) {
        if (!parts[i] && sizes[i] > 0)
            return fleet_error(err, -EINVAL, "%s: parts[%d] is NULL with %zu bytes", what, i,
                               sizes[i]);
        out[i] = sizes[i];
    }
    return 0;
}

/* The parts themselves: src sends each to its rank, the others receive theirs. */
static int scatter_parts(const struct fleet_group *group, int root, const void *const *parts,
                         const uint64_t *sizes, void *mine, uint64_t mine_bytes, double deadline,
                         struct fleet_error *err)
{
    struct comm_message *messages;
    int count = 0, rc;

    if (group->comm->rank != root)
        return mine_bytes == 0 ? 0
                               : comm_receive(group->comm, root, mine, mine_bytes, deadline, err);
    messages = calloc((size_t)group->count, sizeof(*messages));
    if (!messages) {
        comm_abort(group->comm);
        return fleet_error(err, -ENOMEM, "out of memory");
    }
    for (int i = 0; i < group->count; i++)
        if (i != root && sizes[i] > 0)
            messages[count++] = (struct comm_message){.peer = i,
                                                      .data = (void *)(uintptr_t)parts[i],
                                                      .count = (int64_t)sizes[i],
                                                      .type = COMM_UINT8};
    if (mine_bytes > 0)
        memcpy(mine, parts[root], mine_bytes);
    rc = count > 0 ? comm_messages(group->comm, messages, count, deadline, err) : 0;
    free(messages);
    return rc;
}

int fleet_scatter_bytes(void **out, size_t *bytes, const void *const *parts, const size_t *sizes,
                        int src, struct fleet_group *group, struct fleet_error *err)
{
    const char *what = "fleet_scatter_bytes";
    double deadline;
    uint64_t *all, own = 0;
    void *mine = NULL;
    int root, rc = group_ready(what, group, &group, err);

    if (rc == 0)
        rc = group_place(what, group, src, &root, err);
    if (rc < 0)
        return rc;
    all = calloc((size_t)group->count, sizeof(*all));
    if (!all || !out || !bytes)
        rc = fleet_error(err, all ? -EINVAL : -ENOMEM, "an argument is NULL");
    else if (root == group->comm->rank)
        rc = parts_sizes(what, parts, sizes, group, all, err);
    if (rc < 0) {
        free(all);
        return rc;
    }
    deadline = group_deadline(group);
    rc = comm_broadcast(group->comm, all, (size_t)group->count * sizeof(*all), root, deadline, err);
    if (rc == 0) {
        own = all[group->comm->rank];
        mine = malloc(own + 1);
        if (!mine) {
            comm_abort(group->comm);
            rc = fleet_error(err, -ENOMEM, "no memory for %llu bytes", (unsigned long long)own);
        }
    }
    if (rc == 0)
        rc = scatter_parts(group, root, parts, all, mine, own, deadline, err);
    free(all);
    if (rc < 0) {
        free(mine);
        return fleet_error_wrap(err, "%s", what);
    }
    *out = mine;
    *bytes = own;
    return 0;
}

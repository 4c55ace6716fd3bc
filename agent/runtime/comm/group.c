/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Communicators over some ranks of another one. All of them show their lists first, so that ranks
 * which disagree are found before they wait for each other; that they have all come also means that
 * dialling finds the other side at the door. The connections' key is made from the parent's and the
 * number of the group, so a connection of one group is a stranger to the others.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/runtime/comm/device.h"
#include "agent/runtime/comm/engine.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/digest.h"

static int check_list(const struct comm *parent, const int *ranks, int count,
                      struct fleet_error *err)
{
    if (count < 1)
        return fleet_error(err, -EINVAL, "a group needs at least one rank");
    for (int i = 0; i < count; i++) {
        if (ranks[i] < 0 || ranks[i] >= parent->world)
            return fleet_error(err, -EINVAL, "rank %d is not one of %d", ranks[i], parent->world);
        for (int j = 0; j < i; j++)
            if (ranks[i] == ranks[j])
                return fleet_error(err, -EINVAL, "duplicate rank %d in a group", ranks[i]);
    }
    return 0;
}

/* All ranks of the parent are here with the same list. */
static int agree(struct comm *parent, const int *ranks, int count, double deadline_ms,
                 struct fleet_error *err)
{
    size_t world = (size_t)parent->world;
    FLEET_AUTO_FREE uint8_t *all = calloc(world, FLEET_SHA256_SIZE);
    uint8_t mine[FLEET_SHA256_SIZE];
    int own = parent->rank, rc;

    fleet_assert(all != NULL);
    fleet_sha256(ranks, (size_t)count * sizeof(*ranks), mine);
    rc = comm_all_gather(parent, mine, sizeof(mine), all, deadline_ms, err);
    for (int r = 0; r < parent->world && rc == 0; r++)
        if (memcmp(all + (size_t)r * sizeof(mine), mine, sizeof(mine)) != 0)
            rc = fleet_error(err, -EPROTO, "rank %d makes a group of other ranks than rank %d",
                             parent->members[r], parent->members[own]);
    return rc;
}

static int connect_group(struct comm *group, const struct comm *parent, double deadline_ms,
                         struct fleet_error *err)
{
    FLEET_AUTO_FREE const char **addresses = calloc((size_t)group->world, sizeof(*addresses));
    struct comm_net *net = group->net;
    int failed = -1, rc;
    struct comm_tcp_options options = {.rank = group->rank,
                                       .world = group->world,
                                       .addresses = addresses,
                                       .listener = net->listener,
                                       .stop = net->wake,
                                       .neighbours = net->neighbours,
                                       .channels = net->channels,
                                       .encrypts = net->encrypts,
                                       .failed_rank = &failed};

    fleet_assert(addresses != NULL);
    fleet_hmac_sha256(parent->key, COMM_KEY_SIZE, &parent->groups, sizeof(parent->groups),
                      group->key);
    memcpy(options.key, group->key, sizeof(options.key));
    for (int r = 0; r < group->world; r++)
        addresses[r] = net->addresses[group->members[r]];
    rc = tcp_connect_comm(group, &options, deadline_ms, err);
    if (rc == 0 || failed < 0)
        return rc;
    if (net->world->failed_rank < 0)
        net->world->failed_rank = group->members[failed];
    return fleet_error_wrap(err, "connect a group whose rank %d is rank %d", failed,
                            group->members[failed]);
}

static int make_group(struct comm *parent, const int *ranks, int rank, int count,
                      double deadline_ms, struct comm **out, struct fleet_error *err)
{
    FLEET_AUTO_FREE int *members = calloc((size_t)count, sizeof(*members));
    struct comm *group;
    int rc = 0;

    fleet_assert(members != NULL);
    for (int i = 0; i < count; i++)
        members[i] = parent->members[ranks[i]];
    group = comm_new(parent, members, rank, count, err);
    if (count > 1)
        rc = connect_group(group, parent, deadline_ms, err);
    if (rc < 0)
        comm_free(group);
    else
        *out = group;
    return rc;
}

int comm_group(struct comm *parent, const int *ranks, int count, double deadline_ms,
               struct comm **out, struct fleet_error *err)
{
    struct fleet_error own = {.text = ""};
    int rc = check_list(parent, ranks, count, &own), rank = -1;

    *out = NULL;
    if (rc == 0)
        rc = agree(parent, ranks, count, deadline_ms, &own);
    parent->groups++;
    for (int i = 0; i < count && rc == 0; i++)
        if (ranks[i] == parent->rank)
            rank = i;
    if (rc == 0 && rank >= 0)
        rc = make_group(parent, ranks, rank, count, deadline_ms, out, &own);
    if (rc == 0 && comm_has_device(parent) &&
        (rc = comm_device_split(parent, ranks, count, *out, deadline_ms, &own)) < 0) {
        comm_free(*out);
        *out = NULL;
    }
    if (rc < 0 && rc != -EINVAL)
        comm_fail(parent->net, rc, &own);
    if (rc < 0 && err)
        *err = own;
    return rc;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/rpc/members.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/strbuf.h"

#define RANKS_NAMED_MAX 8

struct member {
    struct fleet_rpc_worker worker;
    void *caller;
    uint64_t id; /* of its join, then of its leave */
    bool has_joined, leaves;
    bool is_gone; /* its connection ended: `caller` is not valid */
};

struct rpc_members {
    int world, joined;
    rpc_answer answer;
    void *owner;
    struct member list[]; /* by rank */
};

int rpc_members_new(int world, rpc_answer answer, void *owner, struct rpc_members **out,
                    struct fleet_error *err)
{
    struct rpc_members *members =
        calloc(1, sizeof(*members) + (size_t)world * sizeof(members->list[0]));

    if (!members)
        return fleet_error(err, -ENOMEM, "out of memory");
    members->world = world;
    members->answer = answer;
    members->owner = owner;
    *out = members;
    return 0;
}

void rpc_members_free(struct rpc_members *members)
{
    free(members);
}

static void refuse(struct rpc_members *members, void *caller, uint64_t id, int code,
                   const char *text)
{
    members->answer(members->owner, caller, id, code, text, strlen(text));
}

/* ---- joining --------------------------------------------------------------------------------- */

/* May `worker` of a job of `world` workers join? */
static int join_check(const struct rpc_members *members, const struct fleet_rpc_worker *worker,
                      int world, struct fleet_error *err)
{
    if (world != members->world)
        return fleet_error(err, -EINVAL, "worker \"%s\" expects %d workers, rank 0 expects %d",
                           worker->name, world, members->world);
    if (members->list[worker->rank].has_joined)
        return fleet_error(err, -EEXIST, "rank %d is already that of worker \"%s\"", worker->rank,
                           members->list[worker->rank].worker.name);
    for (int i = 0; i < members->world; i++)
        if (members->list[i].has_joined && strcmp(members->list[i].worker.name, worker->name) == 0)
            return fleet_error(err, -EEXIST, "the name \"%s\" is already that of rank %d",
                               worker->name, i);
    return 0;
}

/* Everybody is there: each gets the list. */
static void answer_joins(struct rpc_members *members)
{
    struct fleet_rpc_worker *all = calloc((size_t)members->world, sizeof(*all));
    struct fleet_error err;
    void *data = NULL;
    size_t bytes = 0;

    for (int i = 0; all && i < members->world; i++)
        all[i] = members->list[i].worker;
    if (!all || rpc_workers_encode(all, members->world, members->world, &data, &bytes, &err) < 0) {
        for (int i = 0; i < members->world; i++)
            refuse(members, members->list[i].caller, members->list[i].id, -ENOMEM,
                   "rank 0 is out of memory");
    } else {
        for (int i = 0; i < members->world; i++)
            members->answer(members->owner, members->list[i].caller, members->list[i].id, 0, data,
                            bytes);
    }
    free(data);
    free(all);
}

void rpc_members_join(struct rpc_members *members, void *caller, uint64_t id, const void *data,
                      size_t bytes)
{
    struct fleet_rpc_worker *worker = NULL;
    struct fleet_error err;
    int count, world, rc;

    rc = rpc_workers_decode(data, bytes, &worker, &count, &world, &err);
    if (rc == 0 && count != 1)
        rc = fleet_error(&err, -EBADMSG, "%d workers join in one call", count);
    if (rc == 0)
        rc = join_check(members, worker, world, &err);
    if (rc < 0) {
        refuse(members, caller, id, rc, err.text);
    } else {
        struct member *member = &members->list[worker->rank];
        *member =
            (struct member){.worker = *worker, .caller = caller, .id = id, .has_joined = true};
        members->joined++;
        if (members->joined == members->world)
            answer_joins(members);
    }
    free(worker);
}

int rpc_members_give_up(struct rpc_members *members, struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    int named = 0;

    fleet_strbuf_appendf(&text, "%d of %d workers came in time; missing:", members->joined,
                         members->world);
    for (int i = 0; i < members->world; i++)
        if (!members->list[i].has_joined && named++ < RANKS_NAMED_MAX)
            fleet_strbuf_appendf(&text, "%s rank %d", named > 1 ? "," : "", i);
    if (named > RANKS_NAMED_MAX)
        fleet_strbuf_appendf(&text, " and %d more", named - RANKS_NAMED_MAX);
    for (int i = 0; i < members->world; i++)
        if (members->list[i].has_joined)
            refuse(members, members->list[i].caller, members->list[i].id, -ETIMEDOUT,
                   fleet_strbuf_text(&text));
    return fleet_error(err, -ETIMEDOUT, "%s", fleet_strbuf_text(&text));
}

/* ---- leaving --------------------------------------------------------------------------------- */

static struct member *find(struct rpc_members *members, const void *caller)
{
    for (int i = 0; i < members->world; i++)
        if (members->list[i].has_joined && !members->list[i].is_gone &&
            members->list[i].caller == caller)
            return &members->list[i];
    return NULL;
}

/* If every worker leaves or is lost, answer those that wait. */
static void answer_leaves(struct rpc_members *members)
{
    const struct member *lost = NULL;
    char text[FLEET_RPC_NAME_MAX + 64];

    for (int i = 0; i < members->world; i++) {
        const struct member *member = &members->list[i];
        if (!member->leaves && !member->is_gone)
            return;
        if (!member->leaves && !lost)
            lost = member;
    }
    if (lost)
        (void)snprintf(text, sizeof(text), "worker \"%s\" (rank %d) was lost", lost->worker.name,
                       lost->worker.rank);
    for (int i = 0; i < members->world; i++) {
        const struct member *member = &members->list[i];
        if (!member->is_gone && lost)
            refuse(members, member->caller, member->id, -ECONNRESET, text);
        else if (!member->is_gone)
            members->answer(members->owner, member->caller, member->id, 0, NULL, 0);
    }
}

void rpc_members_leave(struct rpc_members *members, void *caller, uint64_t id)
{
    struct member *member = find(members, caller);

    if (!member || member->leaves || members->joined < members->world) {
        refuse(members, caller, id, -EPROTO, "this worker has not joined");
        return;
    }
    member->leaves = true;
    member->id = id;
    answer_leaves(members);
}

void rpc_members_lost(struct rpc_members *members, const void *caller)
{
    struct member *member = find(members, caller);

    if (!member)
        return;
    if (members->joined < members->world) { /* its place is free again */
        *member = (struct member){0};
        members->joined--;
        return;
    }
    member->is_gone = true;
    if (!member->leaves)
        answer_leaves(members);
}

/* SPDX-License-Identifier: Apache-2.0 */

/*
 * One all-gather of uneven sizes: each rank sends a ballot and the rows of its own leaves. A vote
 * that has arrived everywhere is the commit; there is no second round that could be lost.
 */
#include "agent/runtime/step/vote.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "libfleet/base/error.h"
#include "libfleet/plan/tree.h"
#include "libfleet/strategy/cells.h"

/* On the wire, followed by the rows of the rank's leaves. Ranks of one generation run the same
 * build on the same kind of machine; the handshake of the communicator refuses others. */
struct ballot {
    int64_t update;
    int64_t is_finite;
    int64_t calls;
};

/* The leaves whose rows `rank` sends: those of its replica, if it is of the last cell. */
static struct tree_share share_of(const struct vote *vote, int rank)
{
    struct cell_place place = cells_place(vote->grid, rank);
    struct tree_share share =
        tree_share_of(vote->leaves, cells_replicas(vote->grid), place.replica, vote->in_turn);

    if (place.cell + 1 < cells_count(vote->grid))
        share.end = share.first;
    return share;
}

static int64_t leaves_of(const struct vote *vote, int rank)
{
    struct tree_share share = share_of(vote, rank);
    int64_t count = 0;

    for (int64_t leaf = share.first; leaf < share.end; leaf += share.step)
        count++;
    return count;
}

/* The rows of a rank's leaves, from one behind the other to their places in `rows`, or back. */
static void copy_rows(const struct vote *vote, int rank, char *packed, bool unpacks)
{
    struct tree_share share = share_of(vote, rank);
    size_t bytes = (size_t)vote->row * sizeof(*vote->rows);

    for (int64_t leaf = share.first; leaf < share.end; leaf += share.step, packed += bytes) {
        float *row = vote->rows + leaf * vote->row;
        if (unpacks)
            memcpy(row, packed, bytes);
        else
            memcpy(packed, row, bytes);
    }
}

static int count_ballots(char *all, const size_t *bytes, struct comm *comm, struct vote *vote,
                         struct fleet_error *err)
{
    bool is_finite = true;

    for (int r = 0; r < comm->world; r++) {
        struct ballot ballot;
        memcpy(&ballot, all, sizeof(ballot));
        if (ballot.update != vote->update)
            return fleet_error(err, -EPROTO,
                               "rank %d votes for update %" PRId64 ", this one for %" PRId64, r,
                               ballot.update, vote->update);
        is_finite = is_finite && ballot.is_finite != 0;
        if (!vote->is_local && (ballot.is_finite != 0) != vote->is_finite)
            return fleet_error(err, -EPROTO,
                               "rank %d holds %s gradient of update %" PRId64
                               ", this one does not: memory or processor at fault",
                               r, ballot.is_finite ? "a finite" : "an infinite", vote->update);
        vote->calls |= ballot.calls != 0;
        copy_rows(vote, r, all + sizeof(ballot), true);
        all += bytes[r];
    }
    vote->is_finite = is_finite;
    return 0;
}

/* The workspace: the sizes of all votes, then our own vote, then all votes. */
size_t vote_workspace(int world, int64_t leaves, int64_t row)
{
    size_t votes = (size_t)world * sizeof(struct ballot) + (size_t)(leaves * row) * sizeof(float);

    return (size_t)world * sizeof(size_t) + 2 * votes;
}

int vote_cast(struct comm *comm, struct vote *vote, double deadline_ms, struct fleet_error *err)
{
    size_t *bytes = vote->workspace;
    char *mine = (char *)(bytes + comm->world), *all;
    struct ballot ballot = {
        .update = vote->update, .is_finite = vote->is_finite, .calls = vote->calls};

    for (int r = 0; r < comm->world; r++)
        bytes[r] = sizeof(ballot) + (size_t)(leaves_of(vote, r) * vote->row) * sizeof(*vote->rows);
    all = mine + bytes[comm->rank];
    memcpy(mine, &ballot, sizeof(ballot));
    copy_rows(vote, comm->rank, mine + sizeof(ballot), false);
    if (comm_all_gather_varying(comm, mine, bytes, all, deadline_ms, err) < 0)
        return fleet_error_wrap(err, "vote on update %" PRId64, vote->update);
    return count_ballots(all, bytes, comm, vote, err);
}

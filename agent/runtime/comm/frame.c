/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Messages over a transport: a header, then the payload. Both sides know what comes, so the header
 * only proves that they agree on it. Nothing is buffered here: bytes go from the caller's memory to
 * the transport and from the transport to the caller's memory; a direct message's payload stays
 * where it is, and the receiver reads it there. A large payload is cut into one part a lane; all
 * parts move at the same time.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "agent/runtime/comm/engine.h"
#include "agent/runtime/comm/seal.h"
#include "libfleet/base/assert.h"

#define DIRECT_MIN   (32 << 10) /* bytes; below, two copies cost less than the system call */
#define DIRECT_PIECE (4 << 20)  /* bytes read between two looks at an abort */
#define LANES_MIN    (64 << 10) /* bytes; below, one connection is as fast as several */

/* ---- lanes ----------------------------------------------------------------------------------- */

static uint64_t header_of(int lane)
{
    return lane == 0 ? sizeof(struct comm_frame) : 0;
}

/* The first byte of the payload that travels on this lane. */
static uint64_t first_of(const struct comm_stream *stream, int lane)
{
    return lane == stream->lanes ? stream->bytes
                                 : stream->bytes / (uint64_t)stream->lanes * (uint64_t)lane;
}

/* Bytes that travel on this lane, with the header. */
static uint64_t total_of(const struct comm_stream *stream, int lane)
{
    if (lane >= stream->lanes)
        return 0;
    return header_of(lane) + (stream->is_direct || stream->on_board
                                  ? 0
                                  : first_of(stream, lane + 1) - first_of(stream, lane));
}

/* The receiver checks the header before it takes anything else. */
bool frame_waits_for(const struct comm_pair *pair, int lane, bool is_out)
{
    const struct comm_stream *stream = is_out ? &pair->out : &pair->in;

    return stream->is_pending && stream->done[lane] < total_of(stream, lane) &&
           (is_out || lane == 0 || stream->done[0] >= sizeof(stream->frame));
}

/* ---- starting and ending --------------------------------------------------------------------- */

void frame_start(struct comm_request *run, int peer, bool is_out, const void *payload, size_t bytes,
                 const struct comm_signature *signature)
{
    struct comm_pair *pair = &run->comm->pairs[peer];
    struct comm_stream *stream = is_out ? &pair->out : &pair->in;
    bool may_be_direct = is_out ? pair->reads_us : pair->pid != 0;

    fleet_assert(!stream->is_pending);
    stream->is_pending = true;
    stream->payload = (char *)payload;
    stream->bytes = bytes;
    memset(stream->done, 0, sizeof(stream->done));
    stream->is_direct = may_be_direct && bytes >= DIRECT_MIN;
    stream->lanes = bytes >= LANES_MIN ? pair->lane_count : 1;
    stream->on_board = false;
    stream->left = sizeof(stream->frame) + (stream->is_direct ? 0 : bytes);
    run->pending++;
    if (is_out)
        stream->frame = (struct comm_frame){
            .magic = FRAME_MESSAGE,
            .sequence = stream->sequence,
            .bytes = bytes,
            .address = stream->is_direct ? (uint64_t)(uintptr_t)payload : 0,
            .call = *signature,
        };
}

void frame_start_on_board(struct comm_request *run, int peer, bool is_out, const char *slot,
                          void *payload, size_t bytes)
{
    struct comm_pair *pair = &run->comm->pairs[peer];
    struct comm_stream *stream = is_out ? &pair->out : &pair->in;

    frame_start(run, peer, is_out, NULL, 0, &run->signature);
    stream->on_board = true;
    stream->slot = slot;
    stream->payload = payload;
    stream->bytes = stream->frame.bytes = bytes;
}

static void message_is_through(struct comm *comm, int peer, bool is_out)
{
    struct comm_pair *pair = &comm->pairs[peer];
    struct comm_stream *stream = is_out ? &pair->out : &pair->in;

    stream->is_pending = false;
    stream->sequence++;
    comm->run->pending--;
    *(is_out ? &comm->bytes_sent : &comm->bytes_received) += stream->bytes;
    if (comm->run->call.operation == COMM_MESSAGES)
        comm_messages_continue(comm->run, peer, is_out);
}

/* ---- errors ---------------------------------------------------------------------------------- */

static int broken(struct comm *comm, int peer, const char *what, ssize_t code,
                  struct fleet_error *err)
{
    struct comm *world = comm->net->world;

    if (world->failed_rank < 0)
        world->failed_rank = comm->members[peer];
    return fleet_error(err, -ECONNRESET, "%s rank %d: %s", what, comm->members[peer],
                       code == -EPIPE     ? "it closed the connection"
                       : code == -EBADMSG ? "what came was changed on the way (AES-GCM)"
                                          : strerror((int)-code));
}

static const char *describe(const struct comm_signature *call, char *text, size_t size)
{
    char root[32] = "", elements[64] = "", number[32] = "";

    if (call->operation >= COMM_OPERATIONS || call->type >= COMM_TYPES ||
        call->reduction >= COMM_REDUCTIONS)
        return "an unknown operation";
    if (call->root >= 0)
        (void)snprintf(root, sizeof(root), " from or to rank %d", (int)call->root);
    if (call->number > 0)
        (void)snprintf(number, sizeof(number), " as operation %u", call->number);
    if (call->count > 0)
        (void)snprintf(elements, sizeof(elements), " of %" PRId64 " %s", call->count,
                       comm_type_name((enum comm_type)call->type));
    (void)snprintf(text, size, "%s%s%s%s%s%s",
                   comm_operation_name((enum comm_operation)call->operation),
                   call->operation <= COMM_REDUCE_SCATTER ? " " : "",
                   call->operation <= COMM_REDUCE_SCATTER
                       ? comm_reduction_name((enum comm_reduction)call->reduction)
                       : "",
                   elements, root, number);
    return text;
}

/* The header has arrived: is it that of the message which we expect? */
static int check(struct comm *comm, int peer, struct fleet_error *err)
{
    const struct comm_stream *in = &comm->pairs[peer].in;
    const struct comm_signature *own = &comm->run->signature, *other = &in->frame.call;
    int rank = comm->members[peer], self = comm->members[comm->rank];
    struct comm_signature expected = *own;
    char theirs[160], ours[160];

    if (in->frame.magic == FRAME_FAILED)
        return fleet_error(err, -EPROTO, "ranks %d and %d disagree on what they exchange",
                           in->frame.ranks[0], in->frame.ranks[1]);
    if (in->frame.magic != FRAME_MESSAGE)
        return fleet_error(err, -EPROTO, "rank %d sent something that is not a message", rank);
    if (comm->run->call.operation == COMM_MESSAGES)
        expected = comm_messages_signature(&comm->run->call.messages[in->message]);
    if (memcmp(&expected, other, sizeof(expected)) != 0) {
        frame_tell_failure(comm->net, self, rank);
        return fleet_error(err, -EPROTO, "rank %d runs %s, this one, rank %d, runs %s", rank,
                           describe(other, theirs, sizeof(theirs)), self,
                           describe(&expected, ours, sizeof(ours)));
    }
    if (in->frame.sequence != in->sequence || in->frame.bytes != in->bytes ||
        (in->frame.address != 0) != in->is_direct) {
        frame_tell_failure(comm->net, self, rank);
        return fleet_error(err, -EPROTO,
                           "rank %d sent message %u of %" PRIu64 " bytes where rank %d expected "
                           "message %u of %" PRIu64 ": the ranks disagree on what they exchange",
                           rank, in->frame.sequence, in->frame.bytes, self, in->sequence,
                           in->bytes);
    }
    return 0;
}

void frame_tell_failure(struct comm_net *net, int a, int b)
{
    struct comm_frame frame = {.magic = FRAME_FAILED, .ranks = {a, b}};
    const struct iovec part = {.iov_base = &frame, .iov_len = sizeof(frame)};

    for (struct comm *comm = net->comms; comm; comm = comm->next)
        for (int r = 0; r < comm->world; r++) {
            struct comm_pair *pair = &comm->pairs[r];
            const struct comm_lane *lane = &pair->lanes[0];
            bool is_free = (!pair->out.is_pending || pair->out.done[0] == 0) &&
                           !(lane->seal && seal_is_sending(lane->seal));
            if (lane->fd >= 0 && is_free)
                (void)pair->transport->send(pair, 0, &part, 1); /* else it sees a closed one */
        }
}

/* ---- moving ---------------------------------------------------------------------------------- */

/* The part of header and payload that is still to be moved on a lane. */
static int remaining(struct comm_stream *stream, int lane, struct iovec parts[2])
{
    uint64_t header = header_of(lane), done = stream->done[lane];
    uint64_t end = total_of(stream, lane);
    int count = 0;

    if (done < header)
        parts[count++] = (struct iovec){.iov_base = (char *)&stream->frame + done,
                                        .iov_len = (size_t)(header - done)};
    if (end > header && done < end) {
        uint64_t moved = done > header ? done - header : 0;
        parts[count++] =
            (struct iovec){.iov_base = stream->payload + first_of(stream, lane) + moved,
                           .iov_len = (size_t)(end - header - moved)};
    }
    return count;
}

/* The peer hung up on us before we read its last word, if there is one. */
static int last_word(struct comm *comm, int peer, struct fleet_error *err)
{
    struct comm_pair *pair = &comm->pairs[peer];
    struct comm_frame frame;
    const struct iovec part = {.iov_base = &frame, .iov_len = sizeof(frame)};

    if ((pair->in.is_pending && pair->in.done[0] > 0) ||
        pair->transport->receive(pair, 0, &part, 1) != (ssize_t)sizeof(frame) ||
        frame.magic != FRAME_FAILED)
        return broken(comm, peer, "send to", -EPIPE, err);
    return fleet_error(err, -EPROTO, "ranks %d and %d disagree on what they exchange",
                       frame.ranks[0], frame.ranks[1]);
}

/* Send what one lane takes now. */
static int push_lane(struct comm *comm, int peer, int lane, struct fleet_error *err)
{
    struct comm_pair *pair = &comm->pairs[peer];
    struct comm_stream *out = &pair->out;

    while (frame_waits_for(pair, lane, true)) {
        struct iovec parts[2];
        ssize_t moved = pair->transport->send(pair, lane, parts, remaining(out, lane, parts));
        if (moved == 0)
            return 0;
        if (moved < 0)
            return moved == -EPIPE || moved == -ECONNRESET
                       ? last_word(comm, peer, err)
                       : broken(comm, peer, "send to", moved, err);
        comm->net->moves++;
        out->done[lane] += (uint64_t)moved;
        out->left -= (uint64_t)moved;
        if (out->left == 0 && out->is_direct)
            pair->offered++;
    }
    return 0;
}

static int push(struct comm *comm, int peer, struct fleet_error *err)
{
    struct comm_pair *pair = &comm->pairs[peer];
    struct comm_stream *out = &pair->out;

    while (out->is_pending) {
        for (int lane = 0; lane < out->lanes; lane++) {
            int rc = push_lane(comm, peer, lane, err);
            if (rc < 0)
                return rc;
        }
        if (out->left > 0)
            return 0;
        if (out->is_direct && !shm_is_taken(pair))
            return pair->is_closed ? broken(comm, peer, "send to", -EPIPE, err) : 0;
        message_is_through(comm, peer, true);
    }
    return 0;
}

/* The header is here and its payload in the peer's memory: take a piece of it. */
static int take_directly(struct comm *comm, int peer, struct fleet_error *err)
{
    struct comm_pair *pair = &comm->pairs[peer];
    struct comm_stream *in = &pair->in;
    uint64_t taken = in->done[0] - sizeof(in->frame), piece = in->bytes - taken;
    int rc;

    if (piece > DIRECT_PIECE)
        piece = DIRECT_PIECE;
    rc = shm_read(pair, in->frame.address + taken, in->payload + taken, piece);
    comm->net->moves++;
    in->done[0] += piece;
    if (rc == 0 && taken + piece == in->bytes)
        rc = shm_take(pair);
    return rc < 0 ? broken(comm, peer, "read the memory of", rc, err) : 0;
}

/* Receive what one lane has now. */
static int pull_lane(struct comm *comm, int peer, int lane, struct fleet_error *err)
{
    struct comm_pair *pair = &comm->pairs[peer];
    struct comm_stream *in = &pair->in;
    const uint64_t header = sizeof(in->frame);

    while (frame_waits_for(pair, lane, false)) {
        struct iovec parts[2];
        bool was_header = in->done[0] < header;
        ssize_t moved = pair->transport->receive(pair, lane, parts, remaining(in, lane, parts));
        if (moved == 0)
            return 0;
        if (moved < 0)
            return broken(comm, peer, "receive from", moved, err);
        comm->net->moves++;
        in->done[lane] += (uint64_t)moved;
        in->left -= (uint64_t)moved;
        if (was_header && in->done[0] >= header && check(comm, peer, err) < 0)
            return -EPROTO;
    }
    return 0;
}

static int pull(struct comm *comm, int peer, struct fleet_error *err)
{
    struct comm_stream *in = &comm->pairs[peer].in;

    while (in->is_pending) {
        int rc = 0;
        for (int lane = 0; lane < in->lanes && rc == 0; lane++)
            rc = pull_lane(comm, peer, lane, err);
        if (rc == 0 && in->left == 0 && in->is_direct)
            rc = take_directly(comm, peer, err);
        if (rc < 0)
            return rc;
        if (in->left > 0 || (in->is_direct && in->done[0] < sizeof(in->frame) + in->bytes))
            return 0; /* others, and an abort, come in between */
        if (in->on_board && in->payload)
            memcpy(in->payload, in->slot, in->bytes);
        message_is_through(comm, peer, false);
    }
    return 0;
}

int frame_progress(struct comm *comm, int peer, struct fleet_error *err)
{
    int rc = push(comm, peer, err);

    return rc < 0 ? rc : pull(comm, peer, err);
}

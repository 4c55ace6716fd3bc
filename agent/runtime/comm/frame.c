/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Messages over a transport: a header, then the payload. Both sides know what comes, so the header
 * only proves that they agree on it. Nothing is buffered here: bytes go from the caller's memory to
 * the transport and from the transport to the caller's memory; a direct message's payload stays
 * where it is, and the receiver reads it there.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "agent/runtime/comm/engine.h"
#include "libfleet/base/assert.h"

#define DIRECT_MIN   (32 << 10) /* bytes; below, two copies cost less than the system call */
#define DIRECT_PIECE (4 << 20)  /* bytes read between two looks at an abort */

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
    stream->done = 0;
    stream->is_direct = may_be_direct && bytes >= DIRECT_MIN;
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
                       code == -EPIPE ? "it closed the connection" : strerror((int)-code));
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
            if (pair->fd >= 0 && (!pair->out.is_pending || pair->out.done == 0))
                (void)pair->transport->send(pair, &part, 1); /* else it sees a closed connection */
        }
}

/* ---- moving ---------------------------------------------------------------------------------- */

/* The part of header and payload that is still to be moved. */
static int remaining(struct comm_stream *stream, struct iovec parts[2])
{
    uint64_t header = sizeof(stream->frame);
    int count = 0;

    if (stream->done < header)
        parts[count++] = (struct iovec){.iov_base = (char *)&stream->frame + stream->done,
                                        .iov_len = (size_t)(header - stream->done)};
    if (!stream->is_direct && stream->bytes > 0) {
        uint64_t moved = stream->done > header ? stream->done - header : 0;
        parts[count++] = (struct iovec){.iov_base = stream->payload + moved,
                                        .iov_len = (size_t)(stream->bytes - moved)};
    }
    return count;
}

static uint64_t total_of(const struct comm_stream *stream)
{
    return sizeof(stream->frame) + (stream->is_direct ? 0 : stream->bytes);
}

/* The peer hung up on us before we read its last word, if there is one. */
static int last_word(struct comm *comm, int peer, struct fleet_error *err)
{
    struct comm_pair *pair = &comm->pairs[peer];
    struct comm_frame frame;
    const struct iovec part = {.iov_base = &frame, .iov_len = sizeof(frame)};

    if ((pair->in.is_pending && pair->in.done > 0) ||
        pair->transport->receive(pair, &part, 1) != (ssize_t)sizeof(frame) ||
        frame.magic != FRAME_FAILED)
        return broken(comm, peer, "send to", -EPIPE, err);
    return fleet_error(err, -EPROTO, "ranks %d and %d disagree on what they exchange",
                       frame.ranks[0], frame.ranks[1]);
}

static int push(struct comm *comm, int peer, struct fleet_error *err)
{
    struct comm_pair *pair = &comm->pairs[peer];
    struct comm_stream *out = &pair->out;

    while (out->is_pending) {
        struct iovec parts[2];
        ssize_t moved;
        if (out->done == total_of(out)) { /* direct: until it is taken */
            if (!shm_is_taken(pair))
                return pair->is_closed ? broken(comm, peer, "send to", -EPIPE, err) : 0;
            message_is_through(comm, peer, true);
            continue;
        }
        moved = pair->transport->send(pair, parts, remaining(out, parts));
        if (moved == 0)
            return 0;
        if (moved < 0)
            return moved == -EPIPE || moved == -ECONNRESET
                       ? last_word(comm, peer, err)
                       : broken(comm, peer, "send to", moved, err);
        out->done += (uint64_t)moved;
        if (out->done < total_of(out))
            continue;
        if (out->is_direct)
            pair->offered++;
        else
            message_is_through(comm, peer, true);
    }
    return 0;
}

/* The header is here and its payload in the peer's memory: take a piece of it. */
static int take_directly(struct comm *comm, int peer, struct fleet_error *err)
{
    struct comm_pair *pair = &comm->pairs[peer];
    struct comm_stream *in = &pair->in;
    uint64_t taken = in->done - sizeof(in->frame), piece = in->bytes - taken;
    int rc;

    if (piece > DIRECT_PIECE)
        piece = DIRECT_PIECE;
    rc = shm_read(pair, in->frame.address + taken, in->payload + taken, piece);
    in->done += piece;
    if (rc == 0 && in->done == sizeof(in->frame) + in->bytes)
        rc = shm_take(pair);
    return rc < 0 ? broken(comm, peer, "read the memory of", rc, err) : 0;
}

static int pull(struct comm *comm, int peer, struct fleet_error *err)
{
    struct comm_pair *pair = &comm->pairs[peer];
    struct comm_stream *in = &pair->in;
    const uint64_t header = sizeof(in->frame);

    while (in->is_pending) {
        if (in->done < header || !in->is_direct) {
            struct iovec parts[2];
            bool was_header = in->done < header;
            ssize_t moved = pair->transport->receive(pair, parts, remaining(in, parts));
            if (moved == 0)
                return 0;
            if (moved < 0)
                return broken(comm, peer, "receive from", moved, err);
            in->done += (uint64_t)moved;
            if (was_header && in->done >= header && check(comm, peer, err) < 0)
                return -EPROTO;
        } else {
            int rc = take_directly(comm, peer, err);
            if (rc < 0)
                return rc;
            if (in->done < header + in->bytes)
                return 0; /* others, and an abort, come in between */
        }
        if (in->done == header + in->bytes)
            message_is_through(comm, peer, false);
    }
    return 0;
}

int frame_progress(struct comm *comm, int peer, struct fleet_error *err)
{
    int rc = push(comm, peer, err);

    return rc < 0 ? rc : pull(comm, peer, err);
}

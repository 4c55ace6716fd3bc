/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Exchange over one TCP connection a pair of ranks: all sends and receives of a call progress
 * together by poll(), so no order of sizes can deadlock. Nothing is buffered here: bytes go from
 * the caller's memory to the socket and from the socket to the caller's memory, or, for large
 * messages between processes of one machine, from memory to memory at once (tcp.h).
 *
 * What a direction of a connection carries within one exchange, so that a receiver always knows
 * what comes next: at most one MESSAGE, then, in either order, the TAKEN for the peer's message and
 * the CONFIRMED of our own.
 *
 * Abort is a flag, an eventfd that every poll() watches, and a shutdown of all connections, so that
 * the other ranks, too, stop waiting for us.
 */
#include "agent/runtime/comm/tcp.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"

/* One direction of one connection within an exchange. */
struct stream {
    struct tcp_header header; /* as sent, or as it arrives */
    char *payload;
    uint64_t bytes;     /* of the payload */
    uint64_t in_stream; /* of the payload that go through the connection: all, or 0 if direct */
    uint64_t done;      /* of header and payload in the stream together */
    uint32_t sequence;
    bool is_pending; /* the message is not through */
    bool is_direct;

    /* notes: headers alone, TAKEN and CONFIRMED */
    struct tcp_header note;
    size_t note_done;  /* bytes of it */
    bool taken_is_due; /* out: to be sent; in: expected */
    bool confirmed_is_due;
};

struct peer {
    int fd;        /* -1: ourselves */
    int pid;       /* whose memory we read; 0: we cannot */
    bool reads_us; /* it reads ours */
    struct stream out, in;
};

struct tcp {
    struct comm comm;
    struct peer *peers;   /* [world] */
    struct pollfd *polls; /* [world + 1]; the last one is wake */
    int wake;             /* eventfd, readable once aborted */
    atomic_bool aborted;
};

static uint64_t total_of(const struct stream *stream)
{
    return sizeof(stream->header) + stream->in_stream;
}

static bool has_notes(const struct stream *stream)
{
    return stream->taken_is_due || stream->confirmed_is_due;
}

static bool is_busy(const struct stream *stream)
{
    return stream->is_pending || has_notes(stream);
}

/* The part of header and payload that is still to be moved. */
static int remaining(struct stream *stream, struct iovec parts[2])
{
    int count = 0;

    if (stream->done < sizeof(stream->header)) {
        parts[count].iov_base = (char *)&stream->header + stream->done;
        parts[count++].iov_len = sizeof(stream->header) - (size_t)stream->done;
        parts[count].iov_base = stream->payload;
        parts[count].iov_len = (size_t)stream->in_stream;
    } else {
        uint64_t moved = stream->done - sizeof(stream->header);
        parts[count].iov_base = stream->payload + moved;
        parts[count].iov_len = (size_t)(stream->in_stream - moved);
    }
    return count + 1;
}

static int broken(struct tcp *tcp, int rank, const char *what, int code, struct fleet_error *err)
{
    if (tcp->comm.failed_rank < 0)
        tcp->comm.failed_rank = rank;
    return fleet_error(err, -ECONNRESET, "%s rank %d: %s", what, rank,
                       code ? strerror(code) : "it closed the connection");
}

/* 1: `*out_moved` bytes went; 0: the socket takes, or has, nothing now; < 0: it is broken. */
static int move_bytes(struct tcp *tcp, int rank, bool sends, struct iovec *parts, int part_count,
                      size_t *out_moved, struct fleet_error *err)
{
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)part_count};
    int fd = tcp->peers[rank].fd;
    ssize_t moved;

    do
        moved = sends ? sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL)
                      : recvmsg(fd, &message, MSG_DONTWAIT);
    while (moved < 0 && errno == EINTR);
    if (moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return 0;
    if (moved < 0 || (moved == 0 && !sends))
        return broken(tcp, rank, sends ? "send to" : "receive from", moved < 0 ? errno : 0, err);
    *out_moved = (size_t)moved;
    return 1;
}

/* The next note that is due goes into `note`; TAKEN first. */
static void choose_note(struct stream *out)
{
    out->note = (struct tcp_header){.magic = out->taken_is_due ? TCP_TAKEN : TCP_CONFIRMED};
}

static void note_is_through(struct stream *stream)
{
    if (stream->note.magic == TCP_TAKEN)
        stream->taken_is_due = false;
    else
        stream->confirmed_is_due = false;
    stream->note_done = 0;
}

/* Send what the socket takes. */
static int push(struct tcp *tcp, int rank, struct fleet_error *err)
{
    struct stream *out = &tcp->peers[rank].out;

    while (is_busy(out)) {
        struct iovec parts[2];
        size_t moved = 0;
        int count = 1, rc;
        if (out->is_pending) {
            count = remaining(out, parts);
        } else {
            if (out->note_done == 0)
                choose_note(out);
            parts[0].iov_base = (char *)&out->note + out->note_done;
            parts[0].iov_len = sizeof(out->note) - out->note_done;
        }
        rc = move_bytes(tcp, rank, true, parts, count, &moved, err);
        if (rc <= 0)
            return rc;
        if (out->is_pending) {
            out->done += moved;
            out->is_pending = out->done < total_of(out);
        } else {
            out->note_done += moved;
            if (out->note_done == sizeof(out->note))
                note_is_through(out);
        }
    }
    return 0;
}

static int check_header(const struct stream *in, int rank, struct fleet_error *err)
{
    if (in->header.magic != TCP_MESSAGE)
        return fleet_error(err, -EPROTO, "rank %d sent something that is not a message", rank);
    if (in->header.sequence != in->sequence || in->header.bytes != in->bytes ||
        (in->header.address != 0) != in->is_direct)
        return fleet_error(err, -EPROTO,
                           "rank %d sent message %u of %llu bytes where message %u of %llu was "
                           "expected: the ranks disagree on what they exchange",
                           rank, in->header.sequence, (unsigned long long)in->header.bytes,
                           in->sequence, (unsigned long long)in->bytes);
    return 0;
}

/* The message's header is here and its payload in the peer's memory: take it. */
static int take_directly(struct tcp *tcp, int rank, struct fleet_error *err)
{
    struct peer *peer = &tcp->peers[rank];
    int rc = tcp_direct_read(peer->pid, peer->in.header.address, peer->in.payload, peer->in.bytes);

    if (rc < 0)
        return broken(tcp, rank, "read the memory of", -rc, err);
    peer->in.confirmed_is_due = true;
    peer->out.taken_is_due = true;
    return 0;
}

static int message_moved(struct tcp *tcp, int rank, size_t moved, struct fleet_error *err)
{
    struct stream *in = &tcp->peers[rank].in;
    bool header_was_missing = in->done < sizeof(in->header);

    in->done += moved;
    if (header_was_missing && in->done >= sizeof(in->header) && check_header(in, rank, err) < 0)
        return -EPROTO;
    in->is_pending = in->done < total_of(in);
    return !in->is_pending && in->is_direct ? take_directly(tcp, rank, err) : 0;
}

static int note_moved(struct tcp *tcp, int rank, size_t moved, struct fleet_error *err)
{
    struct peer *peer = &tcp->peers[rank];
    struct stream *in = &peer->in;

    in->note_done += moved;
    if (in->note_done < sizeof(in->note))
        return 0;
    if (!(in->note.magic == TCP_TAKEN && in->taken_is_due) &&
        !(in->note.magic == TCP_CONFIRMED && in->confirmed_is_due))
        return fleet_error(err, -EPROTO, "rank %d answered what was not asked", rank);
    if (in->note.magic == TCP_TAKEN)
        peer->out.confirmed_is_due = true;
    note_is_through(in);
    return 0;
}

/* Receive what has arrived. Reads never go past what is expected, as all sizes are known. */
static int pull(struct tcp *tcp, int rank, struct fleet_error *err)
{
    struct stream *in = &tcp->peers[rank].in;

    while (is_busy(in)) {
        struct iovec parts[2];
        size_t moved = 0;
        int count = 1, rc;
        if (in->is_pending) {
            count = remaining(in, parts);
        } else {
            parts[0].iov_base = (char *)&in->note + in->note_done;
            parts[0].iov_len = sizeof(in->note) - in->note_done;
        }
        rc = move_bytes(tcp, rank, false, parts, count, &moved, err);
        if (rc <= 0)
            return rc;
        rc = in->is_pending ? message_moved(tcp, rank, moved, err)
                            : note_moved(tcp, rank, moved, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* Move all that can be moved now; *out_pending = connections that are not through. */
static int progress(struct tcp *tcp, int *out_pending, struct fleet_error *err)
{
    *out_pending = 0;
    for (int r = 0; r < tcp->comm.world; r++) {
        struct peer *peer = &tcp->peers[r];
        int rc = push(tcp, r, err);
        if (rc == 0)
            rc = pull(tcp, r, err);
        if (rc == 0)
            rc = push(tcp, r, err); /* what the pull has answered */
        if (rc < 0)
            return rc;
        *out_pending += is_busy(&peer->out) || is_busy(&peer->in);
    }
    return 0;
}

static int timed_out(struct tcp *tcp, struct fleet_error *err)
{
    for (int r = 0; r < tcp->comm.world; r++) {
        const struct peer *peer = &tcp->peers[r];
        if (!is_busy(&peer->out) && !is_busy(&peer->in))
            continue;
        if (tcp->comm.failed_rank < 0)
            tcp->comm.failed_rank = r;
        return fleet_error(err, -ETIMEDOUT, "%s rank %d: nothing more before the deadline",
                           is_busy(&peer->in) ? "receive from" : "send to", r);
    }
    return fleet_error(err, -ETIMEDOUT, "exchange: the deadline passed");
}

static int wait_for_any(struct tcp *tcp, double deadline_ms, struct fleet_error *err)
{
    int world = tcp->comm.world, timeout = -1, rc;
    double left = deadline_ms - fleet_monotonic_ms();

    if (left <= 0)
        return timed_out(tcp, err);
    if (!isinf(left))
        timeout = left > 1e9 ? 1000000000 : (int)ceil(left);
    for (int r = 0; r < world; r++) {
        const struct peer *peer = &tcp->peers[r];
        tcp->polls[r].events =
            (short)((is_busy(&peer->out) ? POLLOUT : 0) | (is_busy(&peer->in) ? POLLIN : 0));
        tcp->polls[r].fd = tcp->polls[r].events ? peer->fd : -1;
    }
    tcp->polls[world] = (struct pollfd){.fd = tcp->wake, .events = POLLIN};
    rc = poll(tcp->polls, (nfds_t)world + 1, timeout);
    if (rc < 0 && errno != EINTR)
        return fleet_error(err, -errno, "poll: %s", strerror(errno));
    if (atomic_load(&tcp->aborted))
        return fleet_error(err, -ECANCELED, "the communicator was aborted");
    return rc == 0 ? timed_out(tcp, err) : 0;
}

static void start(struct stream *stream, const void *payload, size_t bytes, bool can_be_direct)
{
    stream->is_pending = bytes > 0;
    stream->is_direct = can_be_direct && bytes >= TCP_DIRECT_MIN;
    stream->payload = (char *)payload;
    stream->bytes = bytes;
    stream->in_stream = stream->is_direct ? 0 : bytes;
    stream->done = 0;
}

static void start_all(struct tcp *tcp, const void *const *send, const size_t *send_bytes,
                      void *const *receive, const size_t *receive_bytes)
{
    for (int r = 0; r < tcp->comm.world; r++) {
        struct peer *peer = &tcp->peers[r];
        struct stream *out = &peer->out;
        bool is_self = r == tcp->comm.rank;
        start(out, send[r], is_self ? 0 : send_bytes[r], peer->reads_us);
        start(&peer->in, receive[r], is_self ? 0 : receive_bytes[r], peer->pid != 0);
        peer->in.taken_is_due = out->is_direct;
        out->header = (struct tcp_header){
            .magic = TCP_MESSAGE,
            .sequence = out->sequence,
            .bytes = out->bytes,
            .address = out->is_direct ? (uint64_t)(uintptr_t)out->payload : 0,
        };
    }
}

static void hang_up(struct tcp *tcp)
{
    for (int r = 0; r < tcp->comm.world; r++)
        if (tcp->peers[r].fd >= 0)
            (void)shutdown(tcp->peers[r].fd, SHUT_RDWR); /* may be gone already */
}

static int tcp_exchange(struct comm *comm, const void *const *send, const size_t *send_bytes,
                        void *const *receive, const size_t *receive_bytes, double deadline_ms,
                        struct fleet_error *err)
{
    struct tcp *tcp = (struct tcp *)comm;
    int pending, rc;

    start_all(tcp, send, send_bytes, receive, receive_bytes);
    rc = atomic_load(&tcp->aborted) ? fleet_error(err, -ECANCELED, "the communicator was aborted")
                                    : progress(tcp, &pending, err);
    while (rc == 0 && pending > 0) {
        rc = wait_for_any(tcp, deadline_ms, err);
        if (rc == 0)
            rc = progress(tcp, &pending, err);
    }
    if (rc < 0) {
        if (atomic_load(&tcp->aborted)) /* our own shutdown is what the sockets report */
            rc = fleet_error(err, -ECANCELED, "the communicator was aborted");
        hang_up(tcp);
        return rc;
    }
    for (int r = 0; r < comm->world; r++) {
        tcp->peers[r].out.sequence += tcp->peers[r].out.bytes > 0;
        tcp->peers[r].in.sequence += tcp->peers[r].in.bytes > 0;
    }
    return 0;
}

static void tcp_abort(struct comm *comm)
{
    struct tcp *tcp = (struct tcp *)comm;
    uint64_t one = 1;

    atomic_store(&tcp->aborted, true);
    (void)!write(tcp->wake, &one, sizeof(one)); /* cannot fail but by a full counter: readable */
    hang_up(tcp);
}

static void tcp_free(struct comm *comm)
{
    struct tcp *tcp = (struct tcp *)comm;

    for (int r = 0; tcp->peers && r < comm->world; r++)
        if (tcp->peers[r].fd >= 0)
            (void)close(tcp->peers[r].fd);
    if (tcp->wake >= 0)
        (void)close(tcp->wake);
    free(tcp->peers);
    free(tcp->polls);
    free(tcp);
}

static const struct comm_vtable vtable = {
    .name = "tcp",
    .exchange = tcp_exchange,
    .abort = tcp_abort,
    .free = tcp_free,
};

/* The pairs of ranks where one may read the memory of the other; all get the same answer. */
static int find_direct(struct tcp *tcp, bool is_wanted, double deadline_ms, struct fleet_error *err)
{
    size_t world = (size_t)tcp->comm.world;
    FLEET_AUTO_FREE int *pids = calloc(world, sizeof(*pids));
    FLEET_AUTO_FREE bool *reads_us = calloc(world, sizeof(*reads_us));
    int rc;

    fleet_assert(pids && reads_us);
    rc = tcp_direct_negotiate(&tcp->comm, is_wanted, pids, reads_us, deadline_ms, err);
    for (size_t r = 0; r < world && rc == 0; r++) {
        tcp->peers[r].pid = pids[r];
        tcp->peers[r].reads_us = reads_us[r];
        tcp->comm.direct_ranks += pids[r] != 0;
    }
    tcp->comm.bytes_sent = tcp->comm.bytes_received = 0;
    return rc;
}

static int connect_tcp(struct tcp *tcp, const struct comm_tcp_options *options, double deadline_ms,
                       struct fleet_error *err)
{
    size_t world = (size_t)options->world;
    FLEET_AUTO_FREE int *sockets = calloc(world, sizeof(*sockets));
    int rc;

    fleet_assert(sockets != NULL);
    rc = tcp_connect_all(options, deadline_ms, sockets, err);
    if (rc < 0)
        return rc;
    tcp->peers = calloc(world, sizeof(*tcp->peers));
    tcp->polls = calloc(world + 1, sizeof(*tcp->polls));
    fleet_assert(tcp->peers && tcp->polls);
    for (size_t r = 0; r < world; r++)
        tcp->peers[r].fd = sockets[r];
    rc = find_direct(tcp, options->is_direct, deadline_ms, err);
    if (rc < 0 && options->failed_rank)
        *options->failed_rank = tcp->comm.failed_rank;
    return rc;
}

int comm_tcp_new(const struct comm_tcp_options *options, double deadline_ms, struct comm **out,
                 struct fleet_error *err)
{
    struct tcp *tcp = calloc(1, sizeof(*tcp));
    int rc;

    fleet_assert(tcp && options->rank >= 0 && options->rank < options->world);
    tcp->comm = (struct comm){
        .vtable = &vtable, .rank = options->rank, .world = options->world, .failed_rank = -1};
    tcp->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    rc = tcp->wake < 0 ? fleet_error(err, -errno, "make an eventfd: %s", strerror(errno))
                       : connect_tcp(tcp, options, deadline_ms, err);
    if (rc < 0) {
        tcp_free(&tcp->comm);
        return rc;
    }
    *out = &tcp->comm;
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Ranks of one machine. Each rank has one segment of shared memory with a ring for each other rank,
 * and its board (board.h) behind the rings. The owner of the segment writes; the others map it and
 * read. The TCP connection of the pair stays open: a byte on it wakes a side that sleeps, and its
 * end means that the peer died.
 *
 * A large message stays where it is: its header goes through the ring, the receiver reads the
 * sender's memory by process_vm_readv(). Where the rules for debuggers (ptrace) refuse that, large
 * messages go through the ring, too.
 *
 * (1) `written` and `read` only grow; the ring holds [read, written). Only the sender changes
 *     `written` and `gone`, only the receiver `read` and `taken`.
 * (2) Before a side sleeps, it sets its flag and looks once more. After a side has changed
 *     something, it looks at the other side's flag. So at least one side sees the other's write.
 * (3) Before the sender's memory becomes its own again, it has seen the message in `taken` or set
 *     `gone`. The receiver looks at `gone`, and at the connection, after it has read: what it read
 *     was the message, or it says that the sender is lost. The end of the connection comes before
 *     the process id can be another's.
 *
 * Whether memory can be shared is tried, not guessed: each rank shows the others 32 random bytes,
 * in its segment and in its memory; a rank that finds them there can use the rest.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/runtime/comm/engine.h"
#include "agent/runtime/comm/seal.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/digest.h"
#include "libfleet/base/variable.h"
#include "libfleet/plan/runtime_connections.h"

#define RING_BYTES    RUNTIME_RING_TEXT
#define PROOF_SIZE    32
#define PEERS_PID_ENV "FLEET_PEERS_PID" /* ancestor of all trainers of this machine */

/* From one rank to another. Each side's fields have a cache line of their own. */
struct shm_ring {
    uint8_t proof[PROOF_SIZE];
    _Alignas(64) _Atomic uint64_t written; /* bytes so far */
    _Atomic uint32_t gone;                 /* the sender's memory is its own again */
    _Atomic uint32_t sender_sleeps;
    _Alignas(64) _Atomic uint64_t read; /* bytes so far */
    _Atomic uint32_t taken;             /* direct messages read so far */
    _Atomic uint32_t receiver_sleeps;
    _Alignas(4096) uint8_t bytes[RING_BYTES];
};

_Static_assert(sizeof(struct shm_ring) == RUNTIME_RING_BYTES &&
                   offsetof(struct shm_ring, bytes) == RUNTIME_RING_HEAD,
               "the plan counts rings");

/* ---- bytes ----------------------------------------------------------------------------------- */

/* Wake the other side if it sleeps. */
static void ring_bell(struct comm_pair *pair, _Atomic uint32_t *sleeps)
{
    if (atomic_load(sleeps) && atomic_exchange(sleeps, 0))
        (void)!send(pair->lanes[0].fd, "", 1,
                    MSG_DONTWAIT | MSG_NOSIGNAL); /* full: enough bells wait */
}

static ssize_t shm_send(struct comm_pair *pair, int lane, const struct iovec *parts, int count)
{
    struct shm_ring *ring = pair->ring_out;
    uint64_t written = atomic_load_explicit(&ring->written, memory_order_relaxed);
    uint64_t space = RING_BYTES - (written - atomic_load(&ring->read));
    ssize_t moved = 0;

    (void)lane;
    if (space > RING_BYTES) /* the other side writes nonsense */
        return -EPROTO;
    for (int i = 0; i < count && space > 0; i++) {
        const char *from = parts[i].iov_base;
        uint64_t left = parts[i].iov_len < space ? parts[i].iov_len : space;
        while (left > 0) {
            uint64_t at = written % RING_BYTES, piece = RING_BYTES - at;
            piece = piece < left ? piece : left;
            memcpy(ring->bytes + at, from, piece);
            from += piece;
            left -= piece;
            space -= piece;
            written += piece;
            moved += (ssize_t)piece;
        }
    }
    if (moved > 0) {
        atomic_store(&ring->written, written);
        ring_bell(pair, &ring->receiver_sleeps);
    }
    return moved > 0 ? moved : pair->is_closed ? -EPIPE : 0;
}

static ssize_t shm_receive(struct comm_pair *pair, int lane, const struct iovec *parts, int count)
{
    struct shm_ring *ring = pair->ring_in;
    bool was_closed = pair->is_closed; /* before looking: what was written before counts */
    uint64_t read = atomic_load_explicit(&ring->read, memory_order_relaxed);
    uint64_t filled = atomic_load_explicit(&ring->written, memory_order_acquire) - read;
    ssize_t moved = 0;

    (void)lane;
    if (filled > RING_BYTES)
        return -EPROTO;
    for (int i = 0; i < count && filled > 0; i++) {
        char *to = parts[i].iov_base;
        uint64_t left = parts[i].iov_len < filled ? parts[i].iov_len : filled;
        while (left > 0) {
            uint64_t at = read % RING_BYTES, piece = RING_BYTES - at;
            piece = piece < left ? piece : left;
            memcpy(to, ring->bytes + at, piece);
            to += piece;
            left -= piece;
            filled -= piece;
            read += piece;
            moved += (ssize_t)piece;
        }
    }
    if (moved > 0) {
        atomic_store(&ring->read, read);
        ring_bell(pair, &ring->sender_sleeps);
    }
    return moved > 0 ? moved : was_closed ? -EPIPE : 0;
}

static bool can_send(const struct comm_pair *pair)
{
    const struct shm_ring *ring = pair->ring_out;
    const struct comm_stream *out = &pair->out;

    if (out->is_direct && out->left == 0)
        return shm_is_taken(pair);
    return atomic_load(&ring->written) - atomic_load(&ring->read) < RING_BYTES;
}

static short shm_sleep(struct comm_pair *pair, int lane)
{
    const struct comm_stream *in = &pair->in;

    (void)lane;
    if (pair->is_closed)
        return SLEEP_NOT; /* the next look finds what is left, then the end */
    if (pair->out.is_pending)
        atomic_store(&pair->ring_out->sender_sleeps, 1);
    if (in->is_pending)
        atomic_store(&pair->ring_in->receiver_sleeps, 1);
    if (pair->out.is_pending && can_send(pair))
        return SLEEP_NOT;
    if (in->is_pending &&
        ((in->is_direct && in->done[0] >= sizeof(in->frame)) ||
         atomic_load(&pair->ring_in->written) != atomic_load(&pair->ring_in->read)))
        return SLEEP_NOT;
    return POLLIN;
}

static void shm_wake(struct comm_pair *pair, short events)
{
    char bells[64];
    ssize_t got;

    (void)events;
    do
        got = recv(pair->lanes[0].fd, bells, sizeof(bells), MSG_DONTWAIT);
    while (got == (ssize_t)sizeof(bells) || (got < 0 && errno == EINTR));
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK))
        pair->is_closed = true;
}

const struct comm_transport comm_transport_shm = {
    .name = "shm",
    .send = shm_send,
    .receive = shm_receive,
    .sleep = shm_sleep,
    .wake = shm_wake,
};

/* ---- another process's memory ---------------------------------------------------------------- */

static int read_memory(int pid, uint64_t address, void *to, uint64_t bytes)
{
    while (bytes > 0) {
        struct iovec local = {.iov_base = to, .iov_len = (size_t)bytes};
        struct iovec remote = {.iov_base = (void *)(uintptr_t)address, .iov_len = (size_t)bytes};
        ssize_t moved = process_vm_readv(pid, &local, 1, &remote, 1, 0);
        if (moved < 0 && errno == EINTR)
            continue;
        if (moved <= 0)
            return moved < 0 ? -errno : -EFAULT;
        to = (char *)to + moved;
        address += (uint64_t)moved;
        bytes -= (uint64_t)moved;
    }
    return 0;
}

int shm_read(struct comm_pair *pair, uint64_t address, void *to, uint64_t bytes)
{
    return read_memory(pair->pid, address, to, bytes);
}

int shm_take(struct comm_pair *pair)
{
    struct shm_ring *ring = pair->ring_in;
    struct pollfd connection = {.fd = pair->lanes[0].fd, .events = POLLRDHUP};

    if (poll(&connection, 1, 0) != 0 || atomic_load(&ring->gone))
        return -EPIPE;
    atomic_fetch_add(&ring->taken, 1);
    ring_bell(pair, &ring->sender_sleeps);
    return 0;
}

bool shm_is_taken(const struct comm_pair *pair)
{
    return atomic_load(&pair->ring_out->taken) == pair->offered;
}

void shm_give_up(struct comm_pair *pair)
{
    if (pair->ring_out)
        atomic_store(&pair->ring_out->gone, 1);
}

/* ---- finding out ----------------------------------------------------------------------------- */

struct offer {
    int32_t pid;     /* 0: not wanted */
    int32_t fd;      /* of the segment, in that process; -1: none */
    uint64_t memory; /* address of the proof in that process; 0: not to be read */
    uint8_t proof[PROOF_SIZE];
};

#define ANSWER_MAPPED 1 /* I have mapped your ring to me */
#define ANSWER_READS  2 /* I can read your memory */

static size_t segment_bytes(const struct comm *comm)
{
    return (size_t)comm->world * (sizeof(struct shm_ring) + RUNTIME_BOARD_SLOT);
}

char *shm_slot(const struct comm *comm, void *segment, int slot)
{
    return (char *)segment + (size_t)comm->world * sizeof(struct shm_ring) +
           (size_t)slot * RUNTIME_BOARD_SLOT;
}

/* Our own segment; its descriptor, or -1: there is no shared memory here. */
static int make_segment(struct comm *comm, const uint8_t proof[PROOF_SIZE])
{
    int fd = memfd_create("fleetjob-rings", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    struct shm_ring *rings = MAP_FAILED;

    if (fd >= 0 && ftruncate(fd, (off_t)segment_bytes(comm)) == 0 &&
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0)
        rings = mmap(NULL, segment_bytes(comm), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (rings == MAP_FAILED) {
        if (fd >= 0)
            (void)close(fd);
        return -1;
    }
    for (int r = 0; r < comm->world; r++)
        memcpy(rings[r].proof, proof, PROOF_SIZE);
    comm->own_segment = rings;
    return fd;
}

/* That rank's segment, or NULL. A sealed segment cannot shrink below us. */
static struct shm_ring *map_segment(const struct comm *comm, const struct offer *offer)
{
    char path[64];
    FLEET_AUTO_CLOSE int fd = -1;
    struct shm_ring *rings;
    off_t size;

    if (offer->pid == 0 || offer->fd < 0)
        return NULL;
    (void)snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)offer->pid, (int)offer->fd);
    fd = open(path, O_RDWR | O_CLOEXEC);
    size = fd < 0 ? -1 : lseek(fd, 0, SEEK_END);
    if (size != (off_t)segment_bytes(comm) || fcntl(fd, F_GET_SEALS) < 0 ||
        !(fcntl(fd, F_GET_SEALS) & F_SEAL_SHRINK))
        return NULL;
    rings = mmap(NULL, segment_bytes(comm), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (rings == MAP_FAILED)
        return NULL;
    if (memcmp(rings[comm->rank].proof, offer->proof, PROOF_SIZE) == 0)
        return rings;
    (void)munmap(rings, segment_bytes(comm));
    return NULL;
}

static bool can_read(const struct offer *offer)
{
    uint8_t seen[PROOF_SIZE];

    return offer->pid != 0 && offer->memory != 0 &&
           read_memory(offer->pid, offer->memory, seen, sizeof(seen)) == 0 &&
           memcmp(seen, offer->proof, sizeof(seen)) == 0;
}

/*
 * Where Yama restricts reading to ancestors: let one process and its descendants read us. The
 * trainers of a worker descend from its agent, our parent; those of a run on one machine from the
 * launcher, which tells its number. Elsewhere the call fails and changes nothing.
 */
static void let_peers_read(void)
{
    int pid;

    if (fleet_variable_number(PEERS_PID_ENV, 1, INT_MAX, getppid(), &pid, NULL) < 0)
        pid = getppid();
    (void)prctl(PR_SET_PTRACER, (unsigned long)pid, 0, 0, 0);
}

/* Both have mapped the other's ring: from now on the pair uses them. One connection stays, for the
 * bells, which say nothing. */
static void use_rings(struct comm *comm, int rank)
{
    struct comm_pair *pair = &comm->pairs[rank];

    (void)pthread_mutex_lock(&comm->net->lock);
    for (int lane = 1; lane < pair->lane_count; lane++)
        tcp_close_lane(&pair->lanes[lane]);
    seal_free(pair->lanes[0].seal);
    pair->lanes[0].seal = NULL;
    pair->lane_count = 1;
    (void)pthread_mutex_unlock(&comm->net->lock);
    pair->transport = &comm_transport_shm;
    pair->ring_out = (struct shm_ring *)comm->own_segment + rank;
    pair->ring_in = (struct shm_ring *)pair->segment_in + comm->rank;
    comm->shm_ranks++;
    comm->direct_ranks += pair->pid != 0;
}

static void unmap_own(struct comm *comm)
{
    if (comm->own_segment)
        (void)munmap(comm->own_segment, segment_bytes(comm));
    comm->own_segment = NULL;
}

static void unmap_segment(const struct comm *comm, struct comm_pair *pair)
{
    if (pair->segment_in)
        (void)munmap(pair->segment_in, segment_bytes(comm));
    pair->segment_in = NULL;
    pair->ring_in = NULL;
}

static void settle(struct comm *comm, const struct offer *offers, const uint8_t *answers,
                   const uint8_t *theirs)
{
    for (int r = 0; r < comm->world; r++) {
        struct comm_pair *pair = &comm->pairs[r];
        if (r == comm->rank)
            continue;
        if (answers[r] & theirs[r] & ANSWER_MAPPED) {
            pair->pid = answers[r] & ANSWER_READS ? offers[r].pid : 0;
            pair->reads_us = theirs[r] & ANSWER_READS;
            use_rings(comm, r);
        } else {
            unmap_segment(comm, pair);
        }
    }
    if (comm->shm_ranks == 0)
        unmap_own(comm);
}

/* Whether all ranks have mapped the segments of all: sums use boards then. */
static int agree_on_board(struct comm *comm, uint8_t *shares, double deadline_ms,
                          struct fleet_error *err)
{
    uint8_t all_share = comm->shm_ranks == comm->world - 1;
    int rc = comm_all_gather(comm, &all_share, 1, shares, deadline_ms, err);

    for (int r = 0; r < comm->world && rc == 0; r++)
        all_share &= shares[r];
    comm->has_board = rc == 0 && all_share && comm->world > 1;
    return rc;
}

int shm_negotiate(struct comm *comm, enum comm_neighbours wanted, double deadline_ms,
                  struct fleet_error *err)
{
    size_t world = (size_t)comm->world;
    FLEET_AUTO_FREE struct offer *offers = calloc(world, sizeof(*offers));
    FLEET_AUTO_FREE uint8_t *answers = calloc(2 * world, 1);
    FLEET_AUTO_CLOSE int segment = -1;
    struct offer mine = {.fd = -1};
    uint8_t secret[PROOF_SIZE];
    int rc;

    fleet_assert(offers && answers);
    fleet_random_bytes(secret, sizeof(secret));
    memcpy(mine.proof, secret, sizeof(secret));
    if (wanted >= COMM_NEIGHBOURS_SHARED) {
        mine.pid = (int32_t)getpid();
        mine.fd = segment = make_segment(comm, secret);
        let_peers_read();
    }
    if (wanted >= COMM_NEIGHBOURS_DIRECT)
        mine.memory = (uint64_t)(uintptr_t)secret;
    rc = comm_all_gather(comm, &mine, sizeof(mine), offers, deadline_ms, err);
    for (int r = 0; r < comm->world && rc == 0; r++) {
        if (r == comm->rank || segment < 0)
            continue;
        comm->pairs[r].segment_in = map_segment(comm, &offers[r]);
        answers[r] |= comm->pairs[r].segment_in ? ANSWER_MAPPED : 0;
        answers[r] |= wanted >= COMM_NEIGHBOURS_DIRECT && can_read(&offers[r]) ? ANSWER_READS : 0;
    }
    if (rc == 0)
        rc = comm_all_to_all(comm, answers, 1, answers + world, deadline_ms, err);
    if (rc == 0)
        settle(comm, offers, answers, answers + world);
    return rc == 0 ? agree_on_board(comm, answers, deadline_ms, err) : rc;
}

void shm_release(struct comm *comm)
{
    for (int r = 0; r < comm->world; r++)
        unmap_segment(comm, &comm->pairs[r]);
    unmap_own(comm);
}

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_COMM_ENGINE_H
#define AGENT_RUNTIME_COMM_ENGINE_H

/*
 * What the sources of comm/ share. From the bottom up:
 *
 *   transport (tcp.c, shm.c)  moves bytes between two ranks, as many as can be moved now
 *   frame.c                   cuts them into messages and checks that both ranks mean the same
 *   engine.c                  moves all operations in flight on, waits, ends the world on failure
 *   algorithms                rounds of messages and the arithmetic between them
 */

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "agent/runtime/comm/comm.h"
#include "libfleet/base/error.h"

/* ---- frames ---------------------------------------------------------------------------------- */

#define FRAME_MESSAGE 0x464c4a4du
#define FRAME_FAILED  0x464c4a46u /* the sender gives up: two ranks disagree */

/* Of the operation that a message belongs to: equal on both sides, or the ranks disagree. */
struct comm_signature {
    uint32_t number; /* of the communicator's operations, from 1; messages: 0 */
    uint8_t operation, type, reduction, unused;
    int32_t root;
    int32_t parts; /* tree_sum: leaves */
    int64_t count; /* 0 where ranks may differ */
};

struct comm_frame {
    uint32_t magic;
    uint32_t sequence; /* of frames of this direction of this pair, from 0 */
    uint64_t bytes;    /* of payload */
    uint64_t address;  /* of the payload in the sender's memory; 0: it follows */
    struct comm_signature call;
    int32_t ranks[2]; /* FAILED: those that disagree, of the world */
};

/* One direction of a pair. */
struct comm_stream {
    struct comm_frame frame; /* as sent, or as it arrives */
    char *payload;
    uint64_t bytes; /* of the payload */
    uint64_t done;  /* of header and payload together */
    uint32_t sequence;
    int message; /* messages: which one is under way */
    bool is_pending;
    bool is_direct; /* the receiver reads the payload in the sender's memory */
};

/* ---- transports ------------------------------------------------------------------------------ */

/* One way to move bytes between two ranks of a communicator. */
struct comm_transport {
    const char *name;

    /* Move what can be moved now of the parts. The number of bytes, 0: nothing now, < 0: the
     * connection is broken (-EPIPE: the other side closed it). */
    ssize_t (*send)(struct comm_pair *pair, const struct iovec *parts, int count);
    ssize_t (*receive)(struct comm_pair *pair, const struct iovec *parts, int count);

    /* What to poll the pair's descriptor for, before sleeping until the pending streams can move;
     * 0: do not sleep, something has come meanwhile. */
    short (*sleep)(struct comm_pair *pair);

    /* The descriptor has these events. */
    void (*wake)(struct comm_pair *pair, short events);
};

extern const struct comm_transport comm_transport_tcp, comm_transport_shm;

struct shm_ring;

struct comm_pair {
    const struct comm_transport *transport;
    int fd; /* -1: ourselves */
    struct comm_stream out, in;

    /* shared memory (shm.c) */
    struct shm_ring *ring_out, *ring_in;
    int pid;          /* whose memory we read; 0: we cannot */
    bool reads_us;    /* it reads ours */
    bool is_closed;   /* the other side has closed the connection */
    uint32_t offered; /* direct messages sent so far */
};

/* ---- operations in flight -------------------------------------------------------------------- */

/* The upper part of the summation tree (tree_sum.c). */
struct upper_tree {
    int *first_node; /* [world + 1]: nodes of rank r are [first_node[r], first_node[r + 1]) */
    int *walk;       /* [walk_count]: a node to take, or TAKE_SUM: add the last two */
    int walk_count, node_count, node_max; /* node_max: of a rank */
};

struct tree_state {
    struct upper_tree tree;
    float *held;      /* [node_count][stride] */
    float *temporary; /* intermediate sums */
    const float **nodes;
    int64_t stride;
    int64_t first, count; /* the chunk at work */
};

/*
 * Prepare round `run->round` (from 0) of an operation by comm_post(); the rounds before it are
 * through. false: there is none, the operation is done.
 */
typedef bool comm_algorithm(struct comm_request *run);

struct comm_request {
    struct comm *comm;
    struct comm_call call;
    struct comm_signature signature;
    comm_algorithm *next;
    int64_t round;
    double deadline_ms;
    int pending; /* streams of this round */
    bool is_running;
    int rc; /* of the last operation */
    struct fleet_error err;
    void *scratch; /* grows, kept */
    size_t scratch_bytes;
    uint32_t number; /* of operations that all ranks take part in */
    struct tree_state tree;
};

/* What a world and its groups share. */
struct comm_net {
    struct comm *world;
    pthread_mutex_t lock; /* for an abort: of `comms`, and of the descriptors of their pairs */
    struct comm *comms;   /* all, linked by `next` */
    atomic_bool aborted;
    bool is_dead;
    int wake; /* eventfd, readable once aborted */
    struct pollfd *polls;
    struct comm_pair **polled; /* [poll_count] */
    size_t poll_count, poll_capacity;
    int patience; /* waits that may still find nothing before they sleep; <= 0: resting */

    /* to connect groups */
    char **addresses; /* [world], owned */
    int listener;
    enum comm_neighbours neighbours;
};

/* ---- engine.c -------------------------------------------------------------------------------- */

/* A communicator with `members` (copied; NULL: 0 … world - 1) and pairs without connections, in the
 * net of `parent` or, without one, in a new net; NULL and an error if that cannot be made. */
struct comm *comm_new(struct comm *parent, const int *members, int rank, int world,
                      struct fleet_error *err);

/* Move all operations in flight on, without waiting; a failure is kept in each of them. */
void comm_move_on(struct comm_net *net);

/* The world is over: all operations in flight end with this error, or with -ECANCELED if it was
 * aborted; the others are hung up on. */
void comm_fail(struct comm_net *net, int rc, const struct fleet_error *cause);

/* In this round: send to and receive from rank `peer`, which is not the own one. */
void comm_post_send(struct comm_request *run, int peer, const void *data, size_t bytes);
void comm_post_receive(struct comm_request *run, int peer, void *data, size_t bytes);

/* The request's scratch memory of at least `bytes`; what it held is lost. */
void *comm_scratch(struct comm_request *run, size_t bytes);

/* ---- frame.c --------------------------------------------------------------------------------- */

/* Make the next frame of a pair's stream pending; `is_out` says which. */
void frame_start(struct comm_request *run, int peer, bool is_out, const void *payload, size_t bytes,
                 const struct comm_signature *signature);

/* Move what can be moved now between us and `peer`. Errors as comm.h (1) and (2) say. */
int frame_progress(struct comm *comm, int peer, struct fleet_error *err);

/* Tell everybody who is between two messages that ranks a and b of the world disagree. */
void frame_tell_failure(struct comm_net *net, int a, int b);

/* ---- algorithms ------------------------------------------------------------------------------ */

comm_algorithm comm_all_gather_next, comm_all_to_all_next, comm_scatter_next, comm_exchange_next,
    comm_messages_next, comm_barrier_next;                     /* one_round.c */
comm_algorithm comm_broadcast_next;                            /* broadcast.c */
comm_algorithm comm_all_reduce_next, comm_reduce_scatter_next; /* reduce.c */
comm_algorithm comm_tree_sum_next;                             /* tree_sum.c */

/* What both sides must say of a message; its count in elements. */
struct comm_signature comm_messages_signature(const struct comm_message *message);

/* The message of `run` that follows on a stream when its last one is through, if there is one. */
void comm_messages_continue(struct comm_request *run, int peer, bool is_out);

/* to[i] = the reduction of inputs[0 … n)[i], in this order. `to` may be one of them, otherwise they
 * do not overlap it. */
void comm_fold(enum comm_type type, enum comm_reduction reduction, const void *const *inputs, int n,
               int64_t count, void *to);

/* ---- shm.c ----------------------------------------------------------------------------------- */

/* Move the pairs of one machine to shared memory, as far as both sides want and can: one exchange
 * between all ranks over the new communicator. */
int shm_negotiate(struct comm *comm, enum comm_neighbours wanted, double deadline_ms,
                  struct fleet_error *err);

/* Whether the other side has read all direct messages. */
bool shm_is_taken(const struct comm_pair *pair);

/* Read part of a direct message at `address`; 0 or -errno. */
int shm_read(struct comm_pair *pair, uint64_t address, void *to, uint64_t bytes);

/* A direct message has been read whole: -EPIPE if its sender had given it up, else tell it. */
int shm_take(struct comm_pair *pair);

/* Our memory is our own again: direct messages that are not taken yet are not to be believed. */
void shm_give_up(struct comm_pair *pair);

void shm_release(struct comm *comm);

/* ---- tcp.c ----------------------------------------------------------------------------------- */

/* Connect the pairs of a new communicator. Errors as comm_tcp_new(). */
int tcp_connect_comm(struct comm *comm, const struct comm_tcp_options *options, double deadline_ms,
                     struct fleet_error *err);

/* ---- tcp_connect.c --------------------------------------------------------------------------- */

/*
 * Connect rank `options->rank` to all others: sockets[r] for r != rank (own entry -1), handshaken,
 * non-blocking, owned by the caller. On failure none is left open. Errors as comm_tcp_new().
 */
int tcp_connect_all(const struct comm_tcp_options *options, double deadline_ms, int *sockets,
                    struct fleet_error *err);

#endif

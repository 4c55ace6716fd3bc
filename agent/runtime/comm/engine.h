/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_COMM_ENGINE_H
#define AGENT_RUNTIME_COMM_ENGINE_H

/*
 * Declarations that the sources of comm/ share. From the bottom up:
 *
 *   seal.c                    encrypts the bytes of a connection
 *   transport (tcp.c, shm.c)  moves bytes between two ranks, as many as it can without waiting
 *   frame.c                   cuts them into messages and checks that both ranks run the same call
 *   board.c                   messages whose payload is read where the sender put it
 *   engine.c                  advances all operations in flight, waits, ends the world on failure
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

/* Identifies the operation that a message belongs to. If it differs, the ranks disagree. */
struct comm_signature {
    uint32_t number; /* counts the communicator's operations, from 1; messages: 0 */
    uint8_t operation, type, reduction;
    uint8_t is_of_device; /* the call has a queue */
    int32_t root;
    int32_t parts; /* tree_sum: leaves */
    int64_t count; /* 0 where ranks may differ */
};

struct comm_frame {
    uint32_t magic;
    uint32_t sequence; /* counts the frames of this direction of this pair, from 0 */
    uint64_t bytes;    /* of payload */
    uint64_t address;  /* of the payload in the sender's memory; 0: the payload follows */
    struct comm_signature call;
    int32_t ranks[2]; /* FAILED: the ranks of the world that disagree */
};

/* One direction of a pair. */
struct comm_stream {
    struct comm_frame frame; /* as sent, or as it arrives */
    char *payload;
    uint64_t bytes;                   /* of the payload */
    int lanes;                        /* that the payload is divided over */
    uint64_t done[COMM_CHANNELS_MAX]; /* bytes of the lane's part; lane 0: with the header */
    uint64_t left;                    /* bytes of header and payload that are still to be moved */
    uint32_t sequence;
    int message; /* messages: index of the one in progress */
    bool is_pending;
    bool is_direct;   /* the receiver reads the payload in the sender's memory */
    bool on_board;    /* the payload stays in the sender's board (board.h) */
    const char *slot; /* incoming, on a board: where the payload lies */
};

/* ---- transports ------------------------------------------------------------------------------ */

/* One way to move bytes between two ranks of a communicator. */
struct comm_transport {
    const char *name;

    /* Move as many bytes of the parts as possible without waiting. Returns their number; 0: none
     * now; < 0: the connection is broken (-EPIPE: the other side closed it; -EBADMSG: what came
     * was changed on the way). */
    ssize_t (*send)(struct comm_pair *pair, int lane, const struct iovec *parts, int count);
    ssize_t (*receive)(struct comm_pair *pair, int lane, const struct iovec *parts, int count);

    /* Called before a sleep until the pending streams can move. Returns the events to poll the
     * lane's descriptor for, none for a lane that has nothing to wait for; SLEEP_NOT: do not sleep,
     * because data has arrived meanwhile. */
    short (*sleep)(struct comm_pair *pair, int lane);

    /* Called when the descriptor of lane 0 has these events. */
    void (*wake)(struct comm_pair *pair, short events);
};

#define SLEEP_NOT ((short)-1)

extern const struct comm_transport comm_transport_tcp, comm_transport_shm;

struct shm_ring;
struct seal;

/* One TCP connection of a pair. Large payloads are divided over all lanes of their pair. */
struct comm_lane {
    int fd;            /* -1: ourselves */
    struct seal *seal; /* NULL: bytes travel as they are */
};

struct comm_pair {
    const struct comm_transport *transport;
    struct comm_lane lanes[COMM_CHANNELS_MAX];
    int lane_count;
    struct comm_stream out, in;

    /* shared memory (shm.c) */
    struct shm_ring *ring_out, *ring_in;
    void *segment_in; /* the other side's shared memory, mapped; NULL: none */
    int pid;          /* the process whose memory we read; 0: we cannot read it */
    bool reads_us;    /* the other side reads our memory */
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
    int64_t first, count;       /* the chunk at work */
    int64_t piece_first, piece; /* of each part of it: elements [piece_first, + piece) */
};

/* A call with a queue (device.c). */
struct device_rounds {
    int64_t round;   /* from 0 */
    bool is_all_put; /* no round is left */
    bool has_ended;
    bool has_told; /* the other ranks that our part has ended */
    struct upper_tree tree;
    void *lists; /* grows and is kept */
    size_t lists_bytes;
};

/*
 * Prepare round `run->round` (from 0) of an operation with comm_post_send() and
 * comm_post_receive(). All earlier rounds are complete. Returns false if there is no such round:
 * the operation is done.
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
    void *scratch; /* grows and is kept */
    size_t scratch_bytes;
    uint32_t number; /* operations of all ranks so far */
    struct tree_state tree;
    struct device_rounds device;
};

/* The data that a world and its groups share. */
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
    int patience;   /* further polls without result before a sleep; <= 0: sleep at once */
    uint64_t moves; /* times that bytes went to or came from a peer */

    /* to connect groups */
    char **addresses; /* [world], owned */
    int listener;
    enum comm_neighbours neighbours;
    int channels;
    bool encrypts;
};

/* ---- engine.c -------------------------------------------------------------------------------- */

/* A communicator with `members` (copied; NULL: 0 … world - 1) and pairs without connections. It
 * joins the net of `parent`; without a parent it gets a new net. NULL and *err on failure. */
struct comm *comm_new(struct comm *parent, const int *members, int rank, int world,
                      struct fleet_error *err);

/* Make progress on all operations in flight, without waiting. Each of them keeps a failure. */
void comm_move_on(struct comm_net *net);

/* End the world. All operations in flight end with this error, or with -ECANCELED if the world was
 * aborted. The connections to all other ranks are shut. */
void comm_fail(struct comm_net *net, int rc, const struct fleet_error *cause);

/* In this round, send to and receive from rank `peer`, which must be another rank. */
void comm_post_send(struct comm_request *run, int peer, const void *data, size_t bytes);
void comm_post_receive(struct comm_request *run, int peer, void *data, size_t bytes);

/* The request's scratch memory of at least `bytes` bytes. Its old content is lost. */
void *comm_scratch(struct comm_request *run, size_t bytes);

/* ---- call.c ---------------------------------------------------------------------------------- */

/* May the call start now? Errors of comm_start(). */
int comm_check(const struct comm *comm, const struct comm_call *call, struct fleet_error *err);

/* ---- frame.c --------------------------------------------------------------------------------- */

/* Make the next frame of a stream of a pair pending: the outgoing one if `is_out`. */
void frame_start(struct comm_request *run, int peer, bool is_out, const void *payload, size_t bytes,
                 const struct comm_signature *signature);

/* The same for a payload of `bytes` bytes in the sender's board. Incoming: it is copied from
 * `slot` to `payload` when the message has arrived, unless `payload` is NULL. */
void frame_start_on_board(struct comm_request *run, int peer, bool is_out, const char *slot,
                          void *payload, size_t bytes);

/* Move all bytes between us and `peer` that can move without waiting. Errors: comm.h (1), (2). */
int frame_progress(struct comm *comm, int peer, struct fleet_error *err);

/* True if the stream of `pair` can move bytes on this lane once the lane is ready. */
bool frame_waits_for(const struct comm_pair *pair, int lane, bool is_out);

/* Send every rank the message that ranks a and b of the world disagree. A rank to which a message
 * is half sent gets none. */
void frame_tell_failure(struct comm_net *net, int a, int b);

/* ---- algorithms ------------------------------------------------------------------------------ */

comm_algorithm comm_all_gather_next, comm_all_to_all_next, comm_scatter_next, comm_exchange_next,
    comm_messages_next, comm_barrier_next;                     /* one_round.c */
comm_algorithm comm_broadcast_next;                            /* broadcast.c */
comm_algorithm comm_all_reduce_next, comm_reduce_scatter_next; /* reduce.c */
comm_algorithm comm_tree_sum_next;                             /* tree_sum.c */

/* The signature of a message, which must be equal on both sides; its count is in elements. */
struct comm_signature comm_messages_signature(const struct comm_message *message);

/* Start the first message of each stream that goes out, or comes in. */
void comm_messages_start(struct comm_request *run, bool is_out);

/* Start the next message of `run` on a stream whose last message is complete, if there is one. */
void comm_messages_continue(struct comm_request *run, int peer, bool is_out);

/* to[i] = the reduction of inputs[0 … n)[i], in this order. `to` may be one of the inputs; else it
 * does not overlap them. */
void comm_fold(enum comm_type type, enum comm_reduction reduction, const void *const *inputs, int n,
               int64_t count, void *to);

/* ---- device.c -------------------------------------------------------------------------------- */

comm_algorithm comm_device_next; /* what the ranks say of a call with a queue */

/* May a call with a queue run? -EINVAL. */
int comm_device_check(const struct comm *comm, const struct comm_call *call,
                      struct fleet_error *err);

/* Move a call with a queue on. 1: the messages of this round need not wait for it. 0: it is at
 * work, and they must. Errors of the library. */
int comm_device_progress(struct comm_request *run, struct fleet_error *err);

/* device_open.c: give `group`, of ranks[0 … count) of `parent`, a communicator of the library. All
 * ranks of `parent` call it; `group` is NULL on those that are not in the list. */
int comm_device_split(struct comm *parent, const int *ranks, int count, struct comm *group,
                      double deadline_ms, struct fleet_error *err);

/* ---- tree_sum.c ------------------------------------------------------------------------------ */

/* Bytes that first_node and walk need; and fill them. */
size_t upper_tree_bytes(int64_t leaves, int world);
void upper_tree_build(struct upper_tree *tree, int64_t leaves, int world, void *memory);

/* ---- shm.c ----------------------------------------------------------------------------------- */

/* Move the pairs of one machine to shared memory, as far as both sides allow it and it works. Makes
 * one exchange between all ranks over the new communicator. */
int shm_negotiate(struct comm *comm, enum comm_neighbours wanted, double deadline_ms,
                  struct fleet_error *err);

/* True if the other side has read all direct messages. */
bool shm_is_taken(const struct comm_pair *pair);

/* Read part of a direct message at `address`; 0 or -errno. */
int shm_read(struct comm_pair *pair, uint64_t address, void *to, uint64_t bytes);

/* We have read a whole direct message. Report that to its sender; -EPIPE if the sender had given it
 * up before. */
int shm_take(struct comm_pair *pair);

/* Give up the direct messages that the other side has not read yet: our memory may change now, and
 * a reader must discard them. */
void shm_give_up(struct comm_pair *pair);

/* Slot `slot` of the board in a segment of this communicator (board.h). */
char *shm_slot(const struct comm *comm, void *segment, int slot);

void shm_release(struct comm *comm);

/* ---- tcp.c ----------------------------------------------------------------------------------- */

/* Close the connection of a lane, if it has one. */
void tcp_close_lane(struct comm_lane *lane);

/* Connect the pairs of a new communicator. Errors as comm_tcp_new(). */
int tcp_connect_comm(struct comm *comm, const struct comm_tcp_options *options, double deadline_ms,
                     struct fleet_error *err);

/* ---- tcp_connect.c --------------------------------------------------------------------------- */

/*
 * Connect rank `options->rank` to all others: lanes[r * channels …] for r != rank (the own entries
 * have no descriptor), after the handshake, non-blocking, owned by the caller. On failure none is
 * left open. Errors as comm_tcp_new().
 */
int tcp_connect_all(const struct comm_tcp_options *options, double deadline_ms,
                    struct comm_lane *lanes, struct fleet_error *err);

/* The number of connections of a pair. */
int tcp_channels(const struct comm_tcp_options *options);

#endif

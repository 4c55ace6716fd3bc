/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_COMM_COMM_H
#define AGENT_RUNTIME_COMM_COMM_H

/*
 * A communicator: a set of ranks and their collective operations. comm_tcp_new() connects all ranks
 * of a generation, the world; comm_group() makes communicators over some of them. Each communicator
 * has connections of its own, so its operations never wait for those of another one.
 *
 * Rules
 *  (1) Every rank of a communicator starts the same operations in the same order, with the same
 *      type, reduction, root and count. A mismatch is detected: on both ranks -EPROTO names the two
 *      ranks and the operation that each of them runs; the other ranks learn the two ranks.
 *  (2) Every operation has a deadline (monotonic ms, fleet_monotonic_ms(); INFINITY = none). After
 *      the deadline it fails with -ETIMEDOUT. A broken connection gives -ECONNRESET, with the rank.
 *      After any failure the world and all its groups are dead: only comm_abort() and comm_free()
 *      may follow, and every other call returns -ECONNABORTED. A failing rank shuts its
 *      connections, so the other ranks fail at once, too.
 *  (3) Any thread may call comm_abort() at any time. Calls in progress return -ECANCELED within
 *      milliseconds; if there is none, the next call does. World and groups are dead afterwards.
 *  (4) All other calls for a world and its groups come from one thread at a time. A communicator
 *      has at most one operation in flight (a second start: -EBUSY). Several communicators may have
 *      one each; a wait for one of them makes progress on all of them.
 *  (5) Results have the same bits on every rank and with every transport. A reduction adds in rank
 *      order; fp16 and bf16 are added in fp32 with one rounding at the end.
 *
 * The ranks in arguments are those of the communicator; ranks in error texts and failed_rank are
 * those of the world.
 *
 * Memory is the host's, unless a call has a queue of a device (device.h).
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct backend;
struct comm_device;
struct comm_device_library;
struct comm_net;
struct comm_pair;
struct comm_request;
struct fleet_error;

#define COMM_KEY_SIZE     32
#define COMM_CHANNELS_MAX 8 /* connections of a pair */

struct comm {
    int rank, world;     /* own rank and number of ranks, of this communicator */
    int failed_rank;     /* of the world: the rank whose connection broke first, -1 = none did */
    int shm_ranks;       /* ranks of this machine that are connected by shared memory */
    int direct_ranks;    /* of these: ranks whose large messages we read from their memory */
    uint64_t bytes_sent; /* since creation, payload only */
    uint64_t bytes_received;

    /* private */
    int *members;               /* [world]: their ranks of the world */
    struct comm_net *net;       /* shared by a world and its groups */
    struct comm_pair *pairs;    /* [world]; the own one is unused */
    struct comm_request *run;   /* the operation in flight, kept for the communicator's life */
    struct comm *next;          /* of the same net */
    void *own_segment;          /* our shared memory, which the other ranks map, or NULL */
    bool has_board;             /* all ranks share memory, and sums use it: board.h */
    uint8_t key[COMM_KEY_SIZE]; /* of its connections */
    uint32_t groups;            /* number of groups made of it so far */
    const struct comm_device_library *library; /* device.h; NULL: none */
    struct comm_device *device;
    struct backend *device_queue;
};

/* ---- operations ------------------------------------------------------------------------------ */

enum comm_type {
    COMM_UINT8,
    COMM_INT8,
    COMM_INT32,
    COMM_INT64,
    COMM_FP16,
    COMM_BF16,
    COMM_FP32,
    COMM_FP64,
    COMM_BOOL,       /* one byte, 0 or 1; reduced by MAX (or) and MIN (and) only */
    COMM_COMPLEX64,  /* pairs of fp32; never reduced */
    COMM_COMPLEX128, /* pairs of fp64; never reduced */
};
#define COMM_TYPES 11

enum comm_reduction {
    COMM_SUM,
    COMM_MAX, /* NaN if any value is NaN */
    COMM_MIN, /* NaN if any value is NaN */
    COMM_PROD,
    COMM_AVG, /* the sum divided by the number of ranks; not for integers */
};
#define COMM_REDUCTIONS 5

/*
 *                       send                    receive
 *   all_reduce          [count]                 [count], may be `send`
 *   reduce              [count]                 root: [count], may be `send`; else untouched
 *   reduce_scatter      [world][count]          [count]: the reduction of part `rank`
 *   all_gather          [count]                 [world][count]; `send` may be the own part
 *     by sizes          [receive_counts[rank]]  packed in rank order
 *   broadcast           -                       [count], the root's is read
 *   scatter             root: [world][count]    [count]
 *   all_to_all          [world][count]          [world][count]; part r goes to and is of rank r
 *     by sizes          packed by send_counts   packed by receive_counts
 *   exchange            as comm_exchange()
 *   messages            as comm_messages()
 *   barrier             -                       -
 *   tree_sum            as comm_tree_sum()
 *
 * The caller leaves the memory of an operation in flight alone. Send and receive may overlap only
 * where the table allows it.
 */
enum comm_operation {
    COMM_ALL_REDUCE,
    COMM_REDUCE,
    COMM_REDUCE_SCATTER,
    COMM_ALL_GATHER,
    COMM_BROADCAST,
    COMM_SCATTER,
    COMM_ALL_TO_ALL,
    COMM_EXCHANGE,
    COMM_MESSAGES,
    COMM_BARRIER,
    COMM_TREE_SUM,
};
#define COMM_OPERATIONS 11

/* A message to or from one rank. The messages of a pair match in the order in which they are
 * sent. */
struct comm_message {
    int peer; /* another rank */
    bool is_receive;
    void *data; /* [count]; only read when it is sent */
    int64_t count;
    enum comm_type type;
};

struct comm_call {
    enum comm_operation operation;
    enum comm_type type;
    enum comm_reduction reduction;
    int root;
    int64_t count; /* elements, >= 0 */
    const void *send;
    void *receive;
    /* [world] elements each; NULL: all are `count`. For all_gather (receive_counts) and all_to_all
     * (both). */
    const int64_t *send_counts, *receive_counts;
    /* exchange: [world] each */
    const void *const *sends;
    void *const *receives;
    const size_t *send_bytes, *receive_bytes;
    /* messages */
    const struct comm_message *messages;
    int message_count;
    /* tree_sum */
    int64_t leaves;
    int stands_for; /* ranks whose leaves each rank holds, n of them: as if there were n times as
                       many ranks; 0 = 1 */
    float *const *slots;
    void *workspace;
    /* All memory of the call but its lists is that of a device, and the call runs behind what is in
     * this queue. NULL: the host's. A device makes no
     * exchange. */
    struct backend *queue;
    bool any_order; /* with a queue: a reduction may add in an order of the library's */
};

/*
 * Start an operation. It borrows the lists that `call` points to until it is done. *out_request
 * belongs to the communicator and is valid until the next start. -EINVAL: an average of integers, a
 * reduction of bool other than MAX and MIN, a reduction of complex numbers, a message to this rank
 * itself, or a queue where there is no device (device.h). -EBUSY, -ECONNABORTED: rules (4) and (2).
 */
int comm_start(struct comm *comm, const struct comm_call *call, double deadline_ms,
               struct comm_request **out_request, struct fleet_error *err);

/* Wait until the operation is done. Errors: rules (1) to (3). A second call has the same result. */
int comm_wait(struct comm_request *run, struct fleet_error *err);

/* Make progress on all operations of the world, without waiting. Returns 1 if this one is done, 0
 * if it is not, or its error. */
int comm_test(struct comm_request *run, struct fleet_error *err);

/* comm_start() and comm_wait(). */
int comm_run(struct comm *comm, const struct comm_call *call, double deadline_ms,
             struct fleet_error *err);

/* Bytes of an element; names for messages ("fp32", "sum", "all_reduce"). */
size_t comm_type_size(enum comm_type type);
const char *comm_type_name(enum comm_type type);
const char *comm_reduction_name(enum comm_reduction reduction);
const char *comm_operation_name(enum comm_operation operation);

/* ---- the same as functions: comm_run() and its errors ---------------------------------------- */

int comm_all_reduce(struct comm *comm, void *data, int64_t count, enum comm_type type,
                    enum comm_reduction reduction, double deadline_ms, struct fleet_error *err);

/* all[r * bytes … ] = rank r's `mine`. */
int comm_all_gather(struct comm *comm, const void *mine, size_t bytes, void *all,
                    double deadline_ms, struct fleet_error *err);

/* As all_gather, but with bytes[r] bytes from rank r. all[] is packed in rank order. */
int comm_all_gather_varying(struct comm *comm, const void *mine, const size_t *bytes, void *all,
                            double deadline_ms, struct fleet_error *err);

/* Send rank `root`'s data to every rank. Large data travels along a chain of ranks in pieces. */
int comm_broadcast(struct comm *comm, void *data, size_t bytes, int root, double deadline_ms,
                   struct fleet_error *err);

/* send[r], bytes each -> receive[r] from rank r. */
int comm_all_to_all(struct comm *comm, const void *send, size_t bytes, void *receive,
                    double deadline_ms, struct fleet_error *err);

/*
 * Exchange with all ranks at once: send `send_bytes[i]` bytes from send[i] to rank i, and receive
 * `receive_bytes[i]` bytes from rank i into receive[i]. Entries of zero bytes are skipped; the own
 * entry is copied. Both sides know the sizes. No combination of sizes deadlocks.
 */
int comm_exchange(struct comm *comm, const void *const *send, const size_t *send_bytes,
                  void *const *receive, const size_t *receive_bytes, double deadline_ms,
                  struct fleet_error *err);

/* Returns when every rank has called it. */
int comm_barrier(struct comm *comm, double deadline_ms, struct fleet_error *err);

/* Send and receive all messages at once, so no order of them deadlocks. The lists of the ranks may
 * differ in length and order, as long as each pair's messages match in order, count and type. */
int comm_messages(struct comm *comm, const struct comm_message *messages, int count,
                  double deadline_ms, struct fleet_error *err);

/* One message of bytes. */
int comm_send(struct comm *comm, int to, const void *data, size_t bytes, double deadline_ms,
              struct fleet_error *err);
int comm_receive(struct comm *comm, int from, void *data, size_t bytes, double deadline_ms,
                 struct fleet_error *err);

/*
 * The deterministic sum (libfleet/plan/tree.h): add the ranks' parts of the summation tree, element
 * by element. Rank r contributes the partial sums of its nodes, slots[i][0 … count). All ranks
 * compute the nodes of every rank from `leaves` and `world`. On return slots[0][0 … count) holds
 * S(0, leaves) on every rank, with the same bits for any number of ranks. `workspace` has
 * tree_sum_workspace() bytes. For a small range every rank sends all its partial sums to all ranks,
 * in one round. A large range is cut into one part per rank: each rank sums its part, then the
 * parts are gathered.
 */
int comm_tree_sum(struct comm *comm, int64_t leaves, float *const *slots, int64_t count,
                  void *workspace, double deadline_ms, struct fleet_error *err);

/* Enough for every range of up to `count` elements; 8-byte aligned. */
size_t tree_sum_workspace(int64_t leaves, int world, int64_t count);

/* ---- making and ending ----------------------------------------------------------------------- */

/* A world of one: every operation is a copy. */
struct comm *comm_local_new(void);

/* The connection between ranks of one machine. Each value also allows the ones before it. A pair
 * takes the last one that both sides allow and that works in a test. */
enum comm_neighbours {
    COMM_NEIGHBOURS_TCP,    /* as between machines */
    COMM_NEIGHBOURS_SHARED, /* through rings in shared memory */
    COMM_NEIGHBOURS_DIRECT, /* also: large messages are read from the sender's memory */
};

/*
 * Connect all ranks of a generation. addresses[r] is "host:port" of rank r's listening socket;
 * `listener` is our own (borrowed for the life of the world, non-blocking). A rank connects to the
 * lower ranks and accepts the higher ones. Each connection starts with an HMAC-SHA256 handshake in
 * both directions over `key`, ranks and world. A peer that fails it (from an old generation, or a
 * stranger) is disconnected and does not disturb the others. All ranks give the same channels and
 * `encrypts`; a rank with others counts as a stranger. Large messages use all channels of a pair at
 * once. Messages through shared memory are not encrypted. `stop` is a descriptor that the caller
 * makes readable to end the call with -ECANCELED. -ETIMEDOUT names the rank that was not connected
 * by the deadline.
 */
struct comm_tcp_options {
    int rank, world;
    const char *const *addresses; /* copied */
    int listener;
    uint8_t key[COMM_KEY_SIZE];
    int stop; /* borrowed until comm_tcp_new() returns; -1 = none */
    enum comm_neighbours neighbours;
    int channels;  /* connections of each pair between machines, 1 … COMM_CHANNELS_MAX; 0 = 1 */
    bool encrypts; /* between machines, by AES-GCM with keys made from `key` (seal.h) */
    int *failed_rank; /* may be NULL; set on failure: first rank without connection, else -1 */
};
int comm_tcp_new(const struct comm_tcp_options *options, double deadline_ms, struct comm **out,
                 struct fleet_error *err);

/* A listening socket on `host` (NULL or "": all addresses) and any free port, *out_port. The caller
 * closes it. -EINVAL: not an address; -errno of bind. */
int comm_tcp_listen(const char *host, int *out_fd, int *out_port, struct fleet_error *err);

/*
 * A communicator over ranks[0 … count) of `parent`, in this order, all different. It counts as an
 * operation of `parent`: all its ranks call it with the same list, in the same order as its other
 * operations. On ranks that are not in the list, and on failure, *out is NULL. -EINVAL: an unknown
 * or a duplicate rank. -EPROTO names the ranks whose lists differ. Other errors as comm_tcp_new().
 * The caller frees it before the world.
 */
int comm_group(struct comm *parent, const int *ranks, int count, double deadline_ms,
               struct comm **out, struct fleet_error *err);

/* Abort the world of `comm` and all its groups, by rule (3). */
void comm_abort(struct comm *comm);

/* Close the communicator's connections. Free the world last. No call may be in progress. NULL is
 * fine. */
void comm_free(struct comm *comm);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_COMM_COMM_H
#define AGENT_RUNTIME_COMM_COMM_H

/*
 * A communicator: some ranks and what they can do together. comm_tcp_new() connects the ranks of a
 * generation, the world; comm_group() makes communicators over some of them. Each communicator has
 * connections of its own, so an operation of one never waits for an operation of another.
 *
 * Rules
 *  (1) Every rank of a communicator starts the same operations in the same order, with the same
 *      type, reduction, root and count. A rank that does something else is found: -EPROTO names
 *      both ranks and what each of them runs; the others learn the two ranks.
 *  (2) Every operation has a deadline (monotonic ms, fleet_monotonic_ms(); INFINITY = none). Past
 *      it: -ETIMEDOUT. A broken connection: -ECONNRESET, with the rank. After any failure the world
 *      and all its groups are dead: every later call returns -ECONNABORTED; only abort and free are
 *      left. A failing rank shuts its connections, so the others fail at once, too.
 *  (3) comm_abort() may be called from any thread at any time; calls in progress return -ECANCELED
 *      within milliseconds, or the next one does. World and groups are dead afterwards.
 *  (4) Calls other than abort come from one thread at a time for a world with its groups. A
 *      communicator has at most one operation in flight (another start: -EBUSY); several
 *      communicators may have one each. A wait for one of them moves all of them on.
 *  (5) Results are the same bits on every rank, whatever the transport: a reduction adds in rank
 *      order, fp16 and bf16 in fp32 with one rounding at the end.
 *
 * The ranks in arguments are those of the communicator; ranks in error texts and failed_rank are
 * those of the world.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fleet_error;
struct comm_net;
struct comm_pair;
struct comm_request;

#define COMM_KEY_SIZE 32

struct comm {
    int rank, world;     /* own rank and number of ranks, of this communicator */
    int failed_rank;     /* of the world: the rank whose connection broke first, -1 = none did */
    int shm_ranks;       /* ranks of this machine, reached through shared memory */
    int direct_ranks;    /* those of them whose large messages are read from their memory */
    uint64_t bytes_sent; /* since creation, payload only */
    uint64_t bytes_received;

    /* private */
    int *members;               /* [world]: their ranks of the world */
    struct comm_net *net;       /* shared by a world and its groups */
    struct comm_pair *pairs;    /* [world]; the own one is unused */
    struct comm_request *run;   /* the operation in flight, kept for the communicator's life */
    struct comm *next;          /* of the same net */
    void *own_rings;            /* shared memory that the others read from us, or NULL */
    uint8_t key[COMM_KEY_SIZE]; /* of its connections */
    uint32_t groups;            /* made of it so far */
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
    COMM_MAX, /* NaN wins */
    COMM_MIN, /* NaN wins */
    COMM_PROD,
    COMM_AVG, /* the sum divided by the number of ranks; not of integers */
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
 * Memory of an operation in flight belongs to it. Send and receive overlap only where it is said.
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

/* A message to or from one rank. Messages of a pair match in the order of their sending. */
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
    float *const *slots;
    void *workspace;
};

/*
 * Start an operation; the lists that `call` points to are borrowed until it is done. *out_request
 * belongs to the communicator and is valid until its next start. -EINVAL: an integer average, a
 * reduction of bool other than MAX and MIN, of complex numbers; a message to oneself. -EBUSY,
 * -ECONNABORTED: rules (4) and (2).
 */
int comm_start(struct comm *comm, const struct comm_call *call, double deadline_ms,
               struct comm_request **out_request, struct fleet_error *err);

/* Wait until it is done. Errors as rules (1) to (3) say; again: the same result. */
int comm_wait(struct comm_request *run, struct fleet_error *err);

/* Move all operations of the world on without waiting. 1: this one is done, 0: it is not, else its
 * error. */
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

/* As all_gather with bytes[r] from rank r; all[] is packed in rank order. */
int comm_all_gather_varying(struct comm *comm, const void *mine, const size_t *bytes, void *all,
                            double deadline_ms, struct fleet_error *err);

/* Rank `root`'s data on every rank. Large data travels along a chain of ranks in pieces. */
int comm_broadcast(struct comm *comm, void *data, size_t bytes, int root, double deadline_ms,
                   struct fleet_error *err);

/* send[r], bytes each -> receive[r] from rank r. */
int comm_all_to_all(struct comm *comm, const void *send, size_t bytes, void *receive,
                    double deadline_ms, struct fleet_error *err);

/*
 * Exchange in one go: send `send_bytes[i]` bytes from send[i] to rank i and receive
 * `receive_bytes[i]` bytes from rank i into receive[i], for all ranks at once. Entries of zero
 * bytes are skipped; the own one is copied. Both sides know the sizes. No order of sizes deadlocks.
 */
int comm_exchange(struct comm *comm, const void *const *send, const size_t *send_bytes,
                  void *const *receive, const size_t *receive_bytes, double deadline_ms,
                  struct fleet_error *err);

/* Returns when every rank has called it. */
int comm_barrier(struct comm *comm, double deadline_ms, struct fleet_error *err);

/* All messages at once: no order of them deadlocks. The other ranks may use lists of another length
 * and order, as long as each pair's messages match in order, count and type. */
int comm_messages(struct comm *comm, const struct comm_message *messages, int count,
                  double deadline_ms, struct fleet_error *err);

/* One message of bytes. */
int comm_send(struct comm *comm, int to, const void *data, size_t bytes, double deadline_ms,
              struct fleet_error *err);
int comm_receive(struct comm *comm, int from, void *data, size_t bytes, double deadline_ms,
                 struct fleet_error *err);

/*
 * The deterministic sum (libfleet/plan/tree.h): finish the tree over ranks,
 * element by element. Rank r contributes its nodes' partial sums slots[i][0 … count); all ranks
 * know everybody's nodes from `leaves` and `world`. On return slots[0][0 … count) holds S(0,
 * leaves) on every rank, the same bits for any number of ranks. `workspace` has
 * tree_sum_workspace() bytes. Small ranges go in one round (everything to everybody), large ones
 * are cut into one part a rank (sum the part, gather the parts).
 */
int comm_tree_sum(struct comm *comm, int64_t leaves, float *const *slots, int64_t count,
                  void *workspace, double deadline_ms, struct fleet_error *err);

/* Enough for every range of up to `count` elements; 8-byte aligned. */
size_t tree_sum_workspace(int64_t leaves, int world, int64_t count);

/* ---- making and ending ----------------------------------------------------------------------- */

/* A world of one: every operation is a copy. */
struct comm *comm_local_new(void);

/* How ranks of one machine reach each other. Each step also allows the ones before it, and each
 * pair takes the last one that both sides allow and that is found to work. */
enum comm_neighbours {
    COMM_NEIGHBOURS_TCP,    /* as all others */
    COMM_NEIGHBOURS_SHARED, /* through rings in shared memory */
    COMM_NEIGHBOURS_DIRECT, /* and large messages straight from the sender's memory */
};

/*
 * Connect all ranks of a generation. `addresses[r]` = "host:port" of rank r's listening socket,
 * `listener` our own (borrowed for the life of the world, non-blocking); lower ranks are dialled,
 * higher ones accepted. Each connection starts with an HMAC-SHA256 handshake in both directions
 * over `key`, ranks and world; a peer that fails it (of an old generation, a stranger) is
 * disconnected and does not disturb the others. `stop` is a descriptor that becomes readable when
 * the caller wants -ECANCELED. -ETIMEDOUT names the rank that was not reached by the deadline.
 */
struct comm_tcp_options {
    int rank, world;
    const char *const *addresses; /* copied */
    int listener;
    uint8_t key[COMM_KEY_SIZE];
    int stop; /* borrowed until comm_tcp_new() returns; -1 = none */
    enum comm_neighbours neighbours;
    int *failed_rank; /* may be NULL: on failure the first rank that was not reached, else -1 */
};
int comm_tcp_new(const struct comm_tcp_options *options, double deadline_ms, struct comm **out,
                 struct fleet_error *err);

/* A listening socket on `host` (NULL or "": all addresses), any free port; *out_port tells which.
 * The caller closes it. -EINVAL: not an address; -errno of bind. */
int comm_tcp_listen(const char *host, int *out_fd, int *out_port, struct fleet_error *err);

/*
 * A communicator over ranks[0 … count) of `parent`, in this order, all different. All ranks of
 * `parent` call it with the same list, in the same order with its other operations; *out is NULL on
 * the ranks that are not in it. -EINVAL: an unknown or a duplicate rank. -EPROTO names
 * the ranks whose lists differ. Other errors as comm_tcp_new(). The caller frees it before the
 * world.
 */
int comm_group(struct comm *parent, const int *ranks, int count, double deadline_ms,
               struct comm **out, struct fleet_error *err);

/* Rule (3): the world of `comm` and all its groups. */
void comm_abort(struct comm *comm);

/* Close the communicator's connections; the world comes last. No call may be in progress. NULL is
 * fine. */
void comm_free(struct comm *comm);

#endif

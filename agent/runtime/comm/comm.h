/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_COMM_COMM_H
#define AGENT_RUNTIME_COMM_COMM_H

/*
 * A communicator: the ranks of one generation and what they can do together. Transports
 * (comm/local.c, comm/tcp.c) implement the vtable; collectives that are built of sends and receives
 * live once, in comm/collective.c.
 *
 * Rules
 *  (1) Every rank calls the same collectives in the same order with the same sizes.
 *  (2) Every call has a deadline (monotonic ms, fleet_monotonic_ms(); INFINITY = none). Past it:
 *      -ETIMEDOUT. A broken connection: -ECONNRESET, with the rank. After any failure the
 *      communicator is dead: every later call returns -ECONNABORTED; only abort and free are left.
 *      A failing rank shuts its connections, so the others fail at once, too.
 *  (3) comm_abort() may be called from any thread at any time; calls in progress return -ECANCELED
 *      within milliseconds, or the next one does. The communicator is dead afterwards.
 *  (4) One collective at a time; calls other than abort come from one thread.
 *  (5) Results are the same bits on every rank, whatever the transport.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fleet_error;
struct comm;

#define COMM_KEY_SIZE 32

/* Non-blocking building blocks that a transport provides. */
struct comm_vtable {
    const char *name; /* "tcp" */

    /*
     * Exchange in one go: send `send_bytes[i]` bytes from send[i] to rank i and receive
     * `receive_bytes[i]` bytes from rank i into receive[i], for all i of [0, world) at once;
     * entries of zero bytes are skipped; own rank: copied. Both sides know the sizes. Full duplex,
     * never deadlocks whatever the sizes.
     */
    int (*exchange)(struct comm *comm, const void *const *send, const size_t *send_bytes,
                    void *const *receive, const size_t *receive_bytes, double deadline_ms,
                    struct fleet_error *err);
    void (*abort)(struct comm *comm);
    void (*free)(struct comm *comm);
};

struct comm {
    const struct comm_vtable *vtable;
    int rank, world;
    int failed_rank;     /* the peer whose connection broke first, -1 if none did */
    bool is_dead;        /* a call failed: rule (2); kept by comm_exchange() */
    uint64_t bytes_sent; /* since creation, payload only */
    uint64_t bytes_received;
    int direct_ranks; /* whose memory large messages are read from, without a socket */
    void *lists;      /* of comm/collective.c, kept from the first collective on */
};

/*
 * The slots, called; errors as rules (2) and (3) say. exchange also counts the bytes and remembers
 * the death of the communicator. -EPROTO: a peer sends another size than was expected of it.
 */
int comm_exchange(struct comm *comm, const void *const *send, const size_t *send_bytes,
                  void *const *receive, const size_t *receive_bytes, double deadline_ms,
                  struct fleet_error *err);
void comm_abort(struct comm *comm);

/* Close all connections. No call may be in progress. NULL is fine. */
void comm_free(struct comm *comm);

/* ---- collectives, over any transport (comm/collective.c): errors as comm_exchange() ---------- */

/* all[r * bytes … ] = rank r's `mine`. */
int comm_all_gather(struct comm *comm, const void *mine, size_t bytes, void *all,
                    double deadline_ms, struct fleet_error *err);

/* As all_gather with bytes[r] from rank r; all[] is packed in rank order. */
int comm_all_gather_varying(struct comm *comm, const void *mine, const size_t *bytes, void *all,
                            double deadline_ms, struct fleet_error *err);

/* Rank `root`'s data on every rank. Pipelined over ranks for large sizes. */
int comm_broadcast(struct comm *comm, void *data, size_t bytes, int root, double deadline_ms,
                   struct fleet_error *err);

/* send[r], bytes each -> receive[r] from rank r. */
int comm_all_to_all(struct comm *comm, const void *send, size_t bytes, void *receive,
                    double deadline_ms, struct fleet_error *err);

/* Returns when every rank has called it. */
int comm_barrier(struct comm *comm, double deadline_ms, struct fleet_error *err);

/* One message from one rank to another, which calls the other function with the same size. */
int comm_send(struct comm *comm, int to, const void *data, size_t bytes, double deadline_ms,
              struct fleet_error *err);
int comm_receive(struct comm *comm, int from, void *data, size_t bytes, double deadline_ms,
                 struct fleet_error *err);

/* ---- the deterministic sum (comm/tree_sum.c, libfleet/plan/tree.h; spec/training.md 2) ------- */

/*
 * Finish the tree over ranks, element by element: rank r contributes its nodes' partial sums
 * slots[i][0 … count) (all ranks know everybody's nodes from `leaves` and `world`). On return
 * slots[0][0 … count) holds S(0, leaves) on every rank, bit-identical. `workspace` has
 * tree_sum_workspace() bytes. Small ranges go in one round (everything to everybody), large ones
 * are cut into one part a rank (sum the part, gather the parts). Errors as comm_exchange().
 */
int comm_tree_sum(struct comm *comm, int64_t leaves, float *const *slots, int64_t count,
                  void *workspace, double deadline_ms, struct fleet_error *err);

/* Enough for every range of up to `count` elements; 8-byte aligned. */
size_t tree_sum_workspace(int64_t leaves, int world, int64_t count);

/* ---- making one ------------------------------------------------------------------------------ */

/* A world of one: every exchange is a copy. */
struct comm *comm_local_new(void);

/*
 * Connect all ranks of a generation over TCP. `addresses[r]` = "host:port" of rank r's listening
 * socket, `listener` our own (borrowed, non-blocking); lower ranks are dialled, higher ones
 * accepted. Each connection starts with an HMAC-SHA256 handshake in both directions over `key`,
 * ranks and world; a peer that fails it (of an old generation, a stranger) is disconnected and
 * does not disturb the others. `stop` is a descriptor that becomes readable when the caller wants
 * -ECANCELED. -ETIMEDOUT names the rank that was not reached by the deadline.
 */
struct comm_tcp_options {
    int rank, world;
    const char *const *addresses;
    int listener;
    uint8_t key[COMM_KEY_SIZE];
    int stop;         /* borrowed until comm_tcp_new() returns; -1 = none */
    bool is_direct;   /* large messages between processes of one machine from memory to memory */
    int *failed_rank; /* may be NULL: on failure the first rank that was not reached, else -1 */
};
int comm_tcp_new(const struct comm_tcp_options *options, double deadline_ms, struct comm **out,
                 struct fleet_error *err);

/* A listening socket on `host` (NULL or "": all addresses), any free port; *out_port tells which.
 * The caller closes it. -EINVAL: not an address; -errno of bind. */
int comm_tcp_listen(const char *host, int *out_fd, int *out_port, struct fleet_error *err);

#endif

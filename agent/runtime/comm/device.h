/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_COMM_DEVICE_H
#define AGENT_RUNTIME_COMM_DEVICE_H

/*
 * Collectives over the memory of devices: what a library such as NCCL gives to a communicator
 * (cuda/comm_nccl.h), and how a communicator takes it.
 *
 * The library moves bytes between devices and adds them there. Its operations run in rounds that
 * device.c makes. Beside them the ranks exchange two small messages over the connections of the
 * communicator: one that says what the rank starts, and one that says that its part has ended. So
 * all rules of comm.h hold: ranks that disagree are named, and so is a rank that is lost; the
 * library alone would wait for it for ever.
 *
 * No slot waits. A slot that starts something fails with -EBUSY if the last round has not begun yet
 * (test() returns 0).
 *
 * Only abort() may be called by another thread.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/runtime/comm/comm.h"

struct backend;
struct comm_device; /* a communicator of the library */
struct fleet_error;

#define COMM_DEVICE_ID_SIZE  128
#define COMM_DEVICE_NO_COLOR (-1)

/* Names a communicator that is made: one rank makes it, all ranks get it. */
struct comm_device_id {
    uint8_t bytes[COMM_DEVICE_ID_SIZE];
};

/* A part of a round: bytes to or from another rank, or a copy to itself. */
struct comm_device_part {
    int peer;
    bool is_receive;
    void *data; /* device memory */
    size_t bytes;
};

/* As comm_fold() (engine.h): to[i] = the reduction of element i of all inputs, in their order.
 * Input r is at `inputs` + r · stride, but input `own` is at `own_input`, which may be `to`. */
struct comm_device_fold {
    enum comm_type type;
    enum comm_reduction reduction;
    const void *inputs, *own_input;
    size_t stride; /* bytes */
    int own, input_count;
    int64_t count;
    void *to;
};

/* to[i] = the sum of nodes[…][i] in the order of the walk: a number takes a node, -1 adds the last
 * two. `to` may be a node. Each library takes so many nodes, and sums under way; -ENOTSUP: there
 * are more than this one takes. */
#define COMM_DEVICE_WALK_NODES 128
#define COMM_DEVICE_WALK_DEPTH 16
struct comm_device_walk {
    const float *const *nodes;
    const int *walk;
    int node_count, walk_count;
    float *to;
    int64_t count;
};

/* to[i] = scale · from[i] in another type, of fp32, fp16 and bf16; the two do not overlap. */
struct comm_device_cast {
    void *to;
    const void *from;
    enum comm_type to_type, from_type;
    float scale;
    int64_t count;
};

enum comm_device_stage {
    COMM_DEVICE_BEGUN, /* the round is in the queue: another one may be put behind it */
    COMM_DEVICE_ENDED, /* all that was put has run */
};

/* Which operators that communicate may be part of a graph. */
enum comm_device_captures {
    COMM_DEVICE_CAPTURES_NONE,
    COMM_DEVICE_CAPTURES_TRIED, /* those that ran in a graph on a GPU */
    COMM_DEVICE_CAPTURES_ALL,   /* also those that only the fakes ran in one */
};

struct comm_device_library {
    const char *name; /* "nccl" */

    int (*make_id)(struct comm_device_id *out, struct fleet_error *err);

    /* Begin to make a communicator over `world` ranks; it is ready once test() returns 1. Errors
     * here and below: -ECONNRESET: a rank, or a connection to it, is lost. -EIO: anything else. */
    int (*open)(const struct comm_device_id *id, int rank, int world, struct comm_device **out,
                struct fleet_error *err);

    /* Begin to make one over the ranks of `parent` with this color, ordered by `key`. All ranks of
     * `parent` call it. COMM_DEVICE_NO_COLOR: *out is NULL. */
    int (*split)(struct comm_device *parent, int color, int key, struct comm_device **out,
                 struct fleet_error *err);

    /* 1: the stage is reached. 0: not yet. */
    int (*test)(struct comm_device *device, enum comm_device_stage stage, struct fleet_error *err);

    /* Device memory for operations, at least `bytes`, kept until the next call. NULL, *err. */
    void *(*scratch)(struct comm_device *device, size_t bytes, struct fleet_error *err);

    /* ---- into a queue of the device: `queue` is the handle whose queue it is ---- */

    int (*exchange)(struct comm_device *device, struct backend *queue,
                    const struct comm_device_part *parts, int count, struct fleet_error *err);
    int (*copy)(struct comm_device *device, struct backend *queue, void *to, const void *from,
                size_t bytes, struct fleet_error *err);

    int (*cast)(struct comm_device *device, struct backend *queue,
                const struct comm_device_cast *cast, struct fleet_error *err);

    int (*fold)(struct comm_device *device, struct backend *queue,
                const struct comm_device_fold *fold, struct fleet_error *err);
    int (*walk)(struct comm_device *device, struct backend *queue,
                const struct comm_device_walk *walk, struct fleet_error *err);

    /* The library's own algorithm for a whole call, which adds in an order of its own. -ENOTSUP: it
     * has none; then the rounds of device.c run. */
    int (*collective)(struct comm_device *device, struct backend *queue,
                      const struct comm_call *call, struct fleet_error *err);

    /* Which operations of this version may become part of a graph (backend.h)? */
    enum comm_device_captures (*captures)(void);

    /* test() of COMM_DEVICE_ENDED is about all that is in `queue` now. */
    void (*follow)(struct comm_device *device, struct backend *queue);

    /* What is in the queue ends soon, with or without a result. Does not wait. */
    void (*abort)(struct comm_device *device);

    /* Free it; ends what is at work, or goes on to. NULL is fine. Never waits for another rank. */
    void (*free)(struct comm_device *device);

    /* Wait until all that was aborted has ended: until then memory of its operations may change. */
    void (*settle)(void);
};

/*
 * Give `comm` a communicator of `library`, made from `id`; calls with a queue (comm_call.queue) use
 * it. All ranks call it. The first operation has run when it returns, since it is slower than those
 * after it. A group of `comm` gets a communicator of its own. A failure ends the world; errors are
 * those of the library and of comm.h.
 */
int comm_use_device(struct comm *comm, const struct comm_device_library *library,
                    const struct comm_device_id *id, struct backend *queue, double deadline_ms,
                    struct fleet_error *err);

/* Can calls of this communicator have a queue? */
bool comm_has_device(const struct comm *comm);

/*
 * Make `call`, which has a queue, part of the graph that is being captured from this queue: without
 * messages between the ranks, and nothing runs. It returns when the library has put all of it. All
 * ranks of `comm` capture the same calls in the same order; they have made each of them before, so
 * that nothing is left to allocate or to connect. To run the graph, all of them put it into their
 * queue, then run a barrier with this queue: by it a lost rank is noticed. Errors are those of the
 * library and of comm_run(); -ENOTSUP: it cannot be captured.
 */
int comm_device_capture(struct comm *comm, const struct comm_call *call, double deadline_ms,
                        struct fleet_error *err);

/* comm_device_capture() if `is_captured`, else comm_run(). */
int comm_device_run(struct comm *comm, const struct comm_call *call, bool is_captured,
                    double deadline_ms, struct fleet_error *err);

/*
 * Work of this rank alone for the next call of `comm`, in the queue of that call. The memory lasts
 * until an operation that adds, or the next call of comm_device_scratch(). An all-reduce leaves
 * what lies behind its runtime_received_bytes() (libfleet/plan/runtime_memory.h). No call is in
 * flight. comm_device_scratch() returns NULL with *err. Errors are those of the library.
 */
void *comm_device_scratch(struct comm *comm, size_t bytes, struct fleet_error *err);
int comm_device_copy(struct comm *comm, struct backend *queue, void *to, const void *from,
                     size_t bytes, struct fleet_error *err);
int comm_device_cast(struct comm *comm, struct backend *queue, const struct comm_device_cast *cast,
                     struct fleet_error *err);
int comm_device_walk(struct comm *comm, struct backend *queue, const struct comm_device_walk *walk,
                     struct fleet_error *err);

#endif

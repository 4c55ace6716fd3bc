/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/comm_ipc.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda/comm_work.h"
#include "cuda/ipc_window.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"

#define MAGIC     "fleet-ipc" /* of an id */
#define TRIES_MAX 200

struct id {
    char magic[sizeof(MAGIC)];
    struct ipc_place place;
};

_Static_assert(sizeof(struct id) <= COMM_DEVICE_ID_SIZE, "an id has a place");

/* A part of the exchange at work. */
struct moving {
    struct comm_device_part part;
    size_t put; /* bytes whose copies are in the stream */
};

struct comm_device {
    struct comm_work work; /* first */
    atomic_bool is_aborted;
    struct ipc_window *window; /* NULL: not yet */
    bool has_place;            /* of `window`; false: it is still being split from `parent` */
    struct ipc_group group;
    int tries;            /* to open what another rank has made */
    struct moving *parts; /* [part_count] */
    int part_count, part_room;

    /* a split of this communicator that waits for other ranks */
    bool is_splitting;
    uint32_t splits;
    struct comm_device *child;  /* NULL: this rank is in no group */
    struct comm_device *parent; /* of one that is being split */
    struct ipc_board *spare; /* of such a one: the board that its group uses if it is the first */
    struct ipc_place spare_place;
};

/* The board that make_id() has made, until open() takes it. */
static struct ipc_board *offered;
static struct ipc_place offered_place;

/* ---- making and ending ----------------------------------------------------------------------- */

static void withdraw(void)
{
    if (offered)
        ipc_board_hide(&offered_place);
    ipc_board_close(offered);
    offered = NULL;
}

static int make_id(struct comm_device_id *out, struct fleet_error *err)
{
    struct id id = {.magic = MAGIC};
    int rc;

    withdraw();
    rc = ipc_board_make(&offered, &offered_place, err);
    if (rc < 0)
        return rc;
    id.place = offered_place;
    *out = (struct comm_device_id){{0}};
    memcpy(out->bytes, &id, sizeof(id));
    return 0;
}

static void drop_spare(struct comm_device *d)
{
    if (d->spare)
        ipc_board_hide(&d->spare_place);
    ipc_board_close(d->spare);
    d->spare = NULL;
}

static void ipc_free(struct comm_device *d)
{
    if (!d)
        return;
    if (d->parent)
        d->parent->child = NULL;
    if (d->child)
        d->child->parent = NULL;
    if (d->work.stream)
        (void)cudaStreamSynchronize(d->work.stream); /* copies of windows; of this rank alone */
    ipc_window_free(d->window);
    drop_spare(d);
    free(d->parts);
    comm_work_free(d);
}

static void ipc_abort(struct comm_device *d)
{
    atomic_store(&d->is_aborted, true);
}

static int ipc_open(const struct comm_device_id *id, int rank, int world, struct comm_device **out,
                    struct fleet_error *err)
{
    struct id read;
    int rc;

    *out = NULL;
    memcpy(&read, id->bytes, sizeof(read));
    if (memcmp(read.magic, MAGIC, sizeof(MAGIC)) != 0)
        return fleet_error(err, -EIO, "rank 0 does not use FLEET_CUDA_COMM=ipc, as this rank does");
    if (world > IPC_RANKS_MAX)
        return fleet_error(err, -EIO, "FLEET_CUDA_COMM=ipc: %d ranks, it takes at most %d", world,
                           IPC_RANKS_MAX);
    rc = comm_work_new(sizeof(**out), out, err);
    if (rc < 0)
        return rc;
    (*out)->has_place = true;
    (*out)->group = (struct ipc_group){.rank = rank, .world = world, .place = read.place};
    if (offered && read.place.secret == offered_place.secret) {
        (*out)->spare = offered;
        (*out)->spare_place = offered_place;
        offered = NULL;
    }
    return 0;
}

/* 1: the window is there. A board that cannot be opened is of a rank that has ended, which its
 * connection will show, or of another container. */
static int open_window(struct comm_device *d, struct fleet_error *err)
{
    struct ipc_board *board = d->spare;
    bool is_ours = board && d->spare_place.secret == d->group.place.secret;
    int rc = 0;

    if (!d->has_place)
        return 0;
    if (!is_ours)
        rc = ipc_board_open(&d->group.place, &board, err);
    if (rc < 0)
        return ++d->tries < TRIES_MAX ? 0 : rc;
    rc = ipc_window_make(d->work.device, board, is_ours ? &d->spare_place : NULL, d->group.rank,
                         d->group.world, &d->window, err);
    if (rc == 0 && is_ours)
        d->spare = NULL; /* the window has it */
    drop_spare(d);
    return rc < 0 ? rc : 1;
}

/* ---- groups ---------------------------------------------------------------------------------- */

static int ipc_split(struct comm_device *parent, int color, int key, struct comm_device **out,
                     struct fleet_error *err)
{
    struct ipc_member *self = ipc_window_member(parent->window);
    int rc = 0;

    *out = NULL;
    if (color != COMM_DEVICE_NO_COLOR && (rc = comm_work_new(sizeof(**out), out, err)) < 0)
        return rc;
    if (*out && (rc = ipc_board_make(&(*out)->spare, &(*out)->spare_place, err)) < 0) {
        ipc_free(*out);
        *out = NULL;
        return rc;
    }
    self->color = color;
    self->key = key;
    if (*out) {
        self->child = (*out)->spare_place;
        (*out)->parent = parent;
    }
    parent->child = *out;
    parent->is_splitting = true;
    atomic_store(&self->splits, ++parent->splits);
    return 0;
}

/* All have begun the split: find the own group, and the own place in it. */
static void join_group(struct comm_device *parent)
{
    struct comm_device *child = parent->child;

    if (!child)
        return;
    ipc_window_group(parent->window, &child->group);
    child->has_place = true;
    child->parent = NULL;
    parent->child = NULL;
}

/* 1: no split is under way. */
static int go_on_splitting(struct comm_device *d)
{
    if (!d->is_splitting)
        return 1;
    if (!ipc_window_have_split(d->window, d->splits))
        return 0;
    d->is_splitting = false;
    join_group(d);
    return 1;
}

/* ---- moving ---------------------------------------------------------------------------------- */

/* Put as many copies of the part as slots allow. Parts of a pair go one after the other. */
static int put_part(struct comm_device *d, struct moving *m, bool *out_is_put,
                    struct fleet_error *err)
{
    int rc = 1;

    while (m->put < m->part.bytes && rc > 0) {
        size_t bytes = m->part.bytes - m->put;

        bytes = bytes < IPC_PIECE ? bytes : IPC_PIECE;
        rc = ipc_window_put(d->window, &m->part, m->put, bytes, d->work.stream, err);
        if (rc > 0) {
            m->put += bytes;
            d->work.is_recorded = false;
        }
    }
    *out_is_put = m->put == m->part.bytes;
    return rc < 0 ? rc : 0;
}

/* 1: all copies of the exchange are in the stream. */
static int put_parts(struct comm_device *d, struct fleet_error *err)
{
    bool has_waiting[IPC_RANKS_MAX][2] = {{false}}, is_all_put = true, is_put;
    int rc = 0;

    for (int i = 0; i < d->part_count && rc == 0; i++) {
        struct moving *m = &d->parts[i];
        bool *waits = &has_waiting[m->part.peer][m->part.is_receive];

        if (m->put == m->part.bytes || *waits)
            continue;
        rc = put_part(d, m, &is_put, err);
        *waits = !is_put;
        is_all_put = is_all_put && is_put;
    }
    if (rc == 0 && is_all_put)
        d->part_count = 0;
    return rc < 0 ? rc : is_all_put;
}

static int ipc_test(struct comm_device *d, enum comm_device_stage stage, struct fleet_error *err)
{
    int rc;

    if (atomic_load(&d->is_aborted))
        return fleet_error(err, -ECANCELED, "FLEET_CUDA_COMM=ipc: the communicator was aborted");
    if (!d->window && (rc = open_window(d, err)) <= 0)
        return rc;
    rc = ipc_window_join(d->window, err);
    if (rc > 0)
        rc = go_on_splitting(d);
    if (rc > 0)
        rc = put_parts(d, err);
    if (rc >= 0) {
        int counted = ipc_window_count(d->window, err);
        rc = counted < 0 || (counted == 0 && stage == COMM_DEVICE_ENDED) ? counted : rc;
    }
    return rc <= 0 || stage == COMM_DEVICE_BEGUN ? rc : comm_work_has_ended(&d->work, err);
}

static int ipc_exchange(struct comm_device *d, struct backend *queue,
                        const struct comm_device_part *parts, int count, struct fleet_error *err)
{
    if (atomic_load(&d->is_aborted))
        return fleet_error(err, -ECANCELED, "FLEET_CUDA_COMM=ipc: the communicator was aborted");
    if (d->part_count > 0)
        return fleet_error(err, -EBUSY, "the last exchange has not begun yet");
    (void)comm_work_use(&d->work, queue);
    if (count > d->part_room) {
        free(d->parts);
        d->parts = malloc((size_t)count * sizeof(*d->parts));
        fleet_assert(d->parts != NULL);
        d->part_room = count;
    }
    for (int i = 0; i < count; i++)
        d->parts[i] = (struct moving){.part = parts[i]};
    d->part_count = count;
    return 0;
}

static int ipc_collective(struct comm_device *d, struct backend *queue,
                          const struct comm_call *call, struct fleet_error *err)
{
    (void)d;
    (void)queue;
    (void)call;
    (void)err;
    return -ENOTSUP; /* the rounds of device.c do all */
}

/* ---- the whole ------------------------------------------------------------------------------- */

static enum comm_device_captures ipc_captures(void)
{
    return COMM_DEVICE_CAPTURES_NONE; /* the host counts the pieces */
}

static const struct comm_device_library library = {
    .name = "ipc",
    .make_id = make_id,
    .open = ipc_open,
    .split = ipc_split,
    .test = ipc_test,
    .scratch = comm_work_scratch,
    .exchange = ipc_exchange,
    .copy = comm_work_copy,
    .cast = comm_work_cast,
    .fold = comm_work_fold,
    .walk = comm_work_walk,
    .collective = ipc_collective,
    .captures = ipc_captures,
    .follow = comm_work_follow,
    .abort = ipc_abort,
    .settle = ipc_window_sweep,
    .free = ipc_free,
};

const struct comm_device_library *comm_ipc_library(void)
{
    return &library;
}

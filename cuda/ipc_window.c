/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/ipc_window.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/plan/runtime_memory.h"

_Static_assert(sizeof(cudaIpcMemHandle_t) == IPC_HANDLE_SIZE, "a member has a handle");
_Static_assert(IPC_SLOTS *IPC_PIECE == RUNTIME_WINDOW_BYTES, "the plan counts windows");

#define TRIES_MAX 200

/* One direction of a pair, as this rank sees it. */
struct lane {
    uint64_t put, counted; /* pieces: their copies are in the stream; have ended */
    cudaEvent_t ended[IPC_SLOTS];
};

struct peer {
    char *opened; /* its window; NULL: not open */
    struct lane out, in;
};

struct ipc_window {
    struct cuda_device *device;
    struct ipc_board *board;
    struct ipc_place place; /* of a board of this process; fd -1: another one has made it */
    int rank, world;
    char *memory;       /* [world][IPC_SLOTS] pieces, by receiver */
    struct peer *peers; /* [world] */
    bool is_joined;
    int tries;               /* to open windows */
    struct ipc_window *next; /* in `left` */
};

/* Freed by the program while other ranks might still use them. */
static struct ipc_window *left;
static pthread_mutex_t left_lock = PTHREAD_MUTEX_INITIALIZER;

struct ipc_member *ipc_window_member(struct ipc_window *window)
{
    return &window->board->members[window->rank];
}

/* ---- making and ending ----------------------------------------------------------------------- */

static int make_events(struct ipc_window *w, struct fleet_error *err)
{
    cudaError_t status = cudaSuccess;

    for (int p = 0; p < w->world; p++)
        for (int s = 0; s < 2 * IPC_SLOTS && status == cudaSuccess && p != w->rank; s++) {
            struct lane *lane = s < IPC_SLOTS ? &w->peers[p].out : &w->peers[p].in;
            status = cudaEventCreateWithFlags(&lane->ended[s % IPC_SLOTS], cudaEventDisableTiming);
        }
    return status == cudaSuccess ? 0 : device_fail(w->device, status, "make an event", err);
}

/* The other ranks see the window when `is_open` is set. */
static int publish(struct ipc_window *w, struct fleet_error *err)
{
    struct ipc_member *self = ipc_window_member(w);
    cudaIpcMemHandle_t handle;
    cudaError_t status = cudaIpcGetMemHandle(&handle, w->memory);

    if (status != cudaSuccess)
        return device_fail(w->device, status, "share memory between processes", err);
    memcpy(self->window, &handle, sizeof(handle));
    self->pid = getpid();
    atomic_store(&self->is_open, 1);
    return 0;
}

static void release(struct ipc_window *w)
{
    if (w->memory)
        (void)cudaFree(w->memory);
    if (w->place.fd >= 0)
        ipc_board_hide(&w->place);
    ipc_board_close(w->board);
    device_close(w->device);
    free(w->peers);
    free(w);
}

/* Copies of this process have ended. Others may not use its windows of them any more. */
static void close_others(struct ipc_window *w)
{
    for (int p = 0; p < w->world; p++) {
        for (int s = 0; s < IPC_SLOTS; s++) {
            if (w->peers[p].out.ended[s])
                (void)cudaEventDestroy(w->peers[p].out.ended[s]);
            if (w->peers[p].in.ended[s])
                (void)cudaEventDestroy(w->peers[p].in.ended[s]);
        }
        if (w->peers[p].opened)
            (void)cudaIpcCloseMemHandle(w->peers[p].opened);
        w->peers[p].opened = NULL;
    }
    atomic_store(&ipc_window_member(w)->has_closed, 1);
}

int ipc_window_make(struct cuda_device *device, struct ipc_board *board,
                    const struct ipc_place *place, int rank, int world, struct ipc_window **out,
                    struct fleet_error *err)
{
    struct ipc_window *w = calloc(1, sizeof(*w));
    size_t bytes = (size_t)world * RUNTIME_WINDOW_BYTES;
    cudaStream_t stream = device->streams[DEVICE_QUEUES - 1];
    void *memory = NULL;
    int rc;

    ipc_window_sweep();
    fleet_assert(w != NULL);
    *w = (struct ipc_window){.board = board, .place.fd = -1, .rank = rank, .world = world};
    w->peers = calloc((size_t)world, sizeof(*w->peers));
    fleet_assert(w->peers != NULL);
    rc = device_open(&w->device, err); /* the window may outlive its communicator */
    if (rc == 0 && (rc = device_allocate(w->device, stream, bytes, &memory, err)) == 0)
        w->memory = memory;
    if (rc == 0 && cudaStreamSynchronize(stream) != cudaSuccess)
        rc = fleet_error(err, -EIO, "GPU: wait for new memory");
    if (rc == 0)
        rc = make_events(w, err);
    if (rc == 0)
        rc = publish(w, err);
    if (rc == 0) {
        if (place)
            w->place = *place;
        *out = w;
        return 0;
    }
    if (w->device) {
        close_others(w);
        if (place)
            w->board = NULL; /* the caller's */
        release(w);
    } else {
        ipc_board_close(place ? NULL : board);
        free(w->peers);
        free(w);
    }
    return rc;
}

/* A rank that has not opened windows yet may still do so. */
static bool uses_ours(const struct ipc_window *w, int rank)
{
    const struct ipc_member *m = &w->board->members[rank];

    if (rank == w->rank || atomic_load(&m->has_closed))
        return false;
    return !atomic_load(&m->is_open) || kill(m->pid, 0) == 0 || errno != ESRCH;
}

void ipc_window_sweep(void)
{
    struct ipc_window *all, *next;

    pthread_mutex_lock(&left_lock);
    all = left;
    left = NULL;
    pthread_mutex_unlock(&left_lock);
    for (struct ipc_window *w = all; w; w = next) {
        bool is_used = false;

        next = w->next;
        for (int p = 0; p < w->world; p++)
            is_used = is_used || uses_ours(w, p);
        if (!is_used) {
            release(w);
            continue;
        }
        pthread_mutex_lock(&left_lock);
        w->next = left;
        left = w;
        pthread_mutex_unlock(&left_lock);
    }
}

void ipc_window_free(struct ipc_window *window)
{
    if (!window)
        return;
    close_others(window);
    pthread_mutex_lock(&left_lock);
    window->next = left;
    left = window;
    pthread_mutex_unlock(&left_lock);
    ipc_window_sweep();
}

/* ---- joining --------------------------------------------------------------------------------- */

static int open_one(struct ipc_window *w, int rank, struct fleet_error *err)
{
    cudaIpcMemHandle_t handle;
    void *memory = NULL;
    cudaError_t status;

    memcpy(&handle, w->board->members[rank].window, sizeof(handle));
    status = cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess);
    if (status == cudaSuccess) {
        w->peers[rank].opened = memory;
        return 0;
    }
    if (status == cudaErrorInvalidResourceHandle && ++w->tries < TRIES_MAX) {
        (void)cudaGetLastError();
        return -EAGAIN;
    }
    return device_fail(w->device, status, "open memory of another process", err);
}

int ipc_window_join(struct ipc_window *window, struct fleet_error *err)
{
    int rc = 0;

    if (window->is_joined)
        return 1;
    for (int p = 0; p < window->world; p++)
        if (!atomic_load(&window->board->members[p].is_open))
            return 0;
    for (int p = 0; p < window->world && rc == 0; p++)
        if (p != window->rank && !window->peers[p].opened)
            rc = open_one(window, p, err);
    window->is_joined = rc == 0;
    return rc == -EAGAIN ? 0 : rc < 0 ? rc : 1;
}

/* ---- moving ---------------------------------------------------------------------------------- */

static size_t slot_of(int receiver, uint64_t piece)
{
    return ((size_t)receiver * IPC_SLOTS + piece % IPC_SLOTS) * IPC_PIECE;
}

int ipc_window_put(struct ipc_window *w, const struct comm_device_part *part, size_t at,
                   size_t bytes, cudaStream_t stream, struct fleet_error *err)
{
    struct peer *peer = &w->peers[part->peer];
    struct lane *lane = part->is_receive ? &peer->in : &peer->out;
    struct ipc_pair *pair = part->is_receive ? &w->board->pairs[part->peer][w->rank]
                                             : &w->board->pairs[w->rank][part->peer];
    char *data = (char *)part->data + at;
    cudaError_t status;

    if (part->is_receive ? lane->put == atomic_load(&pair->filled)
                         : lane->put == atomic_load(&pair->taken) + IPC_SLOTS)
        return 0;
    if (part->is_receive)
        status = cudaMemcpyAsync(data, peer->opened + slot_of(w->rank, lane->put), bytes,
                                 cudaMemcpyDefault, stream);
    else
        status = cudaMemcpyAsync(w->memory + slot_of(part->peer, lane->put), data, bytes,
                                 cudaMemcpyDefault, stream);
    if (status == cudaSuccess)
        status = cudaEventRecord(lane->ended[lane->put % IPC_SLOTS], stream);
    if (status != cudaSuccess)
        return device_fail(w->device, status, "copy between ranks", err);
    lane->put++;
    return 1;
}

/* 1: all copies of the lane have ended. */
static int count_lane(struct ipc_window *w, struct lane *lane, _Atomic uint64_t *shown,
                      struct fleet_error *err)
{
    while (lane->counted < lane->put) {
        cudaError_t status = cudaEventQuery(lane->ended[lane->counted % IPC_SLOTS]);
        if (status == cudaErrorNotReady)
            return 0;
        if (status != cudaSuccess)
            return device_fail(w->device, status, "copy between ranks", err);
        atomic_store(shown, ++lane->counted);
    }
    return 1;
}

int ipc_window_count(struct ipc_window *w, struct fleet_error *err)
{
    int rc = 1, all = 1;

    for (int p = 0; p < w->world && rc >= 0; p++) {
        rc = count_lane(w, &w->peers[p].out, &w->board->pairs[w->rank][p].filled, err);
        all = all && rc;
        if (rc >= 0)
            rc = count_lane(w, &w->peers[p].in, &w->board->pairs[p][w->rank].taken, err);
        all = all && rc;
    }
    return rc < 0 ? rc : all;
}

/* ---- groups ---------------------------------------------------------------------------------- */

bool ipc_window_have_split(const struct ipc_window *window, uint32_t number)
{
    for (int p = 0; p < window->world; p++)
        if (atomic_load(&window->board->members[p].splits) < number)
            return false;
    return true;
}

/* Does rank `a` come before rank `b`? */
static bool is_before(const struct ipc_member *members, int a, int b)
{
    return members[a].key != members[b].key ? members[a].key < members[b].key : a < b;
}

void ipc_window_group(const struct ipc_window *window, struct ipc_group *out)
{
    const struct ipc_member *members = window->board->members;
    int first = window->rank;

    *out = (struct ipc_group){.rank = 0};
    for (int p = 0; p < window->world; p++) {
        if (members[p].color != members[window->rank].color)
            continue;
        out->world++;
        out->rank += is_before(members, p, window->rank);
        if (is_before(members, p, first))
            first = p;
    }
    out->place = members[first].child;
}

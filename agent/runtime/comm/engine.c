/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Operations in flight. An operation is a list of rounds. A round is a set of messages that move
 * independently of each other. After the last message of a round the algorithm gives the next
 * round. A wait for one operation makes progress on all of them, so no order of waits deadlocks.
 *
 * Abort is a flag, an eventfd that every poll() watches, and a shutdown of all connections, so that
 * the other ranks, too, stop waiting for us.
 */
#include "agent/runtime/comm/engine.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/runtime/comm/device.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/clock.h"

#define SPIN_MS    0.05 /* of looking before a sleep, since something moved */
#define SPIN_TRIES 3    /* waits in a row that find nothing */
#define SPIN_REST  64   /* waits without a poll of them */

#define DEVICE_LOOK_MS 1 /* between two looks at a device */

/* ---- life ------------------------------------------------------------------------------------ */

static struct comm_net *net_new(struct fleet_error *err)
{
    struct comm_net *net = calloc(1, sizeof(*net));

    fleet_assert(net != NULL && pthread_mutex_init(&net->lock, NULL) == 0);
    net->listener = -1;
    net->patience = SPIN_TRIES;
    net->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (net->wake < 0) {
        (void)fleet_error(err, -errno, "make an eventfd: %s", strerror(errno));
        free(net);
        return NULL;
    }
    return net;
}

static void net_free(struct comm_net *net, int world)
{
    for (int r = 0; net->addresses && r < world; r++)
        free(net->addresses[r]);
    free(net->addresses);
    free(net->polls);
    free(net->polled);
    (void)pthread_mutex_destroy(&net->lock);
    (void)close(net->wake);
    free(net);
}

/* Room for all that may be polled at once: a step allocates nothing. */
static void reserve_polls(struct comm_net *net)
{
    size_t wanted = 1;

    for (struct comm *comm = net->comms; comm; comm = comm->next)
        wanted += (size_t)comm->world * COMM_CHANNELS_MAX;
    if (wanted <= net->poll_capacity)
        return;
    free(net->polls);
    free(net->polled);
    net->polls = calloc(wanted, sizeof(*net->polls));
    net->polled = calloc(wanted, sizeof(*net->polled));
    fleet_assert(net->polls && net->polled);
    net->poll_capacity = wanted;
}

struct comm *comm_new(struct comm *parent, const int *members, int rank, int world,
                      struct fleet_error *err)
{
    struct comm_net *net = parent ? parent->net : net_new(err);
    struct comm *comm;

    if (!net)
        return NULL;
    comm = calloc(1, sizeof(*comm));
    fleet_assert(comm != NULL && rank >= 0 && rank < world);
    *comm = (struct comm){.rank = rank, .world = world, .failed_rank = -1, .net = net};
    comm->members = calloc((size_t)world, sizeof(*comm->members));
    comm->pairs = calloc((size_t)world, sizeof(*comm->pairs));
    comm->run = calloc(1, sizeof(*comm->run));
    fleet_assert(comm->members && comm->pairs && comm->run);
    comm->run->comm = comm;
    for (int r = 0; r < world; r++) {
        comm->members[r] = members ? members[r] : r;
        for (int lane = 0; lane < COMM_CHANNELS_MAX; lane++)
            comm->pairs[r].lanes[lane].fd = -1;
        comm->pairs[r].transport = &comm_transport_tcp;
    }
    if (!parent)
        net->world = comm;
    (void)pthread_mutex_lock(&net->lock);
    comm->next = net->comms;
    net->comms = comm;
    (void)pthread_mutex_unlock(&net->lock);
    reserve_polls(net);
    return comm;
}

struct comm *comm_local_new(void)
{
    struct fleet_error err;
    struct comm *comm = comm_new(NULL, NULL, 0, 1, &err);

    fleet_assert(comm != NULL); /* no descriptor is left for a process that has just begun */
    return comm;
}

/* Out of the net, with its connections. */
static void leave(struct comm_net *net, struct comm *comm)
{
    struct comm **link = &net->comms;

    (void)pthread_mutex_lock(&net->lock);
    while (*link != comm)
        link = &(*link)->next;
    *link = comm->next;
    for (int r = 0; r < comm->world; r++)
        for (int lane = 0; lane < comm->pairs[r].lane_count; lane++)
            tcp_close_lane(&comm->pairs[r].lanes[lane]);
    (void)pthread_mutex_unlock(&net->lock);
}

void comm_free(struct comm *comm)
{
    if (!comm)
        return;
    leave(comm->net, comm);
    shm_release(comm);
    if (comm == comm->net->world) {
        fleet_assert(comm->net->comms == NULL);
        net_free(comm->net, comm->world);
    }
    if (comm->device)
        comm->library->free(comm->device);
    free(comm->run->device.lists);
    free(comm->run->scratch);
    free(comm->run);
    free(comm->pairs);
    free(comm->members);
    free(comm);
}

static void hang_up(struct comm_net *net)
{
    (void)pthread_mutex_lock(&net->lock);
    for (struct comm *comm = net->comms; comm; comm = comm->next)
        for (int r = 0; r < comm->world; r++)
            for (int lane = 0; lane < comm->pairs[r].lane_count; lane++)
                if (comm->pairs[r].lanes[lane].fd >= 0)
                    (void)shutdown(comm->pairs[r].lanes[lane].fd, SHUT_RDWR); /* may be gone */
    (void)pthread_mutex_unlock(&net->lock);
}

void comm_abort(struct comm *comm)
{
    uint64_t one = 1;

    atomic_store(&comm->net->aborted, true);
    (void)!write(comm->net->wake, &one, sizeof(one)); /* fails only if it is readable already */
    hang_up(comm->net);
}

/* ---- posting --------------------------------------------------------------------------------- */

void *comm_scratch(struct comm_request *run, size_t bytes)
{
    if (bytes > run->scratch_bytes) {
        free(run->scratch);
        run->scratch = malloc(bytes);
        fleet_assert(run->scratch != NULL);
        run->scratch_bytes = bytes;
    }
    return run->scratch;
}

void comm_post_send(struct comm_request *run, int peer, const void *data, size_t bytes)
{
    fleet_assert(peer != run->comm->rank);
    frame_start(run, peer, true, data, bytes, &run->signature);
}

void comm_post_receive(struct comm_request *run, int peer, void *data, size_t bytes)
{
    fleet_assert(peer != run->comm->rank);
    frame_start(run, peer, false, data, bytes, &run->signature);
}

/* ---- moving on ------------------------------------------------------------------------------- */

/* Move one operation on as far as it goes now. */
static int progress_one(struct comm *comm, struct fleet_error *err)
{
    struct comm_request *run = comm->run;

    while (run->is_running) {
        int rc = run->call.queue ? comm_device_progress(run, err) : 1;
        if (rc < 0)
            return rc;
        for (int r = 0; r < comm->world && run->pending > 0; r++) {
            const struct comm_pair *pair = &comm->pairs[r];
            if (pair->out.is_pending || pair->in.is_pending) {
                int moved = frame_progress(comm, r, err);
                if (moved < 0)
                    return moved;
            }
        }
        if (run->pending > 0 || rc == 0)
            return 0;
        run->round++;
        run->is_running = run->next(run);
    }
    return 0;
}

static int progress(struct comm_net *net, struct fleet_error *err)
{
    if (atomic_load(&net->aborted))
        return fleet_error(err, -ECANCELED, "the communicator was aborted");
    for (struct comm *comm = net->comms; comm; comm = comm->next) {
        int rc = progress_one(comm, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int timed_out(struct comm *comm, struct fleet_error *err)
{
    for (int r = 0; r < comm->world; r++) {
        const struct comm_pair *pair = &comm->pairs[r];
        if (!pair->out.is_pending && !pair->in.is_pending)
            continue;
        if (comm->net->world->failed_rank < 0)
            comm->net->world->failed_rank = comm->members[r];
        return fleet_error(err, -ETIMEDOUT, "%s rank %d: nothing more before the deadline",
                           pair->in.is_pending ? "receive from" : "send to", comm->members[r]);
    }
    return fleet_error(err, -ETIMEDOUT, "the deadline passed");
}

/* The earliest deadline of all operations in flight; -ETIMEDOUT if one is over. */
static int next_deadline(struct comm_net *net, double *out_ms, struct fleet_error *err)
{
    double now = fleet_monotonic_ms();

    *out_ms = INFINITY;
    for (struct comm *comm = net->comms; comm; comm = comm->next) {
        if (!comm->run->is_running)
            continue;
        if (comm->run->deadline_ms <= now)
            return timed_out(comm, err);
        *out_ms = fmin(*out_ms, comm->run->deadline_ms);
    }
    return 0;
}

/* List what a pair must be polled for. false: something can be moved without sleeping. */
static bool prepare_pair(struct comm_net *net, struct comm_pair *pair)
{
    for (int lane = 0; lane < pair->lane_count; lane++) {
        short events = pair->transport->sleep(pair, lane);
        if (events == SLEEP_NOT)
            return false;
        if (events == 0)
            continue;
        net->polled[net->poll_count] = pair;
        net->polls[net->poll_count++] =
            (struct pollfd){.fd = pair->lanes[lane].fd, .events = events};
    }
    return true;
}

static bool prepare_polls(struct comm_net *net)
{
    net->polls[0] = (struct pollfd){.fd = net->wake, .events = POLLIN};
    net->poll_count = 1;
    for (struct comm *comm = net->comms; comm; comm = comm->next)
        for (int r = 0; r < comm->world && comm->run->is_running; r++) {
            struct comm_pair *pair = &comm->pairs[r];
            if ((pair->out.is_pending || pair->in.is_pending) && !prepare_pair(net, pair))
                return false;
        }
    return true;
}

/* A device has no descriptor that becomes readable. */
static bool has_device_at_work(const struct comm_net *net)
{
    for (const struct comm *comm = net->comms; comm; comm = comm->next)
        if (comm->run->is_running && comm->run->call.queue && !comm->run->device.has_ended)
            return true;
    return false;
}

static int sleep_until_any(struct comm_net *net, struct fleet_error *err)
{
    double deadline_ms, left;
    int rc = next_deadline(net, &deadline_ms, err);

    if (rc < 0)
        return rc;
    if (!prepare_polls(net))
        return 0;
    left = deadline_ms - fleet_monotonic_ms();
    if (has_device_at_work(net))
        left = fmin(left, DEVICE_LOOK_MS);
    rc = poll(net->polls, (nfds_t)net->poll_count,
              isinf(left) ? -1 : (int)fmin(ceil(fmax(left, 0)), 1e9));
    if (rc < 0 && errno != EINTR)
        return fleet_error(err, -errno, "poll: %s", strerror(errno));
    for (size_t i = 1; i < net->poll_count && rc > 0; i++)
        if (net->polls[i].revents)
            net->polled[i]->transport->wake(net->polled[i], net->polls[i].revents);
    return 0;
}

static bool can_spin(const struct comm_net *net)
{
    for (const struct comm *comm = net->comms; comm; comm = comm->next)
        if (comm->run->is_running && (comm->shm_ranks > 0 || comm->run->call.queue))
            return true;
    return false;
}

/* ---- failing --------------------------------------------------------------------------------- */

void comm_fail(struct comm_net *net, int rc, const struct fleet_error *cause)
{
    struct fleet_error err = *cause;

    if (atomic_load(&net->aborted)) /* our own shutdown is what the sockets report */
        rc = fleet_error(&err, -ECANCELED, "the communicator was aborted");
    net->is_dead = true;
    for (struct comm *comm = net->comms; comm; comm = comm->next) {
        for (int r = 0; r < comm->world; r++)
            shm_give_up(&comm->pairs[r]);
        if (comm->device)
            comm->library->abort(comm->device);
        if (!comm->run->is_running)
            continue;
        comm->run->is_running = false;
        comm->run->rc = rc;
        comm->run->err = err;
    }
    hang_up(net);
}

static int result(const struct comm_request *run, struct fleet_error *err)
{
    if (run->rc < 0 && err)
        *err = run->err;
    return run->rc;
}

/* `sleeper`: the operation that is waited for if it cannot end now; NULL: none. */
static void move_on(struct comm_net *net, const struct comm_request *sleeper)
{
    struct fleet_error err;
    int rc = progress(net, &err);

    if (rc == 0 && sleeper && sleeper->is_running)
        rc = sleep_until_any(net, &err);
    if (rc < 0)
        comm_fail(net, rc, &err);
}

void comm_move_on(struct comm_net *net)
{
    move_on(net, NULL);
}

/*
 * Look again and again before sleeping while a pair in shared memory has something to move: a sleep
 * costs two system calls and a switch. Polling helps only if the other side runs at the same time
 * and is nearly ready. After a few waits that polled and still had to sleep, many waits sleep
 * without polling; then one polls again.
 */
int comm_wait(struct comm_request *run, struct fleet_error *err)
{
    struct comm_net *net = run->comm->net;
    bool spins = net->patience > 0 && can_spin(net), has_slept = !spins;
    double sleep_at = spins ? fleet_monotonic_ms() + SPIN_MS : 0;

    if (!run->is_running)
        return result(run, err);
    while (run->is_running) {
        bool may_sleep = !spins || fleet_monotonic_ms() >= sleep_at;
        uint64_t moves = net->moves;
        move_on(net, may_sleep ? run : NULL);
        has_slept = has_slept || may_sleep;
        if (spins && net->moves != moves)
            sleep_at = fleet_monotonic_ms() + SPIN_MS;
    }
    if (!has_slept)
        net->patience = SPIN_TRIES;
    else if (--net->patience <= -SPIN_REST)
        net->patience = 1;
    return result(run, err);
}

int comm_test(struct comm_request *run, struct fleet_error *err)
{
    struct comm_net *net = run->comm->net;

    if (run->is_running) {
        double deadline_ms;
        struct fleet_error late;
        move_on(net, NULL);
        if (run->is_running && next_deadline(net, &deadline_ms, &late) < 0)
            comm_fail(net, late.code, &late);
    }
    return run->is_running ? 0 : run->rc < 0 ? result(run, err) : 1;
}

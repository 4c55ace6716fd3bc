/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The conformance suite of communicators: every collective, the deterministic sum, and everything
 * that can go wrong. Ranks are threads of this process, each with a transport of its own; a rank
 * that must die is a child process. Threads record what they saw, the main thread asserts.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent/runtime/comm/comm.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "libfleet/plan/tree.h"

#define WORLD_MAX  8
#define PATIENCE   120000.0 /* ms: longer than anything takes under a sanitizer on a busy machine */
#define CONNECTION PATIENCE

struct cluster;

struct rank_thread {
    struct cluster *cluster;
    int rank;
    pthread_t thread;
    struct comm *comm;
    int rc;          /* of connecting, then of `body` */
    char text[600];  /* what went wrong */
    double ended_ms; /* when body returned */
    int failed_rank;
};

struct cluster {
    int world;
    bool is_direct; /* transports may read each other's memory */
    int listeners[WORLD_MAX];
    char texts[WORLD_MAX][32];
    const char *addresses[WORLD_MAX];
    uint8_t key[COMM_KEY_SIZE];
    struct rank_thread ranks[WORLD_MAX];
    int (*body)(struct rank_thread *self, struct fleet_error *err);
    const void *argument;
};

static double soon(double ms)
{
    return fleet_monotonic_ms() + ms;
}

static void cluster_init(struct cluster *c, int world)
{
    memset(c, 0, sizeof(*c));
    c->world = world;
    memset(c->key, 0x5a, sizeof(c->key));
    for (int r = 0; r < world; r++) {
        int port;
        assert_int_equal(comm_tcp_listen("127.0.0.1", &c->listeners[r], &port, NULL), 0);
        snprintf(c->texts[r], sizeof(c->texts[r]), "127.0.0.1:%d", port);
        c->addresses[r] = c->texts[r];
        c->ranks[r] = (struct rank_thread){.cluster = c, .rank = r, .failed_rank = -1};
    }
}

static void cluster_release(struct cluster *c)
{
    for (int r = 0; r < c->world; r++) {
        comm_free(c->ranks[r].comm);
        (void)close(c->listeners[r]);
    }
}

static int connect_rank(struct cluster *c, int rank, double deadline_ms, struct comm **out,
                        struct fleet_error *err)
{
    struct comm_tcp_options options = {.rank = rank,
                                       .world = c->world,
                                       .addresses = c->addresses,
                                       .listener = c->listeners[rank],
                                       .stop = -1,
                                       .is_direct = c->is_direct,
                                       .failed_rank = &c->ranks[rank].failed_rank};

    memcpy(options.key, c->key, sizeof(options.key));
    return comm_tcp_new(&options, deadline_ms, out, err);
}

static void *rank_main(void *argument)
{
    struct rank_thread *self = argument;
    struct fleet_error err = {.text = ""};

    if (!self->comm)
        self->rc = connect_rank(self->cluster, self->rank, soon(CONNECTION), &self->comm, &err);
    if (self->rc == 0 && self->cluster->body)
        self->rc = self->cluster->body(self, &err);
    self->ended_ms = fleet_monotonic_ms();
    if (self->rc < 0 && self->comm)
        self->failed_rank = self->comm->failed_rank;
    snprintf(self->text, sizeof(self->text), "rank %d: %d %s", self->rank, self->rc, err.text);
    return NULL;
}

static void start(struct cluster *c, int (*body)(struct rank_thread *, struct fleet_error *))
{
    c->body = body;
    for (int r = 0; r < c->world; r++)
        assert_int_equal(pthread_create(&c->ranks[r].thread, NULL, rank_main, &c->ranks[r]), 0);
}

static void join(struct cluster *c)
{
    for (int r = 0; r < c->world; r++)
        assert_int_equal(pthread_join(c->ranks[r].thread, NULL), 0);
}

/* Run `body` on every rank; all must succeed. */
static void run(struct cluster *c, int (*body)(struct rank_thread *, struct fleet_error *))
{
    start(c, body);
    join(c);
    for (int r = 0; r < c->world; r++)
        if (c->ranks[r].rc != 0)
            fail_msg("%s", c->ranks[r].text);
}

/* A byte that depends on sender, receiver and position. */
static uint8_t pattern(int from, int to, size_t i)
{
    return (uint8_t)(i * 31 + (size_t)from * 7 + (size_t)to * 13 + 1);
}

static int wrong(struct fleet_error *err, const char *what, int from, size_t at)
{
    return fleet_error(err, -EBADMSG, "%s: wrong data from rank %d at byte %zu", what, from, at);
}

/* ---- collectives ----------------------------------------------------------------------------- */

/* Sizes that differ for every pair and direction, some zero, some larger than socket buffers. */
static size_t pair_bytes(int from, int to)
{
    static const size_t sizes[] = {0, 1, 4096, 100, 700001, 3000000, 17};

    return sizes[(from * 3 + to * 5) % 7];
}

static int exchange_uneven(struct rank_thread *self, struct fleet_error *err)
{
    int world = self->comm->world, rc;
    uint8_t *out[WORLD_MAX], *in[WORLD_MAX];
    size_t out_bytes[WORLD_MAX], in_bytes[WORLD_MAX];

    for (int p = 0; p < world; p++) {
        out_bytes[p] = pair_bytes(self->rank, p);
        in_bytes[p] = pair_bytes(p, self->rank);
        out[p] = malloc(out_bytes[p] + 1);
        in[p] = calloc(1, in_bytes[p] + 1);
        for (size_t i = 0; i < out_bytes[p]; i++)
            out[p][i] = pattern(self->rank, p, i);
    }
    rc = comm_exchange(self->comm, (const void *const *)out, out_bytes, (void *const *)in, in_bytes,
                       soon(PATIENCE), err);
    for (int p = 0; p < world; p++) {
        for (size_t i = 0; i < in_bytes[p] && rc == 0; i++)
            if (in[p][i] != pattern(p, self->rank, i))
                rc = wrong(err, "exchange", p, i);
        free(out[p]);
        free(in[p]);
    }
    return rc;
}

static int gather_some(struct comm *comm, size_t bytes, struct fleet_error *err)
{
    uint8_t *mine = malloc(bytes + 1), *all = calloc((size_t)comm->world, bytes + 1);
    int rc;

    for (size_t i = 0; i < bytes; i++)
        mine[i] = pattern(comm->rank, 0, i);
    rc = comm_all_gather(comm, mine, bytes, all, soon(PATIENCE), err);
    for (size_t i = 0; i < bytes * (size_t)comm->world && rc == 0; i++)
        if (all[i] != pattern((int)(i / bytes), 0, i % bytes))
            rc = wrong(err, "all_gather", (int)(i / bytes), i % bytes);
    free(mine);
    free(all);
    return rc;
}

static int gather_varying(struct comm *comm, struct fleet_error *err)
{
    size_t bytes[WORLD_MAX], total = 0, at = 0;
    uint8_t mine[64], all[64 * WORLD_MAX];
    int rc;

    for (int r = 0; r < comm->world; r++)
        total += bytes[r] = (size_t)(r * 11) % 64;
    for (size_t i = 0; i < sizeof(mine); i++)
        mine[i] = pattern(comm->rank, 0, i);
    rc = comm_all_gather_varying(comm, mine, bytes, all, soon(PATIENCE), err);
    for (int r = 0; r < comm->world && rc == 0; at += bytes[r++])
        for (size_t i = 0; i < bytes[r]; i++)
            if (all[at + i] != pattern(r, 0, i))
                return wrong(err, "all_gather_varying", r, i);
    return rc == 0 && at != total ? wrong(err, "all_gather_varying", -1, at) : rc;
}

static int broadcast_some(struct comm *comm, size_t bytes, struct fleet_error *err)
{
    uint8_t *data = malloc(bytes + 1);
    int rc = 0;

    for (int root = 0; root < comm->world && rc == 0; root++) {
        for (size_t i = 0; i < bytes; i++)
            data[i] = comm->rank == root ? pattern(root, 1, i) : 0;
        rc = comm_broadcast(comm, data, bytes, root, soon(PATIENCE), err);
        for (size_t i = 0; i < bytes && rc == 0; i++)
            if (data[i] != pattern(root, 1, i))
                rc = wrong(err, "broadcast", root, i);
    }
    free(data);
    return rc;
}

static int all_to_all_some(struct comm *comm, size_t bytes, struct fleet_error *err)
{
    size_t total = bytes * (size_t)comm->world;
    uint8_t *out = malloc(total), *in = calloc(1, total);
    int rc;

    for (size_t i = 0; i < total; i++)
        out[i] = pattern(comm->rank, (int)(i / bytes), i % bytes);
    rc = comm_all_to_all(comm, out, bytes, in, soon(PATIENCE), err);
    for (size_t i = 0; i < total && rc == 0; i++)
        if (in[i] != pattern((int)(i / bytes), comm->rank, i % bytes))
            rc = wrong(err, "all_to_all", (int)(i / bytes), i % bytes);
    free(out);
    free(in);
    return rc;
}

/* A number goes once around the ring of ranks, each adds its own. */
static int ring(struct comm *comm, struct fleet_error *err)
{
    int world = comm->world, next = (comm->rank + 1) % world,
        last = (comm->rank + world - 1) % world;
    int64_t value = 0, expected = (int64_t)world * (world - 1) / 2;
    int rc = 0;

    if (world == 1)
        return 0;
    if (comm->rank > 0)
        rc = comm_receive(comm, last, &value, sizeof(value), soon(PATIENCE), err);
    value += comm->rank;
    if (rc == 0)
        rc = comm_send(comm, next, &value, sizeof(value), soon(PATIENCE), err);
    if (rc == 0 && comm->rank == 0)
        rc = comm_receive(comm, last, &value, sizeof(value), soon(PATIENCE), err);
    if (rc == 0 && comm->rank == 0 && value != expected)
        return fleet_error(err, -EBADMSG, "ring: expected %lld, got %lld", (long long)expected,
                           (long long)value);
    return rc;
}

/* The thread sanitizer looks at every byte: a third of it shows as many orders of threads as it
 * will. */
static int rounds(int usual)
{
    const char *variant = getenv("FLEET_TEST_VARIANT");

    return variant && strcmp(variant, "tsan") == 0 ? usual / 3 : usual;
}

static int all_collectives(struct rank_thread *self, struct fleet_error *err)
{
    struct comm *comm = self->comm;
    int rc = exchange_uneven(self, err);

    for (int round = 0; round < rounds(3) && rc == 0; round++) {
        rc = ring(comm, err);
        rc = rc ? rc : gather_some(comm, 3, err);
        rc = rc ? rc : gather_some(comm, 1000003, err);
        rc = rc ? rc : gather_varying(comm, err);
        rc = rc ? rc : broadcast_some(comm, 5, err);
        rc = rc ? rc : broadcast_some(comm, 0, err);
        rc = rc ? rc : broadcast_some(comm, 1500007, err);
        rc = rc ? rc : all_to_all_some(comm, 70001, err);
        rc = rc ? rc : comm_barrier(comm, soon(PATIENCE), err);
    }
    return rc;
}

static void test_comm__every_collective_in_every_world(void **state)
{
    (void)state;
    for (int world = 1; world <= WORLD_MAX; world += world == 5 ? 3 : 1) {
        struct cluster c;
        cluster_init(&c, world);
        run(&c, all_collectives);
        for (int r = 1; r < world; r++) /* all ranks gave and took the same number of bytes */
            assert_true(c.ranks[r].comm->bytes_sent > 0);
        cluster_release(&c);
    }
}

/* Ranks are threads of one process here, so all of them can be read. */
static void test_comm__every_collective_from_memory_to_memory(void **state)
{
    (void)state;
    for (int world = 2; world <= 5; world++) {
        struct cluster c;
        cluster_init(&c, world);
        c.is_direct = true;
        run(&c, all_collectives);
        for (int r = 0; r < world; r++)
            assert_int_equal(c.ranks[r].comm->direct_ranks, world - 1);
        cluster_release(&c);
    }
}

static int exchange_many(struct rank_thread *self, struct fleet_error *err)
{
    int rc = 0;

    for (int i = 0; i < rounds(30) && rc == 0; i++)
        rc = i % 3 ? all_to_all_some(self->comm, (size_t)(i * 2311 + 1), err)
                   : exchange_uneven(self, err);
    return rc;
}

/* Only some ranks want it, or none: the others go on through sockets, and all agree. */
static void test_comm__ranks_may_differ_in_what_they_can_read(void **state)
{
    (void)state;
    for (int without = 0; without < 3; without++) {
        struct cluster c, plain;
        pthread_t threads[3];
        cluster_init(&c, 3);
        c.is_direct = true;
        plain = c;
        plain.is_direct = false;
        for (int r = 0; r < 3; r++)
            c.ranks[r].cluster = r == without ? &plain : &c;
        c.body = plain.body = exchange_many;
        for (int r = 0; r < 3; r++)
            assert_int_equal(pthread_create(&threads[r], NULL, rank_main, &c.ranks[r]), 0);
        for (int r = 0; r < 3; r++)
            pthread_join(threads[r], NULL);
        for (int r = 0; r < 3; r++) {
            if (c.ranks[r].rc != 0)
                fail_msg("%s", c.ranks[r].text);
            assert_int_equal(c.ranks[r].comm->direct_ranks, r == without ? 0 : 1);
        }
        cluster_release(&c);
    }
}

static void test_comm__a_world_of_one_needs_no_transport(void **state)
{
    struct comm *comm = comm_local_new();
    struct rank_thread self = {.comm = comm};
    struct fleet_error err = {.text = ""};

    (void)state;
    if (all_collectives(&self, &err) != 0)
        fail_msg("%s", err.text);
    assert_int_equal(comm->bytes_sent, 0);
    comm_abort(comm);
    assert_int_equal(comm_barrier(comm, INFINITY, NULL), -ECANCELED);
    assert_int_equal(comm_barrier(comm, INFINITY, NULL), -ECONNABORTED);
    comm_free(comm);
}

/* ---- the deterministic sum ------------------------------------------------------------------- */

static float leaf_value(int64_t leaf, int64_t element)
{
    uint32_t x = (uint32_t)(leaf * 2654435761u + element * 40503u + 12345u);

    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    return (float)(int32_t)x * (float)ldexp(1.0, (int)(x % 23) - 40);
}

static float tree_sum(int64_t a, int64_t b, int64_t element)
{
    int64_t power = 1;

    if (b - a == 1)
        return leaf_value(a, element);
    while (2 * power < b - a)
        power *= 2;
    return tree_sum(a, a + power, element) + tree_sum(a + power, b, element);
}

struct sum_case {
    int64_t leaves, count;
};

static int tree_reduce(struct rank_thread *self, struct fleet_error *err)
{
    const struct sum_case *x = self->cluster->argument;
    struct comm *comm = self->comm;
    struct tree_node nodes[TREE_NODES_MAX];
    int count = tree_nodes(x->leaves, tree_first_leaf(x->leaves, comm->world, comm->rank),
                           tree_first_leaf(x->leaves, comm->world, comm->rank + 1), nodes);
    float *slots[TREE_NODES_MAX];
    void *workspace = malloc(tree_sum_workspace(x->leaves, comm->world, x->count) + 1);
    int rc;

    for (int i = 0; i < count; i++) {
        slots[i] = malloc((size_t)x->count * sizeof(float));
        for (int64_t e = 0; e < x->count; e++)
            slots[i][e] = tree_sum(nodes[i].first, nodes[i].end, e);
    }
    rc = comm_tree_sum(comm, x->leaves, slots, x->count, workspace, soon(PATIENCE), err);
    for (int64_t e = 0; e < x->count && rc == 0; e++) {
        float expected = tree_sum(0, x->leaves, e);
        if (memcmp(&expected, &slots[0][e], sizeof(float)) != 0)
            rc = fleet_error(
                err, -EBADMSG, "leaves %lld, element %lld of %lld: expected %a, got %a",
                (long long)x->leaves, (long long)e, (long long)x->count, expected, slots[0][e]);
    }
    for (int i = 0; i < count; i++)
        free(slots[i]);
    free(workspace);
    return rc;
}

static void test_comm_tree_sum__gives_the_bits_of_the_sequential_tree(void **state)
{
    static const struct sum_case cases[] = {{8, 1},      {8, 17},     {9, 8192},  {13, 8193},
                                            {16, 50001}, {33, 12345}, {64, 9000}, {31, 1200007}};

    (void)state;
    for (int world = 1; world <= WORLD_MAX; world++) {
        struct cluster c;
        cluster_init(&c, world);
        c.is_direct = world % 2;
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
            if (cases[i].count > 1000000 && world != 3)
                continue;
            c.argument = &cases[i];
            run(&c, tree_reduce);
        }
        cluster_release(&c);
    }
}

/* ---- what can go wrong ----------------------------------------------------------------------- */

static int wait_for_rank_1(struct rank_thread *self, struct fleet_error *err)
{
    char byte;

    if (self->rank == 1)
        return 0; /* connected, silent */
    return comm_receive(self->comm, 1, &byte, 1, INFINITY, err);
}

static void test_comm__abort_ends_a_waiting_call_and_the_peers_notice(void **state)
{
    struct cluster c;

    (void)state;
    cluster_init(&c, 3);
    run(&c, NULL); /* connected: the main thread may use what the threads made */
    start(&c, wait_for_rank_1);
    assert_int_equal(pthread_join(c.ranks[1].thread, NULL), 0);
    usleep(50000); /* ranks 0 and 2 wait by now, without a deadline */
    comm_abort(c.ranks[0].comm);
    pthread_join(c.ranks[0].thread, NULL);
    assert_int_equal(c.ranks[0].rc, -ECANCELED);
    assert_int_equal(comm_barrier(c.ranks[0].comm, soon(PATIENCE), NULL), -ECONNABORTED);
    comm_abort(c.ranks[1].comm); /* not in a call: its peers must notice all the same */
    pthread_join(c.ranks[2].thread, NULL);
    assert_int_equal(c.ranks[2].rc, -ECONNRESET);
    assert_int_equal(c.ranks[2].failed_rank, 1);
    cluster_release(&c);
}

static int endless_exchange(struct rank_thread *self, struct fleet_error *err)
{
    size_t bytes = 1 << 20;
    char *out = calloc((size_t)self->comm->world, bytes), *in = malloc(bytes * 3);
    int rc = 0;

    while (rc == 0)
        rc = comm_all_to_all(self->comm, out, bytes, in, soon(PATIENCE), err);
    free(out);
    free(in);
    return rc;
}

static void test_comm__abort_in_the_middle_of_large_messages(void **state)
{
    (void)state;
    for (int round = 0; round < 6; round++) {
        struct cluster c;
        cluster_init(&c, 3);
        c.is_direct = round % 2;
        run(&c, NULL);
        start(&c, endless_exchange);
        usleep(20000 + 3000 * (useconds_t)round);
        comm_abort(c.ranks[1].comm);
        join(&c);
        assert_int_equal(c.ranks[1].rc, -ECANCELED);
        assert_int_equal(c.ranks[0].rc, -ECONNRESET);
        assert_int_equal(c.ranks[2].rc, -ECONNRESET);
        cluster_release(&c);
    }
}

/* A child sends large messages until it is killed: what arrived is whole, then the loss is
 * noticed. */
static void test_comm__a_peer_killed_in_the_middle_of_direct_messages(void **state)
{
    const size_t bytes = 4 << 20;
    uint8_t *data = malloc(bytes);

    (void)state;
    for (int round = 0; round < 4; round++) {
        struct cluster c;
        struct comm *comm = NULL;
        struct fleet_error err = {.text = ""};
        int rc = 0;
        pid_t child;
        cluster_init(&c, 2);
        c.is_direct = true;
        child = fork();
        if (child == 0) {
            memset(data, round + 1, bytes);
            if (connect_rank(&c, 1, soon(CONNECTION), &comm, NULL) == 0)
                while (comm_send(comm, 0, data, bytes, soon(PATIENCE), NULL) == 0)
                    ;
            _exit(1);
        }
        assert_int_equal(connect_rank(&c, 0, soon(CONNECTION), &comm, &err), 0);
        for (int i = 0; rc == 0; i++) {
            if (i == 3 + round)
                assert_int_equal(kill(child, SIGKILL), 0);
            rc = comm_receive(comm, 1, data, bytes, soon(PATIENCE), &err);
            for (size_t at = 0; at < bytes && rc == 0; at++)
                if (data[at] != round + 1)
                    fail_msg("message %d, byte %zu: expected %d, got %d", i, at, round + 1,
                             data[at]);
        }
        assert_int_equal(rc, -ECONNRESET);
        assert_int_equal(comm->failed_rank, 1);
        assert_int_equal(waitpid(child, NULL, 0), child);
        comm_free(comm);
        cluster_release(&c);
    }
    free(data);
}

static void test_comm__a_killed_peer_is_noticed(void **state)
{
    struct cluster c;
    struct fleet_error err = {.text = ""};
    struct comm *comm = NULL;
    char byte;
    pid_t child;

    (void)state;
    cluster_init(&c, 2);
    child = fork();
    if (child == 0) {
        if (connect_rank(&c, 1, soon(CONNECTION), &comm, NULL) == 0 &&
            comm_send(comm, 0, "x", 1, soon(PATIENCE), NULL) == 0)
            (void)kill(getpid(), SIGKILL);
        _exit(1);
    }
    assert_int_equal(connect_rank(&c, 0, soon(CONNECTION), &comm, &err), 0);
    assert_int_equal(comm_receive(comm, 1, &byte, 1, soon(PATIENCE), &err), 0); /* was sent */
    assert_int_equal(comm_receive(comm, 1, &byte, 1, INFINITY, &err), -ECONNRESET);
    assert_int_equal(comm->failed_rank, 1);
    assert_non_null(strstr(err.text, "rank 1"));
    assert_int_equal(waitpid(child, NULL, 0), child);
    comm_free(comm);
    cluster_release(&c);
}

static int short_deadline(struct rank_thread *self, struct fleet_error *err)
{
    char byte;

    if (self->rank == 1)
        return 0;
    return comm_receive(self->comm, 1, &byte, 1, soon(100), err);
}

static void test_comm__a_deadline_is_kept_and_names_the_rank(void **state)
{
    struct cluster c;
    double started;

    (void)state;
    cluster_init(&c, 2);
    run(&c, NULL);
    started = fleet_monotonic_ms();
    start(&c, short_deadline);
    join(&c);
    assert_int_equal(c.ranks[0].rc, -ETIMEDOUT);
    assert_int_equal(c.ranks[0].failed_rank, 1);
    assert_non_null(strstr(c.ranks[0].text, "receive from rank 1"));
    assert_true(c.ranks[0].ended_ms - started >= 99);
    cluster_release(&c);
}

static int disagree(struct rank_thread *self, struct fleet_error *err)
{
    char data[32] = {0};

    if (self->rank == 0)
        return comm_send(self->comm, 1, data, 16, soon(PATIENCE), err);
    return comm_receive(self->comm, 0, data, 24, soon(PATIENCE), err);
}

static void test_comm__ranks_that_disagree_on_a_size_are_told(void **state)
{
    struct cluster c;

    (void)state;
    cluster_init(&c, 2);
    start(&c, disagree);
    join(&c);
    assert_int_equal(c.ranks[1].rc, -EPROTO);
    assert_non_null(strstr(c.ranks[1].text, "16 bytes where message 2 of 24"));
    cluster_release(&c);
}

/* ---- at the door ----------------------------------------------------------------------------- */

static int raw_connection(const char *address)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    to.sin_port = htons((uint16_t)atoi(strrchr(address, ':') + 1));
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    return fd;
}

static void test_comm__garbage_and_silence_at_the_door_disturb_nobody(void **state)
{
    struct cluster c;
    int fds[300];
    char noise[200];

    (void)state;
    cluster_init(&c, 4);
    for (size_t i = 0; i < sizeof(noise); i++)
        noise[i] = (char)(i * 37 + 11);
    for (int i = 0; i < 300; i++) { /* silent, short, long; some hang up at once */
        fds[i] = raw_connection(c.addresses[i % 3]);
        (void)!send(fds[i], noise, (size_t)(i % 4) * 60, MSG_NOSIGNAL);
        if (i % 5 == 0) {
            (void)close(fds[i]);
            fds[i] = -1;
        }
    }
    run(&c, all_collectives);
    for (int i = 0; i < 300; i++)
        if (fds[i] >= 0)
            (void)close(fds[i]);
    cluster_release(&c);
}

static void test_comm__a_rank_with_another_key_stays_outside(void **state)
{
    struct cluster c, stranger;
    struct comm *comm = NULL;
    struct fleet_error err = {.text = ""};

    (void)state;
    cluster_init(&c, 3);
    stranger = c; /* same addresses, another key: rank 2 of an older generation */
    stranger.key[0] ^= 1;
    assert_int_equal(connect_rank(&stranger, 2, soon(300), &comm, &err), -ETIMEDOUT);
    start(&c, all_collectives);
    assert_int_equal(connect_rank(&stranger, 2, soon(1), &comm, &err), -ETIMEDOUT);
    join(&c);
    for (int r = 0; r < 3; r++)
        if (c.ranks[r].rc != 0)
            fail_msg("%s", c.ranks[r].text);
    cluster_release(&c);
}

static void *old_then_new(void *argument)
{
    struct rank_thread *self = argument;
    struct fleet_error err = {.text = ""};

    /* It is still joining the last generation … */
    (void)connect_rank((struct cluster *)self->cluster->argument, 0, soon(200), &self->comm, NULL);
    self->rc = connect_rank(self->cluster, 0, soon(CONNECTION), &self->comm, &err);
    snprintf(self->text, sizeof(self->text), "%s", err.text);
    return NULL;
}

static void test_comm__a_peer_that_is_late_from_the_last_generation_is_waited_for(void **state)
{
    struct cluster c, old;
    struct fleet_error err = {.text = ""};

    (void)state;
    cluster_init(&c, 2);
    old = c;
    old.key[5] ^= 0xff;
    c.argument = &old;
    assert_int_equal(pthread_create(&c.ranks[0].thread, NULL, old_then_new, &c.ranks[0]), 0);
    if (connect_rank(&c, 1, soon(CONNECTION), &c.ranks[1].comm, &err) != 0)
        fail_msg("%s", err.text);
    pthread_join(c.ranks[0].thread, NULL);
    if (c.ranks[0].rc != 0)
        fail_msg("%s", c.ranks[0].text);
    run(&c, all_collectives);
    cluster_release(&c);
}

static void test_comm__an_absent_rank_is_named_at_the_deadline(void **state)
{
    struct cluster c;
    struct comm *comm = NULL;
    struct fleet_error err = {.text = ""};

    (void)state;
    cluster_init(&c, 3);
    assert_int_equal(connect_rank(&c, 0, soon(100), &comm, &err), -ETIMEDOUT);
    assert_int_equal(c.ranks[0].failed_rank, 1);
    assert_non_null(strstr(err.text, c.addresses[1]));
    (void)close(c.listeners[0]); /* now nobody listens there */
    c.listeners[0] = -1;
    assert_int_equal(connect_rank(&c, 2, soon(1000), &comm, &err), -ETIMEDOUT);
    assert_int_equal(c.ranks[2].failed_rank, 0);
    assert_non_null(strstr(err.text, "refused"));
    c.addresses[0] = "no port";
    assert_int_equal(connect_rank(&c, 2, soon(100), &comm, &err), -EINVAL);
    assert_non_null(strstr(err.text, "no port"));
    cluster_release(&c);
}

static void test_comm__connecting_can_be_cancelled(void **state)
{
    struct cluster c;
    struct comm *comm = NULL;
    struct fleet_error err = {.text = ""};
    int stop = eventfd(1, EFD_CLOEXEC);
    struct comm_tcp_options options;

    (void)state;
    cluster_init(&c, 2);
    options = (struct comm_tcp_options){
        .rank = 0, .world = 2, .addresses = c.addresses, .listener = c.listeners[0], .stop = stop};
    assert_int_equal(comm_tcp_new(&options, INFINITY, &comm, &err), -ECANCELED);
    (void)close(stop);
    cluster_release(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm__a_world_of_one_needs_no_transport),
        cmocka_unit_test(test_comm__every_collective_in_every_world),
        cmocka_unit_test(test_comm__every_collective_from_memory_to_memory),
        cmocka_unit_test(test_comm__ranks_may_differ_in_what_they_can_read),
        cmocka_unit_test(test_comm_tree_sum__gives_the_bits_of_the_sequential_tree),
        cmocka_unit_test(test_comm__abort_ends_a_waiting_call_and_the_peers_notice),
        cmocka_unit_test(test_comm__abort_in_the_middle_of_large_messages),
        cmocka_unit_test(test_comm__a_killed_peer_is_noticed),
        cmocka_unit_test(test_comm__a_peer_killed_in_the_middle_of_direct_messages),
        cmocka_unit_test(test_comm__a_deadline_is_kept_and_names_the_rank),
        cmocka_unit_test(test_comm__ranks_that_disagree_on_a_size_are_told),
        cmocka_unit_test(test_comm__garbage_and_silence_at_the_door_disturb_nobody),
        cmocka_unit_test(test_comm__a_rank_with_another_key_stays_outside),
        cmocka_unit_test(test_comm__a_peer_that_is_late_from_the_last_generation_is_waited_for),
        cmocka_unit_test(test_comm__an_absent_rank_is_named_at_the_deadline),
        cmocka_unit_test(test_comm__connecting_can_be_cancelled),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

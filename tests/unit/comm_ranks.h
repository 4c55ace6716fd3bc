/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_COMM_RANKS_H
#define TESTS_UNIT_COMM_RANKS_H

/*
 * The ranks of a communicator as threads of one process, each with a transport of its own. The
 * threads record results; the main thread asserts.
 */

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent/runtime/comm/comm.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"

#define COMM_RANKS_MAX 8

struct comm_ranks;

struct comm_rank {
    struct comm_ranks *all;
    int rank;
    pthread_t thread;
    struct comm *comm;
    int rc;          /* of connecting, then of `body` */
    char text[600];  /* what went wrong */
    double ended_ms; /* when body returned */
    int failed_rank;
};

struct comm_ranks {
    int world;
    enum comm_neighbours neighbours;
    int channels;
    bool encrypts;
    int listeners[COMM_RANKS_MAX];
    char texts[COMM_RANKS_MAX][32];
    const char *addresses[COMM_RANKS_MAX];
    uint8_t key[COMM_KEY_SIZE];
    struct comm_rank ranks[COMM_RANKS_MAX];
    int (*body)(struct comm_rank *self, struct fleet_error *err);
    const void *argument;
};

static inline double comm_ranks_soon(double ms)
{
    return fleet_monotonic_ms() + ms;
}

/* A deadline later than anything ends, under a sanitizer on a busy machine. */
static inline double comm_ranks_patience(void)
{
    return comm_ranks_soon(120000);
}

static inline void comm_ranks_init(struct comm_ranks *c, int world)
{
    memset(c, 0, sizeof(*c));
    c->world = world;
    memset(c->key, 0x5a, sizeof(c->key));
    for (int r = 0; r < world; r++) {
        int port;
        assert_int_equal(comm_tcp_listen("127.0.0.1", &c->listeners[r], &port, NULL), 0);
        snprintf(c->texts[r], sizeof(c->texts[r]), "127.0.0.1:%d", port);
        c->addresses[r] = c->texts[r];
        c->ranks[r] = (struct comm_rank){.all = c, .rank = r, .failed_rank = -1};
    }
}

static inline void comm_ranks_release(struct comm_ranks *c)
{
    for (int r = 0; r < c->world; r++) {
        comm_free(c->ranks[r].comm);
        (void)close(c->listeners[r]);
    }
}

static inline int comm_ranks_connect(struct comm_ranks *c, int rank, double deadline_ms,
                                     struct comm **out, struct fleet_error *err)
{
    struct comm_tcp_options options = {.rank = rank,
                                       .world = c->world,
                                       .addresses = c->addresses,
                                       .listener = c->listeners[rank],
                                       .stop = -1,
                                       .neighbours = c->neighbours,
                                       .channels = c->channels,
                                       .encrypts = c->encrypts,
                                       .failed_rank = &c->ranks[rank].failed_rank};

    memcpy(options.key, c->key, sizeof(options.key));
    return comm_tcp_new(&options, deadline_ms, out, err);
}

static inline void *comm_ranks_main(void *argument)
{
    struct comm_rank *self = argument;
    struct fleet_error err = {.text = ""};

    if (!self->comm)
        self->rc =
            comm_ranks_connect(self->all, self->rank, comm_ranks_patience(), &self->comm, &err);
    if (self->rc == 0 && self->all->body)
        self->rc = self->all->body(self, &err);
    self->ended_ms = fleet_monotonic_ms();
    if (self->rc < 0 && self->comm)
        self->failed_rank = self->comm->failed_rank;
    snprintf(self->text, sizeof(self->text), "rank %d: %d %s", self->rank, self->rc, err.text);
    return NULL;
}

static inline void comm_ranks_start(struct comm_ranks *c,
                                    int (*body)(struct comm_rank *, struct fleet_error *))
{
    c->body = body;
    for (int r = 0; r < c->world; r++)
        assert_int_equal(pthread_create(&c->ranks[r].thread, NULL, comm_ranks_main, &c->ranks[r]),
                         0);
}

static inline void comm_ranks_join(struct comm_ranks *c)
{
    for (int r = 0; r < c->world; r++)
        assert_int_equal(pthread_join(c->ranks[r].thread, NULL), 0);
}

/* Run `body` on every rank; all must succeed. */
static inline void comm_ranks_run(struct comm_ranks *c,
                                  int (*body)(struct comm_rank *, struct fleet_error *))
{
    comm_ranks_start(c, body);
    comm_ranks_join(c);
    for (int r = 0; r < c->world; r++)
        if (c->ranks[r].rc != 0)
            fail_msg("%s", c->ranks[r].text);
}

/* Run `body` on `world` new ranks, with `argument`; all must succeed. */
static inline void comm_ranks_do(int world, int (*body)(struct comm_rank *, struct fleet_error *),
                                 const void *argument)
{
    struct comm_ranks ranks;

    comm_ranks_init(&ranks, world);
    ranks.argument = argument;
    comm_ranks_run(&ranks, body);
    comm_ranks_release(&ranks);
}

/* A byte that depends on sender, receiver and position. */
static inline uint8_t comm_ranks_byte(int from, int to, size_t i)
{
    return (uint8_t)(i * 31 + (size_t)from * 7 + (size_t)to * 13 + 1);
}

static inline int comm_ranks_wrong(struct fleet_error *err, const char *what, int from, size_t at)
{
    return fleet_error(err, -EBADMSG, "%s: wrong data from rank %d at byte %zu", what, from, at);
}

/* The thread sanitizer looks at every byte: a third of it shows as many orders of threads as it
 * will. */
static inline int comm_ranks_rounds(int usual)
{
    const char *variant = getenv("FLEET_TEST_VARIANT");

    return variant && strcmp(variant, "tsan") == 0 ? usual / 3 : usual;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_PS_CLIENT_H
#define DISTRIBUTED_PS_CLIENT_H

/*
 * A worker. link.c is the connection to one server, exchange.c asks several servers at once and
 * repeats what was not answered, worker.c begins and ends, access.c pulls and pushes, queue.c has
 * the gradients that wait in async and half-async mode, geo.c the copies of geo mode, options.c the
 * settings.
 *
 * In sync mode a link keeps what it sent in this step and in the one before. A server that was
 * replaced gets it again.
 */

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "distributed/ps/frame.h"
#include "distributed/ps/merge.h"
#include "distributed/ps/proof.h"

/* A push that a server has acknowledged. */
struct ps_sent {
    struct ps_header header;
    uint8_t *payload;
    struct ps_sent *next;
};

struct ps_link {
    char *endpoint;
    int fd;           /* -1: not connected */
    uint64_t process; /* of the server; 0: never connected */
    int64_t updates;  /* that it has carried out for this worker and others, as far as we know */
    struct ps_sent *before, *now, **now_end; /* steps */
};

struct ps_queue;
struct ps_geo;

struct ps_client_table {
    struct fleet_ps_table spec; /* as the servers have it */
    float *first_values;        /* of fleet_ps_set_dense(), for servers that lost them; or NULL */
    struct ps_merge *merge;     /* half-async: pushes that wait; or NULL */
    float *dense_sum;           /* the same for a dense table */
    int waiting;                /* pushes in merge or dense_sum */
    struct ps_geo *geo;
};

struct fleet_ps {
    int worker, workers, servers;
    struct fleet_ps_options options;
    uint8_t key[32];
    uint64_t process, sequence;
    int64_t step; /* that is under way */
    int barriers, replaced;
    struct ps_link *links; /* [servers] */
    struct ps_client_table *tables[FLEET_PS_TABLES_MAX];
    pthread_mutex_t wire; /* one exchange at a time */
    struct ps_queue *queue;
};

/* ---- link.c ---- */

/* Connect, prove the secret, greet, send tables and what the server lost. -EACCES, -ECONNABORTED,
 * -EPROTO: a second try fails likewise; other errors: try again. */
int ps_link_open(struct fleet_ps *ps, int server, double deadline, struct fleet_error *err);
void ps_link_close(struct ps_link *link);
void ps_link_release(struct ps_link *link);

/* 0 or the error of the connection. */
int ps_link_send(struct ps_link *link, const struct ps_header *header, const void *payload,
                 double deadline, struct fleet_error *err);

/* One answer to `sequence`. PS_ERROR is the error `*refused` and result 0. *out is the caller's. */
int ps_link_receive(struct ps_link *link, uint64_t sequence, double deadline, void **out,
                    size_t *bytes, struct fleet_error *refused, struct fleet_error *err);

/* Sync mode: the server has acknowledged this push. Takes the payload. */
void ps_link_keep(struct ps_link *link, const struct ps_header *header, uint8_t *payload);

/* The step is over. */
void ps_link_next_step(struct ps_link *link);

/* ---- exchange.c ---- */

struct ps_request {
    bool is_wanted; /* else this server is not asked */
    enum ps_kind kind;
    int table, code;
    const void *payload;
    size_t bytes;
    struct ps_header sent; /* as it was sent */
    void *result;          /* heap */
    size_t result_bytes;
};

/* Ask all servers that are wanted, requests[servers]. `patience_ms` is added to the time limit. On
 * failure no result is there. */
int ps_exchange(struct fleet_ps *ps, struct ps_request *requests, int patience_ms,
                struct fleet_error *err);

/* The same request to all servers. Results are dropped. */
int ps_ask_all(struct fleet_ps *ps, enum ps_kind kind, int table, int code, const void *payload,
               size_t bytes, struct fleet_error *err);

/* ---- access.c ---- */

/* Find a table that was made, sparse or dense. -EINVAL */
int ps_client_table(struct fleet_ps *ps, int table, bool is_dense, struct ps_client_table **out,
                    struct fleet_error *err);

/* Straight to and from the servers. */
int ps_pull_now(struct fleet_ps *ps, const struct fleet_ps_table *spec, const uint64_t *keys,
                size_t count, bool is_training, float *out, struct fleet_error *err);
int ps_push_now(struct fleet_ps *ps, const struct fleet_ps_table *spec, const struct ps_push *push,
                struct fleet_error *err);
int ps_pull_dense_now(struct fleet_ps *ps, const struct fleet_ps_table *spec, float *out,
                      struct fleet_error *err);
/* kind: PS_PUSH_DENSE or PS_SET_DENSE */
int ps_push_dense_now(struct fleet_ps *ps, const struct fleet_ps_table *spec, enum ps_kind kind,
                      const float *values, struct fleet_error *err);

/* ---- queue.c ---- */

/* half-async: add to what waits; async: give it to the thread. push NULL: dense. */
int ps_queue_add(struct fleet_ps *ps, struct ps_client_table *table, const struct ps_push *push,
                 const float *dense, struct fleet_error *err);

/* Send all that waits, and return an error of the thread. */
int ps_queue_flush(struct fleet_ps *ps, struct fleet_error *err);

int ps_queue_start(struct fleet_ps *ps, struct fleet_error *err); /* async */
void ps_queue_free(struct fleet_ps *ps);

/* ---- geo.c ---- */

int ps_geo_new(struct ps_client_table *table, struct fleet_error *err);
void ps_geo_free(struct ps_geo *geo);
int ps_geo_pull(struct fleet_ps *ps, struct ps_client_table *table, const uint64_t *keys,
                size_t count, float *out, struct fleet_error *err);
int ps_geo_push(struct fleet_ps *ps, struct ps_client_table *table, const struct ps_push *push,
                struct fleet_error *err);
int ps_geo_pull_dense(struct fleet_ps *ps, struct ps_client_table *table, float *out,
                      struct fleet_error *err);
int ps_geo_push_dense(struct fleet_ps *ps, struct ps_client_table *table, const float *gradient,
                      struct fleet_error *err);
/* Send the differences of all tables, take over what others have sent. */
int ps_geo_exchange(struct fleet_ps *ps, struct fleet_error *err);

/* ---- options.c ---- */

int ps_options_check(const struct fleet_ps_options *options, struct fleet_error *err);

#endif

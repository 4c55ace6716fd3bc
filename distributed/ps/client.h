/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_PS_CLIENT_H
#define DISTRIBUTED_PS_CLIENT_H

/*
 * A worker of a parameter server (fleet_ps.h). Its files, for them alone:
 *
 *     worker.c     start, stop, barrier, end of a step
 *     access.c     pulls and pushes, in every mode
 *     queue.c      gradients that wait, in async and half-async mode
 *     geo.c        copies of the tables, in geo mode
 *     exchange.c   requests to several servers at once, and their repetition
 *     link.c       the connection to one server
 *     options.c    the settings
 *
 * In sync mode a link keeps the pushes of this step and of the step before. If a server is
 * replaced, the link sends them again.
 *
 * Deadlines are times of fleet_monotonic_ms(). The lists that a function gets are borrowed for the
 * call. Only queue.c has a thread of its own; `wire` orders its exchanges and the caller's.
 */

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "distributed/ps/frame.h"
#include "distributed/ps/merge.h"
#include "distributed/ps/proof.h"
#include "distributed/ps/wire.h"

/* A push that a server has acknowledged. */
struct ps_sent {
    struct ps_header header;
    uint8_t *payload;
    struct ps_sent *next;
};

struct ps_link {
    char *endpoint;
    struct ps_wire wire;
    uint64_t process; /* of the server; 0: never connected */
    int64_t updates;  /* updates that the server has carried out, as far as this worker knows */
    struct ps_sent *before, *now; /* pushes of the step before, and of this step */
    struct ps_sent **now_end;
};

struct ps_queue;
struct ps_geo;

struct ps_client_table {
    struct fleet_ps_table spec; /* as the servers have it */
    float *first_values;        /* of fleet_ps_set_dense(), for servers that lost them; or NULL */
    struct ps_merge *merge;     /* half-async, sparse table: sum of the pushes that wait; or NULL */
    float *dense_sum;           /* half-async, dense table: sum of the pushes that wait; or NULL */
    int waiting;                /* number of pushes in merge or dense_sum */
    struct ps_geo *geo;         /* geo mode; else NULL */
};

struct fleet_ps {
    int worker, workers, servers;
    struct fleet_ps_options options;
    struct ps_key key;
    uint64_t process, sequence;
    int64_t step;          /* number of the current step, from 0 */
    int barriers;          /* barriers that are over */
    int replaced;          /* fleet_ps_replaced() */
    struct ps_link *links; /* [servers] */
    struct ps_client_table *tables[FLEET_PS_TABLES_MAX];
    pthread_mutex_t wire; /* one exchange at a time */
    struct ps_queue *queue;
};

/* ---- link.c ---- */

/* If the link has no connection: connect, prove the secret, greet the server, and send it the
 * tables and pushes that it lost. After -EACCES, -ECONNABORTED, -EPROTO and -ENOMEM a second try
 * fails likewise. After another error the caller may try again. */
int ps_link_open(struct fleet_ps *ps, int server, double deadline, struct fleet_error *err);
void ps_link_close(struct ps_link *link);   /* keeps the pushes */
void ps_link_release(struct ps_link *link); /* close, and free all that the link owns */

/* Send one frame. 0 or the error of the connection. */
int ps_link_send(struct ps_link *link, const struct ps_header *header, const void *payload,
                 double deadline, struct fleet_error *err);

/* Receive the answer to request `sequence`. If the answer is PS_ERROR, the result is 0 and the
 * server's error is in *refused. The caller frees *out. */
int ps_link_receive(struct ps_link *link, uint64_t sequence, double deadline, void **out,
                    size_t *bytes, struct fleet_error *refused, struct fleet_error *err);

/* Sync mode: keep a push that the server has acknowledged. Takes the payload. */
void ps_link_keep(struct ps_link *link, const struct ps_header *header, uint8_t *payload);

/* The current step is over: its pushes become those of the step before. */
void ps_link_next_step(struct ps_link *link);

/* ---- exchange.c ---- */

struct ps_request {
    bool is_wanted; /* false: no request to this server */
    enum ps_kind kind;
    int table, code;
    const void *payload;
    size_t bytes;
    struct ps_header sent; /* filled by ps_exchange() */
    void *result;          /* filled by ps_exchange(); the caller frees it */
    size_t result_bytes;
};

/* Send requests[servers] and wait for all answers. The time limit is the option timeout_ms plus
 * `patience_ms`. On failure all results are NULL. */
int ps_exchange(struct fleet_ps *ps, struct ps_request *requests, int patience_ms,
                struct fleet_error *err);

/* Send one request to all servers (PS_BARRIER: to server 0 only), and free the results. */
int ps_ask_all(struct fleet_ps *ps, enum ps_kind kind, int table, int code, const void *payload,
               size_t bytes, struct fleet_error *err);

/* ---- access.c ---- */

/* Find a table by its id. -EINVAL: there is none, or it is not sparse or dense as `is_dense`
 * says. */
int ps_client_table(struct fleet_ps *ps, int table, bool is_dense, struct ps_client_table **out,
                    struct fleet_error *err);

/* Pull from and push to the servers at once, without queue and copies. */
int ps_pull_now(struct fleet_ps *ps, const struct fleet_ps_table *spec, const uint64_t *keys,
                size_t count, bool is_training, float *out, struct fleet_error *err);
int ps_push_now(struct fleet_ps *ps, const struct fleet_ps_table *spec, const struct ps_push *push,
                struct fleet_error *err);
int ps_pull_dense_now(struct fleet_ps *ps, const struct fleet_ps_table *spec, float *out,
                      struct fleet_error *err);
/* `kind`: PS_PUSH_DENSE or PS_SET_DENSE. */
int ps_push_dense_now(struct fleet_ps *ps, const struct fleet_ps_table *spec, enum ps_kind kind,
                      const float *values, struct fleet_error *err);

/* ---- queue.c ---- */

/* half-async: add a push to the sum that waits. async: give a copy to the thread, which may wait
 * for room in the queue. `push` NULL: the push is `dense`, of a dense table. */
int ps_queue_add(struct fleet_ps *ps, struct ps_client_table *table, const struct ps_push *push,
                 const float *dense, struct fleet_error *err);

/* Send all pushes that wait. Also returns an error that the thread had since the last call. */
int ps_queue_flush(struct fleet_ps *ps, struct fleet_error *err);

/* Start the thread of async mode. */
int ps_queue_start(struct fleet_ps *ps, struct fleet_error *err);

/* End the thread, and drop the pushes that wait. */
void ps_queue_free(struct fleet_ps *ps);

/* ---- geo.c ---- */

/* Pulls and pushes of geo mode: they read and change the worker's copies. A row that has no copy
 * yet comes from the servers. -ENOMEM; errors of ps_exchange(). */
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

/* Send the changes of all copies, and add those of the other workers to them. */
int ps_geo_exchange(struct fleet_ps *ps, struct fleet_error *err);

/* ---- options.c ---- */

/* -EINVAL names the first option that is out of range. */
int ps_options_check(const struct fleet_ps_options *options, struct fleet_error *err);

#endif

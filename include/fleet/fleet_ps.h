/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FLEET_FLEET_PS_H
#define FLEET_FLEET_PS_H

/*
 * A parameter server: processes that hold tables of parameters, and workers that pull values and
 * push gradients. It is what Paddle's fleet does with `a_sync`. A dense table is one vector, cut
 * into a block for each server. A sparse table has a row for each 64-bit key; a hash of the key
 * decides which server holds it. The servers apply the optimizer.
 *
 *     server:  fleet_server_init(role, &options, &server, &err);
 *              fleet_server_run(server, &err);              until all workers have stopped
 *     worker:  fleet_worker_start(role, &options, &ps, &err);
 *              fleet_ps_table_new(ps, &table, &err);        each worker, the same tables
 *              per step: fleet_ps_pull(), fleet_ps_push(), fleet_ps_step_end()
 *              fleet_worker_stop(ps, &err);
 *
 * Modes
 *   sync        A step has the gradients of all workers. The servers keep what workers push until
 *               each has called fleet_ps_step_end(). Then they sum it in the order of the workers,
 *               divide the sum by the number of workers and apply it once. The values after a step
 *               have the same bits on any number of servers.
 *   half-async  A worker's gradients are applied before fleet_ps_step_end() returns. Workers do not
 *               wait for each other.
 *   async       A thread sends the gradients. A pull may see values without them.
 *   geo         The worker trains on copies by itself. Every k_steps steps it sends the difference,
 *               divided by the number of workers, and takes over what the others have sent.
 *
 * Faults
 *  (1) A worker that loses a server connects again until timeout_ms is over, and repeats what was
 *      not answered. A server carries out a repeated push once.
 *  (2) A server that is started again loads its last snapshot. The updates after it are lost,
 *      except in sync mode with a snapshot after every step: there the workers repeat the lost
 *      step, and the result has the same bits. The worker prints a line about each server that was
 *      replaced.
 *  (3) A process that takes a lost worker's place gets its step from the servers
 *      (fleet_ps_step()). In sync mode it computes this step again.
 *  (4) If a server or, in sync mode, a worker is missing for timeout_ms, a call fails with one
 *      error that names it. A server ends with an error if it has no worker for timeout_ms.
 *
 * Each connection proves FLEET_WORLD_SECRET (else FLEET_JOB_UID) in both directions. What follows
 * is not encrypted: FLEET_DATA_ENCRYPTION=AES-GCM is refused here.
 *
 * Every function that can fail returns 0 or a negative errno value, and then fills *err (the last
 * argument, NULL is fine) with one sentence. Errors of every function of a worker: -EINVAL an
 * argument; -ETIMEDOUT a server or worker is missing; -EACCES the server has another secret;
 * -ECONNABORTED another process has taken this worker's place; -EPROTO the server refuses what does
 * not fit its tables; -ENOSPC a server is full.
 *
 * Threads: one thread at a time uses a struct fleet_ps. Numbers are little-endian on the wire and
 * in files, as they are in memory.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fleet.h"
#include "fleet_role.h"

#ifdef __cplusplus
extern "C" {
#endif

#define FLEET_PS_SERVERS_MAX 256
#define FLEET_PS_WORKERS_MAX 4096
#define FLEET_PS_TABLES_MAX  256
#define FLEET_PS_WIDTH_MAX   4096        /* floats of a sparse row */
#define FLEET_PS_KEYS_MAX    (1 << 20)   /* keys of one call */
#define FLEET_PS_BYTES_MAX   (256 << 20) /* of one message to one server, and of a dense block */
#define FLEET_PS_PATH_MAX    4000        /* bytes of a folder's name */

/* ---- tables ---------------------------------------------------------------------------------- */

/* How a gradient changes a row, or a dense block. Source: Paddle's sparse_sgd_rule.cc; adam has the
 * form of Paddle's adam operator. */
enum fleet_ps_rule {
    FLEET_PS_SGD,     /* w -= rate · g */
    FLEET_PS_ADAGRAD, /* w -= rate · g · sqrt(g0 / (g0 + s)), then s += mean(g²): one s a row */
    FLEET_PS_STD_ADAGRAD, /* the same with one s for each element */
    FLEET_PS_ADAM,
    FLEET_PS_SUM, /* w += g */
};

/* When a key gets a row of values. Before that, pulls give zeros and gradients are dropped. */
enum fleet_ps_entry {
    FLEET_PS_ENTRY_ALL,         /* at its first pull or push */
    FLEET_PS_ENTRY_COUNT,       /* CountFilterEntry: at its entry_value-th pull for training */
    FLEET_PS_ENTRY_PROBABILITY, /* ProbabilityEntry: entry_value is the share of keys that get one;
                                   seed and key decide, so the answer is always the same */
    FLEET_PS_ENTRY_SHOW_CLICK,  /* ShowClickEntry: after the push with which its score is at least
                                   entry_value */
};

/*
 * The score of a row is (show − click) · show_coefficient + click · click_coefficient. Its show and
 * click are the sums of those that came with its gradients. fleet_ps_table_defaults() sets
 * everything to Paddle's defaults.
 */
struct fleet_ps_table {
    int id;         /* 0 to FLEET_PS_TABLES_MAX - 1 */
    int width;      /* floats of a row: a sparse table; 0: a dense one */
    int64_t length; /* floats of a dense table; 0: a sparse one */
    enum fleet_ps_rule rule;
    float learning_rate;         /* 0.05 */
    float beta1, beta2, epsilon; /* 0.9, 0.999, 1e-8: adam */
    float initial_g2sum;         /* 3: g0 of adagrad */
    float weight_bound;          /* values stay within ± this; 0: no bound. 10 */
    float initial_range;         /* first values are uniform in ± this. 1e-4 */
    uint64_t seed;               /* of first values and of FLEET_PS_ENTRY_PROBABILITY */
    enum fleet_ps_entry entry;
    float entry_value;
    float show_coefficient, click_coefficient; /* 0.1, 1 */
    float base_threshold, delta_threshold;     /* 1.5, 0.25: save modes 1 and 2 */
    float delta_keep_days;                     /* 16 */
    float decay, delete_threshold;             /* 0.98, 0.8: shrink */
    float delete_after_unseen_days;            /* 30 */
};

void fleet_ps_table_defaults(struct fleet_ps_table *table);

/* ---- a server -------------------------------------------------------------------------------- */

struct fleet_server_options {
    const char *load_folder;     /* begin with this saved state; NULL: with empty tables */
    const char *snapshot_folder; /* snapshots of this server; NULL: none. If it has one of this
                                    server, the server begins with it and not with load_folder */
    int snapshot_every; /* steps in sync mode, else pushes, between two snapshots; 0: 1000 */
    int64_t rows_max;   /* of each table on this server; 0: 2^28 */
    int timeout_ms;     /* 0: PADDLE_PG_TIMEOUT (1800000) */
};

struct fleet_server;

/*
 * Paddle's init_server(): listen at this server's endpoint, load what the options name. options
 * NULL: all zero. The same folder on all servers is fine.
 * -EINVAL: the role is no server, or an option; -ENOTSUP: FLEET_DATA_ENCRYPTION; -ENOENT:
 * load_folder lacks a part; -EBADMSG: a file is damaged; else the error of the file or of listen().
 */
int fleet_server_init(const struct fleet_role *role, const struct fleet_server_options *options,
                      struct fleet_server **out, struct fleet_error *err);

/* Paddle's run_server(): serve until every worker has stopped. -ETIMEDOUT: no worker for
 * timeout_ms. A snapshot that fails is one line on the standard error, and is tried again later. */
int fleet_server_run(struct fleet_server *server, struct fleet_error *err);

void fleet_server_free(struct fleet_server *server); /* NULL is fine */

/* ---- a worker -------------------------------------------------------------------------------- */

enum fleet_ps_mode {
    FLEET_PS_SYNC,
    FLEET_PS_HALF_ASYNC,
    FLEET_PS_ASYNC,
    FLEET_PS_GEO
};

/* Set by fleet_ps_options_init() and then by fleet_ps_option_set(), or by hand. */
struct fleet_ps_options {
    enum fleet_ps_mode mode;
    int k_steps;           /* geo: steps between two exchanges, >= 1 */
    int max_merge_var_num; /* async, half-async: pushes to one table that become one message */
    int send_queue_size;   /* async: pushes that may wait for the thread; then a push waits */
    int send_wait_times; /* async: looks at an empty queue, 1 ms apart, before a message with fewer
                              pushes is sent */
    bool launch_barrier; /* fleet_worker_start() waits for all servers; else the first call does */
    int timeout_ms;      /* 0: PADDLE_PG_TIMEOUT (1800000) */
};

/* The defaults of Paddle's strategy: sync, 1, 1, 16, 1, true. */
void fleet_ps_options_init(struct fleet_ps_options *options);

/*
 * One setting of a DistributedStrategy by its name: a_sync (false: sync, true: async), a key of
 * a_sync_configs, or a flag of other parameter servers. `value` is JSON text. k_steps > 0 means
 * geo, and 0 what a_sync says; "mode" with "half_async" is FleetJob's own name.
 * -EINVAL: an unknown name or a wrong value. -ENOTSUP: a setting that does nothing here and is not
 * at its default; the text has the reason.
 */
int fleet_ps_option_set(struct fleet_ps_options *options, const char *name, const char *value,
                        struct fleet_error *err);

/* All of these settings in the strategy of a FleetJob (JSON text, as in FLEET_STRATEGY_FILE). */
int fleet_ps_options_read(struct fleet_ps_options *options, const char *strategy,
                          struct fleet_error *err);

struct fleet_ps;

/*
 * Paddle's init_worker(). options NULL: those of FLEET_STRATEGY_FILE, else the defaults.
 * -EINVAL: the role is no worker, or an option. -ENOTSUP: a heterogeneous worker or a coordinator.
 */
int fleet_worker_start(const struct fleet_role *role, const struct fleet_ps_options *options,
                       struct fleet_ps **out, struct fleet_error *err);

/* Paddle's stop_worker(): send what waits, tell the servers. A server ends when all workers have.
 * Frees ps, also after an error. */
int fleet_worker_stop(struct fleet_ps *ps, struct fleet_error *err);

/* Free ps and tell the servers nothing. NULL is fine. */
void fleet_ps_free(struct fleet_ps *ps);

/* Wait until all workers are here. */
int fleet_worker_barrier(struct fleet_ps *ps, struct fleet_error *err);

/* Make a table on all servers, or find the same one there. -EPROTO: there is another one with this
 * id. geo: rule FLEET_PS_SGD only. */
int fleet_ps_table_new(struct fleet_ps *ps, const struct fleet_ps_table *table,
                       struct fleet_error *err);

/* out[i · width …] is the row of keys[i]. is_training: keys get rows, and are counted; else unknown
 * keys give zeros and nothing changes. Keys may repeat. */
int fleet_ps_pull(struct fleet_ps *ps, int table, const uint64_t *keys, int count, bool is_training,
                  float *out, struct fleet_error *err);

/* Push a gradient for each key. Gradients of one key are summed in their order. shows, clicks:
 * [count], or both NULL: 0. FLEET_PS_ENTRY_SHOW_CLICK needs them. */
int fleet_ps_push(struct fleet_ps *ps, int table, const uint64_t *keys, int count,
                  const float *gradients, const float *shows, const float *clicks,
                  struct fleet_error *err);

/* The same for all of a dense table: [length]. */
int fleet_ps_pull_dense(struct fleet_ps *ps, int table, float *out, struct fleet_error *err);
int fleet_ps_push_dense(struct fleet_ps *ps, int table, const float *gradient,
                        struct fleet_error *err);

/* First values of a dense table. The first call of any worker counts, later ones do nothing. */
int fleet_ps_set_dense(struct fleet_ps *ps, int table, const float *values,
                       struct fleet_error *err);

/* This worker's step is over (see the modes). */
int fleet_ps_step_end(struct fleet_ps *ps, struct fleet_error *err);

/* Steps that are over: after fleet_worker_start(), where a lost worker's successor goes on (sync
 * mode; else 0). */
int64_t fleet_ps_step(const struct fleet_ps *ps);

/* How often a server has come back with fewer updates than this worker had seen acknowledged. */
int fleet_ps_replaced(const struct fleet_ps *ps);

/* Rows of a sparse table on all servers. admitted: those with values. */
int fleet_ps_rows(struct fleet_ps *ps, int table, int64_t *rows, int64_t *admitted,
                  struct fleet_error *err);

/* Decay shows and clicks, then remove rows whose score is below delete_threshold or that were
 * unseen for more than delete_after_unseen_days. */
int fleet_ps_shrink(struct fleet_ps *ps, int table, struct fleet_error *err);

/*
 * Paddle's save_persistables(): each server writes its part of all tables to `folder`, which all
 * servers can write. One worker calls it.
 *   mode 0  everything
 *   mode 1  rows that changed: score >= base_threshold, delta score >= delta_threshold, unseen for
 *           at most delta_keep_days; their delta score becomes 0
 *   mode 2  the same without a look at the delta score
 *   mode 3  everything; then each row is a day older (unseen days + 1; a push sets them to 0)
 */
int fleet_save_state(struct fleet_ps *ps, const char *folder, int mode, struct fleet_error *err);

/* Read it back, on any number of servers. Rows and dense tables that the folder has replace those
 * of the servers; others stay. -ENOENT: a part is missing. -EBADMSG: a part is damaged. */
int fleet_load_state(struct fleet_ps *ps, const char *folder, struct fleet_error *err);

#ifdef __cplusplus
}
#endif

#endif

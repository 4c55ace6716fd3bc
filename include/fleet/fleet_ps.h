/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FLEET_FLEET_PS_H
#define FLEET_FLEET_PS_H

/*
 * A parameter server, as in Paddle's fleet with `a_sync`. Some processes of a job are servers: they
 * hold tables of parameters and apply the optimizer. The others are workers: they pull values and
 * push gradients. A dense table is one vector, cut into a block for each server. A sparse table has
 * a row for each 64-bit key; a hash of the key decides which server holds the row.
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
 *   geo         The worker trains copies of the values alone. Every k_steps steps it sends how much
 *               its copies have changed, divided by the number of workers, and adds the changes of
 *               the other workers to its copies.
 *
 * Faults
 *  (1) If a worker loses a server, it connects again until timeout_ms is over, and repeats the
 *      requests that have no answer. A server carries out a repeated push once.
 *  (2) If a server is started again, it loads its last snapshot. The updates after the snapshot are
 *      lost. Sync mode with a snapshot after every step is the exception: the workers repeat the
 *      lost step, and the values have the same bits. The worker prints a line for each server that
 *      was replaced.
 *  (3) If another process takes the place of a lost worker, it gets the worker's step from the
 *      servers (fleet_ps_step()). In sync mode it computes this step again.
 *  (4) If a server is missing for timeout_ms, a call of the worker fails with -ETIMEDOUT and names
 *      the server. In sync mode the same holds for a missing worker. If a server has no worker for
 *      timeout_ms, fleet_server_run() fails.
 *
 * When a connection begins, each side proves that it knows FLEET_WORLD_SECRET (or FLEET_JOB_UID, if
 * that is not set). With FLEET_DATA_ENCRYPTION=AES-GCM, everything after that goes through TLS 1.3
 * with a key made of FLEET_WORLD_SECRET, and the variables must be the same on all processes.
 *
 * Every function that can fail returns 0 or a negative errno value, and then fills *err (the last
 * argument, NULL is fine) with one sentence. Every function that gets a struct fleet_ps may fail
 * with:
 *
 *   -EINVAL        an argument is wrong
 *   -ETIMEDOUT     a server or worker is missing
 *   -EACCES        the server has another secret, or only one side encrypts
 *   -ECONNABORTED  another process has taken this worker's place
 *   -EPROTO        the request does not fit the tables of the server
 *   -ENOSPC        a table has rows_max rows on a server
 *   -ENOMEM        the worker or a server is out of memory
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

/* How a gradient g changes the values w of a row, or of a dense block. Source: Paddle's
 * sparse_sgd_rule.cc; FLEET_PS_ADAM has the form of Paddle's adam operator. */
enum fleet_ps_rule {
    FLEET_PS_SGD,     /* w -= rate · g */
    FLEET_PS_ADAGRAD, /* w -= rate · g · sqrt(g0 / (g0 + s)), then s += mean(g²): one s a row */
    FLEET_PS_STD_ADAGRAD, /* as FLEET_PS_ADAGRAD, with one s for each element */
    FLEET_PS_ADAM,
    FLEET_PS_SUM, /* w += g */
};

/* When a key gets values. Before that, a pull of the key gives zeros, and the server drops its
 * gradients. */
enum fleet_ps_entry {
    FLEET_PS_ENTRY_ALL,         /* at its first pull or push */
    FLEET_PS_ENTRY_COUNT,       /* CountFilterEntry: at its entry_value-th pull for training */
    FLEET_PS_ENTRY_PROBABILITY, /* ProbabilityEntry: entry_value is the fraction of keys that get
                                   values. A hash of seed and key decides, so a key that was
                                   refused once is always refused */
    FLEET_PS_ENTRY_SHOW_CLICK,  /* ShowClickEntry: after the push that brings its score to
                                   entry_value or more */
};

/*
 * One table. Each worker describes it in the same way.
 *
 * The score of a row is (show − click) · show_coefficient + click · click_coefficient. `show` and
 * `click` of a row are the sums of the shows and clicks that were pushed with its gradients.
 */
struct fleet_ps_table {
    int id;         /* 0 to FLEET_PS_TABLES_MAX - 1 */
    int width;      /* sparse table: floats of a row; dense table: 0 */
    int64_t length; /* dense table: its floats; sparse table: 0 */
    enum fleet_ps_rule rule;
    float learning_rate;         /* 0.05 */
    float beta1, beta2, epsilon; /* 0.9, 0.999, 1e-8: adam */
    float initial_g2sum;         /* 3: g0 of adagrad */
    float weight_bound;          /* 10; values stay in [-weight_bound, weight_bound]; 0: no bound */
    float initial_range;         /* 1e-4; first values are uniform in ± initial_range */
    uint64_t seed;               /* of first values and of FLEET_PS_ENTRY_PROBABILITY */
    enum fleet_ps_entry entry;
    float entry_value;
    float show_coefficient, click_coefficient; /* 0.1, 1 */
    float base_threshold, delta_threshold;     /* 1.5, 0.25: save modes 1 and 2 */
    float delta_keep_days;                     /* 16 */
    float decay, delete_threshold;             /* 0.98, 0.8: shrink */
    float delete_after_unseen_days;            /* 30 */
};

/* Set each member to Paddle's default: the numbers above, else 0. */
void fleet_ps_table_defaults(struct fleet_ps_table *table);

/* ---- a server -------------------------------------------------------------------------------- */

struct fleet_server_options {
    const char *load_folder;     /* begin with this saved state; NULL: with empty tables */
    const char *snapshot_folder; /* where this server writes snapshots; NULL: it writes none. If the
                                    folder has a snapshot of this server, the server begins with it
                                    and ignores load_folder */
    int snapshot_every; /* between two snapshots: steps in sync mode, else pushes; 0: 1000 */
    int64_t rows_max;   /* limit of rows of each table on this server; 0: 2^28 */
    int timeout_ms;     /* 0: PADDLE_PG_TIMEOUT (1800000) */
};

struct fleet_server;

/*
 * Paddle's init_server(): listen at this server's endpoint (on all interfaces if none of them has
 * its host: then it is the address of a Service in front of the server), and load the saved state
 * that the options name. options NULL: all members are 0. All servers of a job may use the same
 * folders.
 * On success the caller frees *out with fleet_server_free().
 * -EINVAL: the role is no server, an option is wrong, or FLEET_DATA_ENCRYPTION; -ENOENT:
 * load_folder lacks a part; -EBADMSG: a file is damaged; else the error of the file or of listen().
 */
int fleet_server_init(const struct fleet_role *role, const struct fleet_server_options *options,
                      struct fleet_server **out, struct fleet_error *err);

/* Paddle's run_server(): serve until every worker has stopped. -ETIMEDOUT: no worker was connected
 * for timeout_ms. If a snapshot fails, the server prints a line to the standard error and tries
 * again later. */
int fleet_server_run(struct fleet_server *server, struct fleet_error *err);

void fleet_server_free(struct fleet_server *server); /* NULL is fine */

/* ---- a worker -------------------------------------------------------------------------------- */

enum fleet_ps_mode {
    FLEET_PS_SYNC,
    FLEET_PS_HALF_ASYNC,
    FLEET_PS_ASYNC,
    FLEET_PS_GEO
};

/* Call fleet_ps_options_init() first. Then set members, or call fleet_ps_option_set(). */
struct fleet_ps_options {
    enum fleet_ps_mode mode;
    int k_steps;           /* geo: steps between two exchanges, >= 1 */
    int max_merge_var_num; /* async, half-async: pushes to one table that become one message */
    int send_queue_size;   /* async: pushes that may wait for the thread. If the queue is full,
                              fleet_ps_push() waits */
    int send_wait_times;   /* async: milliseconds that the thread waits for further pushes before it
                              sends a message with fewer than max_merge_var_num */
    bool launch_barrier;   /* true: fleet_worker_start() waits for all servers; false: the first
                              request to a server waits for it */
    int timeout_ms;        /* 0: PADDLE_PG_TIMEOUT (1800000) */
};

/* The defaults of Paddle's strategy: sync, 1, 1, 16, 1, true. */
void fleet_ps_options_init(struct fleet_ps_options *options);

/*
 * Set one setting of a DistributedStrategy. `name` is a_sync, a key of a_sync_configs, or one of
 * is_fl_ps_mode, with_coordinator, heter_ccl_mode and adam_d2sum. `value` is JSON text. a_sync
 * false means sync, true async. k_steps > 0 means geo; k_steps 0 leaves the mode to a_sync. The
 * name "mode" with the value "half_async" is FleetJob's own. -EINVAL: the name is unknown, or the
 * value is wrong. -ENOTSUP: the setting does nothing here and `value` is not its default; *err has
 * the reason.
 */
int fleet_ps_option_set(struct fleet_ps_options *options, const char *name, const char *value,
                        struct fleet_error *err);

/* Set all of these settings from a strategy as JSON text (spec.strategy, FLEET_STRATEGY_JSON).
 * Errors of fleet_ps_option_set(). */
int fleet_ps_options_read(struct fleet_ps_options *options, const char *strategy,
                          struct fleet_error *err);

struct fleet_ps;

/*
 * Paddle's init_worker(). If options is NULL, the settings come from FLEET_STRATEGY_FILE; if that
 * is not set, they are the defaults. On success the caller ends *out with fleet_worker_stop() or
 * fleet_ps_free().
 * -EINVAL: the role is no worker, an option is wrong, or FLEET_DATA_ENCRYPTION. -ENOTSUP: the role
 * is a heterogeneous worker or a coordinator.
 */
int fleet_worker_start(const struct fleet_role *role, const struct fleet_ps_options *options,
                       struct fleet_ps **out, struct fleet_error *err);

/* Paddle's stop_worker(): send the pushes that wait, report the end to the servers, and free ps,
 * also after an error. A server ends when all workers have reported their end. */
int fleet_worker_stop(struct fleet_ps *ps, struct fleet_error *err);

/* Free ps without a report to the servers, which then wait for the worker. NULL is fine. */
void fleet_ps_free(struct fleet_ps *ps);

/* Wait until all workers have called it. */
int fleet_worker_barrier(struct fleet_ps *ps, struct fleet_error *err);

/* Make a table on all servers. If they have the same table, nothing changes. *table is copied.
 * -EPROTO: a server has another table with this id. -EINVAL: also a rule other than FLEET_PS_SGD in
 * geo mode. */
int fleet_ps_table_new(struct fleet_ps *ps, const struct fleet_ps_table *table,
                       struct fleet_error *err);

/* Copy the row of keys[i] to out[i · width]; out is [count × width]. A key may be there several
 * times. If is_training, the table counts the pull and adds unknown keys; else an unknown key gives
 * zeros and the table does not change. */
int fleet_ps_pull(struct fleet_ps *ps, int table, const uint64_t *keys, int count, bool is_training,
                  float *out, struct fleet_error *err);

/* Push gradients [count × width], one row for each key. If a key is there several times, its
 * gradients are summed in their order. shows and clicks are [count], or both NULL, which counts as
 * 0. FLEET_PS_ENTRY_SHOW_CLICK needs them. */
int fleet_ps_push(struct fleet_ps *ps, int table, const uint64_t *keys, int count,
                  const float *gradients, const float *shows, const float *clicks,
                  struct fleet_error *err);

/* Pull or push a whole dense table: [length]. */
int fleet_ps_pull_dense(struct fleet_ps *ps, int table, float *out, struct fleet_error *err);
int fleet_ps_push_dense(struct fleet_ps *ps, int table, const float *gradient,
                        struct fleet_error *err);

/* Set the first values [length] of a dense table. Only the first call of all workers has an
 * effect. */
int fleet_ps_set_dense(struct fleet_ps *ps, int table, const float *values,
                       struct fleet_error *err);

/* End this worker's step. The head of this file says what each mode does then. */
int fleet_ps_step_end(struct fleet_ps *ps, struct fleet_error *err);

/* The number of steps that are over. A process that takes a lost worker's place begins at this step
 * in sync mode; in the other modes the number begins at 0. */
int64_t fleet_ps_step(const struct fleet_ps *ps);

/* How often a server was replaced and lost updates that it had acknowledged to this worker. */
int fleet_ps_replaced(const struct fleet_ps *ps);

/* Count the rows of a sparse table on all servers: all rows, and those with values (*admitted). */
int fleet_ps_rows(struct fleet_ps *ps, int table, int64_t *rows, int64_t *admitted,
                  struct fleet_error *err);

/* Multiply shows and clicks of a sparse table by `decay`. Then remove the rows whose score is below
 * delete_threshold, and the rows that were unseen for more than delete_after_unseen_days. */
int fleet_ps_shrink(struct fleet_ps *ps, int table, struct fleet_error *err);

/*
 * Paddle's save_persistables(): each server writes its part of all tables to `folder`. All servers
 * must be able to write there. One worker calls it.
 *   mode 0  all rows
 *   mode 1  rows that changed: score >= base_threshold, delta score >= delta_threshold, unseen for
 *           at most delta_keep_days. Their delta score becomes 0
 *   mode 2  rows as in mode 1, with any delta score. Their delta score becomes 0
 *   mode 3  all rows. Then the unseen days of each row grow by 1; a push sets them to 0
 */
int fleet_save_state(struct fleet_ps *ps, const char *folder, int mode, struct fleet_error *err);

/* Read what fleet_save_state() wrote, on the same or another number of servers. The rows and dense
 * tables of the folder replace those of the servers. Other rows and tables stay. -ENOENT: a part is
 * missing. -EBADMSG: a part is damaged. */
int fleet_load_state(struct fleet_ps *ps, const char *folder, struct fleet_error *err);

#ifdef __cplusplus
}
#endif

#endif

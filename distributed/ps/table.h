/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_PS_TABLE_H
#define DISTRIBUTED_PS_TABLE_H

/*
 * The part of one table that one server holds. One thread at a time may use a table.
 *
 *  (1) First values depend on seed, table and key (or element). They do not depend on the order of
 *      calls or on the number of servers.
 *  (2) A push sums the gradients of each key in the order of the list, and applies each sum once.
 *  (3) A row is admitted when its key gets values (enum fleet_ps_entry). Before that its values are
 *      zeros, and its optimizer state is not used.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "distributed/ps/rule.h"

struct ps_row {
    uint64_t key;
    float show, click; /* sums of the pushes, decayed by shrink */
    float delta;       /* the score that was added since the last save of mode 1 or 2 */
    uint32_t count;    /* pulls for training */
    uint16_t unseen;   /* days without a push */
    uint8_t admitted, unused;
    float values[]; /* [width], then the rule's state */
};

struct ps_merge;

struct ps_table {
    struct fleet_ps_table spec;
    int64_t rows_max;
    size_t state; /* floats of state of a row, or of the dense block */

    /* sparse */
    uint8_t **chunks; /* each has the same number of rows (table.c) */
    size_t row_bytes;
    uint32_t *slots; /* [capacity]: a hash table of row + 1; 0: free */
    uint32_t capacity, rows;
    struct ps_merge *merge; /* memory for the sums of a push */

    /* dense: the elements [first, first + count) of the table */
    int64_t first, count;
    float *values; /* [count], then the rule's state */
    bool is_set;   /* by fleet_ps_set_dense(), a push or a file */
};

/* Gradients for keys, in the order in which they are added. The lists are borrowed. */
struct ps_push {
    const uint64_t *keys;
    const float *gradients;      /* [count × width] */
    const float *shows, *clicks; /* [count] or NULL */
    size_t count;
};

/* A hash of a key. */
uint64_t ps_key_mix(uint64_t key);

/* The server that holds the row of a key. */
int ps_key_server(uint64_t key, int servers);

/* The elements [*first, *first + *count) of a dense table that a server holds. */
void ps_dense_block(int64_t length, int server, int servers, int64_t *first, int64_t *count);

/* Make an empty table. The caller has checked `spec` with ps_table_check(). -ENOMEM */
int ps_table_new(const struct fleet_ps_table *spec, int server, int servers, int64_t rows_max,
                 struct ps_table **out, struct fleet_error *err);
void ps_table_free(struct ps_table *table); /* NULL is fine */

/* Find the row of a key; NULL if there is none. Valid until rows are added or removed. */
struct ps_row *ps_table_find(const struct ps_table *table, uint64_t key);

/* Find or make the row of a key. A new row is not admitted. NULL: the table has rows_max rows, or
 * is out of memory. */
struct ps_row *ps_table_add(struct ps_table *table, uint64_t key);

/* The row with number `at`, 0 <= at < rows. */
struct ps_row *ps_table_row(const struct ps_table *table, uint32_t at);

/* fleet_ps_pull() for the keys that this server holds. out: [count × width]. -ENOSPC: rows_max; the
 * table may have some of the new rows then. */
int ps_table_pull(struct ps_table *table, const uint64_t *keys, size_t count, bool is_training,
                  float *out, struct fleet_error *err);

/* fleet_ps_push() for the keys that this server holds. -ENOSPC: rows_max; no value has changed, but
 * the table may have some of the new rows. */
int ps_table_push(struct ps_table *table, const struct ps_push *push, struct fleet_error *err);

/* Push sums. Each is multiplied by `scale` first, in place. */
int ps_table_push_sums(struct ps_table *table, struct ps_merge *sums, float scale,
                       struct fleet_error *err);

/* True if a save of this mode contains the row (fleet_save_state()). */
bool ps_row_is_saved(const struct fleet_ps_table *spec, const struct ps_row *row, int mode);

/* Change the row after a save has written it: its delta score, or its unseen days. */
void ps_row_saved(struct ps_row *row, int mode);

/* fleet_ps_shrink() for this server's rows. */
void ps_table_shrink(struct ps_table *table);

/* The number of admitted rows. */
int64_t ps_table_admitted(const struct ps_table *table);

/* Push gradient[count] of a dense block. It is multiplied by `scale` first, in place. */
void ps_dense_push(struct ps_table *table, float *gradient, float scale);

#endif

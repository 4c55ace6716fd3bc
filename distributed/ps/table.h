/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_PS_TABLE_H
#define DISTRIBUTED_PS_TABLE_H

/*
 * The part of one table that one server holds.
 *
 *  (1) First values depend on seed, table and key (or element), never on the order of calls or the
 *      number of servers.
 *  (2) A push sums the gradients of a key in the order of the list, then applies the sum once.
 *  (3) A row that is not admitted (fleet_ps.h, entry rules) has zeros and no use of its state.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "distributed/ps/rule.h"

struct ps_row {
    uint64_t key;
    float show, click, delta; /* delta: score since the last save of mode 1 or 2 */
    uint32_t count;           /* pulls for training */
    uint16_t unseen;          /* days */
    uint8_t admitted, unused;
    float values[]; /* [width], then the rule's state */
};

struct ps_merge;

struct ps_table {
    struct fleet_ps_table spec;
    int64_t rows_max;
    size_t state; /* floats of state of a row, or of the dense block */

    /* sparse */
    uint8_t **chunks; /* of PS_CHUNK_ROWS rows each */
    size_t row_bytes;
    uint32_t *slots; /* [capacity] of row + 1; 0: free */
    uint32_t capacity, rows;
    struct ps_merge *merge;

    /* dense: elements [first, first + count) */
    int64_t first, count;
    float *values; /* [count], then the rule's state */
    bool is_set;   /* by fleet_ps_set_dense(), a push or a file */
};

/* Gradients for keys, in the order in which they count. Borrowed. */
struct ps_push {
    const uint64_t *keys;
    const float *gradients;      /* [count × width] */
    const float *shows, *clicks; /* [count] or NULL */
    size_t count;
};

/* A well-mixed 64-bit number of a key, and the server that holds its row. */
uint64_t ps_key_mix(uint64_t key);
int ps_key_server(uint64_t key, int servers);

/* The elements of a dense table that a server holds. */
void ps_dense_block(int64_t length, int server, int servers, int64_t *first, int64_t *count);

/* `spec` was checked. -ENOMEM */
int ps_table_new(const struct fleet_ps_table *spec, int server, int servers, int64_t rows_max,
                 struct ps_table **out, struct fleet_error *err);
void ps_table_free(struct ps_table *table); /* NULL is fine */

/* The row, NULL if there is none. */
struct ps_row *ps_table_find(const struct ps_table *table, uint64_t key);

/* The row; a new one is not admitted. NULL: rows_max is reached, or memory is out. */
struct ps_row *ps_table_add(struct ps_table *table, uint64_t key);

/* By number, 0 <= at < rows. */
struct ps_row *ps_table_row(const struct ps_table *table, uint32_t at);

/* -ENOSPC; the table has some of the new rows then. */
int ps_table_pull(struct ps_table *table, const uint64_t *keys, size_t count, bool is_training,
                  float *out, struct fleet_error *err);

/* -ENOSPC, as above, before any value changed. */
int ps_table_push(struct ps_table *table, const struct ps_push *push, struct fleet_error *err);

/* The same with sums, each multiplied by `scale` in place. */
int ps_table_push_sums(struct ps_table *table, struct ps_merge *sums, float scale,
                       struct fleet_error *err);

/* Would a save of this mode have the row? After it was written: ps_row_saved(). */
bool ps_row_is_saved(const struct fleet_ps_table *spec, const struct ps_row *row, int mode);
void ps_row_saved(struct ps_row *row, int mode);

void ps_table_shrink(struct ps_table *table);

int64_t ps_table_admitted(const struct ps_table *table);

/* A dense block's push. gradient[count] is multiplied by `scale` in place. */
void ps_dense_push(struct ps_table *table, float *gradient, float scale);

#endif

/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Rows lie in chunks that never move, in the order in which they came. A table of slots with open
 * addressing finds them; at most half of its slots are in use.
 */
#include "distributed/ps/table.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "distributed/ps/merge.h"
#include "libfleet/base/random.h"

#define CHUNK_ROWS     4096U
#define CAPACITY_FIRST 1024U
#define CAPACITY_MAX   (1U << 31)

uint64_t ps_key_mix(uint64_t key)
{
    /* Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014. */
    key += 0x9e3779b97f4a7c15U;
    key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9U;
    key = (key ^ (key >> 27)) * 0x94d049bb133111ebU;
    return key ^ (key >> 31);
}

int ps_key_server(uint64_t key, int servers)
{
    return (int)((ps_key_mix(key) >> 32) % (uint64_t)servers);
}

void ps_dense_block(int64_t length, int server, int servers, int64_t *first, int64_t *count)
{
    int64_t each = length / servers, more = length % servers;

    *first = server * each + (server < more ? server : more);
    *count = each + (server < more);
}

/* Values in ± range: number `at` of a stream. */
static void draw(const struct fleet_ps_table *spec, uint64_t stream, uint64_t at, float *out,
                 size_t count)
{
    struct fleet_random_key key = {
        {(uint32_t)spec->seed ^ (uint32_t)spec->id * 0x9e3779b9U, (uint32_t)(spec->seed >> 32)}};

    for (size_t i = 0; i < count; i++) {
        uint64_t element = at + i;
        uint32_t block[4];
        fleet_random_block(key, stream, element / 4, block);
        do
            out[i++] = spec->initial_range * ((float)(block[element % 4] >> 8) * 0x1p-23F - 1);
        while (++element % 4 != 0 && i < count);
        i--;
    }
}

static int dense_new(struct ps_table *t, struct fleet_error *err)
{
    if (t->count > FLEET_PS_BYTES_MAX / (int64_t)sizeof(float))
        return fleet_error(err, -EINVAL,
                           "table %d: a server would hold %lld elements, at most %d are allowed; "
                           "use more servers or tables",
                           t->spec.id, (long long)t->count, FLEET_PS_BYTES_MAX / 4);
    t->state = ps_rule_state(t->spec.rule, (size_t)t->count);
    t->values = calloc((size_t)t->count + t->state + 1, sizeof(float));
    if (!t->values)
        return fleet_error(err, -ENOMEM, "no memory for %lld elements of table %d",
                           (long long)t->count, t->spec.id);
    draw(&t->spec, UINT64_MAX, (uint64_t)t->first, t->values, (size_t)t->count);
    ps_rule_reset(&t->spec, t->values + t->count, (size_t)t->count);
    return 0;
}

static int sparse_new(struct ps_table *t, struct fleet_error *err)
{
    size_t width = (size_t)t->spec.width;

    t->state = ps_rule_state(t->spec.rule, width);
    t->row_bytes =
        (offsetof(struct ps_row, values) + (width + t->state) * sizeof(float) + 7) & ~(size_t)7;
    t->capacity = CAPACITY_FIRST;
    t->slots = calloc(t->capacity, sizeof(*t->slots));
    t->merge = ps_merge_new(width);
    return t->slots && t->merge ? 0
                                : fleet_error(err, -ENOMEM, "no memory for table %d", t->spec.id);
}

int ps_table_new(const struct fleet_ps_table *spec, int server, int servers, int64_t rows_max,
                 struct ps_table **out, struct fleet_error *err)
{
    struct ps_table *t = calloc(1, sizeof(*t));
    int rc;

    if (!t)
        return fleet_error(err, -ENOMEM, "no memory for table %d", spec->id);
    t->spec = *spec;
    t->rows_max = rows_max < CAPACITY_MAX / 2 ? rows_max : CAPACITY_MAX / 2;
    if (spec->length > 0)
        ps_dense_block(spec->length, server, servers, &t->first, &t->count);
    rc = spec->length > 0 ? dense_new(t, err) : sparse_new(t, err);
    if (rc < 0) {
        ps_table_free(t);
        return rc;
    }
    *out = t;
    return 0;
}

static void drop_chunks(struct ps_table *t)
{
    for (size_t i = 0; i * CHUNK_ROWS < t->rows; i++)
        free(t->chunks[i]);
    free(t->chunks);
    t->chunks = NULL;
}

void ps_table_free(struct ps_table *table)
{
    if (!table)
        return;
    drop_chunks(table);
    free(table->slots);
    ps_merge_free(table->merge);
    free(table->values);
    free(table);
}

/* ---- rows ------------------------------------------------------------------------------------ */

struct ps_row *ps_table_row(const struct ps_table *table, uint32_t at)
{
    return (struct ps_row *)(void *)(table->chunks[at / CHUNK_ROWS] +
                                     (size_t)(at % CHUNK_ROWS) * table->row_bytes);
}

struct ps_row *ps_table_find(const struct ps_table *table, uint64_t key)
{
    uint32_t mask = table->capacity - 1;

    for (uint32_t at = (uint32_t)ps_key_mix(key) & mask; table->slots[at]; at = (at + 1) & mask) {
        struct ps_row *row = ps_table_row(table, table->slots[at] - 1);
        if (row->key == key)
            return row;
    }
    return NULL;
}

/*
 * Slots and rows of a large table lie in no cache, and a list of keys finds them one after another.
 * So both are asked for some keys ahead: first the slot, then the row that it names.
 */
#define SLOT_AHEAD 16
#define ROW_AHEAD  8
#define LINE_BYTES 64

static void ask_ahead(const struct ps_table *t, const uint64_t *keys, size_t count, size_t at)
{
    uint32_t mask = t->capacity - 1, slot;

    if (at + SLOT_AHEAD < count)
        __builtin_prefetch(&t->slots[(uint32_t)ps_key_mix(keys[at + SLOT_AHEAD]) & mask]);
    if (at + ROW_AHEAD >= count)
        return;
    slot = t->slots[(uint32_t)ps_key_mix(keys[at + ROW_AHEAD]) & mask];
    if (slot > 0) {
        const char *row = (const char *)ps_table_row(t, slot - 1);
        for (size_t i = 0; i < t->row_bytes; i += LINE_BYTES)
            __builtin_prefetch(row + i);
    }
}

/* Slot of a row that the slots lack. */
static void put(struct ps_table *t, uint32_t number)
{
    uint32_t mask = t->capacity - 1;
    uint32_t at = (uint32_t)ps_key_mix(ps_table_row(t, number)->key) & mask;

    while (t->slots[at])
        at = (at + 1) & mask;
    t->slots[at] = number + 1;
}

static bool grow(struct ps_table *t, uint32_t capacity)
{
    uint32_t *slots = calloc(capacity, sizeof(*slots));

    if (!slots)
        return false;
    free(t->slots);
    t->slots = slots;
    t->capacity = capacity;
    for (uint32_t i = 0; i < t->rows; i++)
        put(t, i);
    return true;
}

/* Room for row number t->rows. */
static bool have_chunk(struct ps_table *t)
{
    size_t chunk = t->rows / CHUNK_ROWS;
    uint8_t **chunks;

    if (t->rows % CHUNK_ROWS != 0)
        return true;
    chunks = realloc(t->chunks, (chunk + 1) * sizeof(*chunks));
    if (!chunks)
        return false;
    t->chunks = chunks;
    chunks[chunk] = malloc(CHUNK_ROWS * t->row_bytes);
    return chunks[chunk] != NULL;
}

struct ps_row *ps_table_add(struct ps_table *table, uint64_t key)
{
    struct ps_row *row = ps_table_find(table, key);

    if (row)
        return row;
    if (table->rows >= table->rows_max || !have_chunk(table))
        return NULL;
    if (table->rows >= table->capacity / 2 && !grow(table, table->capacity * 2)) {
        if (table->rows % CHUNK_ROWS == 0)
            free(table->chunks[table->rows / CHUNK_ROWS]);
        return NULL;
    }
    row = ps_table_row(table, table->rows);
    memset(row, 0, table->row_bytes);
    row->key = key;
    put(table, table->rows++);
    return row;
}

static float score(const struct fleet_ps_table *spec, float show, float click)
{
    return (show - click) * spec->show_coefficient + click * spec->click_coefficient;
}

/* Give the row values if its rule says so now. */
static void try_admit(const struct fleet_ps_table *spec, struct ps_row *row)
{
    struct fleet_random_key key = {
        {(uint32_t)spec->seed, (uint32_t)(spec->seed >> 32) ^ 0x656e7472}};
    bool admits = true;

    if (row->admitted)
        return;
    if (spec->entry == FLEET_PS_ENTRY_COUNT)
        admits = (double)row->count >= (double)spec->entry_value;
    else if (spec->entry == FLEET_PS_ENTRY_PROBABILITY)
        admits = fleet_random_uniform(key, row->key) < spec->entry_value;
    else if (spec->entry == FLEET_PS_ENTRY_SHOW_CLICK)
        admits = score(spec, row->show, row->click) >= spec->entry_value;
    if (!admits)
        return;
    row->admitted = 1;
    draw(spec, row->key, 0, row->values, (size_t)spec->width);
    ps_rule_reset(spec, row->values + spec->width, (size_t)spec->width);
}

static int full(const struct ps_table *t, struct fleet_error *err)
{
    return fleet_error(err, -ENOSPC,
                       "table %d has %u rows on this server, and no room for more (rows_max is "
                       "%lld)",
                       t->spec.id, t->rows, (long long)t->rows_max);
}

int ps_table_pull(struct ps_table *table, const uint64_t *keys, size_t count, bool is_training,
                  float *out, struct fleet_error *err)
{
    size_t width = (size_t)table->spec.width;

    for (size_t i = 0; i < count; i++, out += width) {
        struct ps_row *row;
        ask_ahead(table, keys, count, i);
        row = ps_table_find(table, keys[i]);
        if (is_training) {
            row = row ? row : ps_table_add(table, keys[i]);
            if (!row)
                return full(table, err);
            row->count += row->count < UINT32_MAX;
            try_admit(&table->spec, row);
        }
        if (row && row->admitted)
            memcpy(out, row->values, width * sizeof(float));
        else
            memset(out, 0, width * sizeof(float));
    }
    return 0;
}

static void update(struct ps_table *t, struct ps_row *row, float *gradient, float show, float click,
                   float scale)
{
    size_t width = (size_t)t->spec.width;

    if (t->spec.entry != FLEET_PS_ENTRY_COUNT && t->spec.entry != FLEET_PS_ENTRY_SHOW_CLICK)
        try_admit(&t->spec, row);
    row->show += show;
    row->click += click;
    row->delta += score(&t->spec, show, click);
    row->unseen = 0;
    if (row->admitted) {
        for (size_t i = 0; i < width && scale != 1; i++)
            gradient[i] *= scale;
        ps_rule_apply(&t->spec, row->values, row->values + width, gradient, width);
    } else if (t->spec.entry == FLEET_PS_ENTRY_SHOW_CLICK) {
        try_admit(&t->spec, row);
    }
}

int ps_table_push_sums(struct ps_table *table, struct ps_merge *sums, float scale,
                       struct fleet_error *err)
{
    for (size_t i = 0; i < sums->count; i++) {
        ask_ahead(table, sums->keys, sums->count, i);
        if (!ps_table_add(table, sums->keys[i]))
            return full(table, err);
    }
    for (size_t i = 0; i < sums->count; i++)
        update(table, ps_table_find(table, sums->keys[i]),
               sums->gradients + i * (size_t)table->spec.width, sums->stats[2 * i],
               sums->stats[2 * i + 1], scale);
    return 0;
}

int ps_table_push(struct ps_table *table, const struct ps_push *push, struct fleet_error *err)
{
    int rc = ps_merge_push(table->merge, push, err);

    return rc < 0 ? rc : ps_table_push_sums(table, table->merge, 1, err);
}

void ps_dense_push(struct ps_table *table, float *gradient, float scale)
{
    size_t count = (size_t)table->count;

    table->is_set = true;
    for (size_t i = 0; i < count && scale != 1; i++)
        gradient[i] *= scale;
    ps_rule_apply(&table->spec, table->values, table->values + count, gradient, count);
}

/* ---- saving and shrinking -------------------------------------------------------------------- */

bool ps_row_is_saved(const struct fleet_ps_table *spec, const struct ps_row *row, int mode)
{
    if (mode != 1 && mode != 2)
        return true;
    return row->admitted && score(spec, row->show, row->click) >= spec->base_threshold &&
           (mode == 2 || row->delta >= spec->delta_threshold) &&
           (float)row->unseen <= spec->delta_keep_days;
}

void ps_row_saved(struct ps_row *row, int mode)
{
    if (mode == 1 || mode == 2)
        row->delta = 0;
    else if (mode == 3 && row->unseen < UINT16_MAX)
        row->unseen++;
}

void ps_table_shrink(struct ps_table *table)
{
    const struct fleet_ps_table *spec = &table->spec;
    uint32_t kept = 0, chunks = (table->rows + CHUNK_ROWS - 1) / CHUNK_ROWS;

    for (uint32_t i = 0; i < table->rows; i++) {
        struct ps_row *row = ps_table_row(table, i);
        row->show *= spec->decay;
        row->click *= spec->decay;
        if (score(spec, row->show, row->click) < spec->delete_threshold ||
            (float)row->unseen > spec->delete_after_unseen_days)
            continue;
        if (kept != i)
            memcpy(ps_table_row(table, kept), row, table->row_bytes);
        kept++;
    }
    for (uint32_t i = (kept + CHUNK_ROWS - 1) / CHUNK_ROWS; i < chunks; i++)
        free(table->chunks[i]);
    table->rows = kept;
    memset(table->slots, 0, table->capacity * sizeof(*table->slots));
    for (uint32_t i = 0; i < kept; i++)
        put(table, i);
}

int64_t ps_table_admitted(const struct ps_table *table)
{
    int64_t count = 0;

    for (uint32_t i = 0; i < table->rows; i++)
        count += ps_table_row(table, i)->admitted;
    return count;
}

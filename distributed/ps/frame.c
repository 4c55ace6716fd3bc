/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/ps/frame.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define VERSION 1

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers travel as they are in memory");

static const char magic[4] = {'F', 'L', 'P', 'S'};

void ps_header_encode(const struct ps_header *header, uint8_t out[PS_HEADER_SIZE])
{
    uint16_t table = (uint16_t)header->table;
    uint32_t bytes = (uint32_t)header->bytes;

    memcpy(out, magic, sizeof(magic));
    out[4] = VERSION;
    out[5] = (uint8_t)header->kind;
    memcpy(out + 6, &table, 2);
    memcpy(out + 8, &header->sequence, 8);
    memcpy(out + 16, &header->step, 8);
    memcpy(out + 24, &bytes, 4);
    memcpy(out + 28, &header->code, 4);
}

int ps_header_decode(const uint8_t in[PS_HEADER_SIZE], struct ps_header *out,
                     struct fleet_error *err)
{
    struct ps_header header = {0};
    uint16_t table;
    uint32_t bytes;

    if (memcmp(in, magic, sizeof(magic)) != 0)
        return fleet_error(err, -EBADMSG, "the other side speaks another protocol");
    if (in[4] != VERSION)
        return fleet_error(err, -EBADMSG, "the other side has protocol version %d, not %d", in[4],
                           VERSION);
    memcpy(&table, in + 6, 2);
    memcpy(&header.sequence, in + 8, 8);
    memcpy(&header.step, in + 16, 8);
    memcpy(&bytes, in + 24, 4);
    memcpy(&header.code, in + 28, 4);
    if (in[5] >= PS_KINDS)
        return fleet_error(err, -EBADMSG, "a message has the unknown kind %d", in[5]);
    if (table >= FLEET_PS_TABLES_MAX)
        return fleet_error(err, -EBADMSG, "a message is for table %d, allowed: 0 to %d", table,
                           FLEET_PS_TABLES_MAX - 1);
    if (bytes > FLEET_PS_BYTES_MAX)
        return fleet_error(err, -EBADMSG, "a message has %u bytes, at most %d are allowed", bytes,
                           FLEET_PS_BYTES_MAX);
    header.kind = (enum ps_kind)in[5];
    header.table = table;
    header.bytes = bytes;
    *out = header;
    return 0;
}

/* ---- tables ---------------------------------------------------------------------------------- */

/* The floats of a table, in the order in which they travel. */
#define FLOATS 16
static void floats_of(struct fleet_ps_table *t, float *out[FLOATS])
{
    float *const members[FLOATS] = {&t->learning_rate,
                                    &t->beta1,
                                    &t->beta2,
                                    &t->epsilon,
                                    &t->initial_g2sum,
                                    &t->weight_bound,
                                    &t->initial_range,
                                    &t->entry_value,
                                    &t->show_coefficient,
                                    &t->click_coefficient,
                                    &t->base_threshold,
                                    &t->delta_threshold,
                                    &t->delta_keep_days,
                                    &t->decay,
                                    &t->delete_threshold,
                                    &t->delete_after_unseen_days};
    memcpy(out, members, sizeof(members));
}

void ps_table_encode(const struct fleet_ps_table *table, uint8_t out[PS_TABLE_BYTES])
{
    struct fleet_ps_table copy = *table;
    const int32_t numbers[4] = {table->id, table->width, (int32_t)table->rule,
                                (int32_t)table->entry};
    float *floats[FLOATS];

    memset(out, 0, PS_TABLE_BYTES);
    memcpy(out, numbers, sizeof(numbers));
    memcpy(out + 16, &table->length, 8);
    memcpy(out + 24, &table->seed, 8);
    floats_of(&copy, floats);
    for (size_t i = 0; i < FLOATS; i++)
        memcpy(out + 32 + 4 * i, floats[i], 4);
}

int ps_table_decode(const void *in, size_t bytes, struct fleet_ps_table *out,
                    struct fleet_error *err)
{
    struct fleet_ps_table table = {0};
    const uint8_t *from = in;
    int32_t numbers[4];
    float *floats[FLOATS];
    int rc;

    if (bytes != PS_TABLE_BYTES)
        return fleet_error(err, -EBADMSG, "a table's description has %zu bytes, not %d", bytes,
                           PS_TABLE_BYTES);
    memcpy(numbers, from, sizeof(numbers));
    table.id = numbers[0];
    table.width = numbers[1];
    table.rule = (enum fleet_ps_rule)numbers[2];
    table.entry = (enum fleet_ps_entry)numbers[3];
    memcpy(&table.length, from + 16, 8);
    memcpy(&table.seed, from + 24, 8);
    floats_of(&table, floats);
    for (size_t i = 0; i < FLOATS; i++)
        memcpy(floats[i], from + 32 + 4 * i, 4);
    rc = ps_table_check(&table, err);
    if (rc == 0)
        *out = table;
    return rc;
}

/* ---- payloads -------------------------------------------------------------------------------- */

int ps_hello_decode(const void *in, size_t bytes, struct ps_hello *out, struct fleet_error *err)
{
    struct ps_hello hello;

    if (bytes != sizeof(hello))
        return fleet_error(err, -EBADMSG, "a worker's first message has %zu bytes, not %zu", bytes,
                           sizeof(hello));
    memcpy(&hello, in, sizeof(hello));
    if (hello.workers < 1 || hello.workers > FLEET_PS_WORKERS_MAX ||
        hello.worker >= hello.workers || hello.servers < 1 ||
        hello.servers > FLEET_PS_SERVERS_MAX || hello.server >= hello.servers ||
        hello.mode > FLEET_PS_GEO || hello.step < -1)
        return fleet_error(err, -EBADMSG,
                           "a worker's first message says worker %u of %u, server %u of %u, mode "
                           "%u, step %lld",
                           hello.worker, hello.workers, hello.server, hello.servers, hello.mode,
                           (long long)hello.step);
    *out = hello;
    return 0;
}

bool ps_is_finite(const float *numbers, size_t count)
{
    uint32_t worst = 0;

    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &numbers[i], 4);
        bits &= 0x7fffffffU;
        worst = bits > worst ? bits : worst;
    }
    return worst < 0x7f800000U;
}

size_t ps_push_bytes(size_t count, bool has_stats, int width)
{
    return count * (8 + 4 * (size_t)width + (has_stats ? 8 : 0));
}

void ps_push_encode(const struct ps_push *push, int width, void *out)
{
    uint8_t *at = out;
    size_t count = push->count;

    memcpy(at, push->keys, count * 8);
    at += count * 8;
    memcpy(at, push->gradients, count * 4 * (size_t)width);
    at += count * 4 * (size_t)width;
    if (!push->shows)
        return;
    memcpy(at, push->shows, count * 4);
    memcpy(at + count * 4, push->clicks, count * 4);
}

int ps_push_decode(void *in, size_t bytes, bool has_stats, int width, struct ps_push *out,
                   struct fleet_error *err)
{
    size_t one = ps_push_bytes(1, has_stats, width), count = bytes / one;
    float *numbers;

    if (bytes % one != 0 || count > FLEET_PS_KEYS_MAX)
        return fleet_error(err, -EBADMSG, "%zu bytes are no gradients of width %d", bytes, width);
    if (count == 0) {
        *out = (struct ps_push){0};
        return 0;
    }
    numbers = (float *)(void *)((uint8_t *)in + count * 8);
    if (!ps_is_finite(numbers, (bytes - count * 8) / 4))
        return fleet_error(err, -EBADMSG, "a gradient, show or click is not finite");
    *out = (struct ps_push){.keys = in, .gradients = numbers, .count = count};
    if (has_stats) {
        out->shows = numbers + count * (size_t)width;
        out->clicks = out->shows + count;
    }
    return 0;
}

int ps_folder_decode(const void *in, size_t bytes, char **out, struct fleet_error *err)
{
    if (bytes < 1 || bytes > FLEET_PS_PATH_MAX || memchr(in, '\0', bytes))
        return fleet_error(err, -EBADMSG, "a folder's name has %zu bytes, allowed: 1 to %d", bytes,
                           FLEET_PS_PATH_MAX);
    *out = strndup(in, bytes);
    return *out ? 0 : fleet_error(err, -ENOMEM, "out of memory");
}

/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Any bytes as what a worker of fleet_ps.h sends to a server, and as a server's file. A message is
 * an error, or something whose encoding gives the same bytes; its lists may be touched. A file gets
 * the digest that it needs, so that the rest of it is read.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "distributed/ps/file.h"
#include "distributed/ps/frame.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/digest.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void fuzz_header(const uint8_t *data, size_t size)
{
    struct ps_header header;
    uint8_t again[PS_HEADER_SIZE];

    if (size < PS_HEADER_SIZE || ps_header_decode(data, &header, NULL) < 0)
        return;
    fleet_assert(header.bytes <= FLEET_PS_BYTES_MAX && header.table < FLEET_PS_TABLES_MAX);
    ps_header_encode(&header, again);
    fleet_assert(memcmp(again, data, PS_HEADER_SIZE) == 0);
}

static void fuzz_table(const uint8_t *data, size_t size)
{
    struct fleet_ps_table table;
    uint8_t again[PS_TABLE_BYTES];

    if (ps_table_decode(data, size, &table, NULL) < 0)
        return;
    ps_table_encode(&table, again); /* bytes that have no meaning become 0 */
    fleet_assert(ps_table_decode(again, sizeof(again), &table, NULL) == 0);
}

static void fuzz_push(const uint8_t *data, size_t size)
{
    int width = size > 0 ? 1 + data[0] % 16 : 1;
    bool has_stats = size > 1 && data[1] % 2;
    size_t bytes = size > 2 ? size - 2 : 0;
    void *copy = malloc(bytes + 1), *again = malloc(bytes + 1);
    struct ps_push push;

    memcpy(copy, data + (size > 2 ? 2 : 0), bytes);
    if (ps_push_decode(copy, bytes, has_stats, width, &push, NULL) == 0 && push.count > 0) {
        fleet_assert(ps_push_bytes(push.count, has_stats, width) == bytes);
        ps_push_encode(&push, width, again);
        fleet_assert(memcmp(copy, again, bytes) == 0);
    }
    free(copy);
    free(again);
}

static void fuzz_small(const uint8_t *data, size_t size)
{
    struct ps_hello hello;
    char *folder;

    if (ps_hello_decode(data, size, &hello, NULL) == 0)
        fleet_assert(hello.worker < hello.workers && hello.server < hello.servers);
    if (ps_folder_decode(data, size, &folder, NULL) == 0) {
        fleet_assert(strlen(folder) == size);
        free(folder);
    }
}

static void fuzz_file(const uint8_t *data, size_t size)
{
    static struct ps_table *tables[FLEET_PS_TABLES_MAX];
    struct ps_file_worker workers[2];
    struct ps_file file = {.servers = 1, .workers = 2, .worker = workers, .tables = tables};
    uint8_t *copy = malloc(size + FLEET_SHA256_SIZE);
    FILE *stream;

    memcpy(copy, data, size);
    fleet_sha256(data, size, copy + size);
    stream = fmemopen(copy, size + FLEET_SHA256_SIZE, "r");
    (void)ps_file_read(stream, &file, size % 2, 1000, NULL);
    (void)fclose(stream);
    for (int i = 0; i < FLEET_PS_TABLES_MAX; i++) {
        ps_table_free(tables[i]);
        tables[i] = NULL;
    }
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const parts[])(const uint8_t *, size_t) = {fuzz_header, fuzz_table, fuzz_push,
                                                             fuzz_small, fuzz_file};

    if (size > 0)
        parts[data[0] % 5](data + 1, size - 1);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Any bytes as what another worker of fleet_rpc.h sends: a header, a list of workers, packed
 * tensors. Each is an error, or something whose encoding gives the same bytes (tensors: the same
 * tensors, since padding is free) and whose every byte may be touched.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "agent/runtime/comm/comm.h"
#include "distributed/rpc/frame.h"
#include "libfleet/base/assert.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void fuzz_header(const uint8_t *data, size_t size)
{
    struct rpc_header header;
    uint8_t again[RPC_HEADER_SIZE];

    if (size < RPC_HEADER_SIZE || rpc_header_decode(data, &header, NULL) < 0)
        return;
    fleet_assert(header.name_bytes <= FLEET_RPC_NAME_MAX);
    fleet_assert(header.bytes <= FLEET_RPC_BYTES_MAX);
    rpc_header_encode(&header, again);
    fleet_assert(memcmp(again, data, RPC_HEADER_SIZE) == 0);
}

static void fuzz_workers(const uint8_t *data, size_t size)
{
    struct fleet_rpc_worker *workers;
    size_t bytes;
    int count, world;
    void *again;

    if (rpc_workers_decode(data, size, &workers, &count, &world, NULL) < 0)
        return;
    fleet_assert(rpc_workers_encode(workers, count, world, &again, &bytes, NULL) == 0);
    /* A text with a NUL inside ends there. */
    fleet_assert(bytes <= size);
    if (bytes == size)
        fleet_assert(memcmp(again, data, size) == 0);
    free(again);
    free(workers);
}

static void fuzz_tensors(const uint8_t *data, size_t size)
{
    struct fleet_tensor tensors[8];
    void *copy = malloc(size + 1), *again;
    volatile uint8_t sum = 0;
    size_t bytes;
    int count;

    memcpy(copy, data, size);
    if (fleet_rpc_unpack(copy, size, tensors, 8, &count, NULL) == 0) {
        for (int i = 0; i < count; i++) {
            size_t length = comm_type_size((enum comm_type)tensors[i].type);
            for (int d = 0; d < tensors[i].dimensions; d++)
                length *= (size_t)tensors[i].shape[d];
            for (size_t at = 0; at < length; at++)
                sum = (uint8_t)(sum + ((uint8_t *)tensors[i].data)[at]);
        }
        fleet_assert(fleet_rpc_pack(tensors, count, &again, &bytes, NULL) == 0);
        fleet_assert(bytes == size);
        free(again);
    }
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    switch (data[0] % 3) {
    case 0:
        fuzz_header(data + 1, size - 1);
        break;
    case 1:
        fuzz_workers(data + 1, size - 1);
        break;
    default:
        fuzz_tensors(data + 1, size - 1);
        break;
    }
    return 0;
}

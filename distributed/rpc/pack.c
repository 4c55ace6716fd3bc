/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Tensors as bytes: a head of 8 bytes (count), for each tensor its type, dimensions and shape in 8
 * bytes each, then the data of each at a multiple of 16. Numbers are little-endian, as on every
 * machine that runs a worker.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/runtime/comm/comm.h"
#include "distributed/distributed.h"
#include "include/fleet/fleet_rpc.h"

#define ALIGNMENT 16
#define FIELDS    (2 + FLEET_DIMENSIONS_MAX) /* of 8 bytes */

static size_t head_size(int count)
{
    return (sizeof(int64_t) * (1 + (size_t)count * FIELDS) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* Bytes of the data, with the padding behind it; -EINVAL. */
static int data_size(const struct fleet_tensor *tensor, int index, size_t *exact, size_t *padded,
                     struct fleet_error *err)
{
    size_t bytes;

    if ((int)tensor->type < 0 || (int)tensor->type >= COMM_TYPES || tensor->dimensions < 0 ||
        tensor->dimensions > FLEET_DIMENSIONS_MAX)
        return fleet_error(err, -EINVAL, "tensor %d: type %d with %d dimensions", index,
                           (int)tensor->type, tensor->dimensions);
    bytes = comm_type_size((enum comm_type)tensor->type);
    for (int i = 0; i < tensor->dimensions; i++)
        if (tensor->shape[i] < 0 ||
            __builtin_mul_overflow(bytes, (size_t)tensor->shape[i], &bytes) ||
            bytes > FLEET_RPC_BYTES_MAX)
            return fleet_error(err, -EINVAL,
                               "tensor %d: shape[%d] is %lld, allowed: %d bytes in all", index, i,
                               (long long)tensor->shape[i], FLEET_RPC_BYTES_MAX);
    *exact = bytes;
    *padded = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return 0;
}

int fleet_rpc_pack(const struct fleet_tensor *tensors, int count, void **out, size_t *bytes,
                   struct fleet_error *err)
{
    size_t size, exact, padded;
    uint8_t *data, *at;
    int64_t *head;

    if (!out || !bytes)
        return fleet_error(err, -EINVAL, "fleet_rpc_pack: out or bytes is NULL");
    if (count < 0 || count > FLEET_RPC_TENSORS_MAX || (!tensors && count > 0))
        return fleet_error(err, -EINVAL, "fleet_rpc_pack: %d tensors, allowed: 0 to %d", count,
                           FLEET_RPC_TENSORS_MAX);
    size = head_size(count);
    for (int i = 0; i < count; i++) {
        int rc = data_size(&tensors[i], i, &exact, &padded, err);
        if (rc < 0)
            return fleet_error_wrap(err, "fleet_rpc_pack");
        if (!tensors[i].data && exact > 0)
            return fleet_error(err, -EINVAL, "fleet_rpc_pack: tensor %d: data is NULL", i);
        size += padded;
    }
    if (size > FLEET_RPC_BYTES_MAX)
        return fleet_error(err, -EMSGSIZE, "fleet_rpc_pack: %zu bytes, allowed: %d", size,
                           FLEET_RPC_BYTES_MAX);
    data = calloc(1, size);
    if (!data)
        return fleet_error(err, -ENOMEM, "fleet_rpc_pack: out of memory");
    head = (int64_t *)(void *)data;
    *head++ = count;
    at = data + head_size(count);
    for (int i = 0; i < count; i++, head += FIELDS) {
        (void)data_size(&tensors[i], i, &exact, &padded, NULL);
        head[0] = tensors[i].type;
        head[1] = tensors[i].dimensions;
        memcpy(head + 2, tensors[i].shape, (size_t)tensors[i].dimensions * sizeof(int64_t));
        if (exact > 0)
            memcpy(at, tensors[i].data, exact);
        at += padded;
    }
    *out = data;
    *bytes = size;
    return 0;
}

static int wrong(struct fleet_error *err)
{
    return fleet_error(err, -EBADMSG, "fleet_rpc_unpack: these bytes are not packed tensors");
}

int fleet_rpc_unpack(void *data, size_t bytes, struct fleet_tensor *tensors, int room, int *count,
                     struct fleet_error *err)
{
    const int64_t *head = data;
    size_t at, exact, padded;
    int number;

    if (!data || bytes < sizeof(*head) || *head < 0 || *head > FLEET_RPC_TENSORS_MAX)
        return wrong(err);
    number = (int)*head++;
    at = head_size(number);
    if (bytes < at)
        return wrong(err);
    if (number > room)
        return fleet_error(err, -ENOSPC, "fleet_rpc_unpack: %d tensors, room for %d", number, room);
    for (int i = 0; i < number; i++, head += FIELDS) {
        struct fleet_tensor *one = &tensors[i];
        if (head[0] < 0 || head[0] >= COMM_TYPES || head[1] < 0 || head[1] > FLEET_DIMENSIONS_MAX)
            return wrong(err);
        *one = (struct fleet_tensor){.type = (enum fleet_type)head[0], .dimensions = (int)head[1]};
        memcpy(one->shape, head + 2, sizeof(one->shape));
        if (data_size(one, i, &exact, &padded, NULL) < 0 || padded > bytes - at)
            return wrong(err);
        one->data = (uint8_t *)data + at;
        at += padded;
    }
    if (at != bytes)
        return wrong(err);
    *count = number;
    return 0;
}

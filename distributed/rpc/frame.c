/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/rpc/frame.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define VERSION 1

static const char magic[4] = {'F', 'R', 'P', 'C'};

static void put(uint8_t *out, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        out[i] = (uint8_t)(value >> (8 * i));
}

static uint64_t get(const uint8_t *in, int bytes)
{
    uint64_t value = 0;

    for (int i = 0; i < bytes; i++)
        value |= (uint64_t)in[i] << (8 * i);
    return value;
}

void rpc_frame_release(struct rpc_frame *frame)
{
    free(frame->name);
    free(frame->data);
    frame->name = NULL;
    frame->data = NULL;
}

void rpc_header_encode(const struct rpc_header *header, uint8_t out[RPC_HEADER_SIZE])
{
    memset(out, 0, RPC_HEADER_SIZE);
    memcpy(out, magic, sizeof(magic));
    out[4] = VERSION;
    out[5] = (uint8_t)header->kind;
    put(out + 6, header->name_bytes, 2);
    put(out + 8, header->id, 8);
    put(out + 16, header->bytes, 8);
    put(out + 24, (uint32_t)header->code, 4);
}

int rpc_header_decode(const uint8_t in[RPC_HEADER_SIZE], struct rpc_header *out,
                      struct fleet_error *err)
{
    struct rpc_header header = {.kind = (enum rpc_kind)in[5],
                                .id = get(in + 8, 8),
                                .code = (int32_t)(uint32_t)get(in + 24, 4),
                                .name_bytes = (size_t)get(in + 6, 2),
                                .bytes = (size_t)get(in + 16, 8)};

    if (memcmp(in, magic, sizeof(magic)) != 0)
        return fleet_error(err, -EBADMSG, "the other side does not speak this protocol");
    if (in[4] != VERSION)
        return fleet_error(err, -EBADMSG, "version %d of the protocol, expected %d", in[4],
                           VERSION);
    if (in[5] >= RPC_KINDS || get(in + 28, 4) != 0)
        return fleet_error(err, -EBADMSG, "a frame of unknown kind %d", in[5]);
    if (header.name_bytes > FLEET_RPC_NAME_MAX || header.bytes > FLEET_RPC_BYTES_MAX)
        return fleet_error(err, -EBADMSG, "a frame of %zu and %zu bytes, allowed: %d and %d",
                           header.name_bytes, header.bytes, FLEET_RPC_NAME_MAX,
                           FLEET_RPC_BYTES_MAX);
    *out = header;
    return 0;
}

int rpc_name_check(const char *what, const char *name, struct fleet_error *err)
{
    size_t length = name ? strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                        "0123456789._-")
                         : 0;

    if (!name || length == 0 || length > FLEET_RPC_NAME_MAX || name[length] != '\0')
        return fleet_error(err, -EINVAL,
                           "%s is \"%.40s\", allowed: 1 to %d letters, digits and \"._-\"", what,
                           name ? name : "(NULL)", FLEET_RPC_NAME_MAX);
    return 0;
}

/* ---- lists of workers ------------------------------------------------------------------------ */

/* world (4), count (4); each: rank (4), port (2), bytes of name (1) and of ip (1), both texts. */
#define LIST_HEAD   8
#define WORKER_HEAD 8

int rpc_workers_encode(const struct fleet_rpc_worker *workers, int count, int world, void **out,
                       size_t *bytes, struct fleet_error *err)
{
    size_t size = LIST_HEAD;
    uint8_t *data, *at;

    for (int i = 0; i < count; i++)
        size += WORKER_HEAD + strlen(workers[i].name) + strlen(workers[i].ip);
    data = malloc(size);
    if (!data)
        return fleet_error(err, -ENOMEM, "out of memory");
    put(data, (uint32_t)world, 4);
    put(data + 4, (uint32_t)count, 4);
    at = data + LIST_HEAD;
    for (int i = 0; i < count; i++) {
        size_t name = strlen(workers[i].name), ip = strlen(workers[i].ip);
        put(at, (uint32_t)workers[i].rank, 4);
        put(at + 4, (uint32_t)workers[i].port, 2);
        at[6] = (uint8_t)name;
        at[7] = (uint8_t)ip;
        memcpy(at + WORKER_HEAD, workers[i].name, name);
        memcpy(at + WORKER_HEAD + name, workers[i].ip, ip);
        at += WORKER_HEAD + name + ip;
    }
    *out = data;
    *bytes = size;
    return 0;
}

/* Read one worker at *at; -EBADMSG. */
static int worker_decode(const uint8_t **at, const uint8_t *end, int world,
                         struct fleet_rpc_worker *out, struct fleet_error *err)
{
    const uint8_t *in = *at;
    size_t name, ip;

    if ((size_t)(end - in) < WORKER_HEAD)
        return fleet_error(err, -EBADMSG, "a list of workers that ends early");
    name = in[6];
    ip = in[7];
    if ((size_t)(end - in) < WORKER_HEAD + name + ip || name > FLEET_RPC_NAME_MAX ||
        ip >= sizeof(out->ip))
        return fleet_error(err, -EBADMSG, "a list of workers with a text of %zu or %zu bytes", name,
                           ip);
    *out =
        (struct fleet_rpc_worker){.rank = (int)(uint32_t)get(in, 4), .port = (int)get(in + 4, 2)};
    if (out->rank < 0 || out->rank >= world)
        return fleet_error(err, -EBADMSG, "rank %d of %d workers", out->rank, world);
    memcpy(out->name, in + WORKER_HEAD, name);
    memcpy(out->ip, in + WORKER_HEAD + name, ip);
    *at = in + WORKER_HEAD + name + ip;
    return rpc_name_check("the worker's name", out->name, err) < 0 ? -EBADMSG : 0;
}

int rpc_workers_decode(const void *in, size_t bytes, struct fleet_rpc_worker **out, int *count,
                       int *world, struct fleet_error *err)
{
    const uint8_t *at = in, *end = at + bytes;
    struct fleet_rpc_worker *list;
    uint64_t all, number;
    int rc = 0;

    if (bytes < LIST_HEAD)
        return fleet_error(err, -EBADMSG, "a list of workers of %zu bytes", bytes);
    all = get(at, 4);
    number = get(at + 4, 4);
    if (all < 1 || all > FLEET_RPC_WORKERS_MAX || number < 1 || number > all)
        return fleet_error(err, -EBADMSG, "%llu of %llu workers, allowed: 1 to %d",
                           (unsigned long long)number, (unsigned long long)all,
                           FLEET_RPC_WORKERS_MAX);
    list = calloc((size_t)number, sizeof(*list));
    if (!list)
        return fleet_error(err, -ENOMEM, "out of memory");
    at += LIST_HEAD;
    for (uint64_t i = 0; rc == 0 && i < number; i++)
        rc = worker_decode(&at, end, (int)all, &list[i], err);
    if (rc == 0 && at != end)
        rc = fleet_error(err, -EBADMSG, "a list of workers with bytes behind its end");
    if (rc < 0) {
        free(list);
        return rc;
    }
    *out = list;
    *count = (int)number;
    *world = (int)all;
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_RPC_FRAME_H
#define DISTRIBUTED_RPC_FRAME_H

/*
 * What travels between two workers, as bytes. A frame is a header of RPC_HEADER_SIZE bytes, a name
 * and a payload; numbers are little-endian.
 *
 *   0 "FRPC"   4 version   5 kind   6 bytes of the name (2)   8 id (8)
 *   16 bytes of the payload (8)   24 code (4)   28 zero (4)
 *
 * The payload of RPC_JOIN is the caller's worker and the number of workers; its result is the list
 * of all workers. Pure.
 */

#include <stddef.h>
#include <stdint.h>

#include "distributed/distributed.h"
#include "include/fleet/fleet_rpc.h"

#define RPC_HEADER_SIZE 32

enum rpc_kind {
    RPC_CALL,   /* name: the function */
    RPC_RESULT, /* of the call with this id */
    RPC_ERROR,  /* the same; code < 0, the payload is the text */
    RPC_JOIN,   /* to rank 0, answered when all workers have joined */
    RPC_LEAVE,  /* to rank 0, answered when all workers leave */
    RPC_KINDS
};

struct rpc_header {
    enum rpc_kind kind;
    uint64_t id;
    int32_t code;
    size_t name_bytes, bytes;
};

/* A frame that has arrived. */
struct rpc_frame {
    struct rpc_header header;
    char *name; /* owned, ends with NUL */
    void *data; /* owned, NULL if empty */
};

void rpc_frame_release(struct rpc_frame *frame);

void rpc_header_encode(const struct rpc_header *header, uint8_t out[RPC_HEADER_SIZE]);

/* -EBADMSG: another protocol, another version, or a size beyond the limits. */
int rpc_header_decode(const uint8_t in[RPC_HEADER_SIZE], struct rpc_header *out,
                      struct fleet_error *err);

/* Workers as bytes: `world` of the job, then `count` of them. *out is the caller's. -ENOMEM. */
int rpc_workers_encode(const struct fleet_rpc_worker *workers, int count, int world, void **out,
                       size_t *bytes, struct fleet_error *err);

/* *out has *count, to be freed. -EBADMSG: not such a list, or a rank outside the world. */
int rpc_workers_decode(const void *in, size_t bytes, struct fleet_rpc_worker **out, int *count,
                       int *world, struct fleet_error *err);

/* Letters, digits and "._-", 1 to FLEET_RPC_NAME_MAX of them. `what` names the argument. */
int rpc_name_check(const char *what, const char *name, struct fleet_error *err);

#endif

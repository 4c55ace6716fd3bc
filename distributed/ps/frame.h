/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_PS_FRAME_H
#define DISTRIBUTED_PS_FRAME_H

/*
 * The frames between a worker and a server, as bytes. A frame is a header of PS_HEADER_SIZE bytes
 * and a payload. Numbers are little-endian. The header has these members at these offsets (size in
 * bytes in brackets, else 1):
 *
 *   0 "FLPS" (4)   4 version   5 kind   6 table (2)   8 sequence (8)   16 step (8)
 *   24 size of the payload in bytes (4)   28 code (4)
 *
 * A server answers each request with one frame of the same sequence: PS_OK with the result, or
 * PS_ERROR with a negative errno value in `code` and the text of the error. All functions are pure.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "distributed/ps/table.h"

#define PS_HEADER_SIZE 32

enum ps_kind {
    PS_HELLO,      /* struct ps_hello; the result is struct ps_welcome */
    PS_TABLE,      /* payload: an encoded table */
    PS_PULL,       /* code: 1 for training, else 0; payload: keys. The result is the rows */
    PS_PUSH,       /* code: 1 if it has shows and clicks; payload: keys, gradients, shows, clicks */
    PS_PULL_DENSE, /* the result is the server's block */
    PS_PUSH_DENSE, /* payload: the gradient of the block */
    PS_SET_DENSE,  /* payload: the values of the block */
    PS_END,        /* the worker ends step `step`; answered when all workers have ended it. code 1:
                      without an answer */
    PS_BARRIER,    /* code: the number of barriers before; answered when all workers have sent it */
    PS_ROWS,       /* the result is two numbers: all rows, admitted rows */
    PS_SHRINK,
    PS_SAVE, /* code: the mode; payload: the folder */
    PS_LOAD, /* payload: the folder */
    PS_STOP,
    PS_OK,
    PS_ERROR,
    PS_KINDS
};

struct ps_header {
    enum ps_kind kind;
    int table;
    uint64_t sequence;
    int64_t step;
    size_t bytes;
    int32_t code;
};

/* A worker's first frame. */
struct ps_hello {
    uint32_t worker, workers, server, servers, mode, timeout_ms;
    uint64_t process; /* a random number of the worker's process */
    int64_t step;     /* steps that are over for the worker; -1: the worker does not know */
};

struct ps_welcome {
    uint64_t process;   /* of the server */
    int64_t step;       /* steps that the server has applied */
    uint32_t has_ended; /* 1: this worker has ended step `step` */
    uint32_t barriers;  /* barriers that are over */
    uint64_t updates;   /* pushes that the server has carried out */
};

void ps_header_encode(const struct ps_header *header, uint8_t out[PS_HEADER_SIZE]);

/* -EBADMSG: another protocol, another version, an unknown kind, or a size beyond the limits. */
int ps_header_decode(const uint8_t in[PS_HEADER_SIZE], struct ps_header *out,
                     struct fleet_error *err);

#define PS_TABLE_BYTES 128

void ps_table_encode(const struct fleet_ps_table *table, uint8_t out[PS_TABLE_BYTES]);

/* -EBADMSG: another size. -EINVAL: ps_table_check(). */
int ps_table_decode(const void *in, size_t bytes, struct fleet_ps_table *out,
                    struct fleet_error *err);

/* -EBADMSG: another size, or a number outside its limits. */
int ps_hello_decode(const void *in, size_t bytes, struct ps_hello *out, struct fleet_error *err);

/* Set *out to the lists of a PS_PUSH. They lie in `in`, which is aligned like memory of malloc().
 * -EBADMSG: `bytes` fits no number of keys up to FLEET_PS_KEYS_MAX, or a number is not finite. */
int ps_push_decode(void *in, size_t bytes, bool has_stats, int width, struct ps_push *out,
                   struct fleet_error *err);

/* The size of a PS_PUSH with `count` keys, in bytes. */
size_t ps_push_bytes(size_t count, bool has_stats, int width);

/* Write the lists of `push` to `out`, which has ps_push_bytes() bytes. */
void ps_push_encode(const struct ps_push *push, int width, void *out);

/* The folder of PS_SAVE and PS_LOAD as text, which the caller frees. -EBADMSG: it is empty, longer
 * than FLEET_PS_PATH_MAX, or contains a NUL. */
int ps_folder_decode(const void *in, size_t bytes, char **out, struct fleet_error *err);

/* True if every number is finite. */
bool ps_is_finite(const float *numbers, size_t count);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_TENSORBOARD_EVENT_H
#define LIBFLEET_TENSORBOARD_EVENT_H

/*
 * Records of TensorBoard's event files: a TFRecord frame around a protocol buffer.
 *
 *     frame    length (8 bytes, little-endian), masked CRC32C of them, payload, its masked CRC32C
 *     payload  Event: wall_time 1, step 2, and one of file_version 3, summary 5, session_log 7;
 *              Summary: repeated value 1; Value: tag 1, simple_value 2
 *     masked   ((crc >> 15) | (crc << 17)) + 0xa282ead8
 *
 * Only the fields that training curves need are written. Other fields of a file are skipped. No I/O
 * here.
 */

#include <stddef.h>
#include <stdint.h>

#include "libfleet/base/strbuf.h"

struct fleet_error;

#define EVENT_FRAME_SIZE   16        /* bytes around a payload */
#define EVENT_PAYLOAD_MAX  (1 << 20) /* bytes of one event; a longer one is an error */
#define EVENT_SCALARS_MAX  64        /* of one event; more are skipped */
#define EVENT_FILE_VERSION "brain.Event:2"

struct event_scalar {
    const char *tag; /* tag_size bytes without a NUL */
    size_t tag_size;
    double value; /* stored as a 32-bit float */
};

enum event_kind {
    EVENT_VERSION, /* the first one of a file */
    EVENT_SCALARS,
    EVENT_START, /* training goes on at `step`: readers drop their points from there on */
    EVENT_OTHER,
};

struct event {
    enum event_kind kind;
    double wall_s; /* seconds since 1970 */
    int64_t step;
    struct event_scalar scalars[EVENT_SCALARS_MAX]; /* EVENT_SCALARS; tags borrowed */
    int scalar_count;
};

/* Append `event` with its frame. EVENT_OTHER cannot be written (asserted). */
void event_append(struct fleet_strbuf *out, const struct event *event);

/*
 * The frame at the start of data[size]: *out_payload bytes of payload begin at offset 12, the next
 * frame EVENT_FRAME_SIZE + *out_payload later. -EAGAIN: the frame is not complete; -EBADMSG: it is
 * damaged or longer than EVENT_PAYLOAD_MAX.
 */
int event_frame(const uint8_t *data, size_t size, size_t *out_payload, struct fleet_error *err);

/* Read a payload; tags point into it. -EBADMSG with the reason. */
int event_decode(const uint8_t *payload, size_t size, struct event *out, struct fleet_error *err);

/* CRC-32C (Castagnoli), of RFC 3720 appendix B.4. */
uint32_t event_crc32c(const void *data, size_t size);

#endif

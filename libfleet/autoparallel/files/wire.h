/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_AUTOPARALLEL_FILES_WIRE_H
#define LIBFLEET_AUTOPARALLEL_FILES_WIRE_H

/*
 * The values that MindSpore's strategy and group files have in their messages (base/protobuf.h):
 * names, integers of 32 bits, and lists. A list is a message with the numbers in field 1.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libfleet/autoparallel/files/numbers.h"
#include "libfleet/base/protobuf.h"

struct fleet_error;
struct fleet_strbuf;

/* 0 if the field has this type. -EINVAL names the field. */
int wire_need(const struct fleet_protobuf_field *field, enum fleet_protobuf_type type,
              struct fleet_error *err);

/* The value of a field of text, in place of *out, which is freed: the last of several counts.
 * -EINVAL: of another type, a NUL in it. */
int wire_read_name(const struct fleet_protobuf_field *field, char **out, struct fleet_error *err);

/* The value of an int32 or a uint32 below 2^31; *seen becomes true. */
int wire_read_integer(const struct fleet_protobuf_field *field, int64_t *out, bool *seen,
                      struct fleet_error *err);

/* Append the integers in field 1 of the message, packed or one by one, to a list of at most
 * `max`. */
int wire_read_list(const struct fleet_protobuf_field *message, size_t max, struct numbers *out,
                   struct fleet_error *err);

/* Append a field. */
void wire_append_message(struct fleet_strbuf *out, uint32_t number,
                         const struct fleet_strbuf *message);
void wire_append_list(struct fleet_strbuf *out, uint32_t number, const struct numbers *list);

#endif

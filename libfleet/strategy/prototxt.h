/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_STRATEGY_PROTOTXT_H
#define LIBFLEET_STRATEGY_PROTOTXT_H

/*
 * Strategies in the text format of protocol buffers, as Paddle's save_to_prototxt() writes it and
 * load_from_prototxt() reads it.
 *
 * Reading merges into a strategy. Of two single values the last one wins. Lists append. Several
 * blocks of one message are merged. An empty block marks its message as set. Both dialects
 * (dialect.h) are read. A mistake gives one error "name:line:column: text" (columns in bytes, from
 * 1), and the strategy is unchanged.
 *
 * Writing is canonical, byte for byte as Paddle writes: only set fields, in the order of their
 * numbers, two spaces per level, one repeated value per line.
 *
 * Limits: PROTOTXT_SIZE_MAX bytes, KNOB_LIST_MAX elements, KNOB_STRING_MAX bytes of a string;
 * nesting is bounded by the table of settings. A string cannot hold a NUL byte.
 */

#include <stddef.h>

#include "libfleet/strategy/dialect.h"
#include "libfleet/strategy/strategy.h"

struct fleet_error;
struct fleet_strbuf;

#define PROTOTXT_SIZE_MAX (1024 * 1024)

/*
 * Merge `text` into *s. -EINVAL with file, line and column: a syntax error, an unknown field, a
 * value of the wrong type, the two names of one setting with different values, a string that is
 * not UTF-8, or an exceeded limit. -EFBIG: longer than PROTOTXT_SIZE_MAX. On failure *s is
 * unchanged.
 */
int prototxt_merge(struct strategy *s, const char *name, const char *text, size_t size,
                   struct fleet_error *err);

/*
 * Append the canonical form of *s to `out`, with the names that were read or those of one dialect.
 * -EINVAL, and nothing is appended, if that dialect cannot express a field that is set.
 */
int prototxt_print(const struct strategy *s, enum strategy_dialect dialect,
                   struct fleet_strbuf *out, struct fleet_error *err);

#endif

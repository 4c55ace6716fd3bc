/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_AUTOPARALLEL_FILES_STRATEGY_FILE_INTERNAL_H
#define LIBFLEET_AUTOPARALLEL_FILES_STRATEGY_FILE_INTERNAL_H

/* What the two forms of strategy_file.h share, for them alone. */

#include "libfleet/autoparallel/files/strategy_file.h"

/* Append one. -E2BIG: `max` of them are there. The new one is zero. */
int strategy_file_add_operator(struct strategy_file *file, struct strategy_file_operator **out,
                               struct fleet_error *err);
int strategy_file_add_layout(struct strategy_file *file, struct strategy_file_layout **out,
                             struct fleet_error *err);
int strategy_file_add_tuple(struct strategy_file_operator *op, struct numbers **out,
                            struct fleet_error *err);

/* Read one form into an empty file; what both must hold is checked by the caller. */
int strategy_file_decode_json(const char *text, size_t size, struct strategy_file *out,
                              struct fleet_error *err);
int strategy_file_decode_binary(const void *bytes, size_t size, struct strategy_file *out,
                                struct fleet_error *err);

void strategy_file_encode_json(const struct strategy_file *file, struct fleet_strbuf *out);
void strategy_file_encode_binary(const struct strategy_file *file, struct fleet_strbuf *out);

#endif

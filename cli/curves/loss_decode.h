/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_CURVES_LOSS_DECODE_H
#define CLI_CURVES_LOSS_DECODE_H

/* Losses from the bytes of a file: a record (loss_record.h), events of TensorBoard
 * (event_losses.h) or the JSON lines of a run (json_losses.h), by what the file begins with. */

#include <stddef.h>

struct curve;
struct fleet_error;

/*
 * text[size] ends with a NUL that `size` does not count. -EBADMSG: damaged, or none of these;
 * -ENODATA: there is no loss in it. Release `out` after success.
 */
int loss_decode(const char *text, size_t size, struct curve *out, struct fleet_error *err);

#endif

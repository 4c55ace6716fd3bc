/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_CURVES_LOSS_RECORD_H
#define CLI_CURVES_LOSS_RECORD_H

/*
 * The losses of a job over all its runs: a text file "losses-NAME.tsv" beside its checkpoints,
 * which `fleetjob run` writes. A run that goes on from step N takes over what the file has up to
 * N, so that its curve and its first loss are the job's.
 *
 *     # fleetjob losses {"job":"gpt-text","about":"gpt of 4 layers, …"}
 *     step	loss	heldOutLoss	events
 *     1	5.5451
 *     2	5.4913	5.5012	restart
 *
 * The steps ascend. Empty columns at the end of a line are left out. An event is "restart" or
 * "resume" after the step; several are separated by commas. Losses may be "nan", "inf" and
 * "-inf". Files of older versions have no first two lines, and only steps and losses.
 */

#include <stddef.h>
#include <stdint.h>

#include "cli/curves/curve.h"
#include "libfleet/base/strbuf.h"

struct fleet_error;

#define LOSS_RECORD_SIZE_MAX ((size_t)1 << 30) /* bytes; a larger file is not read */
#define LOSS_RECORD_PREFIX   "losses-"
#define LOSS_RECORD_SUFFIX   ".tsv"
#define LOSS_RECORD_HEAD     "# fleetjob losses "

/* The file's path, heap; `folder` holds the checkpoints of the job `name`. */
char *loss_record_path(const char *folder, const char *name);

/* -EBADMSG with the number of the line that is none, and what belongs there. Release `out` after
 * success. */
int loss_record_decode(const char *text, struct curve *out, struct fleet_error *err);
void loss_record_encode(const struct curve *curve, struct fleet_strbuf *out);

/* Decode the file. -errno (-ENOENT: there is none) or -EBADMSG, with the path. */
int loss_record_read(const char *path, struct curve *out, struct fleet_error *err);

/* Replace the file. -errno with the path. */
int loss_record_write(const char *path, const struct curve *curve, struct fleet_error *err);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_CURVES_LOSS_RECORD_H
#define CLI_CURVES_LOSS_RECORD_H

/*
 * The losses of a job over all its runs. `fleetjob run` writes them to the text file
 * "losses-NAME.tsv" beside the checkpoints. A run that resumes from step N keeps the file's lines
 * up to N, so the file always has the curve of the whole job.
 *
 *     # fleetjob losses {"job":"gpt-text","about":"gpt of 4 layers, …"}
 *     step	loss	heldOutLoss	events
 *     1	5.5451
 *     2	5.4913	5.5012	restart
 *
 * The steps ascend. Empty columns at the end of a line are left out. An event, "restart" or
 * "resume", happened after the line's step; commas separate several events. Losses may be "nan",
 * "inf" and "-inf". Files of older versions lack the first two lines and the last two columns.
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

/* The file's path, a heap string that the caller frees. `folder` holds the checkpoints of the job
 * `name`. */
char *loss_record_path(const char *folder, const char *name);

/* -EBADMSG: the error has the number of the first malformed line and what a line must contain.
 * After success the caller releases *out (curve_release()); after an error *out is unchanged. */
int loss_record_decode(const char *text, struct curve *out, struct fleet_error *err);
void loss_record_encode(const struct curve *curve, struct fleet_strbuf *out);

/* Read and decode a file. -errno (-ENOENT: there is no file) or -EBADMSG, as above; the error names
 * the path. */
int loss_record_read(const char *path, struct curve *out, struct fleet_error *err);

/* Write the curve to a file, which is replaced. -errno; the error names the path. */
int loss_record_write(const char *path, const struct curve *curve, struct fleet_error *err);

#endif

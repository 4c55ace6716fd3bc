/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_LOSS_RECORD_H
#define CLI_LOSS_RECORD_H

/*
 * The losses of a job over all its runs: a text file "losses-NAME.tsv" beside its checkpoints, "step TAB
 * loss" a line, ascending. A run that goes on from step N takes the first N lines over, so that its curve
 * and its first loss are the job's.
 */

#include "cli/curve.h"

struct fleet_error;

#define LOSS_RECORD_SIZE_MAX ((size_t)1 << 30) /* bytes; a larger one is not read */

/* The file's path, heap; `folder` holds the checkpoints of the job `name`. */
char *loss_record_path(const char *folder, const char *name);

/* Put the losses of the steps before `step` in front of those of `curve`. A file that is missing, or not
 * of this kind, is none: nothing happens. */
void loss_record_read(const char *path, int64_t step, struct curve *curve);

/* Replace the file. -errno with the path. */
int loss_record_write(const char *path, const struct curve *curve, struct fleet_error *err);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_CURVES_LOSS_SOURCE_H
#define CLI_CURVES_LOSS_SOURCE_H

/*
 * The losses of a run, from the files that the run has left:
 *
 *   a file    the record of losses beside the checkpoints (loss_record.h)
 *             an event file of TensorBoard: curves "loss" and "evaluation/loss"
 *             the output of `fleetjob run --json`
 *             a job, its name ending in .yaml or .yml: its record, or its folder of log.tensorboard
 *   a folder  with one record in it, such as training.checkpoint.path
 *             of one checkpoint: the record beside it
 *             with TensorBoard's event files of one job, such as log.tensorboard
 *
 * The first bytes of a file give its kind (loss_decode.h).
 */

struct curve;
struct fleet_error;

/*
 * Read the losses at `path` ("-" = standard input). -errno with the path if it cannot be read,
 * -EBADMSG if it is damaged or nothing of the above, -ENODATA if it holds no loss. Release `out`
 * after success.
 */
int loss_source_read(const char *path, struct curve *out, struct fleet_error *err);

#endif

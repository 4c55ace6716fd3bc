/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_STEP_PRIVATE_SAVE_H
#define AGENT_RUNTIME_STEP_PRIVATE_SAVE_H

/*
 * The values that each rank has for itself (private.h), in checkpoints. Each rank writes its own
 * into one more file. A job that goes on with the same number of ranks gives each rank its values
 * back, so it trains as if it had never stopped:
 *
 *   dgc       u and v, after the dense phase
 *   localsgd  the optimizer's states; between two averages also the parameters and the snapshot
 *
 * With another number of ranks:
 *
 *   dgc       Rank r gets the values of rank r. Further ranks start with empty residuals.
 *   localsgd  All ranks start from the mean of the parameters, and from rank 0's optimizer states.
 *
 * `err` may not be NULL anywhere here.
 */

#include <stdbool.h>

struct checkpoint_state;
struct fleet_error;
struct trainer;

/* True if the ranks of this generation have such values: a checkpoint needs all ranks. */
bool private_is_saved(const struct trainer *trainer);

/* Add the private spaces to the state that a checkpoint of this rank holds. Only for a save by all
 * ranks, while private_is_saved(). */
void private_add_spaces(const struct trainer *trainer, struct checkpoint_state *state);

/*
 * Fill these values from the checkpoint that rank 0 has read last (trainer->save.restored). All
 * ranks call it, with the same arguments. with_parameters: localsgd, and the checkpoint was made
 * between two averages. *out_saved: the number of ranks whose values it has, 0 = none that fit
 * this job. With another number than the generation's, dgc reads those that there are, and
 * localsgd none.
 * Errors: those of collectives; of reading on rank 0, whose message names the file.
 */
int private_read(struct trainer *trainer, bool with_parameters, int *out_saved,
                 struct fleet_error *err);

#endif

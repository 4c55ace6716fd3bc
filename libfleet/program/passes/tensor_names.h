/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_PASSES_TENSOR_NAMES_H
#define LIBFLEET_PROGRAM_PASSES_TENSOR_NAMES_H

/* Tensors of a model by name, for settings that name them, and the outputs of its layers. */

#include <stdbool.h>

struct fleet_error;
struct program;
struct strategy_strings;

/* The number of operators of the forward part, which come first. */
int tensor_names_forward(const struct program *program);

/* The number of layers; the tensor that the last forward operator of a layer writes, or
 * PROGRAM_NONE. */
int tensor_names_blocks(const struct program *program);
int tensor_names_block_output(const struct program *program, int layer);

/* The program has such a tensor, and it belongs to no backward part. */
bool tensor_names_has(const struct program *program, const char *name);

/* -EINVAL if the program lacks one of them. The message names the setting `knob`
 * ("recompute_configs.checkpoints"), all names that are missing, and what is there. */
int tensor_names_check(const struct program *program, const struct strategy_strings *names,
                       const char *knob, struct fleet_error *err);

#endif

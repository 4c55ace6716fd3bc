/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_CHECKPOINT_MATCH_H
#define AGENT_RUNTIME_CHECKPOINT_MATCH_H

/*
 * From files back into the flat spaces. First every tensor of the files is matched with what the
 * state wants, and all that does not fit is listed; only then is anything copied.
 */

#include <stdbool.h>
#include <stddef.h>

#include "agent/runtime/checkpoint/checkpoint.h"
#include "libfleet/checkpoint/safetensors.h"

/*
 * Match `files` with `state` and copy. is_foreign: others made the files, so other types are
 * allowed, and tensors that published files have and no model needs. -EINVAL with everything that
 * does not fit; -EIO if a file becomes shorter meanwhile.
 */
int match_load_files(const struct safetensors_file *files, size_t count, bool is_foreign,
                     const struct checkpoint_state *state, struct fleet_error *err);

#endif

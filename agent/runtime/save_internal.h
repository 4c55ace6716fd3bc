/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_SAVE_INTERNAL_H
#define AGENT_RUNTIME_SAVE_INTERNAL_H

/* What the files of save.h share, for them alone. */

#include <stdint.h>

#include "agent/runtime/checkpoint/checkpoint.h"
#include "agent/runtime/save.h"

/* The state that a checkpoint of this rank holds. Borrows from the trainer. */
void save_state_of(const struct trainer *trainer, struct checkpoint_state *out);

/* Which checkpoints are this job's. Borrows from the trainer. */
struct manifest_history save_own_history(const struct trainer *trainer);

/* `folder` is the newest complete checkpoint known here; earlier failures are over. */
void save_remember_newest(struct trainer *trainer, int64_t step, const char *folder);

#endif

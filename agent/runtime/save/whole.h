/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_SAVE_WHOLE_H
#define AGENT_RUNTIME_SAVE_WHOLE_H

/*
 * Whole tensors from the parts that the ranks of a replica have. All ranks of the generation call
 * these functions at the same point. `err` may not be NULL.
 */

#include "libfleet/base/digest.h"
#include "libfleet/plan/ownership.h"
#include "libfleet/program/program.h"

struct checkpoint_state;
struct fleet_error;
struct trainer;

#define WHOLE_SPACES 3 /* parameters, and at most two optimizer states */

/* The whole tensors that a rank writes into a checkpoint: of each replica's tensors the ranks of
 * the replica write an equal share, or, as stages of a pipeline, their own. */
struct whole {
    struct program program;      /* that of a rank which has all of each tensor */
    struct ownership map;        /* its shards are the cells */
    float *spaces[WHOLE_SPACES]; /* host memory, as `map` lays it out; NULL: nothing */
    size_t bytes;
    bool is_made;
};

/*
 * Gather all of parameter `var` of plan_whole() in `flat`, which is laid out as the rank's memory
 * of the parameters is, on every rank of the replica; if replicas divide parameters, on every rank.
 * `out` is host memory for slice_whole_elements(). Errors as comm_all_gather(). A tensor that every
 * rank has is copied.
 */
int whole_gather(struct trainer *trainer, int var, const float *flat, float *out,
                 struct fleet_error *err);

/* checkpoint_weights_sha256() of whole parameters. So it does not depend on how ranks divide
 * them. */
int whole_weights_sha256(struct trainer *trainer, char out[FLEET_SHA256_HEX_SIZE],
                         struct fleet_error *err);

/*
 * Fill `whole` on the ranks of the first replica from the committed state of all ranks; it replaces
 * what was in it. Errors: those of comm_messages(); -ENOMEM does not happen, as for other host
 * memory.
 */
int whole_make(struct trainer *trainer, struct whole *whole, struct fleet_error *err);

/* What a rank of cell `cell` writes of it. Borrows from `whole`. */
void whole_state_of(const struct whole *whole, int cell, struct checkpoint_state *out);

/* Free it; fine if nothing was made. */
void whole_release(struct whole *whole);

#endif

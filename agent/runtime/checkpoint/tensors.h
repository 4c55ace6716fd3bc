/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_CHECKPOINT_TENSORS_H
#define AGENT_RUNTIME_CHECKPOINT_TENSORS_H

/* The tensors of a checkpoint_state, as a list that saving and loading share. */

#include "agent/runtime/checkpoint/checkpoint.h"

struct checkpoint_tensor {
    char *name; /* with the space's suffix */
    const struct program_var *var;
    float *data;     /* memory of `backend` below; NULL: another rank has the tensor */
    bool is_divided; /* the tensor belongs to one shard */
    int64_t elements;
    bool is_of_first; /* the first rank writes the whole of it */
    enum checkpoint_file file;
};

struct checkpoint_tensors {
    struct checkpoint_tensor *items; /* [count]: space by space, each in the order of its space */
    size_t count;
    struct backend *backend; /* of the state */
};

/* Borrows from `state` and its program. */
void checkpoint_tensors_init(struct checkpoint_tensors *tensors,
                             const struct checkpoint_state *state);
void checkpoint_tensors_release(struct checkpoint_tensors *tensors);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FLEET_FLEET_RECOMPUTE_H
#define FLEET_FLEET_RECOMPUTE_H

/*
 * Recompute a part of a model instead of keeping its activations: Paddle's recompute(function). The
 * forward pass runs the part once and keeps copies of its inputs only. The backward pass runs the
 * part again from these copies, and this time keeps its activations. Then it runs the part's
 * gradient.
 *
 * The trainer writes the part as two functions. Both runs get the same random numbers: the library
 * copies the state of the trainer's random number generator before the first run, and restores it
 * for the second one.
 *
 * Every function that can fail returns 0 or a negative errno value, and then fills *err (NULL is
 * fine). Threads: one thread at a time uses a struct fleet_recompute.
 */

#include "fleet.h"

#ifdef __cplusplus
extern "C" {
#endif

struct fleet_recompute;

#define FLEET_RECOMPUTE_TENSORS_MAX 64

/* A part of a model. Its functions return 0, or a negative errno value and fill *err. */
struct fleet_recompute_part {
    /* outputs = f(inputs). If keep is true, backward() follows, and the function keeps the
     * activations for it. */
    int (*forward)(void *context, const struct fleet_tensor *inputs,
                   const struct fleet_tensor *outputs, bool keep, struct fleet_error *err);
    /* Compute input_gradients from output_gradients and the activations of the last forward() with
     * keep. If the data of an entry are NULL, its gradient is not wanted. */
    int (*backward)(void *context, const struct fleet_tensor *output_gradients,
                    const struct fleet_tensor *input_gradients, struct fleet_error *err);
    void *context;       /* an argument of both functions */
    void *random_state;  /* state of the random number generator; NULL: the part does not use one */
    size_t random_bytes; /* size of the state */
};

/*
 * Run part->forward() without keep. The library copies *part and the inputs. It borrows the context
 * and the state of the generator until the caller frees *out with fleet_recompute_free(). -EINVAL:
 * a function is missing, the number of inputs or outputs is not in 1 to
 * FLEET_RECOMPUTE_TENSORS_MAX, or a tensor has no data. -ENOMEM. Else the error of the function.
 */
int fleet_recompute_forward(const struct fleet_recompute_part *part,
                            const struct fleet_tensor *inputs, int input_count,
                            const struct fleet_tensor *outputs, int output_count,
                            struct fleet_recompute **out, struct fleet_error *err);

/*
 * Run part->forward() with keep on the copies of the inputs; its outputs go to memory of the
 * library. Then run part->backward(). Afterwards the random number generator has the state that it
 * had before this call. Call it once. -EINVAL: no input gradient is wanted, or it is the second
 * call. -ENOMEM. Else the error of a function.
 */
int fleet_recompute_backward(struct fleet_recompute *recompute,
                             const struct fleet_tensor *output_gradients,
                             const struct fleet_tensor *input_gradients, struct fleet_error *err);

void fleet_recompute_free(struct fleet_recompute *recompute); /* NULL is fine */

#ifdef __cplusplus
}
#endif

#endif

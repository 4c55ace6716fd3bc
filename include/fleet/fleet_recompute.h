/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FLEET_FLEET_RECOMPUTE_H
#define FLEET_FLEET_RECOMPUTE_H

/*
 * A part of a model that keeps its inputs and not its activations: Paddle's recompute(function).
 * The forward pass runs the part once and keeps only copies of its inputs. The backward pass runs
 * it again from these copies, now keeping what its gradient needs, and then its gradient.
 *
 * The trainer writes the part as two functions. Random numbers of the second run are those of the
 * first one: the library copies the state of the trainer's generator before the first run, and
 * restores it for the second.
 *
 * Every function returns 0 or a negative errno value, and then fills *err (NULL is fine).
 * Threads: one thread at a time uses one recomputation.
 */

#include "fleet.h"

#ifdef __cplusplus
extern "C" {
#endif

struct fleet_recompute;

#define FLEET_RECOMPUTE_TENSORS_MAX 64

/* A part of a model. Its functions return 0 or a negative errno value with *err filled. */
struct fleet_recompute_part {
    /* outputs = f(inputs). keep: whether backward() follows, so that activations are needed. */
    int (*forward)(void *context, const struct fleet_tensor *inputs,
                   const struct fleet_tensor *outputs, bool keep, struct fleet_error *err);
    /* input_gradients = those of the last forward() with keep. An entry whose data is NULL is not
     * wanted. */
    int (*backward)(void *context, const struct fleet_tensor *output_gradients,
                    const struct fleet_tensor *input_gradients, struct fleet_error *err);
    void *context;       /* for both */
    void *random_state;  /* of the trainer's generator; NULL: the part uses no random numbers */
    size_t random_bytes; /* of the state */
};

/*
 * Run part->forward() without keep. *part and its context stay the caller's until
 * fleet_recompute_free(); the lists and the tensors' memory may go. *out is freed with
 * fleet_recompute_free(). -EINVAL: no function, a number of tensors outside 1 to
 * FLEET_RECOMPUTE_TENSORS_MAX, a tensor without data. -ENOMEM; the function's own error.
 */
int fleet_recompute_forward(const struct fleet_recompute_part *part,
                            const struct fleet_tensor *inputs, int input_count,
                            const struct fleet_tensor *outputs, int output_count,
                            struct fleet_recompute **out, struct fleet_error *err);

/*
 * Run part->forward() with keep from the copies, into memory of the library, and then
 * part->backward(). The state of the generator afterwards is that before this call. -EINVAL: no
 * input gradient is wanted, or it was called before. -ENOMEM; the functions' own errors.
 */
int fleet_recompute_backward(struct fleet_recompute *recompute,
                             const struct fleet_tensor *output_gradients,
                             const struct fleet_tensor *input_gradients, struct fleet_error *err);

void fleet_recompute_free(struct fleet_recompute *recompute); /* NULL is fine */

#ifdef __cplusplus
}
#endif

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PLAN_GPU_PROGRAM_H
#define LIBFLEET_PLAN_GPU_PROGRAM_H

/*
 * What a GPU runs in place of operators that a CPU runs one after the other. A rewritten program
 * has the same parameters, gradients, inputs and loss, so the digest of the plan stays the same.
 *
 * The layer that gives the logits, the loss, and the gradients of both become one
 * LINEAR_CROSS_ENTROPY, which has the logits of GPU_CLASSIFIER_ROWS rows at a time. That happens if
 *   - a micro-batch has more rows than that
 *   - the layer has no bias, and nothing else reads the logits
 *   - weight, input and logits are of one type, and the gradient of the weight is fp32
 *   - ranks do not communicate within a micro-batch: they share no tensors, no sequences and no
 *     layers, and divide no gradients or parameters (sharding, stages 2 and 3)
 *   - recompute does not make the input of the layer again
 * Otherwise the logits of all rows lie in memory.
 */

#include <stdbool.h>

struct program;

/* Rewrite a complete, laid out program. True: something has changed. */
bool gpu_program_apply(struct program *program);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_STEP_NOT_FINITE_H
#define AGENT_RUNTIME_STEP_NOT_FINITE_H

/*
 * fp16_allreduce: how many elements of the exchanged gradient are not finite. 16 bits hold less
 * than 32, so an exchange can make infinities of finite gradients; the curve not_finite_gradients
 * shows it. Only an update whose check has found some is counted, so the others take no time.
 */

#include <stdbool.h>
#include <stdint.h>

struct trainer;

/* Gradients travel in fp16 in this job. */
bool not_finite_is_counted(const struct trainer *trainer);

/* The elements of this rank's complete gradient that are infinite or NaN. */
int64_t not_finite_count(const struct trainer *trainer);

#endif

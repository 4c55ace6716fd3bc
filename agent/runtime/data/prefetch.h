/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_DATA_PREFETCH_H
#define AGENT_RUNTIME_DATA_PREFETCH_H

/*
 * Micro-batches read ahead by a thread, while the one before is computed.
 *
 *     prefetch_want(p, next)           as soon as the next micro-batch is known
 *     prefetch_take(p, now, …)         waits for it; reads it here if nothing asked for it before
 *
 * prefetch_want() changes when samples are read, but never which samples prefetch_take() returns.
 * All calls come from one thread.
 */

#include <stdint.h>

#include "agent/runtime/data/dataset.h"
#include "agent/runtime/data/sampler.h"

struct prefetch;

struct prefetch_options {
    const struct dataset *dataset; /* borrowed */
    struct sampler sampler;
    int64_t vocabulary;  /* as dataset_read() */
    int64_t samples;     /* of a micro-batch */
    int64_t input_size;  /* 4-byte values of a sample: context, or channels · height · width */
    int64_t target_size; /* context, or 1 */
};

/* Copies the options and starts the thread. If the system cannot create a thread,
 * prefetch_take() reads the samples. */
struct prefetch *prefetch_new(const struct prefetch_options *options);
void prefetch_free(struct prefetch *prefetch); /* NULL is fine */

/* Begin to read the samples with numbers first … first + samples - 1. Never waits. */
void prefetch_want(struct prefetch *prefetch, int64_t first);

/* Return those samples: inputs[samples][input_size] (int32 or float),
 * targets[samples][target_size]. Errors as dataset_read(). */
int prefetch_take(struct prefetch *prefetch, int64_t first, void *inputs, int32_t *targets,
                  struct fleet_error *err);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_EVALUATION_H
#define AGENT_RUNTIME_EVALUATION_H

/*
 * The loss of a range of samples. Only the forward part runs, dropout is off, and batch_norm uses
 * its running statistics.
 *
 * The samples are cut into micro-batches in order. The last one is filled up with samples whose
 * targets are ignored. The trainer's evaluation and `fleetjob eval` both compute every micro-batch
 * and the mean here, so they give the same bits.
 *
 * Ranks that share sequences average the means of their tokens, so each rank needs as many tokens
 * that count. Samples that are left after the full micro-batches are then cut into parts whose
 * number divides the size, the largest first. Each part fills a micro-batch, several times.
 */

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "agent/runtime/data/dataset.h"
#include "agent/runtime/executor/executor.h"
#include "agent/runtime/state.h"

struct fleet_error;
struct pipeline_shape;

struct evaluation_cut {
    int64_t samples, micro_batch_size;
    bool repeats; /* ranks share sequences: samples are repeated, none is ignored */
};

struct evaluation_range {
    const struct dataset *dataset;
    const struct program *program;
    const struct state *state;
    struct executor *executor;
    int inputs, targets;       /* variables of `program` */
    int64_t first;             /* sample of the dataset */
    struct evaluation_cut cut; /* its micro_batch_size is that of `program` */
    int64_t vocabulary;        /* as dataset_read() */
    uint64_t seed;
    void *gradients;  /* a gradient space; NULL for a program without backward operators */
    void *parameters; /* in place of the state's; NULL = the state's */
    /* The rank is this stage of a pipeline; NULL: it has all layers. Then all stages run the same
     * micro-batches, and only the last one gets losses. */
    const struct pipeline_shape *shape;
    int stage;
};

/* The number of samples to evaluate: as many of `held_out` as spec.training.evaluation asks for. */
int64_t evaluation_samples(int64_t held_out, int64_t batches, int64_t global_batch_size);

int64_t evaluation_micro_batches(const struct evaluation_cut *cut);

/* The samples of micro-batch `number`: [*out_first, + result) of the cut. */
int64_t evaluation_part(const struct evaluation_cut *cut, int64_t number, int64_t *out_first);

/* The loss of micro-batch `number`. Errors of dataset_read() and executor_run(). */
int evaluation_run(const struct evaluation_range *range, int64_t number, const atomic_bool *stop,
                   float *out_loss, struct fleet_error *err);

/* Communicate with ranks that run a micro-batch, without one. Errors of executor_run(). */
int evaluation_take_part(const struct evaluation_range *range, const atomic_bool *stop,
                         struct fleet_error *err);

/* The mean over samples from the losses of all micro-batches. */
double evaluation_mean(const float *losses, const struct evaluation_cut *cut);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_INFERENCE_EVALUATE_WEIGHTS_H
#define AGENT_RUNTIME_INFERENCE_EVALUATE_WEIGHTS_H

/*
 * The loss of trained weights on data, outside of a job: `fleetjob eval`.
 *
 * Samples, micro-batches, program and mean are those of the job's own evaluation. On the job's own
 * data the held-out share is evaluated; at the same instruction-set level the result has the same
 * bits as the job's. On other data all samples are evaluated.
 */

#include <stdbool.h>
#include <stdint.h>

struct fleet_error;
struct weights;

enum evaluate_range {
    EVALUATE_AUTO,     /* on the job's own data the held-out share, else all */
    EVALUATE_HELD_OUT, /* the last share data.validation of the samples */
    EVALUATE_ALL,
};

struct evaluate_request {
    const char *data; /* file, folder or glob; ignored by synthetic-markov */
    enum evaluate_range range;
    int64_t batches; /* global batches at most; 0 = all; -1 = as the job's evaluation.batches */
    int threads;     /* 0 = what the CPU quota allows */
};

struct evaluate_result {
    double loss;             /* mean over samples, nats */
    double perplexity;       /* exp(loss); NaN for images */
    int64_t samples, tokens; /* tokens: 0 for images */
    bool is_held_out;
    bool is_own_data;  /* the data are those of the job */
    const char *level; /* instruction-set level of the computation */
    double seconds;    /* time of the computation only */
};

/* Errors of dataset_open(), plan_build() and weights_load(); -EINVAL if nothing is held out. */
int evaluate_weights(const struct weights *weights, const struct evaluate_request *request,
                     struct evaluate_result *out, struct fleet_error *err);

#endif

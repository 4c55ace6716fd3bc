/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_INFERENCE_INFERENCE_MODEL_H
#define AGENT_RUNTIME_INFERENCE_INFERENCE_MODEL_H

/*
 * A model for inference in one file: the pruned forward program (libfleet/program/prune.h) with the
 * weights that it reads, and nothing of the training. Paddle's save_inference_model() and
 * load_inference_model().
 *
 * The file is a safetensors file: the weights under the names of the program, and in the metadata
 *
 *     fleetjob.program   the program as text (libfleet/program/print.h)
 *     fleetjob.feed      the names of its inputs, a JSON list, in the order of the caller
 *     fleetjob.fetch     the names of its results, likewise
 *     fleetjob.sha256    SHA-256 of program, lists and weights
 *
 * So it is complete or not there, and damage is noticed. It needs no checkpoint and no record of
 * the job. Batch size and lengths are those of the program. Bits are those of the training's own
 * forward part, at the same instruction-set level.
 *
 * Threads: one thread at a time uses a model.
 */

#include <stdbool.h>
#include <stdint.h>

#include "libfleet/base/digest.h"
#include "libfleet/program/program.h"

struct fleet_error;
struct weights;

#define INFERENCE_PROGRAM   "fleetjob.program"
#define INFERENCE_FEED      "fleetjob.feed"
#define INFERENCE_FETCH     "fleetjob.fetch"
#define INFERENCE_SHA256    "fleetjob.sha256"
#define INFERENCE_NAMES_MAX 64 /* feeds, fetches */

struct inference_request {
    const char *const *feeds; /* [feed_count] variables that the caller will give; none: the inputs
                                 that are needed */
    int feed_count;
    const char *const
        *fetches; /* [fetch_count] variables that the caller wants; none: the logits */
    int fetch_count;
    int64_t batch; /* samples of a run; 0: the job's microBatchSize */
};

struct inference_summary {
    int operators; /* of the pruned program */
    int parameters, buffers;
    int64_t weights_bytes;
    char sha256[FLEET_SHA256_HEX_SIZE];
};

/*
 * Write the file to `path`, by a draft (libfleet/base/file.h): a failure leaves what was there.
 * -ENOENT: the program has no variable of a name. -EINVAL: errors of prune_forward() and of the
 * plan of the job; a batch below 0. Errors of weights_load(); -errno with the path.
 */
int inference_model_save(const struct weights *weights, const struct inference_request *request,
                         const char *path, struct inference_summary *out, struct fleet_error *err);

/* ---- use ------------------------------------------------------------------------------------- */

struct inference_model;

/* Row-major. */
struct inference_tensor {
    const char *name; /* borrowed from the model */
    enum program_type type;
    int ndim;
    int64_t shape[PROGRAM_DIMS_MAX];
    size_t bytes;
};

/*
 * Open a file of inference_model_save(). `threads`: 0 = what the CPU quota allows. -EINVAL: it is
 * no such file, or its program is not sound; -EBADMSG: it is damaged; -ENOMEM; -errno with the
 * path.
 */
int inference_model_open(const char *path, int threads, struct inference_model **out,
                         struct fleet_error *err);
void inference_model_free(struct inference_model *model); /* NULL is fine */

/* Feed and fetch number i, in the order of the lists; NULL: there is none. Borrowed. */
const struct inference_tensor *inference_model_feed(const struct inference_model *model, int i);
const struct inference_tensor *inference_model_fetch(const struct inference_model *model, int i);

/* Samples of a run. */
int64_t inference_model_batch(const struct inference_model *model);

/*
 * Run the program: in[i] has the bytes of feed i, out[i] gets those of fetch i; NULL leaves a fetch
 * out. -EINVAL: a value of an int32 feed is out of range. Errors of the kernels.
 */
int inference_model_run(struct inference_model *model, const void *const *in, void *const *out,
                        struct fleet_error *err);

/* ---- check ----------------------------------------------------------------------------------- */

/*
 * Read the file back and run it on `runs` (>= 1) made-up inputs, keyed by their number. Run the
 * whole forward program of the job with `weights` on the same inputs. -EBADMSG names the first
 * fetch with other bits. Also errors of inference_model_open() and forward_new(). `sha256` gets
 * the digest of all results.
 */
int inference_model_check(const struct weights *weights, const char *path, int runs, int threads,
                          char sha256[FLEET_SHA256_HEX_SIZE], struct fleet_error *err);

/* The record of the job with another number of samples in a micro-batch; 0: as it is. It borrows
 * from `record`. For inference_save.c and inference_check.c. */
struct job_record;
struct job_record inference_record(const struct job_record *record, int64_t batch);

#endif

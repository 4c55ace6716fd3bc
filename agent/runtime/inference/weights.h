/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_INFERENCE_WEIGHTS_H
#define AGENT_RUNTIME_INFERENCE_WEIGHTS_H

/*
 * Trained weights by name. The name may be that of:
 *
 *     a checkpoint, a folder of checkpoints   the newest sound one; manifest.json has the job
 *     a folder with model.safetensors         an export; its metadata have the job
 *     a safetensors file                      the same
 *     a checkpoint or checkpoints in a store  fetch.h brings them to this machine
 *
 * Weights of other programs have no job in their metadata; then config.json beside them describes
 * the model. Their tokenizer is bpe if vocab.json and merges.txt are there, and bytes if the
 * vocabulary is 256.
 */

#include <stdbool.h>
#include <stdint.h>

#include "agent/runtime/checkpoint/checkpoint.h"
#include "libfleet/checkpoint/job_record.h"

struct export_source;
struct fleet_error;

struct weights {
    struct job_record record;     /* data.vocabulary and data.merges are the files to read (bpe) */
    struct export_source *source; /* a checkpoint; NULL: `file` */
    char *file;                   /* safetensors */
    char *path;                   /* of the checkpoint or the file, for messages */
    int64_t step;                 /* the step of these weights; -1 = not known */
    char instruction_set[32];     /* the level they were trained at; "" = not known */
};

/*
 * `tokenizer`: a folder whose vocab.json and merges.txt replace the tokenizer of the weights; NULL:
 * use that of the weights. Reads only headers, but verifies all files of a checkpoint. -ENOENT:
 * `path` is none of the above; -EBADMSG, -EINVAL, -errno with the path. On success release *out.
 */
int weights_open(const char *path, const char *tokenizer, struct weights *out,
                 struct fleet_error *err);
void weights_release(struct weights *weights);

/* Fill parameters and buffers of `state`, whose program is of the same model. Errors as
 * checkpoint_load_weights(). */
int weights_load(const struct weights *weights, struct checkpoint_state *state,
                 struct fleet_error *err);

#endif

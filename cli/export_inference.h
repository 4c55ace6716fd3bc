/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_EXPORT_INFERENCE_H
#define CLI_EXPORT_INFERENCE_H

/* `fleetjob export CHECKPOINT OUT --inference`: a model for inference
 * (agent/runtime/inference/inference_model.h), which is then read back and checked. */

#include <stdbool.h>

struct fleet_error;

struct export_inference {
    const char *checkpoint, *out; /* WEIGHTS of any kind; a file */
    const char *fetch, *feed;     /* names, with commas between; NULL: the defaults */
    long long batch;              /* 0: the job's microBatchSize */
    bool is_json;
};

/* Write, check, report on standard output. -EINVAL: an empty name, too many names. Errors of
 * weights_open(), inference_model_save() and inference_model_check(): a file that does not pass the
 * check is removed. */
int export_inference(const struct export_inference *request, struct fleet_error *err);

#endif

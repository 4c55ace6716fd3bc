/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_ORIGIN_H
#define AGENT_RUNTIME_ORIGIN_H

/*
 * What a checkpoint says about the job that wrote it (struct manifest, `job`), so that whoever goes
 * on from it knows whether it is another one:
 *
 *     {"uid":…, "name":…, "dataSha256":…, "training":{…}, "strategy":{…}, "strategyOptions":{…}}
 *
 * The blocks are those of the spec with defaults written out, without what the weights after a step
 * do not depend on: paths, how many steps, how often something is saved, evaluated or told.
 */

#include <stdint.h>

#include <cjson/cJSON.h>

struct fleet_strbuf;
struct strategy;
struct strategy_options;
struct training_config;

struct origin {
    const char *uid, *name; /* of the job */
    const uint8_t *data;    /* SHA-256 of the data */
    const struct training_config *training;
    const struct strategy *strategy;
    const struct strategy_options *options;
};

/* Owned by the caller. */
cJSON *origin_encode(const struct origin *origin);

/*
 * Append the fields in which `theirs` is another job than `ours`, ", " between them, some at most:
 * "spec.training.seed, the data of spec.training.data.path". Nothing if they agree, or if `theirs`
 * is NULL.
 */
void origin_compare(const cJSON *theirs, const cJSON *ours, struct fleet_strbuf *out);

#endif

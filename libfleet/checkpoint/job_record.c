/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/checkpoint/job_record.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/field.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_build.h"
#include "libfleet/strategy/strategy_json.h"

#define STEPS_NEUTRAL 1000000000.0 /* no warm-up, ramp or boundary lies behind it */

/* Values for the fields that the record leaves out and that a training block must have. */
static cJSON *complete_training(const cJSON *recorded)
{
    cJSON *training = fleet_json_copy(recorded), *data;
    const char *tokenizer;

    if (!cJSON_GetObjectItemCaseSensitive(training, "steps"))
        fleet_json_set_number(training, "steps", STEPS_NEUTRAL);
    if (!cJSON_GetObjectItemCaseSensitive(training, "optimizer"))
        fleet_json_set_number(fleet_json_set_object(training, "optimizer"), "learningRate", 1);
    data = cJSON_GetObjectItemCaseSensitive(training, "data");
    if (!cJSON_IsObject(data))
        return training; /* the decoder says that it is missing */
    tokenizer = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(data, "tokenizer"));
    if (tokenizer && strcmp(tokenizer, "synthetic-markov") == 0)
        return training;
    fleet_json_set_string(data, "path", "-");
    if (tokenizer && strcmp(tokenizer, "bpe") == 0) {
        fleet_json_set_string(data, "vocabulary", "-");
        fleet_json_set_string(data, "merges", "-");
    }
    return training;
}

static int decode_file(const cJSON *job, const char *name, struct job_record_file *out,
                       struct fleet_error *err)
{
    const char *path = NULL, *sha256 = "";
    char key[64];

    (void)snprintf(key, sizeof(key), "tokenizer.%s", name);
    if (fleet_json_opt_string(job, key, &path, err) < 0)
        return err->code;
    (void)snprintf(key, sizeof(key), "tokenizer.%sSha256", name);
    if (fleet_json_opt_string(job, key, &sha256, err) < 0)
        return err->code;
    out->path = path ? strdup(path) : NULL;
    (void)snprintf(out->sha256, sizeof(out->sha256), "%s", sha256);
    return 0;
}

static int decode_blocks(const cJSON *job, struct job_record *out, struct fleet_error *err)
{
    FLEET_AUTO_JSON cJSON *training = complete_training(fleet_json_at(job, "training"));
    struct fleet_errors errors = {0};
    int rc;

    (void)training_config_decode(training, "training", &out->training, &errors);
    if (fleet_json_at(job, "strategy"))
        (void)strategy_json_decode(fleet_json_at(job, "strategy"), "strategy", &out->strategy,
                                   &errors);
    else
        strategy_init(&out->strategy);
    (void)fleet_object_decode(&strategy_options_type, fleet_json_at(job, "strategyOptions"),
                              "strategyOptions", &out->options, &errors);
    rc = fleet_errors_result(&errors, err);
    fleet_errors_release(&errors);
    return rc;
}

static int decode_rest(const cJSON *job, struct job_record *out, struct fleet_error *err)
{
    const char *policy = "Full", *sha256 = "";

    out->evaluation_batches = -1;
    if (fleet_json_opt_string(job, "strategyPolicy", &policy, err) < 0 ||
        fleet_json_opt_string(job, "dataSha256", &sha256, err) < 0 ||
        fleet_json_opt_int(job, "evaluationBatches", &out->evaluation_batches, err) < 0 ||
        decode_file(job, "vocabulary", &out->vocabulary, err) < 0 ||
        decode_file(job, "merges", &out->merges, err) < 0)
        return err->code;
    out->policy = strcmp(policy, "Paddle") == 0 ? STRATEGY_PADDLE : STRATEGY_FULL;
    (void)snprintf(out->data_sha256, sizeof(out->data_sha256), "%s", sha256);
    return 0;
}

int job_record_decode(const cJSON *job, struct job_record *out, struct fleet_error *err)
{
    struct job_record record = {0};
    struct fleet_error ignored;
    int rc;

    err = err ? err : &ignored;
    if (!cJSON_IsObject(fleet_json_at(job, "training")))
        return fleet_error(err, -ENOENT, "the weights do not say which model they are of");
    rc = decode_blocks(job, &record, err);
    if (rc == 0)
        rc = decode_rest(job, &record, err);
    if (rc < 0) {
        job_record_release(&record);
        return fleet_error_wrap(err, "what the weights say of their job");
    }
    *out = record;
    return 0;
}

void job_record_release(struct job_record *record)
{
    training_config_release(&record->training);
    strategy_release(&record->strategy);
    fleet_object_release(&strategy_options_type, &record->options);
    free(record->vocabulary.path);
    free(record->merges.path);
    *record = (struct job_record){0};
}

/* ---- what an export keeps -------------------------------------------------------------------- */

static void keep(const cJSON *from, const char *key, cJSON *to)
{
    fleet_json_set(to, key, fleet_json_copy(cJSON_GetObjectItemCaseSensitive(from, key)));
}

static void keep_training(const cJSON *training, cJSON *to)
{
    cJSON *kept = fleet_json_set_object(to, "training");
    const char *tokenizer = cJSON_GetStringValue(fleet_json_at(training, "data.tokenizer"));

    keep(training, "model", kept);
    keep(training, "data", kept);
    keep(training, "globalBatchSize", kept);
    keep(training, "microBatchSize", kept);
    keep(training, "precision", kept);
    if (tokenizer && strcmp(tokenizer, "synthetic-markov") == 0)
        keep(training, "seed", kept); /* made-up text depends on it */
}

/* The strategy changes the forward program by amp alone. */
static void keep_strategy(const cJSON *strategy, cJSON *to)
{
    cJSON *kept;

    if (!cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(strategy, "amp")))
        return;
    kept = fleet_json_set_object(to, "strategy");
    keep(strategy, "amp", kept);
    keep(strategy, "amp_configs", kept);
}

char *job_record_metadata(const cJSON *job)
{
    FLEET_AUTO_JSON cJSON *kept = fleet_json_new_object();

    if (!cJSON_IsObject(fleet_json_at(job, "training")))
        return NULL;
    keep_training(fleet_json_at(job, "training"), kept);
    keep_strategy(fleet_json_at(job, "strategy"), kept);
    keep(job, "dataSha256", kept);
    keep(job, "evaluationBatches", kept);
    return fleet_json_print(kept);
}

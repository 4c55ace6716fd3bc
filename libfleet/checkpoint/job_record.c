/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/checkpoint/job_record.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/field_row.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_build.h"

#define STEPS_NEUTRAL 1000000000.0 /* longer than any warm-up, ramp or boundary */

#define TEXT_MAX 65536 /* bytes of a name or path */

#define TEXT(type, name, member) ROW(type, name, STRING, member, 0, .count_max = TEXT_MAX)
#define BLOCK(name, member) \
    ROW(struct job_record_text, name, JSON, member, 0, .count_max = JOB_RECORD_SIZE_MAX)

static const struct fleet_field tokenizer_fields[] = {
    TEXT(struct job_record_tokenizer, "vocabulary", vocabulary.path),
    ROW_CHARS(struct job_record_tokenizer, "vocabularySha256", vocabulary.sha256, 0),
    TEXT(struct job_record_tokenizer, "merges", merges.path),
    ROW_CHARS(struct job_record_tokenizer, "mergesSha256", merges.sha256, 0),
    ROW_END,
};

static const struct fleet_object tokenizer_type =
    ROW_OBJECT_TYPE("tokenizer", struct job_record_tokenizer, tokenizer_fields);

static const struct fleet_field text_fields[] = {
    TEXT(struct job_record_text, "uid", uid),
    TEXT(struct job_record_text, "name", name),
    ROW_CHARS(struct job_record_text, "dataSha256", data_sha256, 0),
    BLOCK("training", training),
    BLOCK("strategy", strategy),
    BLOCK("strategyOptions", options),
    ROW_ENUM(struct job_record_text, "strategyPolicy", policy, strategy_policies, 0),
    ROW(struct job_record_text, "evaluationBatches", INT, evaluation_batches, 0, .unset = -1),
    ROW(struct job_record_text, "tokenizer", OBJECT, tokenizer, 0, .object = &tokenizer_type,
        .presence = FLEET_PRESENCE(struct job_record_text, has_tokenizer)),
    ROW_END,
};

const struct fleet_object job_record_text_type =
    ROW_OBJECT_TYPE("record of a job", struct job_record_text, text_fields);

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
        return training; /* the decoder reports that it is missing */
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

static int decode_blocks(const cJSON *job, struct job_record *out, struct fleet_error *err)
{
    FLEET_AUTO_JSON cJSON *training = complete_training(fleet_json_at(job, "training"));
    struct fleet_errors errors = {0};
    int rc;

    (void)training_config_decode(training, "training", &out->training, &errors);
    strategy_spec_decode(job, "", &out->strategy, &errors);
    rc = fleet_errors_result(&errors, err);
    fleet_errors_release(&errors);
    return rc;
}

/* The texts that a record keeps. */
static void take_rest(struct job_record_text *text, struct job_record *out)
{
    out->evaluation_batches = text->evaluation_batches;
    out->vocabulary = text->tokenizer.vocabulary;
    out->merges = text->tokenizer.merges;
    memset(&text->tokenizer, 0, sizeof(text->tokenizer));
    memcpy(out->data_sha256, text->data_sha256, sizeof(out->data_sha256));
}

int job_record_decode(const cJSON *job, struct job_record *out, struct fleet_error *err)
{
    struct job_record record = {0};
    struct job_record_text text;
    int rc;

    if (!cJSON_IsObject(fleet_json_at(job, "training")))
        return fleet_error(err, -ENOENT, "the weights do not say which model they are of");
    rc = fleet_object_read(&job_record_text_type, job, &text, err);
    if (rc == 0) {
        rc = decode_blocks(job, &record, err);
        take_rest(&text, &record);
        fleet_object_release(&job_record_text_type, &text);
    }
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
    strategy_spec_release(&record->strategy);
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
        keep(training, "seed", kept); /* generated text depends on it */
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

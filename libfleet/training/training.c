/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Reading a training block: the preset is first written into the JSON, the table decodes it, then
 * defaults and checks that depend on other fields follow. So every later reader gets plain values.
 */
#include "libfleet/training/training.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json_build.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/training/training_precision.h"
#include "libfleet/training/training_ranks.h"

/* ---- presets ------------------------------------------------------------------------------- */

/* In the order of enum training_preset. */
static const char *const preset_texts[] = {
    [TRAINING_PRESET_GPT2_124M] =
        "{\"name\":\"gpt\",\"layers\":12,\"heads\":12,\"width\":768,\"context\":1024,"
        "\"vocabulary\":50257}",
    [TRAINING_PRESET_GPT2_355M] =
        "{\"name\":\"gpt\",\"layers\":24,\"heads\":16,\"width\":1024,\"context\":1024,"
        "\"vocabulary\":50257}",
    [TRAINING_PRESET_GPT2_774M] =
        "{\"name\":\"gpt\",\"layers\":36,\"heads\":20,\"width\":1280,\"context\":1024,"
        "\"vocabulary\":50257}",
    [TRAINING_PRESET_GPT2_1558M] =
        "{\"name\":\"gpt\",\"layers\":48,\"heads\":25,\"width\":1600,\"context\":1024,"
        "\"vocabulary\":50257}",
    [TRAINING_PRESET_RESNET18] = "{\"name\":\"resnet\",\"depths\":[2,2,2,2]}",
    [TRAINING_PRESET_RESNET50] = "{\"name\":\"resnet\",\"depths\":[3,4,6,3]}",
};

/* The preset's fields as JSON that the caller owns, or NULL if `model` names none that exists. */
static cJSON *find_preset(const cJSON *model)
{
    const struct fleet_field *field =
        fleet_object_field(fleet_object_field(&training_type, "model")->object, "preset");
    const cJSON *preset = cJSON_GetObjectItemCaseSensitive(model, "preset");

    if (!cJSON_IsString(preset))
        return NULL;
    for (size_t i = 1; i < FLEET_COUNT(preset_texts); i++)
        if (strcmp(field->choices[i], preset->valuestring) == 0)
            return cJSON_Parse(preset_texts[i]);
    return NULL;
}

/*
 * A copy of the block in which the model has its preset's fields, except those given besides. A
 * preset of another architecture is refused and not applied.
 */
static cJSON *apply_preset(const cJSON *json, const char *path, struct fleet_errors *errors)
{
    cJSON *copy = fleet_json_copy(json);
    cJSON *model = cJSON_GetObjectItemCaseSensitive(copy, "model");
    FLEET_AUTO_JSON cJSON *preset = find_preset(model);
    FLEET_AUTO_STRBUF struct fleet_strbuf where = {0};
    const cJSON *given, *own;

    if (!preset)
        return copy;
    given = cJSON_GetObjectItemCaseSensitive(model, "name");
    own = cJSON_GetObjectItemCaseSensitive(preset, "name");
    if (cJSON_IsString(given) && strcmp(given->valuestring, own->valuestring) != 0) {
        fleet_strbuf_appendf(&where, "%s%smodel.preset", path, path[0] ? "." : "");
        fleet_errors_add(errors, where.text, "is a preset of model %s, not of %.40s",
                         own->valuestring, given->valuestring);
        return copy;
    }
    while (preset->child) {
        cJSON *field = cJSON_DetachItemViaPointer(preset, preset->child);
        given = cJSON_GetObjectItemCaseSensitive(model, field->string);
        if (given && !cJSON_IsNull(given)) {
            cJSON_Delete(field);
            continue;
        }
        cJSON_DeleteItemFromObjectCaseSensitive(model, field->string);
        fleet_json_set(model, field->string, field);
    }
    return copy;
}

/* ---- defaults that depend on other fields -------------------------------------------------- */

/* Tokens or classes that the data can have; 0 if a file has to be read to know. */
static int64_t data_symbols(const struct training_data *data)
{
    switch (data->tokenizer) {
    case TRAINING_TOKENIZER_BYTES:
        return 256;
    case TRAINING_TOKENIZER_TOKENS_U16:
        return 65536;
    case TRAINING_TOKENIZER_CIFAR10:
        return 10;
    case TRAINING_TOKENIZER_CIFAR100:
        return 100;
    case TRAINING_TOKENIZER_SYNTHETIC_MARKOV:
        return data->symbols;
    case TRAINING_TOKENIZER_TOKENS_U32:
    case TRAINING_TOKENIZER_BPE:
        break;
    }
    return 0;
}

static bool is_text_model(const struct training_model *model)
{
    return model->name == TRAINING_MODEL_GPT || model->name == TRAINING_MODEL_LLAMA;
}

static bool is_image_data(const struct training_data *data)
{
    return data->tokenizer == TRAINING_TOKENIZER_CIFAR10 ||
           data->tokenizer == TRAINING_TOKENIZER_CIFAR100;
}

static void complete_model(struct training_model *model, const struct training_data *data)
{
    if (is_text_model(model)) {
        if (model->vocabulary == 0 && !is_image_data(data))
            model->vocabulary = data_symbols(data);
        if (model->hidden == 0)
            model->hidden = 4 * model->width;
        if (model->name == TRAINING_MODEL_LLAMA && model->kv_heads == 0)
            model->kv_heads = model->heads;
    }
    if (model->name == TRAINING_MODEL_RESNET) {
        if (model->classes == 0)
            model->classes = data->tokenizer == TRAINING_TOKENIZER_CIFAR100 ? 100 : 10;
        model->bottleneck = model->preset == TRAINING_PRESET_RESNET50;
    }
}

static bool has_named_decay(const struct training_optimizer *optimizer)
{
    return (optimizer->name == TRAINING_OPTIMIZER_LAMB ||
            optimizer->name == TRAINING_OPTIMIZER_LARS) &&
           optimizer->named_weight_decay >= 0;
}

/* Paddle's defaults of each optimizer. */
static void complete_optimizer(struct training_optimizer *optimizer)
{
    static const double epsilon[] = {
        [TRAINING_OPTIMIZER_ADAM] = 1e-8,
        [TRAINING_OPTIMIZER_ADAMW] = 1e-8,
        [TRAINING_OPTIMIZER_LAMB] = 1e-6,
        [TRAINING_OPTIMIZER_LARS] = 0,
    };
    static const double weight_decay[] = {
        [TRAINING_OPTIMIZER_ADAMW] = 0.01,
        [TRAINING_OPTIMIZER_LAMB] = 0.01,
        [TRAINING_OPTIMIZER_LARS] = 0.0005,
    };

    if (optimizer->epsilon < 0)
        optimizer->epsilon = epsilon[optimizer->name];
    if (has_named_decay(optimizer) && optimizer->weight_decay < 0)
        optimizer->weight_decay = optimizer->named_weight_decay;
    if (optimizer->weight_decay < 0)
        optimizer->weight_decay = weight_decay[optimizer->name];
    optimizer->named_weight_decay = -1;
}

static void complete_schedule(struct training_schedule *schedule, double learning_rate)
{
    if (schedule->name == TRAINING_SCHEDULE_COSINE && schedule->min_learning_rate < 0)
        schedule->min_learning_rate = 0.1 * learning_rate;
    if (schedule->name == TRAINING_SCHEDULE_STEP && schedule->gamma == 0)
        schedule->gamma = 0.1;
}

/* ---- checks inside the block --------------------------------------------------------------- */

/* Errors of one block: appends "path.field: message". */
struct report {
    const char *path;
    const struct fleet_errors *unread; /* values that could not be read; NULL = none */
    struct fleet_errors *errors;
};

__attribute__((format(printf, 3, 4))) static void refuse(const struct report *report,
                                                         const char *field, const char *format, ...)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf where = {0}, message = {0};
    va_list args;

    fleet_strbuf_appendf(&where, "%s%s%s", report->path, report->path[0] ? "." : "", field);
    va_start(args, format);
    fleet_strbuf_appendv(&message, format, args);
    va_end(args);
    fleet_errors_add(report->errors, where.text, "%s", message.text);
}

/* `value` should be a multiple of `of`, which is not 0: the nearest ones. */
static void refuse_multiple(const struct report *report, const char *field, int64_t value,
                            const char *what, int64_t of)
{
    int64_t less = value - value % of, more;
    FLEET_AUTO_STRBUF struct fleet_strbuf nearest = {0};

    fleet_strbuf_appendf(&nearest, "%" PRId64, less > 0 ? less : of);
    if (less > 0 && !__builtin_add_overflow(less, of, &more))
        fleet_strbuf_appendf(&nearest, " or %" PRId64, more);
    refuse(report, field, "%" PRId64 " is not %s (%" PRId64 "): %s would be", value, what, of,
           nearest.text);
}

static bool is_known(const struct report *report, const char *field)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf where = {0};

    fleet_strbuf_appendf(&where, "%s%s%s", report->path, report->path[0] ? "." : "", field);
    return !report->unread || !fleet_errors_touch(report->unread, where.text);
}

/* With the nearest numbers that divide the heads; 1 does. */
static void refuse_kv_heads(const struct report *report, const struct training_model *model)
{
    int64_t less = model->kv_heads, more = model->kv_heads;

    while (model->heads % less != 0)
        less--;
    while (more < model->heads && model->heads % more != 0)
        more++;
    if (more > model->heads)
        refuse(report, "model.kvHeads",
               "%" PRId64 " is more than the %" PRId64 " heads, which it must divide",
               model->kv_heads, model->heads);
    else
        refuse(report, "model.kvHeads",
               "%" PRId64 " does not divide heads (%" PRId64 "): %" PRId64 " or %" PRId64 " would",
               model->kv_heads, model->heads, less, more);
}

static void check_text_model(const struct report *report, const struct training_model *model,
                             const struct training_data *data)
{
    if (is_known(report, "model.width") && is_known(report, "model.heads") &&
        model->width % model->heads != 0)
        refuse_multiple(report, "model.width", model->width, "divisible by heads", model->heads);
    if (is_known(report, "model.heads") && is_known(report, "model.kvHeads") &&
        model->kv_heads > 0 && model->heads % model->kv_heads != 0)
        refuse_kv_heads(report, model);
    if (!is_known(report, "data.tokenizer"))
        return;
    if (is_image_data(data))
        refuse(report, "data.tokenizer", "makes images, but model %s reads tokens",
               training_model_text(model->name));
    else if (!is_known(report, "model.vocabulary"))
        return;
    else if (model->vocabulary == 0 && data->tokenizer == TRAINING_TOKENIZER_TOKENS_U32)
        refuse(report, "model.vocabulary", "required with tokenizer tokens-u32");
    else if (model->vocabulary > 0 && data->tokenizer != TRAINING_TOKENIZER_TOKENS_U16 &&
             is_known(report, "data.symbols") && model->vocabulary < data_symbols(data))
        refuse(report, "model.vocabulary",
               "%" PRId64 " is less than the %" PRId64 " tokens that the tokenizer makes",
               model->vocabulary, data_symbols(data));
}

static void check_resnet(const struct report *report, const struct training_model *model,
                         const struct training_data *data)
{
    if (!is_known(report, "data.tokenizer"))
        return;
    if (!is_image_data(data))
        refuse(report, "data.tokenizer", "model resnet reads images: must be cifar10 or cifar100");
    else if (is_known(report, "model.classes") && model->classes < data_symbols(data))
        refuse(report, "model.classes",
               "%" PRId64 " is less than the %" PRId64 " classes of the data", model->classes,
               data_symbols(data));
}

static void check_model(const struct report *report, const struct training_model *model,
                        const struct training_data *data)
{
    if (!is_known(report, "model.name") || !is_known(report, "model.preset"))
        return;
    if (is_text_model(model))
        check_text_model(report, model, data);
    if (model->name == TRAINING_MODEL_RESNET)
        check_resnet(report, model, data);
    if (model->name == TRAINING_MODEL_MLP && is_known(report, "model.sizes") &&
        model->sizes.count < 2)
        refuse(report, "model.sizes", "must have at least an input and an output size");
}

/* lambWeightDecay and larsWeightDecay beside weightDecay; before complete_optimizer() folds
 * them. */
static void check_named_decay(const struct report *report,
                              const struct training_optimizer *optimizer)
{
    if (is_known(report, "optimizer") && has_named_decay(optimizer) &&
        optimizer->weight_decay >= 0 && optimizer->named_weight_decay != optimizer->weight_decay)
        refuse(report, "optimizer.weightDecay",
               "%g, but %sWeightDecay says %g; they are two names of one value",
               optimizer->weight_decay, training_optimizer_text(optimizer->name),
               optimizer->named_weight_decay);
}

static void check_clip(const struct report *report, const struct training_clip *clip)
{
    if (is_known(report, "optimizer.clip") &&
        (clip->global_norm > 0) + (clip->norm > 0) + (clip->value > 0) > 1)
        refuse(report, "optimizer.clip", "only one of globalNorm, norm, value may be given");
}

static void check_piecewise(const struct report *report, const struct training_schedule *schedule)
{
    const struct training_int_list *boundaries = &schedule->boundaries;

    if (!is_known(report, "schedule.boundaries"))
        return;
    if (is_known(report, "schedule.values") && schedule->values.count != boundaries->count + 1)
        refuse(report, "schedule.values",
               "must have one entry more than boundaries (%zu), that is %zu, not %zu",
               boundaries->count, boundaries->count + 1, schedule->values.count);
    for (size_t i = 1; i < boundaries->count; i++)
        if (boundaries->items[i] <= boundaries->items[i - 1])
            refuse(report, "schedule.boundaries", "must ascend, but %" PRId64 " follows %" PRId64,
                   boundaries->items[i], boundaries->items[i - 1]);
}

static void check_schedule(const struct report *report, const struct training_schedule *schedule)
{
    bool decays = schedule->name == TRAINING_SCHEDULE_EXPONENTIAL ||
                  schedule->name == TRAINING_SCHEDULE_NATURAL_EXPONENTIAL ||
                  schedule->name == TRAINING_SCHEDULE_INVERSE_TIME;

    if (!is_known(report, "schedule.name"))
        return;
    if (decays && schedule->gamma == 0 && is_known(report, "schedule.gamma"))
        refuse(report, "schedule.gamma", "required with schedule %s",
               training_schedule_text(schedule->name));
    if (schedule->name == TRAINING_SCHEDULE_NOAM && schedule->warmup_steps < 1 &&
        is_known(report, "schedule.warmupSteps"))
        refuse(report, "schedule.warmupSteps", "must be at least 1 with schedule noam");
    if (schedule->name == TRAINING_SCHEDULE_PIECEWISE)
        check_piecewise(report, schedule);
}

static void check_rest(const struct report *report, const struct training_config *config)
{
    if (!config->data.path && config->data.tokenizer != TRAINING_TOKENIZER_SYNTHETIC_MARKOV &&
        is_known(report, "data.path") && is_known(report, "data.tokenizer"))
        refuse(report, "data.path", "required");
    if (is_known(report, "globalBatchSize") && is_known(report, "microBatchSize") &&
        config->global_batch_size % config->micro_batch_size != 0)
        refuse_multiple(report, "globalBatchSize", config->global_batch_size,
                        "a multiple of microBatchSize", config->micro_batch_size);
    if (config->has_evaluation && config->data.validation == 0 &&
        is_known(report, "data.validation"))
        refuse(report, "evaluation", "needs data.validation above 0: there is no held-out data");
    if (config->health.loss_spike == TRAINING_LOSS_SPIKE_ROLLBACK && !config->has_checkpoint)
        refuse(report, "health.lossSpike", "rollback needs spec.training.checkpoint");
}

/* ---- public -------------------------------------------------------------------------------- */

/* An unknown preset gives no model name; the missing name is no second error. */
static void forgive_name(const cJSON *json, const char *path, struct fleet_errors *errors)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf preset = {0}, name = {0};
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(json, "model");

    fleet_strbuf_appendf(&preset, "%s%smodel.preset", path, path[0] ? "." : "");
    fleet_strbuf_appendf(&name, "%s%smodel.name", path, path[0] ? "." : "");
    if (!cJSON_GetObjectItemCaseSensitive(model, "name") &&
        fleet_errors_touch(errors, preset.text) && cJSON_HasObjectItem(model, "preset"))
        fleet_errors_drop(errors, name.text, "");
}

int training_config_read(const cJSON *json, const char *path, struct training_config *out,
                         struct fleet_errors *errors)
{
    struct fleet_errors found = {0};
    FLEET_AUTO_JSON cJSON *block = apply_preset(json, path, &found);
    struct report report = {.path = path, .unread = &found, .errors = &found};
    int rc;

    (void)fleet_object_decode(&training_type, block, path, out, &found);
    forgive_name(json, path, &found);
    check_named_decay(&report, &out->optimizer);
    complete_optimizer(&out->optimizer);
    complete_schedule(&out->schedule, out->optimizer.learning_rate);
    complete_model(&out->model, &out->data);
    rc = found.count > 0 ? -EINVAL : 0;
    fleet_errors_append(errors, &found);
    fleet_errors_release(&found);
    return rc;
}

int training_config_relate(const struct training_config *config, const char *path,
                           const struct fleet_errors *unread, struct fleet_errors *errors)
{
    size_t before = errors->count;
    struct report report = {.path = path, .unread = unread, .errors = errors};

    check_clip(&report, &config->optimizer.clip);
    check_model(&report, &config->model, &config->data);
    check_schedule(&report, &config->schedule);
    check_rest(&report, config);
    return errors->count > before ? -EINVAL : 0;
}

int training_config_decode(const cJSON *json, const char *path, struct training_config *out,
                           struct fleet_errors *errors)
{
    struct fleet_errors unread = {0};
    size_t before = errors->count;

    (void)training_config_read(json, path, out, &unread);
    fleet_errors_append(errors, &unread);
    (void)training_config_relate(out, path, &unread, errors);
    fleet_errors_release(&unread);
    return errors->count > before ? -EINVAL : 0;
}

cJSON *training_config_encode(const struct training_config *config)
{
    return fleet_object_encode(&training_type, config);
}

void training_config_release(struct training_config *config)
{
    fleet_object_release(&training_type, config);
}

int training_config_check(const struct training_config *config, const char *path,
                          const struct training_surroundings *surroundings,
                          struct fleet_errors *errors)
{
    size_t before = errors->count;
    struct report report = {.path = path, .unread = surroundings->unread, .errors = errors};
    int64_t k = surroundings->gradient_merge_k > 1 ? surroundings->gradient_merge_k : 1;

    if (is_known(&report, "globalBatchSize") && is_known(&report, "microBatchSize"))
        training_ranks_check(config, path, surroundings, errors);
    if (is_known(&report, "precision"))
        training_precision_check(config, path, surroundings->amp, errors);
    if (k > config->steps && is_known(&report, "steps"))
        refuse(&report, "steps",
               "%" PRId64 " is less than gradient_merge's k_steps (%" PRId64
               "): no update would be made",
               config->steps, k);
    return errors->count > before ? -EINVAL : 0;
}

bool training_has_batch_norm(const struct training_config *config)
{
    return config->model.name == TRAINING_MODEL_RESNET;
}

int64_t training_micro_batches(const struct training_config *config)
{
    return config->global_batch_size / config->micro_batch_size;
}

int64_t training_updates(const struct training_config *config, int64_t gradient_merge_k)
{
    return config->steps / (gradient_merge_k > 1 ? gradient_merge_k : 1);
}

static void join_path(void *context, const char *name, char **value)
{
    char *joined = fleet_file_join(context, *value);

    (void)name;
    free(*value);
    *value = joined;
}

bool training_lacks_vocabulary(const struct training_config *config)
{
    return is_text_model(&config->model) && config->model.vocabulary == 0;
}

void training_config_resolve_paths(struct training_config *config, const char *folder)
{
    fleet_object_paths(&training_type, config, "", join_path, (void *)folder);
}

/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The life of a trainer before and beside its steps. Opening goes from cheap to dear: the job file,
 * the data, the plan, memory; so what is wrong with a job is found within milliseconds where that
 * is possible.
 */
#include "agent/runtime/trainer.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/runtime/origin.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/field.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"
#include "libfleet/base/variable.h"
#include "libfleet/strategy/strategy_json.h"

#define JOB_FILE_SIZE_MAX (4u << 20)
#define LOG_LINE_MAX      512 /* bytes of a line of the log; longer ones allocate */
#define DEADLINE_LEAST_MS 60000.0
#define DEADLINE_IN_STEPS 20.0
#define ADDRESS_ENV       "FLEET_ADDRESS" /* where peers reach this trainer; default loopback */
#define JOB_UID_ENV       "FLEET_JOB_UID"
#define ADDRESS_DEFAULT   "127.0.0.1"

/* spec.training and spec.strategy as the agent hands them over. */
static int read_job(struct trainer *trainer, const char *job_file, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *text = NULL;
    FLEET_AUTO_JSON cJSON *root = NULL;
    struct fleet_errors errors = {0};
    const char *folder = "", *policy = "Full", *name = "job";
    size_t size;
    int rc;

    if (fleet_file_read(job_file, JOB_FILE_SIZE_MAX, &text, &size, err) < 0 ||
        fleet_json_parse(text, size, JOB_FILE_SIZE_MAX, &root, err) < 0 ||
        fleet_json_opt_string(root, "baseDir", &folder, err) < 0 ||
        fleet_json_opt_string(root, "strategyPolicy", &policy, err) < 0 ||
        fleet_json_opt_string(root, "jobName", &name, err) < 0)
        return fleet_error_wrap(err, "read the job");
    trainer->policy = strcmp(policy, "Paddle") == 0 ? STRATEGY_PADDLE : STRATEGY_FULL;
    (void)training_config_decode(fleet_json_at(root, "training"), "spec.training", &trainer->config,
                                 &errors);
    if (fleet_json_at(root, "strategy"))
        (void)strategy_json_decode(fleet_json_at(root, "strategy"), "spec.strategy",
                                   &trainer->strategy, &errors);
    else
        strategy_init(&trainer->strategy);
    (void)fleet_object_decode(&strategy_options_type, fleet_json_at(root, "strategyOptions"),
                              "spec.strategyOptions", &trainer->options, &errors);
    rc = fleet_errors_result(&errors, err);
    fleet_errors_release(&errors);
    if (rc < 0)
        return rc;
    training_config_resolve_paths(&trainer->config, folder);
    charts_init(&trainer->charts, trainer->config.log.tensorboard, name);
    trainer->job_name = strdup(name);
    fleet_assert(trainer->job_name != NULL);
    return 0;
}

static int open_data(struct trainer *trainer, struct fleet_error *err)
{
    int rc = dataset_open(&trainer->config.data, trainer->config.model.context,
                          trainer->config.seed, &trainer->dataset, err);

    if (rc < 0)
        return rc;
    trainer->sampler = (struct sampler){.seed = trainer->config.seed,
                                        .count = dataset_training_count(trainer->dataset),
                                        .shuffle = trainer->config.data.shuffle};
    if (training_lacks_vocabulary(&trainer->config))
        trainer->config.model.vocabulary = dataset_vocabulary(trainer->dataset);
    if (trainer->config.data.tokenizer == TRAINING_TOKENIZER_BPE &&
        dataset_vocabulary(trainer->dataset) > trainer->config.model.vocabulary)
        return fleet_error(err, -EINVAL,
                           "spec.training.model.vocabulary: %" PRId64 " is less than the %" PRId64
                           " tokens that the tokenizer makes",
                           trainer->config.model.vocabulary, dataset_vocabulary(trainer->dataset));
    return 0;
}

static int build_plan(struct trainer *trainer, struct fleet_error *err)
{
    struct plan_request request = {.training = &trainer->config,
                                   .strategy = &trainer->strategy,
                                   .policy = trainer->policy,
                                   .options = &trainer->options,
                                   .world = PLAN_ANY_WORLD};
    struct fleet_errors errors = {0};
    int rc = plan_build(&request, &trainer->plan, &errors);

    if (rc < 0)
        (void)fleet_errors_result(&errors, err);
    fleet_errors_release(&errors);
    return rc;
}

/* The variables that the data go into; their shape must be that of the samples. */
static int find_inputs(struct trainer *trainer, struct fleet_error *err)
{
    const struct program *program = &trainer->plan.program;
    struct dataset_image image = dataset_image(trainer->dataset);
    int64_t pixels = (int64_t)image.channels * image.height * image.width, wanted;

    trainer->inputs = program_find_var(program, "ids");
    trainer->targets = program_find_var(program, "targets");
    if (trainer->inputs != PROGRAM_NONE && trainer->targets != PROGRAM_NONE && pixels == 0)
        return 0;
    trainer->inputs = program_find_var(program, "images");
    trainer->targets = program_find_var(program, "labels");
    if (trainer->inputs == PROGRAM_NONE || trainer->targets == PROGRAM_NONE)
        return fleet_error(err, -EINVAL,
                           "spec.training.data: model %s reads other samples than these",
                           training_model_text(trainer->config.model.name));
    wanted = program_var_elements(&program->vars[trainer->inputs]) / program->micro_batch_size;
    if (wanted != pixels)
        return fleet_error(err, -EINVAL,
                           "spec.training.data: samples are images of %" PRId64
                           " values, model %s reads %" PRId64,
                           pixels, training_model_text(trainer->config.model.name), wanted);
    return 0;
}

static cJSON *make_origin(const struct trainer *trainer, const uint8_t data[FLEET_SHA256_SIZE],
                          const struct origin_tokenizer *tokenizer)
{
    return origin_encode(&(struct origin){.uid = trainer->job_uid,
                                          .name = trainer->job_name,
                                          .data = data,
                                          .training = &trainer->config,
                                          .strategy = &trainer->strategy,
                                          .options = &trainer->options,
                                          .policy = trainer->policy,
                                          .tokenizer = tokenizer});
}

/* Program and data in one digest: ranks that differ in either must not train together. */
static int digest_job(struct trainer *trainer, struct fleet_error *err)
{
    bool is_bpe = trainer->config.data.tokenizer == TRAINING_TOKENIZER_BPE;
    struct origin_tokenizer tokenizer = {0};
    struct fleet_sha256 *sha;
    uint8_t data[FLEET_SHA256_SIZE];

    if (is_bpe && origin_tokenizer_read(&trainer->config.data, &tokenizer, err) < 0)
        return fleet_error_wrap(err, "spec.training.data");
    sha = fleet_sha256_new();
    dataset_digest(trainer->dataset, data);
    trainer->origin = make_origin(trainer, data, is_bpe ? &tokenizer : NULL);
    origin_tokenizer_release(&tokenizer);
    fleet_sha256_update(sha, trainer->plan.digest, strlen(trainer->plan.digest));
    fleet_sha256_update(sha, data, sizeof(data));
    fleet_sha256_finish(sha, trainer->digest);
    return 0;
}

static int plan_job(struct trainer *trainer, struct fleet_error *err)
{
    const struct program *program = &trainer->plan.program;
    int64_t leaves;
    int rc = build_plan(trainer, err);

    if (rc < 0)
        return rc;
    for (int i = 0; i < program->op_count; i++)
        if (program->ops[i].kind == OP_ALL_REDUCE &&
            program->ops[i].attributes.flat_count > trainer->bucket_elements)
            trainer->bucket_elements = program->ops[i].attributes.flat_count;
    rc = find_inputs(trainer, err);
    if (rc < 0)
        return rc;
    trainer->merge = program->merge_steps;
    trainer->micro_batches = training_micro_batches(&trainer->config);
    trainer->updates = training_updates(&trainer->config, trainer->merge);
    trainer->groups = (trainer->config.steps + trainer->merge - 1) / trainer->merge;
    leaves = trainer->merge * trainer->micro_batches;
    running_init(&trainer->running, program);
    trainer->row = 1 + trainer->running.row;
    trainer->leaves = calloc((size_t)(leaves * trainer->row), sizeof(float));
    trainer->committed_leaves = calloc((size_t)(leaves * trainer->row), sizeof(float));
    trainer->batch_losses = calloc((size_t)trainer->merge, sizeof(double));
    fleet_assert(trainer->leaves && trainer->committed_leaves && trainer->batch_losses);
    trainer->rules = (struct ledger_rules){.strategy = &trainer->plan.selection.final,
                                           .options = &trainer->options,
                                           .health = &trainer->config.health};
    trainer->ledger = ledger_new(&trainer->rules);
    return digest_job(trainer, err);
}

static int listen_for_peers(struct trainer *trainer, struct fleet_error *err)
{
    const char *host = getenv(ADDRESS_ENV);
    int rc = link_listener_from_environment(&trainer->listener, &trainer->port, err);

    if (rc != -ENOENT)
        return rc;
    return comm_tcp_listen(host && host[0] ? host : ADDRESS_DEFAULT, &trainer->listener,
                           &trainer->port, err);
}

static void start_prefetch(struct trainer *trainer)
{
    const struct program *program = &trainer->plan.program;
    struct prefetch_options options = {
        .dataset = trainer->dataset,
        .sampler = trainer->sampler,
        .vocabulary = trainer->config.model.vocabulary,
        .samples = program->micro_batch_size,
        .input_size =
            program_var_elements(&program->vars[trainer->inputs]) / program->micro_batch_size,
        .target_size =
            program_var_elements(&program->vars[trainer->targets]) / program->micro_batch_size,
    };

    trainer->prefetch = prefetch_new(&options);
}

int trainer_open(struct trainer *trainer, const char *job_file, struct fleet_error *err)
{
    const char *uid = getenv(JOB_UID_ENV);
    int rc;

    *trainer = (struct trainer){.listener = -1, .committed = TRAINER_NO_STATE};
    trainer->job_uid = uid ? uid : "";
    if ((rc = fleet_variable_threads(&trainer->threads, err)) < 0 ||
        (rc = backend_level_check(err)) < 0)
        return rc;
    trainer->memory_backend = backend_cpu_memory_new(trainer->threads);
    if ((rc = read_job(trainer, job_file, err)) < 0 || (rc = open_data(trainer, err)) < 0 ||
        (rc = plan_job(trainer, err)) < 0 ||
        (rc = state_init(&trainer->state, &trainer->plan.program, &trainer->plan.memory,
                         trainer->memory_backend, err)) < 0 ||
        (rc = save_open(trainer, err)) < 0 || (rc = listen_for_peers(trainer, err)) < 0) {
        trainer_close(trainer);
        return rc;
    }
    start_prefetch(trainer);
    evaluate_open(trainer);
    fleet_strbuf_reserve(&trainer->line, LOG_LINE_MAX); /* before the first step */
    return 0;
}

void trainer_close(struct trainer *trainer)
{
    snapshot_free(trainer->snapshot); /* reads the state */
    comm_free(trainer->comm);
    executor_free(trainer->executor);
    state_release(&trainer->state);
    backend_free(trainer->backend);
    if (trainer->memory_backend)
        trainer->memory_backend->vtable->deallocate(trainer->memory_backend, trainer->workspace);
    backend_free(trainer->memory_backend);
    share_release(&trainer->share);
    share_release(&trainer->last_share);
    plan_release(&trainer->plan);
    evaluate_close(trainer);
    prefetch_free(trainer->prefetch); /* reads the dataset */
    dataset_free(trainer->dataset);
    strategy_release(&trainer->strategy);
    training_config_release(&trainer->config);
    cJSON_Delete(trainer->origin);
    free(trainer->job_name);
    running_release(&trainer->running);
    free(trainer->ledger);
    free(trainer->leaves);
    free(trainer->committed_leaves);
    free(trainer->batch_losses);
    free(trainer->vote_workspace);
    charts_release(&trainer->charts);
    fleet_strbuf_release(&trainer->line);
    if (trainer->listener >= 0)
        (void)close(trainer->listener);
    *trainer = (struct trainer){.listener = -1, .committed = TRAINER_NO_STATE};
}

int64_t trainer_steps(const struct trainer *trainer, int64_t groups)
{
    int64_t steps = groups * trainer->merge;

    return steps < trainer->config.steps ? steps : trainer->config.steps;
}

int64_t trainer_batches(const struct trainer *trainer, int64_t group)
{
    return trainer_steps(trainer, group) - trainer_steps(trainer, group - 1);
}

bool trainer_has_update(const struct trainer *trainer, int64_t group)
{
    return trainer_batches(trainer, group) == trainer->merge;
}

void trainer_announce(struct trainer *trainer, enum link_phase phase)
{
    struct link_message message = {.kind = LINK_READY, .generation = trainer->generation};

    message.ready.phase = phase;
    message.ready.at_ms = fleet_monotonic_ms();
    message.ready.step =
        trainer->committed == TRAINER_NO_STATE ? -1 : trainer_steps(trainer, trainer->committed);
    control_send(trainer->control, &message);
}

static void say(struct trainer *trainer, bool is_note, const char *format, va_list args)
{
    struct link_message message = {.kind = LINK_WARNING, .generation = trainer->generation};

    message.warning.is_note = is_note;
    (void)vsnprintf(message.warning.text, sizeof(message.warning.text), format, args);
    control_send(trainer->control, &message);
}

void trainer_warn(struct trainer *trainer, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    say(trainer, false, format, args);
    va_end(args);
}

void trainer_note(struct trainer *trainer, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    say(trainer, true, format, args);
    va_end(args);
}

double trainer_deadline_ms(const struct trainer *trainer)
{
    return fleet_monotonic_ms() +
           fmax(DEADLINE_LEAST_MS, DEADLINE_IN_STEPS * trainer->step_longest_ms);
}

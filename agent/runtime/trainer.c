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

#include "agent/runtime/join/elastic.h"
#include "agent/runtime/join/reshard.h"
#include "agent/runtime/origin.h"
#include "agent/runtime/step/average.h"
#include "agent/runtime/step/evaluate.h"
#include "agent/runtime/store/cache.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"
#include "libfleet/base/memory.h"
#include "libfleet/base/variable.h"
#include "libfleet/plan/plan_cost.h"
#include "libfleet/program/dgc.h"
#include "libfleet/training/trainer_file.h"

#define LOG_LINE_MAX      512 /* bytes of a line of the log; longer ones allocate */
#define DEADLINE_LEAST_MS 60000.0
#define DEADLINE_IN_STEPS 20.0
#define DEADLINE_STORE_MS 3600e3          /* while a rank may read a checkpoint from a store */
#define ADDRESS_ENV       "FLEET_ADDRESS" /* where peers reach this trainer; default loopback */
#define JOB_UID_ENV       "FLEET_JOB_UID"
#define ADDRESS_DEFAULT   "127.0.0.1"

static const struct trainer empty = {
    .net.listener = -1, .data.locks = {-1, -1, -1, -1}, .progress.committed = TRAINER_NO_STATE};

/* spec.training and spec.strategy, all that is wrong with them at once. */
static int decode_job(const struct trainer_file *file, struct trainer_job *job,
                      struct fleet_error *err)
{
    struct fleet_errors errors = {0};
    int rc;

    (void)training_config_decode(file->training, "spec.training", &job->config, &errors);
    strategy_spec_decode(file->root, "spec.", &job->strategy, &errors);
    rc = fleet_errors_result(&errors, err);
    fleet_errors_release(&errors);
    return rc;
}

static int read_job(struct trainer *trainer, const char *job_file, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *text = NULL;
    struct trainer_file file;
    size_t size;
    int rc;

    if (fleet_file_read(job_file, TRAINER_FILE_SIZE_MAX, &text, &size, err) < 0 ||
        trainer_file_parse(text, size, &file, err) < 0)
        return fleet_error_wrap(err, "read the job");
    rc = decode_job(&file, &trainer->job, err);
    trainer->job.has_buddies = file.elastic_replicas > 0;
    trainer->job.encrypts = file.encrypts;
    if (rc == 0) {
        training_config_resolve_paths(&trainer->job.config, file.base_folder);
        charts_init(&trainer->report.charts, trainer->job.config.log.tensorboard, file.job_name);
        strategy_files_init(&trainer->job.files, file.auto_parallel, file.base_folder);
        trainer->job.name = strdup(file.job_name);
        fleet_assert(trainer->job.name != NULL);
    }
    trainer_file_release(&file);
    return rc;
}

/* Keys, bucket, object and variables are the store's own matter; a full disk is not. */
int trainer_judge_store(struct trainer *trainer, int rc, const char *field, const char *url,
                        struct fleet_error *err)
{
    trainer->store_refused = rc == -EACCES || rc == -EPERM || rc == -ENOENT || rc == -EINVAL;
    return fleet_error_wrap(err, "%s: %s", field, url);
}

/* As the job has it: a local path, or a place in a store. */
static const char *path_in_job(const struct trainer *trainer, enum trainer_input input)
{
    const struct training_config *config = &trainer->job.config;
    const char *const paths[TRAINER_INPUTS] = {config->data.path, config->data.vocabulary,
                                               config->data.merges, config->model.initial_weights};

    return paths[input];
}

const char *trainer_input(const struct trainer *trainer, enum trainer_input input)
{
    return trainer->data.copies[input] ? trainer->data.copies[input] : path_in_job(trainer, input);
}

/* Bring what is in a store to this machine. */
static int bring_files(struct trainer *trainer, struct fleet_error *err)
{
    static const char *const fields[TRAINER_INPUTS] = {
        "spec.training.data.path", "spec.training.data.vocabulary", "spec.training.data.merges",
        "spec.training.model.initialWeights"};

    for (int i = 0; i < TRAINER_INPUTS; i++) {
        const char *url = path_in_job(trainer, (enum trainer_input)i);
        int rc = fleet_path_is_remote(url)
                     ? cache_bring(url, &trainer->data.copies[i], &trainer->data.locks[i], err)
                     : 0;
        if (rc < 0)
            return trainer_judge_store(trainer, rc, fields[i], url, err);
    }
    return 0;
}

/* The data block with local paths, which are borrowed. */
static struct training_data local_data(const struct trainer *trainer)
{
    struct training_data data = trainer->job.config.data;

    data.path = (char *)trainer_input(trainer, TRAINER_INPUT_DATA);
    data.vocabulary = (char *)trainer_input(trainer, TRAINER_INPUT_VOCABULARY);
    data.merges = (char *)trainer_input(trainer, TRAINER_INPUT_MERGES);
    return data;
}

static int open_data(struct trainer *trainer, struct fleet_error *err)
{
    int rc = bring_files(trainer, err);
    struct training_data data = local_data(trainer);

    if (rc == 0)
        rc = dataset_open(&data, trainer->job.config.model.context, trainer->job.config.seed,
                          &trainer->data.dataset, err);
    if (rc < 0)
        return rc;
    trainer->data.sampler = (struct sampler){.seed = trainer->job.config.seed,
                                             .count = dataset_training_count(trainer->data.dataset),
                                             .shuffle = trainer->job.config.data.shuffle};
    if (training_lacks_vocabulary(&trainer->job.config))
        trainer->job.config.model.vocabulary = dataset_vocabulary(trainer->data.dataset);
    if (trainer->job.config.data.tokenizer == TRAINING_TOKENIZER_BPE &&
        dataset_vocabulary(trainer->data.dataset) > trainer->job.config.model.vocabulary)
        return fleet_error(err, -EINVAL,
                           "spec.training.model.vocabulary: %" PRId64 " is less than the %" PRId64
                           " tokens that the tokenizer makes",
                           trainer->job.config.model.vocabulary,
                           dataset_vocabulary(trainer->data.dataset));
    return 0;
}

/* The variables that the data go into; their shape must be that of the samples. */
static int find_inputs(struct trainer *trainer, struct fleet_error *err)
{
    const struct program *program = &trainer->job.plan.program;
    struct dataset_image image = dataset_image(trainer->data.dataset);
    int64_t pixels = (int64_t)image.channels * image.height * image.width, wanted;

    trainer->job.inputs = program_find_var(program, "ids");
    trainer->job.targets = program_find_var(program, "targets");
    if (trainer->job.inputs != PROGRAM_NONE && trainer->job.targets != PROGRAM_NONE && pixels == 0)
        return 0;
    trainer->job.inputs = program_find_var(program, "images");
    trainer->job.targets = program_find_var(program, "labels");
    if (trainer->job.inputs == PROGRAM_NONE || trainer->job.targets == PROGRAM_NONE)
        return fleet_error(err, -EINVAL,
                           "spec.training.data: model %s reads other samples than these",
                           training_model_text(trainer->job.config.model.name));
    wanted = program_var_elements(&program->vars[trainer->job.inputs]) / program->micro_batch_size;
    if (wanted != pixels)
        return fleet_error(err, -EINVAL,
                           "spec.training.data: samples are images of %" PRId64
                           " values, model %s reads %" PRId64,
                           pixels, training_model_text(trainer->job.config.model.name), wanted);
    return 0;
}

static cJSON *make_origin(const struct trainer *trainer, const uint8_t data[FLEET_SHA256_SIZE],
                          const struct job_record_tokenizer *tokenizer)
{
    return origin_encode(&(struct origin){.uid = trainer->job.uid,
                                          .name = trainer->job.name,
                                          .data = data,
                                          .training = &trainer->job.config,
                                          .strategy = &trainer->job.strategy.strategy,
                                          .options = &trainer->job.strategy.options,
                                          .policy = trainer->job.strategy.policy,
                                          .tokenizer = tokenizer});
}

/* Program and data in one digest: ranks that differ in either must not train together. */
static int digest_job(struct trainer *trainer, struct fleet_error *err)
{
    bool is_bpe = trainer->job.config.data.tokenizer == TRAINING_TOKENIZER_BPE;
    struct training_data local = local_data(trainer);
    struct job_record_tokenizer tokenizer = {0};
    struct fleet_sha256 *sha;
    uint8_t data[FLEET_SHA256_SIZE];

    if (is_bpe && origin_tokenizer_read(&local, &tokenizer, err) < 0)
        return fleet_error_wrap(err, "spec.training.data");
    sha = fleet_sha256_new();
    dataset_digest(trainer->data.dataset, data);
    trainer->job.origin = make_origin(trainer, data, is_bpe ? &tokenizer : NULL);
    origin_tokenizer_release(&tokenizer);
    fleet_sha256_update(sha, trainer->job.plan.digest, strlen(trainer->job.plan.digest));
    fleet_sha256_update(sha, data, sizeof(data));
    fleet_sha256_finish(sha, trainer->job.digest);
    return 0;
}

/* What a rank that has none of it yet keeps of its updates. */
static int make_progress(struct trainer *trainer, struct fleet_error *err)
{
    struct trainer_progress *progress = &trainer->progress;
    struct backend *memory = trainer->device.memory_backend;
    size_t leaves = (size_t)(trainer->job.merge * trainer->job.micro_batches);

    memory->vtable->deallocate_host(memory, progress->leaves);
    free(progress->committed_leaves);
    free(progress->batch_losses);
    free(progress->ledger);
    trainer->job.row = 1 + progress->running.row;
    progress->leaves = memory->vtable->allocate_host(
        memory, leaves * (size_t)trainer->job.row * sizeof(float), err);
    progress->committed_leaves = calloc(leaves * (size_t)trainer->job.row, sizeof(float));
    progress->batch_losses = calloc((size_t)trainer->job.merge, sizeof(double));
    fleet_assert(progress->committed_leaves && progress->batch_losses);
    progress->ledger = ledger_new(&trainer->job.rules);
    return progress->leaves ? 0 : fleet_error_wrap(err, "allocate memory for losses");
}

int trainer_follow_plan(struct trainer *trainer, struct fleet_error *err)
{
    const struct program *program = &trainer->job.plan.program;
    struct trainer_job *job = &trainer->job;
    bool is_other = job->merge != program->merge_steps;
    int rc = find_inputs(trainer, err);

    if (rc < 0)
        return rc;
    if (is_other && trainer->progress.committed != TRAINER_NO_STATE)
        return fleet_error(err, -EINVAL,
                           "spec.strategy.gradient_merge: on %d workers an update has %d batches, "
                           "and this job trains with %" PRId64,
                           job->plan.world, program->merge_steps, job->merge);
    running_release(&trainer->progress.running); /* it has numbers of variables */
    running_init(&trainer->progress.running, program);
    job->bucket_elements = plan_cost_bucket_elements(program);
    if (job->plan.selection.final.dgc)
        job->message_words =
            dgc_words(program, dgc_ratio_max(&job->plan.selection.final.dgc_configs), PROGRAM_NONE);
    job->merge = program->merge_steps;
    job->micro_batches = training_micro_batches(&job->config);
    job->complete_updates = training_updates(&job->config, job->merge);
    job->updates = (job->config.steps + job->merge - 1) / job->merge;
    job->rules = (struct ledger_rules){.strategy = &job->plan.selection.final,
                                       .options = &job->strategy.options,
                                       .health = &job->config.health};
    return is_other ? make_progress(trainer, err) : 0;
}

static int plan_job(struct trainer *trainer, struct fleet_error *err)
{
    int rc = placement_plan(trainer, PLAN_ANY_WORLD, 0, err);

    if (rc == 0)
        rc = trainer_follow_plan(trainer, err);
    return rc < 0 ? rc : digest_job(trainer, err);
}

static int listen_for_peers(struct trainer *trainer, struct fleet_error *err)
{
    const char *host = getenv(ADDRESS_ENV);
    int rc = link_listener_from_environment(&trainer->net.listener, &trainer->net.port, err);

    if (rc != -ENOENT)
        return rc;
    return comm_tcp_listen(host && host[0] ? host : ADDRESS_DEFAULT, &trainer->net.listener,
                           &trainer->net.port, err);
}

static void start_prefetch(struct trainer *trainer)
{
    const struct program *program = &trainer->job.plan.program;
    struct prefetch_options options = {
        .dataset = trainer->data.dataset,
        .sampler = trainer->data.sampler,
        .vocabulary = trainer->job.config.model.vocabulary,
        .samples = program->micro_batch_size,
        .input_size =
            program_var_elements(&program->vars[trainer->job.inputs]) / program->micro_batch_size,
        .target_size =
            program_var_elements(&program->vars[trainer->job.targets]) / program->micro_batch_size,
    };

    trainer->data.prefetch = prefetch_new(&options);
}

int trainer_open(struct trainer *trainer, const char *job_file, struct fleet_error *err)
{
    const char *uid = getenv(JOB_UID_ENV);
    int rc;

    *trainer = empty;
    trainer->job.uid = uid ? uid : "";
    if ((rc = fleet_variable_threads(&trainer->job.threads, err)) < 0 ||
        (rc = elastic_read_settings(trainer, err)) < 0 || (rc = backend_level_check(err)) < 0 ||
        (rc = backend_kind_choose(&trainer->device.kind, err)) < 0 ||
        (rc = trainer->device.kind->create_memory(trainer->job.threads,
                                                  &trainer->device.memory_backend, err)) < 0)
        return rc;
    if ((rc = read_job(trainer, job_file, err)) < 0 || (rc = open_data(trainer, err)) < 0 ||
        (rc = plan_job(trainer, err)) < 0 || (rc = placement_begin(trainer, err)) < 0 ||
        (rc = save_open(trainer, err)) < 0 || (rc = listen_for_peers(trainer, err)) < 0) {
        bool store_refused = trainer->store_refused; /* for the report */
        trainer_close(trainer);
        trainer->store_refused = store_refused;
        return rc;
    }
    start_prefetch(trainer);
    sample_log_open(&trainer->samples);
    evaluate_open(trainer);
    fleet_strbuf_reserve(&trainer->report.line, LOG_LINE_MAX); /* before the first step */
    return 0;
}

void trainer_close(struct trainer *trainer)
{
    struct backend *memory = trainer->device.memory_backend;

    sample_log_close(&trainer->samples);
    save_close(trainer); /* reads the state */
    whole_release(&trainer->save.whole);
    exchange_close(trainer);
    comm_free(trainer->net.comm);
    executor_free(trainer->device.executor);
    stage_close(trainer);
    state_release(&trainer->state);
    backend_free(trainer->device.backend);
    exchange_release(trainer);
    if (memory) {
        memory->vtable->deallocate_host(memory, trainer->net.messages);
        memory->vtable->deallocate_host(memory, trainer->progress.leaves);
    }
    backend_free(memory);
    leaf_range_release(&trainer->generation.range);
    leaf_range_release(&trainer->generation.last_range);
    share_release(&trainer->share);
    placement_release(&trainer->placement);
    plan_release(&trainer->job.plan);
    evaluate_close(trainer);
    prefetch_free(trainer->data.prefetch); /* reads the dataset */
    dataset_free(trainer->data.dataset);
    strategy_spec_release(&trainer->job.strategy);
    training_config_release(&trainer->job.config);
    cJSON_Delete(trainer->job.origin);
    strategy_files_release(&trainer->job.files);
    free(trainer->job.name);
    running_release(&trainer->progress.running);
    free(trainer->progress.ledger);
    free(trainer->progress.committed_leaves);
    free(trainer->progress.batch_losses);
    free(trainer->progress.vote_workspace);
    charts_release(&trainer->report.charts);
    fleet_strbuf_release(&trainer->report.line);
    if (trainer->net.listener >= 0)
        (void)close(trainer->net.listener);
    for (int i = 0; i < TRAINER_INPUTS; i++) {
        free(trainer->data.copies[i]);
        if (trainer->data.locks[i] >= 0)
            (void)close(trainer->data.locks[i]);
    }
    *trainer = empty;
}

int64_t trainer_steps(const struct trainer *trainer, int64_t updates)
{
    int64_t steps = updates * trainer->job.merge;

    return steps < trainer->job.config.steps ? steps : trainer->job.config.steps;
}

int64_t trainer_batches(const struct trainer *trainer, int64_t update)
{
    return trainer_steps(trainer, update) - trainer_steps(trainer, update - 1);
}

bool trainer_is_complete(const struct trainer *trainer, int64_t update)
{
    return trainer_batches(trainer, update) == trainer->job.merge;
}

void trainer_announce(struct trainer *trainer, enum fleet_phase phase)
{
    struct link_message message = {.kind = LINK_READY, .generation = trainer->generation.id};

    message.ready.phase = phase;
    message.ready.at_ms = fleet_monotonic_ms();
    message.ready.step = trainer->progress.committed == TRAINER_NO_STATE
                             ? -1
                             : trainer_steps(trainer, trainer->progress.committed);
    message.ready.part = reshard_part(trainer);
    control_send(trainer->control, &message);
}

static void say(struct trainer *trainer, bool is_note, const char *format, va_list args)
{
    struct link_message message = {.kind = LINK_WARNING, .generation = trainer->generation.id};

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
    if (trainer->save.remote && trainer->generation.is_joining)
        return fleet_monotonic_ms() + DEADLINE_STORE_MS;
    return fleet_monotonic_ms() +
           fmax(DEADLINE_LEAST_MS, DEADLINE_IN_STEPS * trainer->report.step_longest_ms);
}

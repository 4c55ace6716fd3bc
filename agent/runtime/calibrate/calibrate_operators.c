/* SPDX-License-Identifier: Apache-2.0 */

/* Programs of one rank, run operator by operator in the order of a step, so that each finds the
 * caches as a step leaves them. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "agent/runtime/backend/cpu/backend_cpu.h"
#include "agent/runtime/backend/cpu/backend_level.h"
#include "agent/runtime/calibrate/calibrate_internal.h"
#include "agent/runtime/executor/executor.h"
#include "agent/runtime/state.h"
#include "libfleet/autoparallel/search/full_search.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/plan/plan.h"
#include "libfleet/program/models/model.h"
#include "libfleet/training/training.h"

#define VARIANTS_MAX 5
#define ROUNDS_MAX   31
#define VARIANT_MS   500.0
#define BYTES_MAX    268435456.0 /* of the program that runs; fewer layers if it needs more */
#define SAMPLES_MAX  16384
#define MICRO_MAX    8

/* A program to measure. */
struct variant {
    int64_t micro_batch;
    int model;
};

/* What the processes report. */
struct reports {
    int count;         /* samples; those of all variants */
    int first_variant; /* samples of the first variant */
    struct calibrate_sample samples[SAMPLES_MAX];
};

struct job {
    const struct calibrate_request *request;
    struct training_config training; /* shallow: layers and batches are others */
    struct variant variants[VARIANTS_MAX];
    int count;
    struct reports *reports; /* [processes] shared */
};

/* ---- one program ----------------------------------------------------------------------------- */

/* Of one rank of a tensor-parallel group, without replicas. */
static int build(const struct job *job, const struct variant *variant, struct plan *out,
                 struct fleet_error *err)
{
    STRATEGY_AUTO struct strategy strategy;
    struct training_config training = job->training; /* shallow */
    struct full_choice choice = {.data = 1,
                                 .sharding = 1,
                                 .pipeline = 1,
                                 .sequence = 1,
                                 .model = variant->model,
                                 .micro_batch = variant->micro_batch};
    struct fleet_errors errors = {0};
    struct plan_request request;
    int rc;

    training.micro_batch_size = variant->micro_batch;
    full_strategy(job->request->strategy, &choice, &strategy);
    request = plan_request_of(&training, &strategy, job->request->policy, job->request->options,
                              variant->model);
    request.only_explain = request.is_draft = true;
    rc = plan_build(&request, out, &errors);
    if (rc < 0)
        (void)fleet_errors_result(&errors, err);
    fleet_errors_release(&errors);
    if (rc == 0 && !out->has_program) {
        plan_release(out);
        rc = fleet_error(err, -EINVAL, "spec.training.model.vocabulary is not known");
    }
    return rc;
}

struct rig {
    struct plan plan;
    struct backend *backend;
    struct state state;
    struct executor *executor;
    double (*now)(void);
};

static double processor_seconds(void)
{
    struct timespec now;

    fleet_assert(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) == 0);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static double wall_seconds(void)
{
    return fleet_monotonic_ms() * 1e-3;
}

/* Token ids all over the vocabulary: each row of a table is a miss of its own. */
static void fill_ids(struct rig *rig, const char *name, int64_t vocabulary)
{
    int var = program_find_var(&rig->plan.program, name);
    int32_t *ids = var == PROGRAM_NONE ? NULL : state_address(&rig->state, var);

    for (int64_t i = 0; ids && i < program_var_elements(&rig->plan.program.vars[var]); i++)
        ids[i] = (int32_t)(i * 7919 % vocabulary);
}

static void release(struct rig *rig)
{
    executor_free(rig->executor);
    state_release(&rig->state);
    backend_free(rig->backend);
    plan_release(&rig->plan);
}

static int open(const struct job *job, const struct variant *variant, struct rig *rig,
                struct fleet_error *err)
{
    int threads = job->request->threads, rc;

    *rig = (struct rig){.now = threads == 1 ? processor_seconds : wall_seconds};
    if ((rc = build(job, variant, &rig->plan, err)) < 0)
        return rc;
    if ((rc = backend_cpu_new(backend_level_detect(), threads, &rig->backend, err)) < 0 ||
        (rc = state_init(&rig->state, &rig->plan.program, &rig->plan.memory, rig->backend, err)) <
            0 ||
        (rc = state_reserve_slots(&rig->state, 1, err)) < 0 ||
        (rc = executor_new(&rig->plan.program, &rig->plan.memory, rig->backend, &rig->executor,
                           err)) < 0) {
        release(rig);
        return rc;
    }
    state_initialize(&rig->state, &(struct state_seeds){job->training.seed, job->training.seed},
                     threads);
    rig->state.bases.segment[MEMORY_GRADIENTS] = rig->state.slots[0];
    if (job->training.model.vocabulary > 0) {
        fill_ids(rig, "ids", job->training.model.vocabulary);
        fill_ids(rig, "targets", job->training.model.vocabulary);
    }
    return 0;
}

static bool is_measured(const struct program_op *op)
{
    return !op_definition(op->kind)->is_communication && op->section != PROGRAM_SECTION_AVERAGE;
}

/* Seconds of each operator in one round into times[op][round]. */
static int run_round(struct rig *rig, double (*times)[ROUNDS_MAX], int round,
                     struct fleet_error *err)
{
    struct run_scalars scalars = {.gradient_scale = 1, .update_1based = 1};

    for (int i = 0; i < rig->plan.program.op_count; i++) {
        double started = rig->now();
        int rc;

        if (!is_measured(&rig->plan.program.ops[i]))
            continue;
        rc = executor_launch(rig->executor, i, &rig->state.bases, &scalars, err);
        times[i][round] = rig->now() - started;
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void report(const struct rig *rig, double (*times)[ROUNDS_MAX], int rounds, double clock,
                   struct reports *out)
{
    const struct program *program = &rig->plan.program;

    for (int i = 0; i < program->op_count && out->count < SAMPLES_MAX; i++) {
        const struct program_op *op = &program->ops[i];
        struct calibrate_sample *sample = &out->samples[out->count];

        if (!is_measured(op))
            continue;
        qsort(times[i], (size_t)rounds, sizeof(times[i][0]), compare_doubles);
        *sample = (struct calibrate_sample){.class_ = links_class_of(op->kind),
                                            .work = links_op_work(program, op),
                                            .weights = links_op_weights(program, op),
                                            .seconds = fmax(times[i][rounds / 2] - clock, 1e-9)};
        out->count += sample->work > 0;
    }
}

/* What a look at the clock takes. */
static double clock_seconds(double (*now)(void))
{
    double started = now();

    for (int i = 0; i < 1000; i++)
        (void)now();
    return (now() - started) / 1000;
}

static int measure(const struct job *job, const struct variant *variant, struct reports *out,
                   struct fleet_error *err)
{
    double started_ms, (*times)[ROUNDS_MAX];
    struct rig rig;
    int rounds = 0, rc = open(job, variant, &rig, err);

    if (rc < 0)
        return rc;
    times = calloc((size_t)rig.plan.program.op_count + 1, sizeof(*times));
    fleet_assert(times);
    rc = run_round(&rig, times, 0, err); /* the first touches memory */
    started_ms = fleet_monotonic_ms();
    while (rc == 0 && rounds < ROUNDS_MAX &&
           (rounds < 3 || fleet_monotonic_ms() - started_ms < VARIANT_MS))
        rc = run_round(&rig, times, rounds++, err);
    if (rc == 0)
        report(&rig, times, rounds, clock_seconds(rig.now), out);
    free(times);
    release(&rig);
    return rc;
}

/* A process. */
static int measure_all(void *context, int number, struct fleet_error *err)
{
    const struct job *job = context;
    struct reports *out = &job->reports[number];

    for (int i = 0; i < job->count; i++) {
        int rc = measure(job, &job->variants[i], out, err);
        if (rc < 0)
            return rc;
        if (i == 0)
            out->first_variant = out->count;
    }
    return 0;
}

/* ---- the programs ---------------------------------------------------------------------------- */

static void add_variant(struct job *job, int64_t micro_batch, int model)
{
    for (int i = 0; i < job->count; i++)
        if (job->variants[i].micro_batch == micro_batch && job->variants[i].model == model)
            return;
    if (job->count < VARIANTS_MAX)
        job->variants[job->count++] = (struct variant){micro_batch, model};
}

/* The largest power of two up to `most` that divides the model. */
static int model_degree(const struct training_config *training, int most)
{
    struct fleet_error ignored;
    int degree = 1;

    for (int ranks = 2; ranks <= most; ranks *= 2)
        if (model_check_ranks(training, ranks, &ignored) == 0)
            degree = ranks;
    return degree;
}

/* The job's own micro-batch first; a larger one and the smallest, whose weights take a larger share
 * of the time; and slices of tensors. */
static void choose_variants(struct job *job)
{
    int64_t own = job->request->training->micro_batch_size, large = own;
    int most = model_degree(&job->training, job->request->ranks);

    while (large < MICRO_MAX && job->request->training->global_batch_size % (2 * large) == 0)
        large *= 2;
    add_variant(job, own, 1);
    add_variant(job, own, most);
    add_variant(job, large, 1);
    add_variant(job, 1, 1);
    add_variant(job, own, most > 2 ? 2 : 1);
}

/* Fewer layers, until what runs is small. */
static int choose_layers(struct job *job, int64_t *out_layers, struct fleet_error *err)
{
    int64_t *layers = &job->training.model.layers;
    struct plan plan;
    double bytes;
    int rc;

    for (;;) {
        if ((rc = build(job, &job->variants[0], &plan, err)) < 0)
            return rc;
        bytes = (double)plan_bytes_total(&plan);
        plan_release(&plan);
        if (bytes <= BYTES_MAX || *layers <= 1)
            break;
        *layers /= 2;
    }
    *out_layers = *layers;
    if (bytes > job->request->memory)
        return fleet_error(err, -EINVAL,
                           "one layer of the model needs %.0f bytes, a rank has %.0f: measure a "
                           "smaller model, or fewer ranks",
                           bytes, job->request->memory);
    return 0;
}

/* The mean over the processes, which all have the same samples. */
static int average(const struct job *job, int processes, struct calibrate_sample *out)
{
    int count = job->reports[0].count;

    for (int i = 0; i < count; i++) {
        out[i] = job->reports[0].samples[i];
        for (int p = 1; p < processes; p++)
            out[i].seconds += job->reports[p].samples[i].seconds;
        out[i].seconds /= processes;
    }
    return count;
}

static void share_out(const struct calibrate_sample *samples, int count, double *share)
{
    double total = 0;

    for (int i = 0; i < count; i++) {
        share[samples[i].class_] += samples[i].seconds;
        total += samples[i].seconds;
    }
    for (int i = 0; i < LINKS_CLASSES && total > 0; i++)
        share[i] /= total;
}

int calibrate_operators(const struct calibrate_request *request, struct calibrate_result *out,
                        struct fleet_error *err)
{
    struct job job = {.request = request, .training = *request->training};
    int processes = request->ranks;
    size_t bytes = (size_t)processes * sizeof(*job.reports);
    FLEET_AUTO_FREE struct calibrate_sample *samples = calloc(SAMPLES_MAX, sizeof(*samples));
    int count, rc;

    fleet_assert(samples);
    choose_variants(&job);
    if ((rc = choose_layers(&job, &out->layers, err)) < 0)
        return rc;
    job.reports = calibrate_shared(bytes);
    rc = calibrate_processes(processes, measure_all, &job, err);
    if (rc == 0) {
        count = average(&job, processes, samples);
        out->fit = calibrate_fit(samples, count, &out->links.compute);
        share_out(samples, job.reports[0].first_variant, out->share);
    }
    (void)munmap(job.reports, bytes);
    return rc;
}

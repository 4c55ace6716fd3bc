/* SPDX-License-Identifier: Apache-2.0 */

/*
 * validation_check() and plan_build() find some errors twice, so the second list is merged into the
 * first. A plan is tried only if the fields that it needs could be read.
 */
#include "libfleet/api/judge.h"

#include <inttypes.h>
#include <string.h>

#include "libfleet/api/divisions.h"
#include "libfleet/api/fleetjob.h"
#include "libfleet/api/memory_limit.h"
#include "libfleet/api/spares.h"
#include "libfleet/api/validation.h"
#include "libfleet/autoparallel/context_strategy.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/plan/plan_stages.h"
#include "libfleet/strategy/cells.h"

/* Could all of these fields be read? The list ends with NULL. */
static bool knows(const struct fleetjob *job, const char *const *fields)
{
    for (; *fields; fields++)
        if (fleet_errors_touch(&job->unread, *fields))
            return false;
    return true;
}

/* Fields that the passes read, or that determine the names of the program's tensors. */
static const char *const program_fields[] = {"spec.training.model.preset",
                                             "spec.training.model.name",
                                             "spec.training.model.layers",
                                             "spec.training.model.depths",
                                             "spec.training.model.bottleneck",
                                             "spec.training.model.tieEmbeddings",
                                             "spec.training.model.sizes",
                                             "spec.training.optimizer",
                                             "spec.training.precision",
                                             "spec.strategy",
                                             "spec.strategyText",
                                             "spec.strategyOptions",
                                             NULL};

/* Fields that change only size, cost and digest of the program. */
static const char *const cost_fields[] = {"spec.training.model",
                                          "spec.training.data.tokenizer",
                                          "spec.training.microBatchSize",
                                          "spec.training.schedule",
                                          "spec.training.globalBatchSize",
                                          "spec.training.steps",
                                          "spec.training.seed",
                                          "spec.worker.replicas",
                                          "spec.worker.processesPerPod",
                                          NULL};

/* Sizes that are valid for every model, and that the ranks of `strategy` divide. No message of a
 * pass contains them. */
static void use_sizes_that_fit(const struct strategy *strategy, struct training_model *model)
{
    int64_t ranks = strategy ? topology_least_world(strategy) : 1;

    model->heads = model->kv_heads = ranks;
    model->width = 8 * ranks;
    model->hidden = ranks;
    model->context = 8 * ranks;
    model->vocabulary = 256 * ranks;
    model->classes = 100;
    model->base_width = 8;
}

/*
 * Build the program only to find its errors while other numbers of the job are wrong: with a batch
 * and steps that are always valid, and with other model sizes if the job's are wrong.
 */
static void try_program(const struct plan_request *request, bool has_sizes,
                        struct fleet_errors *errors)
{
    struct training_config training = *request->training; /* borrowed, except the numbers */
    struct plan_request small = *request;
    struct plan plan;

    if (!has_sizes)
        use_sizes_that_fit(request->strategy, &training.model);
    training.micro_batch_size = 1;
    training.global_batch_size = request->world > 0 ? request->world : TOPOLOGY_WORLD_MAX;
    training.steps = INT32_MAX;
    small.training = &training;
    small.written = request->training;
    if (plan_build(&small, &plan, errors) == 0)
        plan_release(&plan);
}

/* True if *out was filled. */
static bool build_plan(const struct fleetjob *job, const struct plan_request *request,
                       struct plan *out, struct fleet_errors *errors)
{
    struct fleet_errors wrong = {0};
    bool has_plan = false, has_sizes, has_batch;

    if (!knows(job, program_fields))
        return false;
    if (!request->training)
        return request->world > 0 && knows(job, cost_fields) &&
               plan_build(request, out, errors) == 0;
    (void)training_config_relate(request->training, "spec.training", &job->unread, &wrong);
    has_sizes = !fleet_errors_touch(&wrong, "spec.training.model") &&
                !fleet_errors_touch(&job->unread, "spec.training.model");
    has_batch = !fleet_errors_touch(&wrong, "spec.training.globalBatchSize") && request->world > 0;
    if (fleet_errors_touch(&wrong, "spec.training.model.sizes"))
        has_plan = false; /* without layers there are no names */
    else if (has_sizes && has_batch && knows(job, cost_fields) &&
             !fleet_errors_touch(&wrong, "spec.training.data.tokenizer"))
        has_plan = plan_build(request, out, errors) == 0;
    else
        try_program(request, has_sizes, errors);
    fleet_errors_release(&wrong);
    return has_plan;
}

/* Where ranks share a model, an elastic job trains with whole replicas; others are spares. */
static void leave_spares(const struct fleetjob *job, struct plan_request *request,
                         struct fleet_errors *warnings)
{
    int64_t workers = job->spec.worker.replicas, trained = spares_trained(job, workers);

    if (request->world == PLAN_ANY_WORLD || trained == workers || trained == 0)
        return;
    request->world = (int)fleetjob_world_size(job, trained);
    fleet_errors_add(warnings, "spec.worker.replicas",
                     "of %lld workers %lld train and %lld wait as spares: %d ranks share a model",
                     (long long)workers, (long long)trained, (long long)(workers - trained),
                     topology_least_world(&job->spec.strategy));
}

static int processes_per_pod(const struct fleetjob *job)
{
    int64_t processes = job->spec.worker.processes_per_pod;

    return processes >= 1 && processes <= TOPOLOGY_WORLD_MAX ? (int)processes : 1;
}

static struct plan_request make_request(const struct fleetjob *job,
                                        const struct judge_options *options)
{
    const struct fleetjob_spec *spec = &job->spec;
    int64_t world = options->world_size > 0 ? options->world_size
                                            : fleetjob_world_size(job, spec->worker.replicas);
    const char *in_template = memory_limit_variable(job, "FLEET_CUDA_COMM");
    const char *comm = in_template ? in_template : options->cuda_comm;
    struct plan_request request;

    if (options->world_size == 0 &&
        (fleet_errors_touch(&job->unread, "spec.worker.replicas") ||
         fleet_errors_touch(&job->unread, "spec.worker.processesPerPod")))
        world = 0; /* and is not guessed */
    request = plan_request_of(
        spec->has_training ? &spec->training : NULL, &spec->strategy,
        options->policy ? *options->policy : spec->strategy_policy, &spec->strategy_options,
        world < 1 || world > TOPOLOGY_WORLD_MAX ? PLAN_ANY_WORLD : (int)world);
    request.ranks_of_worker = options->world_size > 0 ? 0 : processes_per_pod(job);
    request.own_trainer = !spec->has_training;
    request.has_buddies = spec->run_policy.elastic.replicas > 0;
    request.only_explain |= options->only_explain;
    request.strategy_path = fleetjob_strategy_path(job);
    request.world_path =
        options->world_size > 0 ? "spec.training.globalBatchSize" : "spec.worker.replicas";
    request.unread = &job->unread;
    request.threads = options->threads;
    request.machine_ranks = options->on_one_machine ? request.world : processes_per_pod(job);
    request.encrypts =
        spec->run_policy.data_encryption == FLEETJOB_ENCRYPTION_AES_GCM ||
        (spec->run_policy.data_encryption == FLEETJOB_ENCRYPTION_AUTO && options->encrypts_data);
    request.shares_gpus = comm && strcmp(comm, "ipc") == 0;
    return request;
}

/* `setting` divides by the number of `parts`, which would change with the number of workers. */
static void demand_degree(const struct fleetjob *job, const struct plan *plan,
                          enum topology_axis axis, const char *setting, const char *parts,
                          const char *degree, struct fleet_errors *errors)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf path = {0};

    fleet_strbuf_appendf(&path, "%s.%s", fleetjob_strategy_path(job), setting);
    fleet_errors_add(errors, path.text,
                     "an elastic job needs the number of %s: give hybrid_configs.%s, which is %d "
                     "with %d workers",
                     parts, degree, plan->topology.degree[axis], plan->world);
}

/* The hub of an elastic job must know which members make a replica. */
static void check_stages(const struct fleetjob *job, const struct plan *plan,
                         struct fleet_errors *errors)
{
    const struct fleetjob_worker *worker = &job->spec.worker;
    const struct strategy *strategy = &job->spec.strategy;

    if (!plan->is_cut || worker->min_replicas >= worker->max_replicas ||
        topology_least_world(strategy) % plan->topology.degree[TOPOLOGY_PIPELINE] == 0)
        return;
    demand_degree(job, plan, TOPOLOGY_PIPELINE, "pipeline", "stages", "pp_degree", errors);
}

/* Other numbers of workers make other numbers of replicas, which share the micro-batches. */
static void check_replicas(const struct fleetjob *job, const struct plan *plan,
                           struct fleet_errors *errors)
{
    const struct fleetjob_worker *worker = &job->spec.worker;
    int64_t unit = plan->world / plan_replicas(plan);
    struct fleet_error err;

    if (!plan->is_cut || fleet_errors_touch(&job->unread, "spec.worker") ||
        divisions_are_searched(job))
        return;
    for (int64_t workers = worker->min_replicas; workers <= worker->max_replicas; workers++) {
        int64_t world = fleetjob_world_size(job, spares_trained(job, workers));
        if (world < unit || world > TOPOLOGY_WORLD_MAX ||
            plan_stages_check(plan, (int)(world / unit), &err) == 0)
            continue;
        fleet_errors_add(errors, "spec.strategyOptions.pipelineChunks",
                         "%s; minReplicas (%" PRId64 ") to maxReplicas (%" PRId64 ") allow %" PRId64
                         " workers%s",
                         err.text, worker->min_replicas, worker->max_replicas, workers,
                         job->spec.strategy_options.pipeline_layers.count == 0
                             ? "; pipelineChunks 1 would do"
                             : "");
        return;
    }
}

/* The same of shards: twice as many workers may be twice as many shards. Then other workers have a
 * cell. */
static void check_shards(const struct fleetjob *job, const struct plan *plan,
                         struct fleet_errors *errors)
{
    const struct fleetjob_worker *worker = &job->spec.worker;
    struct fleet_errors ignored = {0};
    struct topology more;
    int rc;

    if (!job->spec.has_training || worker->min_replicas >= worker->max_replicas ||
        cells_count(&plan->topology) == 1 || plan->world > TOPOLOGY_WORLD_MAX / 2)
        return;
    rc = topology_build(&plan->selection.final, 2 * plan->world, NULL, "", &more, &ignored);
    fleet_errors_release(&ignored);
    if (rc < 0 || cells_stay(&plan->topology, &more))
        return;
    demand_degree(job, plan, TOPOLOGY_SHARDING, "sharding", "shards", "sharding_degree", errors);
}

/* The plan of the job's trainers while it has so many workers. */
static bool plan_workers(const struct fleetjob *job, const struct judge_options *options,
                         int64_t workers, struct plan *out)
{
    struct plan_request request = make_request(job, options);
    struct fleet_errors ignored = {0}; /* other checks report them */
    int64_t world = fleetjob_world_size(job, spares_trained(job, workers));
    int rc;

    if (world < 1 || world > TOPOLOGY_WORLD_MAX)
        return false;
    if (options->on_one_machine)
        request.machine_ranks = (int)world;
    request.world = (int)world;
    request.keeps_settings = true;
    rc = plan_build(&request, out, &ignored);
    fleet_errors_release(&ignored);
    return rc == 0;
}

bool judge_tightest(const struct fleetjob *job, const struct judge_options *options,
                    const struct plan *plan, struct plan *out_plan, int64_t *out_workers)
{
    const struct fleetjob_worker *worker = &job->spec.worker;
    int64_t most = memory_limit_needed(job, plan), end = worker->min_replicas + JUDGE_SIZES;
    bool is_found = false;

    if (!plan->has_program || worker->min_replicas >= worker->max_replicas ||
        options->world_size > 0)
        return false;
    for (int64_t n = worker->min_replicas; n <= worker->max_replicas && n < end; n++) {
        struct plan other;
        if (n == worker->replicas || !plan_workers(job, options, n, &other))
            continue;
        if (memory_limit_needed(job, &other) <= most) {
            plan_release(&other);
            continue;
        }
        if (is_found)
            plan_release(out_plan);
        most = memory_limit_needed(job, &other);
        *out_plan = other;
        *out_workers = n;
        is_found = true;
    }
    return is_found;
}

/* A job that fits as it is written, and does not when it has another number of workers. */
static void check_other_sizes(const struct fleetjob *job, const struct judge_options *options,
                              const struct plan *plan, struct fleet_errors *errors)
{
    const char *path;
    struct plan other;
    int64_t workers, limit;

    if (memory_limit_of(job, &limit, &path, errors) < 0 || limit < 0 ||
        !judge_tightest(job, options, plan, &other, &workers))
        return;
    (void)memory_limit_check(job, &other, workers, errors);
    plan_release(&other);
}

/* Make the plan, or only the checks that do not need it. If a setting cannot run, do not report it
 * for the wrong optimizer as well. */
static bool try_plan(const struct fleetjob *job, const struct judge_options *options,
                     struct plan *out, struct fleet_errors *errors, struct fleet_errors *warnings)
{
    struct plan_request request = make_request(job, options);
    struct fleet_errors obstacles = {0}, found = {0};
    bool has_plan;

    if (options->world_size == 0 && warnings)
        leave_spares(job, &request, warnings);
    has_plan = build_plan(job, &request, out, &found);
    if (has_plan && job->spec.has_server) { /* workers read them: fleet_ps.h */
        select_drop_notes(&out->selection.without_effect, "a_sync");
        select_drop_notes(&out->selection.without_effect, "a_sync_configs");
    }
    if (has_plan)
        check_stages(job, out, &found);
    if (has_plan && found.count == 0 && options->world_size == 0)
        check_replicas(job, out, &found);
    if (has_plan && found.count == 0)
        check_shards(job, out, &found);
    plan_obstacles(&request, &obstacles);
    fleet_errors_merge(errors, &found);
    for (size_t i = 0; i < obstacles.count && i < FLEET_ERRORS_MAX; i++)
        fleet_errors_drop(errors, obstacles.items[i].path, SELECT_NEEDS_OPTIMIZER);
    fleet_errors_merge(errors, &obstacles);
    fleet_errors_release(&found);
    fleet_errors_release(&obstacles);
    return has_plan;
}

/* The key of spec.autoParallel behind the setting at `path`; NULL: a user wrote the setting. */
static const char *key_behind(const struct fleetjob *job, const char *path)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf setting = {0};
    const char *strategy = fleetjob_strategy_path(job), *key;
    size_t length = strlen(strategy);

    if (strncmp(path, strategy, length) != 0 || path[length] != '.')
        return NULL;
    path += length + 1;
    key = context_key_of(job->spec.auto_parallel, path);
    fleet_strbuf_appendf(&setting, "%.*s", (int)strcspn(path, "["), path);
    return fleet_json_at(job->spec.strategy_json, setting.text) ? NULL : key;
}

/* An error names what the user wrote. */
static void blame_context(const struct fleetjob *job, struct fleet_errors *errors)
{
    struct fleet_errors blamed = {0};
    bool has_key = false;

    for (size_t i = 0; i < errors->count && i < FLEET_ERRORS_MAX; i++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf path = {0};
        const char *key = key_behind(job, errors->items[i].path);

        has_key |= key != NULL;
        if (key)
            fleet_strbuf_appendf(&path, "spec.autoParallel%s%s", *key ? "." : "", key);
        else
            fleet_strbuf_append(&path, errors->items[i].path);
        (errors->items[i].is_unknown ? fleet_errors_add_unknown : fleet_errors_add)(
            &blamed, fleet_strbuf_text(&path), "%s", errors->items[i].message);
    }
    if (has_key && errors->count <= FLEET_ERRORS_MAX) {
        fleet_errors_release(errors);
        *errors = blamed;
    } else {
        fleet_errors_release(&blamed);
    }
}

bool judge_job(const struct fleetjob *job, const struct judge_options *options,
               struct plan *out_plan, struct fleet_errors *errors, struct fleet_errors *warnings)
{
    struct validation_options validation = {.in_cluster = options->in_cluster,
                                            .without_image = options->without_image,
                                            .world_size = options->world_size,
                                            .policy = options->policy};
    struct fleet_errors memory = {0};
    bool has_plan;

    (void)validation_check(job, &validation, errors, warnings);
    has_plan = try_plan(job, options, out_plan, errors, warnings);
    if (has_plan && memory_limit_check(job, out_plan, 0, &memory) == 0 && errors->count == 0)
        check_other_sizes(job, options, out_plan, &memory);
    fleet_errors_merge(errors, &memory);
    fleet_errors_release(&memory);
    if (job->spec.has_training && job->spec.auto_parallel)
        blame_context(job, errors);
    return has_plan;
}

/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Checks the strategy at each size that the job may have, batches and samples, and
 * spec.autoParallel.
 */
#include <inttypes.h>
#include <stdio.h>

#include "libfleet/api/divisions.h"
#include "libfleet/api/fleetjob.h"
#include "libfleet/api/idle_fields.h"
#include "libfleet/api/spares.h"
#include "libfleet/api/validation_internal.h"
#include "libfleet/autoparallel/context.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/strategy/select.h"
#include "libfleet/strategy/topology.h"
#include "libfleet/training/training_ranks.h"

static const char *strategy_path(const struct validation *c)
{
    return fleetjob_strategy_path(c->job);
}

/* The ranks that train of so many workers; all of them where they do not make one replica. */
static int64_t trained_world(const struct validation *c, int64_t workers)
{
    int64_t trained = spares_trained(c->job, workers);

    return fleetjob_world_size(c->job, trained > 0 ? trained : workers);
}

static int64_t nominal_world(const struct validation *c)
{
    if (c->options->world_size > 0)
        return c->options->world_size;
    return trained_world(c, c->job->spec.worker.replicas);
}

/* Ranks of a worker, if the number of ranks follows from that of workers; else 0. */
static int ranks_of_worker(const struct validation *c)
{
    return c->options->world_size > 0 ? 0 : (int)c->job->spec.worker.processes_per_pod;
}

static struct topology_job known_of_job(const struct validation *c)
{
    if (!c->job->spec.has_training)
        return (struct topology_job){.ranks_of_worker = ranks_of_worker(c)};
    return training_ranks_job(&c->job->spec.training, &c->job->spec.strategy_options,
                              ranks_of_worker(c));
}

/*
 * The number of ranks that share the batch: the data axis times the sharding axis. 0 = unknown,
 * because the degrees fit no grid or could not be read.
 */
static int64_t data_parallel_degree(const struct validation *c, int64_t world)
{
    const struct strategy *strategy = &c->job->spec.strategy;
    struct fleet_errors ignored = {0}; /* strategy_select() has reported them */
    struct topology topology;
    int rc;

    if (world < 1 || world > TOPOLOGY_WORLD_MAX ||
        !select_knows_grid(&c->job->unread, strategy_path(c)))
        return 0;
    rc = topology_build(strategy, (int)world, NULL, "", &topology, &ignored);
    fleet_errors_release(&ignored);
    if (rc < 0)
        return 0;
    return (int64_t)topology.degree[TOPOLOGY_DATA] * topology.degree[TOPOLOGY_SHARDING];
}

/* globalBatchSize = data-parallel degree × micro_batch × microBatchSize. */
static void check_pipeline(const struct validation *c, int64_t degree)
{
    const struct strategy *strategy = &c->job->spec.strategy;
    const struct training_config *training = &c->job->spec.training;
    const char *name = strategy->pipeline_configs.has_micro_batch == KNOB_BY_ALIAS
                           ? "accumulate_steps"
                           : "micro_batch";
    const char *form = c->job->spec.strategy_text ? "strategyText" : "strategy";
    char path[80];

    if (!strategy->pipeline || !validation_knows(c, "spec.training.globalBatchSize") ||
        !validation_knows(c, "spec.training.microBatchSize") || training->micro_batch_size < 1)
        return;
    (void)snprintf(path, sizeof(path), "spec.%s.pipeline_configs.%s", form, name);
    if (strategy->pipeline_configs.has_micro_batch_size &&
        strategy->pipeline_configs.micro_batch_size != training->micro_batch_size)
        fleet_errors_add(c->errors,
                         c->job->spec.strategy_text
                             ? "spec.strategyText.pipeline_configs.micro_batch_size"
                             : "spec.strategy.pipeline_configs.micro_batch_size",
                         "%d differs from training.microBatchSize (%" PRId64 ")",
                         strategy->pipeline_configs.micro_batch_size, training->micro_batch_size);
    if (!strategy->pipeline_configs.has_micro_batch ||
        degree * strategy->pipeline_configs.micro_batch == training_micro_batches(training))
        return;
    if (training_micro_batches(training) % degree == 0)
        fleet_errors_add(c->errors, path,
                         "%d does not fit globalBatchSize %" PRId64 " = %" PRId64
                         " data-parallel × %s × microBatchSize %" PRId64 "; %" PRId64 " would",
                         strategy->pipeline_configs.micro_batch, training->global_batch_size,
                         degree, name, training->micro_batch_size,
                         training_micro_batches(training) / degree);
    else
        fleet_errors_add(c->errors, path,
                         "globalBatchSize %" PRId64 " / microBatchSize %" PRId64
                         " is not a multiple of the %" PRId64
                         " data-parallel pipelines; leave %s out",
                         training->global_batch_size, training->micro_batch_size, degree, name);
}

/* If the value is unknown, 1, the minimum. */
static int64_t merge_steps(const struct validation *c)
{
    static const char *const configs[] = {"gradient_merge_configs", "sharding_configs"};
    bool is_known = true;

    for (size_t i = 0; i < FLEET_COUNT(configs); i++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf path = {0};
        fleet_strbuf_appendf(&path, "%s.%s", strategy_path(c), configs[i]);
        is_known &= validation_knows(c, path.text);
    }
    return is_known ? fleetjob_gradient_merge_k(c->job) : 1;
}

/* Does each worker get a micro-batch? `field` gives the number of workers. */
static void check_size(const struct validation *c, int64_t world, const char *field)
{
    const struct training_config *training = &c->job->spec.training;
    struct training_surroundings surroundings = {
        .world_size = data_parallel_degree(c, world),
        .ranks_of_worker = ranks_of_worker(c),
        .world_path = field,
        .gradient_merge_k = merge_steps(c),
        .amp = c->job->spec.strategy.amp,
        .unread = &c->job->unread,
        .strategy = &c->job->spec.strategy,
        .options = &c->job->spec.strategy_options,
    };

    if (surroundings.world_size > 0)
        surroundings.ranks_of_replica = (int)(world / surroundings.world_size);
    (void)training_config_check(training, "spec.training", &surroundings, c->errors);
    if (surroundings.world_size > 0)
        check_pipeline(c, surroundings.world_size);
}

/* An elastic job must have work for each worker at its largest size, too, unless a search finds
 * another strategy for that size. */
static void check_largest(const struct validation *c)
{
    const struct fleetjob_worker *worker = &c->job->spec.worker;
    int64_t world = trained_world(c, worker->max_replicas);
    struct training_surroundings surroundings = {
        .ranks_of_worker = ranks_of_worker(c),
        .world_path = "spec.worker.maxReplicas",
        .gradient_merge_k = merge_steps(c),
        .unread = &c->job->unread,
        .strategy = &c->job->spec.strategy,
        .options = &c->job->spec.strategy_options,
    };

    if (c->options->world_size > 0 || worker->max_replicas <= worker->replicas ||
        divisions_are_searched(c->job) || !validation_knows(c, "spec.worker.maxReplicas"))
        return;
    surroundings.world_size = data_parallel_degree(c, world);
    if (surroundings.world_size > 0)
        surroundings.ranks_of_replica = (int)(world / surroundings.world_size);
    (void)training_config_check(&c->job->spec.training, "spec.training", &surroundings, c->errors);
}

/* Report the first number of workers that the degrees do not fit, at the field that caused it. */
static void refuse_size(const struct validation *c, const struct fleet_errors *refused)
{
    const struct fleetjob_worker *worker = &c->job->spec.worker;

    fleet_errors_add(c->errors, refused->items[0].path,
                     "%s; minReplicas (%" PRId64 ") to maxReplicas (%" PRId64
                     ") allow that number of workers: leave the degree out, or make both equal",
                     refused->items[0].message, worker->min_replicas, worker->max_replicas);
}

/* An elastic job trains with any number of workers between its bounds: the degrees must fit each of
 * them, without its spares. A search finds degrees for each. */
static void check_each_size(const struct validation *c)
{
    const struct fleetjob_worker *worker = &c->job->spec.worker;
    struct topology_job known = known_of_job(c);
    struct fleet_errors refused = {0};
    struct topology topology;

    if (!c->job->spec.has_training || !worker->elastic || c->options->world_size > 0 ||
        divisions_are_searched(c->job) ||
        fleetjob_world_size(c->job, worker->max_replicas) > TOPOLOGY_WORLD_MAX)
        return;
    for (int64_t replicas = worker->min_replicas;
         replicas <= worker->max_replicas && refused.count == 0; replicas++)
        if (spares_trained(c->job, replicas) > 0)
            (void)topology_build(&c->job->spec.strategy, (int)trained_world(c, replicas), &known,
                                 strategy_path(c), &topology, &refused);
    if (refused.count > 0)
        refuse_size(c, &refused);
    fleet_errors_release(&refused);
}

/* If the strategy has `elastic`, the resource must be elastic, too. */
static void check_elastic(const struct validation *c)
{
    const struct fleetjob_spec *spec = &c->job->spec;

    if (spec->strategy.elastic && !spec->worker.elastic &&
        validation_knows(c, "spec.worker.minReplicas") &&
        validation_knows(c, "spec.worker.maxReplicas") &&
        validation_knows(c, "spec.worker.replicas"))
        fleet_errors_add(
            c->errors, spec->strategy_json ? "spec.strategy.elastic" : "spec.strategyText",
            "elastic: true needs minReplicas < maxReplicas, not %lld and %lld",
            (long long)spec->worker.min_replicas, (long long)spec->worker.max_replicas);
}

static void report_selection(const struct validation *c, const struct select_result *selected)
{
    if (!c->warnings)
        return;
    select_warn(selected, strategy_path(c), c->warnings);
    idle_fields_warn(&c->job->spec, &selected->final, c->options->in_cluster, c->warnings);
}

/* Is the number of ranks known? Degrees and batches are compared with it. */
static bool knows_world(const struct validation *c)
{
    return c->options->world_size > 0 || (validation_knows(c, "spec.worker.replicas") &&
                                          validation_knows(c, "spec.worker.processesPerPod"));
}

static void check_strategy(const struct validation *c)
{
    const struct fleetjob_spec *spec = &c->job->spec;
    bool knows_optimizer =
        spec->has_training && validation_knows(c, "spec.training.optimizer.name");
    struct select_options options = {
        .policy = c->options->policy ? *c->options->policy : spec->strategy_policy,
        .world_size = knows_world(c) ? (int)nominal_world(c) : SELECT_UNKNOWN_WORLD,
        .optimizer =
            knows_optimizer ? training_optimizer_text(spec->training.optimizer.name) : NULL,
        .has_decay = spec->has_training && spec->training.optimizer.weight_decay > 0,
        .steps = spec->has_training ? spec->training.steps : 0,
        .job = known_of_job(c),
        .unread = &c->job->unread,
    };
    struct select_result selected = {0};
    struct fleet_errors found = {0};

    if (strategy_select(&spec->strategy, &options, strategy_path(c), &selected, &found) == 0) {
        report_selection(c, &selected);
        select_result_release(&selected);
        if (knows_world(c))
            check_each_size(c);
    }
    fleet_errors_merge(c->errors, &found);
    fleet_errors_release(&found);
}

static void check_batches(const struct validation *c)
{
    if (!c->job->spec.has_training || !validation_can_read(c, "spec.training"))
        return;
    check_size(c, knows_world(c) ? nominal_world(c) : 0,
               c->options->world_size > 0 ? "spec.training.globalBatchSize"
                                          : "spec.worker.replicas");
    if (knows_world(c))
        check_largest(c);
}

/* The images of the image loaders: 3 planes of 32 × 32. */
#define IMAGE_VALUES 3072

/* resnet and the text models are checked with the block itself (training.h). */
static void check_samples(const struct validation *c)
{
    const struct training_config *training = &c->job->spec.training;
    const struct training_int_list *sizes = &training->model.sizes;
    bool is_100 = training->data.tokenizer == TRAINING_TOKENIZER_CIFAR100;
    int64_t classes = is_100 ? 100 : 10;

    if (!c->job->spec.has_training || !validation_knows(c, "spec.training.model.name") ||
        !validation_knows(c, "spec.training.data.tokenizer") ||
        training->model.name != TRAINING_MODEL_MLP)
        return;
    if (!is_100 && training->data.tokenizer != TRAINING_TOKENIZER_CIFAR10) {
        fleet_errors_add(c->errors, "spec.training.data.tokenizer",
                         "model mlp reads images: must be cifar10 or cifar100");
        return;
    }
    if (!validation_knows(c, "spec.training.model.sizes") || sizes->count < 2)
        return;
    if (sizes->items[0] != IMAGE_VALUES)
        fleet_errors_add(c->errors, "spec.training.model.sizes[0]",
                         "%" PRId64 " values, but an image of the data has %d (3 × 32 × 32)",
                         sizes->items[0], IMAGE_VALUES);
    if (sizes->items[sizes->count - 1] < classes) {
        FLEET_AUTO_STRBUF struct fleet_strbuf path = {0};

        fleet_strbuf_appendf(&path, "spec.training.model.sizes[%zu]", sizes->count - 1);
        fleet_errors_add(c->errors, path.text,
                         "%" PRId64 " is less than the %" PRId64 " classes of the data",
                         sizes->items[sizes->count - 1], classes);
    }
}

static void check_ends(const struct validation *c)
{
    const struct strategy_ends *ends = &c->job->spec.strategy_options.all_reduce_ends;
    char path[60];

    for (size_t i = 1; i < ends->count; i++) {
        if (ends->items[i] > ends->items[i - 1])
            continue;
        (void)snprintf(path, sizeof(path), "spec.strategyOptions.allReduceEnds[%zu]", i);
        fleet_errors_add(c->errors, path,
                         "is %" PRId64 ", but must be greater than %" PRId64 ", the one before it",
                         ends->items[i], ends->items[i - 1]);
        return;
    }
}

/* Only these modes compare what is divided with what was given. */
static void check_divisions(const struct validation *c)
{
    const struct fleetjob_spec *spec = &c->job->spec;
    enum context_mode mode = context_mode(spec->auto_parallel);

    if (spec->strategy_options.operator_divisions &&
        (spec->training.operators.count == 0 ||
         (mode != CONTEXT_SEMI_AUTO_PARALLEL && mode != CONTEXT_AUTO_PARALLEL)))
        fleet_errors_add(c->errors, "spec.strategyOptions.operatorDivisions",
                         "needs spec.training.operatorStrategies, and "
                         "spec.autoParallel.parallel_mode semi_auto_parallel or auto_parallel");
}

void validation_strategy(const struct validation *c)
{
    check_ends(c);
    check_divisions(c);
    if (validation_can_read(c, strategy_path(c)) && nominal_world(c) <= TOPOLOGY_WORLD_MAX) {
        check_strategy(c);
        check_elastic(c);
        check_batches(c);
    }
    check_samples(c);
}

/* SPDX-License-Identifier: Apache-2.0 */

/*
 * validation_check() and plan_build() find some things both, so what the second says is merged.
 * Whether a plan can be tried at all depends on what could be read.
 */
#include "libfleet/api/judge.h"

#include "libfleet/api/fleetjob.h"
#include "libfleet/api/memory_limit.h"
#include "libfleet/api/validation.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/errors.h"

/* Everything that the program and its costs are made of. */
static bool knows_program(const struct fleetjob *job)
{
    static const char *const fields[] = {"spec.training.model",
                                         "spec.training.data.tokenizer",
                                         "spec.training.optimizer",
                                         "spec.training.schedule",
                                         "spec.training.globalBatchSize",
                                         "spec.training.microBatchSize",
                                         "spec.training.steps",
                                         "spec.training.precision",
                                         "spec.training.seed",
                                         "spec.strategy",
                                         "spec.strategyText",
                                         "spec.strategyOptions",
                                         "spec.worker.replicas",
                                         "spec.worker.processesPerPod"};

    for (size_t i = 0; i < FLEET_COUNT(fields); i++)
        if (fleet_errors_touch(&job->unread, fields[i]))
            return false;
    return true;
}

static struct plan_request make_request(const struct fleetjob *job,
                                        const struct judge_options *options)
{
    const struct fleetjob_spec *spec = &job->spec;
    int64_t world = options->world_size > 0 ? options->world_size
                                            : fleetjob_world_size(job, spec->worker.replicas);

    if (options->world_size == 0 &&
        (fleet_errors_touch(&job->unread, "spec.worker.replicas") ||
         fleet_errors_touch(&job->unread, "spec.worker.processesPerPod")))
        world = 0; /* and is not guessed */
    return (struct plan_request){
        .training = spec->has_training ? &spec->training : NULL,
        .own_trainer = !spec->has_training,
        .only_explain = options->only_explain || !spec->has_training,
        .strategy = &spec->strategy,
        .strategy_path = spec->strategy_text ? "spec.strategyText" : "spec.strategy",
        .world_path =
            options->world_size > 0 ? "spec.training.globalBatchSize" : "spec.worker.replicas",
        .unread = &job->unread,
        .policy = options->policy                                   ? *options->policy
                  : spec->strategy_policy == FLEETJOB_POLICY_PADDLE ? STRATEGY_PADDLE
                                                                    : STRATEGY_FULL,
        .options = &spec->strategy_options,
        .world = world < 1 || world > TOPOLOGY_WORLD_MAX ? PLAN_ANY_WORLD : (int)world,
        .threads = options->threads};
}

/* The plan, or as much as can be told without one. What cannot run needs no other optimizer. */
static bool try_plan(const struct fleetjob *job, const struct judge_options *options,
                     struct plan *out, struct fleet_errors *errors)
{
    struct plan_request request = make_request(job, options);
    struct fleet_errors obstacles = {0}, found = {0};
    bool has_plan = false;

    if (request.world > 0 && knows_program(job))
        has_plan = plan_build(&request, out, &found) == 0;
    plan_obstacles(&request, &obstacles);
    fleet_errors_merge(errors, &found);
    for (size_t i = 0; i < obstacles.count && i < FLEET_ERRORS_MAX; i++)
        fleet_errors_drop(errors, obstacles.items[i].path, SELECT_NEEDS_OPTIMIZER);
    fleet_errors_merge(errors, &obstacles);
    fleet_errors_release(&found);
    fleet_errors_release(&obstacles);
    return has_plan;
}

bool judge_job(const struct fleetjob *job, const struct judge_options *options,
               struct plan *out_plan, struct fleet_errors *errors, struct fleet_errors *warnings)
{
    struct validation_options validation = {.in_cluster = options->in_cluster,
                                            .without_image = options->without_image,
                                            .world_size = options->world_size,
                                            .policy = options->policy};
    bool has_plan;

    (void)validation_check(job, &validation, errors, warnings);
    has_plan = try_plan(job, options, out_plan, errors);
    if (has_plan)
        (void)memory_limit_check(job, out_plan, errors);
    return has_plan;
}

/* SPDX-License-Identifier: Apache-2.0 */

/* distributed_model() and distributed_optimizer(): what the strategy asks for. */
#include <errno.h>
#include <stdio.h>

#include "distributed/hybrid/hybrid.h"
#include "distributed/shard/shard.h"
#include "libfleet/base/errors.h"
#include "libfleet/strategy/select.h"
#include "libfleet/strategy/units.h"

static int begun(const char *what, const struct hybrid **out, struct fleet_error *err)
{
    *out = hybrid_get();
    if (*out && (*out)->is_collective)
        return 0;
    return fleet_error(err, FLEET_NOT_INITIALIZED,
                       "%s: call fleet_init() of a collective job first", what);
}

int fleet_distributed_model(const struct fleet_ddp_tensor *tensors, int count,
                            struct fleet_ddp **out, struct fleet_error *err)
{
    const char *what = "fleet_distributed_model";
    const struct hybrid *hybrid;
    struct fleet_ddp_options options = {0};
    struct fleet_group *group;
    int rc = begun(what, &hybrid, err);

    if (rc < 0)
        return rc;
    if (hybrid->topology.degree[TOPOLOGY_SHARDING] > 1)
        return fleet_error(err, -ENOTSUP,
                           "%s: ranks divide the state (sharding): use "
                           "fleet_distributed_optimizer(), which exchanges the gradients",
                           what);
    options.buffer_mb = hybrid->strategy.fuse_grad_size_in_MB;
    options.last_buffer_mb = hybrid->strategy.last_comm_group_size_MB;
    rc = hybrid_data_group(&group, err);
    if (rc == 0)
        rc = fleet_ddp_new(tensors, count, group, &options, out, err);
    return rc < 0 ? fleet_error_wrap(err, "%s", what) : 0;
}

/* ---- the optimizer --------------------------------------------------------------------------- */

static int refuse_units(const char *what, const struct select_result *result,
                        struct fleet_error *err)
{
    for (int unit = 0; unit <= UNIT_TENSOR_PARALLEL; unit++)
        if (select_is_applied(result, (enum unit)unit) && unit != UNIT_GRADIENT_MERGE &&
            unit != UNIT_SHARDING)
            return fleet_error(err, -ENOTSUP,
                               "%s: %s needs the program of the model, which only the built-in "
                               "trainer has (spec.training)",
                               what, unit_name((enum unit)unit));
    return 0;
}

/* What the units that take effect ask for. */
static int choose(const char *what, const struct hybrid *hybrid, const struct strategy *strategy,
                  enum shard_level *out_level, struct fleet_shard_options *out,
                  struct fleet_error *err)
{
    const struct select_options options = {.policy = STRATEGY_FULL,
                                           .world_size = hybrid->topology.world};
    struct fleet_errors errors = {0};
    struct select_result result = {0};
    int rc = strategy_select(strategy, &options, "", &result, &errors);

    if (rc < 0)
        rc = fleet_errors_result(&errors, err) < 0 ? fleet_error_wrap(err, "%s", what) : -EINVAL;
    fleet_errors_release(&errors);
    if (rc == 0)
        rc = refuse_units(what, &result, err);
    if (rc == 0) {
        const struct strategy *final = &result.final;

        *out = (struct fleet_shard_options){0};
        *out_level = SHARD_NONE;
        if (select_is_applied(&result, UNIT_GRADIENT_MERGE)) {
            out->merge_steps = final->gradient_merge_configs.k_steps;
            out->merge_avg = final->gradient_merge_configs.avg;
        }
        if (select_is_applied(&result, UNIT_SHARDING))
            *out_level = final->sharding_configs.stage == 3 ? SHARD_P_G_OS : SHARD_OS;
    }
    select_result_release(&result);
    return rc;
}

int fleet_distributed_optimizer(const struct fleet_ddp_tensor *tensors, int count,
                                const struct fleet_optimizer *optimizer,
                                const struct fleet_strategy *strategy,
                                struct fleet_group_sharded **out, struct fleet_error *err)
{
    const char *what = "fleet_distributed_optimizer";
    const struct hybrid *hybrid;
    struct fleet_shard_options options;
    struct fleet_group *group;
    enum shard_level level;
    int rc = begun(what, &hybrid, err);

    if (rc < 0)
        return rc;
    if (strategy)
        (void)fprintf(stderr, "%s: its strategy replaces that of fleet_init()\n", what);
    rc = choose(what, hybrid, strategy ? &strategy->values : &hybrid->strategy, &level, &options,
                err);
    if (rc == 0 && level != SHARD_NONE && !hybrid->groups[TOPOLOGY_SHARDING])
        rc = fleet_error(err, -EINVAL,
                         "%s: sharding needs its axis, which the strategy of fleet_init() lacks",
                         what);
    if (rc == 0 && level == SHARD_NONE)
        rc = hybrid_data_group(&group, err);
    if (rc < 0)
        return rc;
    if (level != SHARD_NONE) {
        options.dp_group = hybrid->groups[TOPOLOGY_DATA];
        group = hybrid->groups[TOPOLOGY_SHARDING];
    }
    return shard_new(what, tensors, count, optimizer, level, &options, group, out, err);
}

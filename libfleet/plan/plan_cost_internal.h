/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PLAN_PLAN_COST_INTERNAL_H
#define LIBFLEET_PLAN_PLAN_COST_INTERNAL_H

/* What the files of plan_cost.h share, for them alone. */

#include <stdbool.h>

#include "libfleet/plan/plan_cost.h"

#define MEBI 1048576.0

static inline int degree(const struct plan *plan, enum topology_axis axis)
{
    return plan->topology.degree[axis];
}

static inline bool is_applied(const struct plan *plan, enum unit unit)
{
    return select_is_applied(&plan->selection, unit);
}

/* In effect, and nothing in the program stands for it. */
static inline bool is_by_formula(const struct plan *plan, enum unit unit)
{
    return (plan->formula_units & UNIT_BIT(unit)) != 0;
}

/* In effect, and not run: it divides more than states, or other axes have no pass. */
static inline bool is_sharded_by_formula(const struct plan *plan)
{
    return is_applied(plan, UNIT_SHARDING) && degree(plan, TOPOLOGY_SHARDING) > 1 &&
           plan_shards(plan) == 1;
}

static inline bool is_divided(const struct plan *plan)
{
    return is_sharded_by_formula(plan) || is_by_formula(plan, UNIT_PIPELINE) ||
           is_by_formula(plan, UNIT_TENSOR_PARALLEL);
}

static inline bool is_local(const struct plan *plan)
{
    return is_applied(plan, UNIT_LOCALSGD) || is_applied(plan, UNIT_ADAPTIVE_LOCALSGD);
}

/* Bytes of a weight, a gradient and the optimizer's state of one element, by the formulas. */
static inline double weight_bytes(const struct plan *plan)
{
    return plan->is_16_bit && is_sharded_by_formula(plan) ? 2 : 4;
}

/* dgc: bytes of a rank's message; with the last sparsity, or with the one that sends most. */
double plan_cost_message_bytes(const struct plan *plan, bool is_largest);

#endif

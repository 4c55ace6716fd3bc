/* SPDX-License-Identifier: Apache-2.0 */

/* The table of units: Paddle 2.0's meta optimizers, as specified. */
#include "libfleet/strategy/units.h"

#include <stddef.h>
#include <string.h>
#include <strings.h>

struct row {
    const char *name;
    size_t offset, has_offset; /* of the switch in struct strategy */
    unsigned int may_contain;
    bool bars_graph_executor;
    const char *optimizers[2]; /* optimizers that it works with; none: all */
    const char *wants;         /* the same in words */
};

#define SWITCH(member) \
#member, offsetof(struct strategy, member), offsetof(struct strategy, has_##member)
#define LARS      UNIT_BIT(UNIT_LARS)
#define LAMB      UNIT_BIT(UNIT_LAMB)
#define AMP       UNIT_BIT(UNIT_AMP)
#define RECOMPUTE UNIT_BIT(UNIT_RECOMPUTE)

static const struct row rows[UNITS] = {
    [UNIT_AMP] = {SWITCH(amp), LARS | LAMB | RECOMPUTE, false, {NULL}, NULL},
    [UNIT_ADAPTIVE_LOCALSGD] =
        {SWITCH(adaptive_localsgd), AMP, true, {"sgd", "momentum"}, "SGD or Momentum"},
    [UNIT_DGC] = {SWITCH(dgc), 0, false, {"momentum"}, "Momentum"},
    [UNIT_FP16_ALLREDUCE] = {SWITCH(fp16_allreduce),
                             LARS | LAMB | RECOMPUTE | UNIT_BIT(UNIT_LOCALSGD) |
                                 UNIT_BIT(UNIT_ADAPTIVE_LOCALSGD) | UNIT_BIT(UNIT_GRADIENT_MERGE),
                             false,
                             {NULL},
                             NULL},
    [UNIT_GRADIENT_MERGE] =
        {SWITCH(gradient_merge), AMP | LARS | LAMB | RECOMPUTE, false, {NULL}, NULL},
    [UNIT_LAMB] = {SWITCH(lamb), 0, false, {"adam"}, "Adam"},
    [UNIT_LARS] = {SWITCH(lars), 0, false, {"momentum"}, "Momentum"},
    [UNIT_LOCALSGD] = {SWITCH(localsgd), AMP, true, {"sgd", "momentum"}, "SGD or Momentum"},
    [UNIT_PIPELINE] = {SWITCH(pipeline), 0, true, {NULL}, NULL},
    [UNIT_RECOMPUTE] = {SWITCH(recompute), LARS | LAMB | UNIT_BIT(UNIT_DGC), false, {NULL}, NULL},
    [UNIT_SHARDING] = {SWITCH(sharding), RECOMPUTE | AMP | LARS | LAMB, true, {NULL}, NULL},
};

const char *unit_name(enum unit unit)
{
    return unit == UNIT_TENSOR_PARALLEL ? "tensor_parallel" : rows[unit].name;
}

bool unit_is_on(const struct strategy *s, enum unit unit)
{
    return *(const bool *)((const char *)s + rows[unit].offset);
}

void unit_set(struct strategy *s, enum unit unit, bool on)
{
    *(bool *)((char *)s + rows[unit].offset) = on;
    *((uint8_t *)s + rows[unit].has_offset) = KNOB_BY_NAME;
}

unsigned int unit_may_contain(enum unit unit)
{
    return rows[unit].may_contain;
}

bool unit_bars_graph_executor(enum unit unit)
{
    return rows[unit].bars_graph_executor;
}

bool unit_fits_optimizer(enum unit unit, const char *optimizer)
{
    const struct row *row = &rows[unit];

    if (!optimizer || !row->optimizers[0])
        return true;
    return strcasecmp(optimizer, row->optimizers[0]) == 0 ||
           (row->optimizers[1] && strcasecmp(optimizer, row->optimizers[1]) == 0);
}

const char *unit_optimizer(enum unit unit)
{
    return rows[unit].wants;
}

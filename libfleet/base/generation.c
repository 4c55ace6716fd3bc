/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/base/generation.h"

#include "libfleet/base/field_row.h"

#define NUMBER(name, member) \
    ROW_INT(struct fleet_generation, name, member, 0, FLEET_GENERATION_NUMBER_MAX, FLEET_REQUIRED)

static const struct fleet_field fields[] = {
    NUMBER("epoch", epoch),
    NUMBER("counter", counter),
    ROW_END,
};

const struct fleet_object fleet_generation_type =
    ROW_OBJECT_TYPE("generation", struct fleet_generation, fields);

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_TRAINING_TRAINING_TABLES_H
#define LIBFLEET_TRAINING_TRAINING_TABLES_H

/* The tables of spec.training that training_fields.c puts together. No other file includes this. */

#include "libfleet/base/field.h"

extern const struct fleet_object training_model_type, training_data_type, training_optimizer_type,
    training_schedule_type;

#endif

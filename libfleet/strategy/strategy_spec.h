/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_STRATEGY_STRATEGY_SPEC_H
#define LIBFLEET_STRATEGY_STRATEGY_SPEC_H

/*
 * All that a job says of its strategy: the keys strategy, strategyPolicy and strategyOptions. A
 * spec has them, a trainer's job file (libfleet/training/trainer_file.h), and the record that
 * weights keep of their job (libfleet/checkpoint/job_record.h).
 */

#include <cjson/cJSON.h>

#include "libfleet/strategy/select.h"
#include "libfleet/strategy/strategy.h"
#include "libfleet/strategy/strategy_options.h"

struct fleet_errors;

struct strategy_spec {
    struct strategy strategy;
    enum strategy_policy policy;
    struct strategy_options options;
};

/* What strategyPolicy may be, by enum strategy_policy; NULL-terminated. */
extern const char *const strategy_policies[];

/* Read the keys from `json`; one that is missing gives the default. Errors are appended below
 * `prefix` ("spec." or ""). *out is to be released in any case. */
void strategy_spec_decode(const cJSON *json, const char *prefix, struct strategy_spec *out,
                          struct fleet_errors *errors);

/* Fine on a zeroed one. */
void strategy_spec_release(struct strategy_spec *spec);

#endif

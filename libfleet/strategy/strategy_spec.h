/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_STRATEGY_STRATEGY_SPEC_H
#define LIBFLEET_STRATEGY_STRATEGY_SPEC_H

/*
 * The strategy of a job: the keys strategy, strategyPolicy and strategyOptions. Three documents
 * have these keys: a job's spec, a trainer's job file (libfleet/training/trainer_file.h), and the
 * record that weights keep of their job (libfleet/checkpoint/job_record.h).
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

/* The values of strategyPolicy, by enum strategy_policy; NULL-terminated. */
extern const char *const strategy_policies[];

/* Read the keys from `json`; a missing key gives the default. Errors are appended with `prefix`
 * ("spec." or "") before their paths. Release *out in any case. */
void strategy_spec_decode(const cJSON *json, const char *prefix, struct strategy_spec *out,
                          struct fleet_errors *errors);

/* An all-zero struct is fine. */
void strategy_spec_release(struct strategy_spec *spec);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_GOLDEN_PADDLE_STRATEGY_H
#define TESTS_GOLDEN_PADDLE_STRATEGY_H

/* What the readers of strategies share: paddle_prototxt.c. */

#include <cjson/cJSON.h>

#include "libfleet/base/errors.h"
#include "libfleet/strategy/strategy_json.h"

/* JSON as recorded, where mode may stand, which a resource may not set. */
void recorded_strategy(const cJSON *recorded, struct strategy *out);

/* Fails the case unless both mean the same. */
void recorded_expect_same(const struct strategy *got, const struct strategy *wanted);

#endif

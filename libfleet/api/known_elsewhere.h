/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_API_KNOWN_ELSEWHERE_H
#define LIBFLEET_API_KNOWN_ELSEWHERE_H

/*
 * Fields that are in the wrong block: `spec.training.warmupSteps` exists as
 * `spec.training.schedule.warmupSteps`. The tables of the resource and of the strategy are asked,
 * so there is no list to keep.
 */

struct fleet_errors;

/*
 * Rewrite errors about unknown fields. If up to three other blocks have a field of that name (case,
 * '-' and '_' are ignored), the error asks "did you mean …?" with their full paths. This replaces
 * the hint to a similar name in the same block.
 */
void known_elsewhere_hint(struct fleet_errors *errors);

#endif

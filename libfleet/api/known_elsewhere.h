/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_API_KNOWN_ELSEWHERE_H
#define LIBFLEET_API_KNOWN_ELSEWHERE_H

/*
 * Fields that stand in the wrong block: `spec.training.warmupSteps` exists as
 * `spec.training.schedule.warmupSteps`. The tables of the resource and of the strategy are asked,
 * so there is no list to keep.
 */

struct fleet_errors;

/*
 * Rewrite those of `errors` that are about a field that does not exist, where a field of the same
 * name (case, '-' and '_' do not count) exists in other blocks, at most three of them: "did you
 * mean …?" with their whole paths. A field of the same block that only looks alike gives way.
 */
void known_elsewhere_hint(struct fleet_errors *errors);

#endif

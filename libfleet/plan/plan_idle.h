/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PLAN_PLAN_IDLE_H
#define LIBFLEET_PLAN_PLAN_IDLE_H

/*
 * Knobs that a job sets and that change nothing of its program. Part of plan_build(), so that no
 * knob is accepted in silence: what the selection has not explained is put back to its default,
 * the program is built again, and if it is the same the knob is noted.
 *
 * The operators that are built for it are limited; a note says which knobs were not compared.
 *
 * A knob that trainers read beside the program (the loss scale's) is judged by whether they read
 * it.
 */

struct pass_context;
struct plan;
struct strategy;

/*
 * Note in plan->selection.without_effect what `asked` sets without effect. `context` built
 * plan->program. Knobs that a list of the plan names already are left out.
 */
void plan_idle_list(const struct strategy *asked, const struct pass_context *context,
                    struct plan *plan);

#endif

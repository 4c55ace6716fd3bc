/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PLAN_PLAN_STAGES_H
#define LIBFLEET_PLAN_PLAN_STAGES_H

/* Plans whose cells are stages of a pipeline. Part of plan_build(); see plan.h. */

#include <stdbool.h>
#include <stdint.h>

#include "libfleet/plan/plan.h"

struct fleet_error;
struct pass_context;

/* What a stage runs, how its ranks divide its state, and the memory of the one that holds most,
 * without the copies for micro-batches in flight. */
struct plan_stage_program {
    struct program program;
    struct ownership ownership;
    struct memory_plan memory;
};

/* Is the program to be cut? Not that of a draft: it would be one program for each stage. */
bool plan_stages_wanted(const struct plan_request *request, const struct plan *plan);

/* The layers and tensors of the plan's cell. */
struct program_cell plan_stages_cell(const struct plan_request *request, const struct plan *plan);

/* Where the program, which has all layers so far, was marked to be cut: layers[stages]. False: the
 * model has too few layers. */
bool plan_stages_layers(const struct plan *plan, int stages, int64_t *layers);

/*
 * The program of the plan's stage takes the place of the whole one, which becomes plan->whole. With
 * `all` the programs of the other stages are built as well, for their bytes and traffic; in a model
 * with very many operators those in the middle count as the plan's own. `context` has the plan's
 * cell. -EINVAL with errors appended.
 */
int plan_stages_build(const struct pass_context *context, const char *strategy_path, bool all,
                      struct plan *plan, struct fleet_errors *errors);
void plan_stages_release(struct plan *plan);

/* May the plan's job train on `replicas` replicas, too? -EINVAL with the reason: its chunks cannot
 * run the micro-batches of one. 0 if nothing is cut. */
int plan_stages_check(const struct plan *plan, int replicas, struct fleet_error *err);

/* A copy of the plan as it is for ranks of `stage`: borrows everything. */
struct plan plan_stages_view(const struct plan *plan, int stage);

/* The most micro-batches whose memory a rank of `stage` holds at one time; 1 if nothing is cut. */
int plan_stages_copies(const struct plan *plan, int stage);

#endif

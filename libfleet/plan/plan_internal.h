/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PLAN_PLAN_INTERNAL_H
#define LIBFLEET_PLAN_PLAN_INTERNAL_H

/*
 * The stages of plan_build(), in their order, for plan.c alone. Each appends its errors, blamed on
 * the field of the resource that caused them, and returns -EINVAL if the next stage cannot begin.
 * `asked` is the strategy of the request, or a strategy with nothing set.
 */

#include "libfleet/plan/plan.h"

struct fleet_errors;
struct fleet_strbuf;
struct strategy;

/* The path of the strategy in messages. */
const char *plan_strategy_path(const struct plan_request *request);

/* ---- plan_select.c --------------------------------------------------------------------------- */

/* Select what takes effect, make the grid of ranks, and list what of it cannot run yet. */
int plan_select(const struct plan_request *request, const struct strategy *asked, struct plan *plan,
                struct fleet_errors *errors);

/* ---- plan_program.c -------------------------------------------------------------------------- */

/* Ranks that share tensors must divide heads and features; a search only tries those that do. */
void plan_check_model_ranks(const struct plan_request *request, const struct strategy *asked,
                            const struct plan *plan, struct fleet_errors *errors);

/* Append "; nearest possible: …", the numbers that would be possible in place of the grid's. */
void plan_nearest(const struct plan_request *request, const struct strategy *asked,
                  const struct plan *plan, struct fleet_strbuf *out);

/* The program: that of request->like if it is the same, else a new one. */
int plan_take_program(const struct plan_request *request, const struct strategy *asked,
                      struct plan *plan, struct fleet_errors *errors);

/* ---- plan_divide.c --------------------------------------------------------------------------- */

/* The parts of the model, and the schedule. */
int plan_divide(const struct plan_request *request, const struct strategy *asked, struct plan *plan,
                struct fleet_errors *errors);

/* ---- plan_program.c, after the division ------------------------------------------------------ */

/* Cut the program into stages, if it is to be cut, and lay out its memory. */
int plan_lay_out(const struct plan_request *request, struct plan *plan,
                 struct fleet_errors *errors);

#endif

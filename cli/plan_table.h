/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_PLAN_TABLE_H
#define CLI_PLAN_TABLE_H

/* A plan for people: what is trained, which knobs take effect, what a rank needs. */

#include "libfleet/api/fleetjob.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/plan/plan.h"

/* Two lines: model and parameters; ranks, steps, batch, optimizer. */
void plan_table_headline(const struct fleetjob *job, const struct plan *plan,
                         struct fleet_strbuf *out);

/* The parts of it that do not depend on the workers, in one line without a newline. */
void plan_table_summary(const struct fleetjob *job, const struct plan *plan,
                        struct fleet_strbuf *out);

/* A line for each of applied, dropped, … bytes, each with its newline. */
void plan_table_print(const struct plan *plan, struct fleet_strbuf *out);

/* The same, and groups, stages, bytes by kind and communication, each with the source of the number
 * (program or formula), and what the built-in runtime cannot run. */
void plan_table_whole(const struct plan *plan, struct fleet_strbuf *out);

/* Memory of a rank on a GPU. The plan has a program. */
void plan_table_gpu(const struct plan *plan, struct fleet_strbuf *out);

/* What one rank of the plan does. */
void plan_table_rank(const struct plan *plan, int rank, struct fleet_strbuf *out);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_AUTOPARALLEL_JOB_STRATEGY_H
#define LIBFLEET_AUTOPARALLEL_JOB_STRATEGY_H

/*
 * MindSpore's strategy and group files of a job: from its plan, and back to strategies of
 * operators. Pure.
 *
 * In a strategy file
 *   operators    all of the model's forward part, by the names of model_operators.h, with one tuple
 *                an input
 *   layouts      by the name of the parameter. The device matrix is [replicas · sequence, model].
 *                Words of a vocabulary that the ranks do not divide evenly are in param_split_shape
 *                and indices_offset. The parts of a packed weight (q, k, v) are those of each block
 *                (operators/operator_axes.h).
 */

#include <stdbool.h>
#include <stddef.h>

#include <cjson/cJSON.h>

#include "libfleet/autoparallel/files/group_file.h"
#include "libfleet/autoparallel/files/strategy_file.h"
#include "libfleet/autoparallel/model_operators.h"

struct fleet_error;
struct plan;
struct training_config;

/* The grid of each stage of the plan, which has a world. */
struct operator_grid job_strategy_grid(const struct plan *plan);

/* What the ranks of `plan` run: has_program, and a world. `only_trainable`: without the layouts of
 * running statistics. -EINVAL as model_build(). Release *out. */
int job_strategy_describe(const struct plan *plan, const struct training_config *training,
                          bool only_trainable, struct strategy_file *out, struct fleet_error *err);

/* The groups that `rank` communicates in, by axis, and the ranks with the same parameters. Release
 * *out. */
void job_strategy_groups(const struct plan *plan, int rank, struct group_file *out);

/*
 * The strategies of `file` as entries of spec.training.operatorStrategies: a list, owned by the
 * caller. Operators that the model lacks, and those that `given` (the job's own entries) is for,
 * are left out. *out_unknown: how many the model lacks. -EINVAL: it lacks all of them; or what
 * strategy_file_check() refuses.
 */
int job_strategy_entries(const struct strategy_file *file, const struct model_operators *operators,
                         int64_t devices, const cJSON *given, cJSON **out, size_t *out_unknown,
                         struct fleet_error *err);

/* Do the ranks of `plan` run the strategies of `file`? -EINVAL with the reason. *out_unknown as
 * above. */
int job_strategy_check(const struct strategy_file *file, const struct plan *plan,
                       const struct training_config *training, size_t *out_unknown,
                       struct fleet_error *err);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_GOLDEN_READERS_H
#define TESTS_GOLDEN_READERS_H

/* The readers that kinds.c lists. The head of each reader's file says what it compares, and with
 * which tolerance. */

#include "tests/golden/runner.h"

void golden_paddle_prototxt(const struct golden_file *file);
void golden_paddle_prototxt_style(const struct golden_file *file);
void golden_paddle_prototxt_read(const struct golden_file *file);
void golden_paddle_assignments(const struct golden_file *file);
void golden_paddle_selection_lists(const struct golden_file *file);
void golden_paddle_selection(const struct golden_file *file);
void golden_paddle_optimizer(const struct golden_file *file);
void golden_paddle_schedules(const struct golden_file *file);
void golden_paddle_op_lists(const struct golden_file *file);
void golden_paddle_loss_scaling(const struct golden_file *file);
void golden_paddle_programs(const struct golden_file *file);
void golden_paddle_recompute(const struct golden_file *file);
void golden_paddle_pipeline(const struct golden_file *file);
void golden_paddle_owners(const struct golden_file *file);
void golden_mindspore_assignments(const struct golden_file *file);
void golden_mindspore_strategy(const struct golden_file *file);
void golden_mindspore_group(const struct golden_file *file);
void golden_torch_ops(const struct golden_file *file);
void golden_torch_gpt_forward(const struct golden_file *file);
void golden_torch_gpt(const struct golden_file *file);
void golden_torch_resnet(const struct golden_file *file);
void golden_torch_distributed(const struct golden_file *file);
void golden_torch_job(const struct golden_file *file);

#endif

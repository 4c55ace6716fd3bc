/* SPDX-License-Identifier: Apache-2.0 */

/* Which reader reads which recordings. */
#include "tests/golden/readers.h"

static const char no_context[] =
    "a resource holds what is given; there is no context with values to read back";

const struct golden_kind golden_kinds[] = {
    {"paddle/prototxt/*.prototxt", golden_paddle_prototxt, NULL},
    {"paddle/prototxt/*.json", NULL, NULL},
    {"paddle/prototxt_styles/*/*.prototxt", golden_paddle_prototxt_style, NULL},
    {"paddle/prototxt_read.json", golden_paddle_prototxt_read, NULL},
    {"paddle/assignments.json", golden_paddle_assignments, NULL},
    {"paddle/selection_2_0_lists.json", golden_paddle_selection_lists, NULL},
    {"paddle/selection_gpu_build.json", golden_paddle_selection, NULL},
    {"paddle/units.json", NULL,
     "lists of 2.6; ours are those of 2.0, see selection_2_0_lists.json"},
    {"paddle/optimizer/lr_schedules.json", golden_paddle_schedules, NULL},
    {"paddle/optimizer/*.json", golden_paddle_optimizer, NULL},
    {"paddle/amp/op_lists.json", golden_paddle_op_lists, NULL},
    {"paddle/amp/loss_scaling.json", golden_paddle_loss_scaling, NULL},
    {"paddle/programs_*.json", golden_paddle_programs, NULL},
    {"paddle/recompute_programs.json", golden_paddle_recompute, NULL},
    {"paddle/pipeline_schedules.json", golden_paddle_pipeline, NULL},
    {"paddle/sharding_owners.json", golden_paddle_owners, NULL},
    {"paddle/launch_environment.json", NULL, "the Paddle launcher's options are not built yet"},
    {"mindspore/README.md", NULL, NULL},
    {"mindspore/assignments.json", golden_mindspore_assignments, NULL},
    {"mindspore/defaults.json", NULL, no_context},
    {"mindspore/keys.json", NULL, no_context},
    {"mindspore/strategy*", golden_mindspore_strategy, NULL},
    {"mindspore/group*", golden_mindspore_group, NULL},
    {"torch/ops/index.json", golden_torch_ops, NULL},
    {"torch/ops/*.safetensors", NULL, NULL},
    {"torch/gpt2*/forward.safetensors", golden_torch_gpt_forward, NULL},
    {"torch/gpt2*/config.json", NULL, NULL},
    {"torch/gpt2*/*.json", golden_torch_gpt, NULL},
    {"torch/gpt2*/*.safetensors", NULL, NULL},
    {"torch/resnet*/config.json", golden_torch_resnet, NULL},
    {"torch/resnet*/*.safetensors", NULL, NULL},
    {"torch/jobs*/*.yaml", golden_torch_job, NULL},
    {"torch/jobs*/*", NULL, NULL}, /* what a job reads, and what is expected of it */
    {"torch/distributed*/*.yaml", golden_torch_distributed, NULL},
    {"torch/distributed*/*", NULL, NULL}, /* what a job reads, and what is expected of it */
    {"*/README.md", NULL, NULL},
    {0},
};

/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/program/passes/pass.h"

#include <stdarg.h>
#include <string.h>

#include "libfleet/base/strbuf.h"
#include "libfleet/program/passes/amp.h"
#include "libfleet/program/passes/data_parallel.h"
#include "libfleet/program/passes/dead_code.h"
#include "libfleet/program/passes/dgc.h"
#include "libfleet/program/passes/fp16_allreduce.h"
#include "libfleet/program/passes/fuse_activations.h"
#include "libfleet/program/passes/fuse_casts.h"
#include "libfleet/program/passes/gradient_merge.h"
#include "libfleet/program/passes/lamb.h"
#include "libfleet/program/passes/lars.h"
#include "libfleet/program/passes/localsgd.h"
#include "libfleet/program/passes/optimizer.h"
#include "libfleet/program/passes/pipeline.h"
#include "libfleet/program/passes/recompute.h"
#include "libfleet/program/passes/sep_degree.h"
#include "libfleet/program/passes/sharding.h"
#include "libfleet/program/passes/sync_batch_norm.h"
#include "libfleet/program/passes/tensor_parallel.h"
#include "libfleet/program/passes/trust_squares.h"
#include "libfleet/strategy/select.h"
#include "libfleet/strategy/strategy.h"

const struct program_pass pass_table[] = {
    {"amp", PASS_FORWARD, amp_wanted, amp_apply},
    {"tensor_parallel", PASS_BACKWARD, tensor_parallel_wanted, tensor_parallel_apply},
    {"sep_degree", PASS_BACKWARD, sep_degree_wanted, sep_degree_apply},
    {"pipeline", PASS_BACKWARD, pipeline_wanted, pipeline_apply},
    {"recompute", PASS_BACKWARD, recompute_wanted, recompute_apply},
    {"fuse_activations", PASS_BACKWARD, fuse_activations_wanted, fuse_activations_apply},
    {"fuse_casts", PASS_BACKWARD, fuse_casts_wanted, fuse_casts_apply},
    {"sync_batch_norm", PASS_BACKWARD, sync_batch_norm_wanted, sync_batch_norm_apply},
    {"dead_code", PASS_BACKWARD, NULL, dead_code_apply},
    {"optimizer", PASS_BACKWARD, NULL, optimizer_apply},
    {"lars", PASS_BACKWARD, lars_wanted, lars_apply},
    {"lamb", PASS_BACKWARD, lamb_wanted, lamb_apply},
    {"trust_squares", PASS_BACKWARD, trust_squares_wanted, trust_squares_apply},
    {"gradient_merge", PASS_BACKWARD, gradient_merge_wanted, gradient_merge_apply},
    {"data_parallel", PASS_BACKWARD, NULL, data_parallel_apply},
    {"sharding", PASS_BACKWARD, sharding_wanted, sharding_apply},
    {"dgc", PASS_BACKWARD, dgc_wanted, dgc_apply},
    {"localsgd", PASS_BACKWARD, localsgd_wanted, localsgd_apply},
    {"adaptive_localsgd", PASS_BACKWARD, adaptive_localsgd_wanted, localsgd_apply},
    {"fp16_allreduce", PASS_BACKWARD, fp16_allreduce_wanted, fp16_allreduce_apply},
    {0},
};

void pass_idle(const struct pass_context *context, const char *knob, const char *format, ...)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    va_list args;

    if (!context->idle || select_has_note(context->idle, knob))
        return;
    va_start(args, format);
    fleet_strbuf_appendv(&text, format, args);
    va_end(args);
    select_note(context->idle, knob, "%s", fleet_strbuf_text(&text));
}

const char *pass_private_knob(const struct pass_context *context)
{
    const struct strategy *s = context->strategy;

    return s->localsgd            ? "localsgd"
           : s->adaptive_localsgd ? "adaptive_localsgd"
           : s->dgc               ? "dgc"
                                  : NULL;
}

bool pass_exists(const char *name)
{
    for (const struct program_pass *pass = pass_table; pass->name; pass++)
        if (strcmp(pass->name, name) == 0)
            return true;
    return false;
}

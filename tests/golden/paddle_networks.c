/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The networks that Paddle's programs were recorded with, in our words, and our passes over them.
 *
 * Both sides are compared as lists of Paddle's operator types. Where ours are fused or need no
 * operator, the table `not_ours` says which of Paddle's operators are left out and why; what is
 * left must be equal one by one.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/program/autodiff.h"
#include "libfleet/program/passes/pass.h"
#include "libfleet/program/print.h"
#include "libfleet/program/verify.h"
#include "libfleet/strategy/check.h"
#include "libfleet/strategy/select.h"
#include "libfleet/strategy/strategy_json.h"
#include "libfleet/training/training.h"
#include "tests/golden/paddle_programs.h"
#include "tests/golden/readers.h"
#include "tests/golden/runner.h"

/* ---- names ----------------------------------------------------------------------------------- */

/* Paddle's operators that have no counterpart here, and why. */
static const struct {
    const char *type, *why;
} not_ours[] = {
    {"reduce_mean", "the mean is inside cross_entropy"},
    {"reduce_mean_grad", "the same"},
    {"fill_constant", "the loss's gradient is 1 without an operator; slots start overwritten"},
    {"elementwise_mul", "the loss scale is where the backward part starts; clip is inside updates"},
    {"elementwise_mul_grad", "the same"},
    {"scale", "1/N, 1/k and the loss scale are one factor, applied where gradients are read"},
    {"seed", "a dropout's mask is a function of its key"},
    {"coalesce_tensor", "gradients lie in one flat space from the start"},
    {"depend", "operators run in order"},
    {"c_sync_calc_stream", "the same"},
    {"c_sync_comm_stream", "the same"},
    {"squared_l2_norm", "grad_norm is one operator over the flat space"},
    {"sum", "the same"},
    {"sqrt", "the same"},
    {"sign", "decay is inside the updates"},
    {"elementwise_max", "the factor is computed inside the updates"},
    {"elementwise_div", "the same"},
    {"clip_by_norm", "the same"},
    {"clip", "the same"},
    {"check_finite_and_unscale", "check_finite is one operator over the flat space"},
    {"concat", "the same"},
    {"reduce_any", "the same"},
    {"update_loss_scaling", "the host advances the scale when an update commits"},
    {"memcpy",
     "Paddle brings the overflow flag to the host for adam and lamb; check_finite gives it there"},
    {"increment", "gradient_merge: a group of batches is one list of micro-batches"},
    {"elementwise_mod", "the same"},
    {"equal", "the same"},
    {"conditional_block", "the same"},
};

bool recorded_has_no_counterpart(const char *type)
{
    for (size_t i = 0; i < FLEET_COUNT(not_ours); i++)
        if (strcmp(not_ours[i].type, type) == 0)
            return true;
    return false;
}

/* Our operator in Paddle's word; NULL: Paddle has none, ours is one of the fused ones above. */
const char *recorded_type(enum op_kind kind)
{
    switch (kind) {
    case OP_LINEAR:
        return "mul";
    case OP_LINEAR_GRAD:
        return "mul_grad";
    case OP_ADD:
        return "elementwise_add";
    case OP_ADD_GRAD_B:
        return "elementwise_add_grad";
    case OP_CROSS_ENTROPY:
        return "softmax_with_cross_entropy";
    case OP_CROSS_ENTROPY_GRAD:
        return "softmax_with_cross_entropy_grad";
    case OP_ALL_REDUCE:
    case OP_TREE_SUM:
        return "c_allreduce_sum";
    case OP_LARS:
        return "lars_momentum";
    case OP_DGC:
        return "dgc_momentum";
    case OP_GRAD_NORM:
    case OP_JOIN_NORMS: /* of the whole model, from norms of its stages */
    case OP_SPREAD_NORMS:
    case OP_TOTAL_NORM:
    case OP_TRUST_SQUARES:
    case OP_CHECK_FINITE:
        return NULL;
    default:
        return op_definition(kind)->name;
    }
}

void recorded_append(struct fleet_strbuf *out, const char *type)
{
    fleet_strbuf_appendf(out, "%s%s", out->length ? " " : "", type);
}

/* ---- the recorded networks ------------------------------------------------------------------- */

static void read_program(const char *text, struct program *out)
{
    struct fleet_error err;

    if (print_parse(text, strlen(text), out, &err) < 0 ||
        verify_program(out, VERIFY_FORWARD, &err) < 0)
        golden_fail("%s\n%s", err.text, text);
}

static void append_fc(struct fleet_strbuf *vars, struct fleet_strbuf *ops, int number,
                      const char *x, int in, int out)
{
    fleet_strbuf_appendf(vars,
                         "var fc%d.w_0 fp32 parameter [%d,%d] trained\n"
                         "var fc%d.b_0 fp32 parameter [%d] trained\n"
                         "var fc%d.tmp_0 fp32 activation [?]\nvar fc%d.tmp_1 fp32 activation [?]\n",
                         number, in, out, number, out, number, number);
    fleet_strbuf_appendf(ops,
                         "forward linear %s fc%d.w_0 - -> fc%d.tmp_0 - ;\n"
                         "forward add fc%d.tmp_0 fc%d.b_0 -> fc%d.tmp_1 ;\n",
                         x, number, number, number, number, number);
}

/* x[4,16] -> layers × (fc 16, relu[, dropout 0.5]) -> loss */
void recorded_chain(int layers, bool dropout, struct program *out)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf vars = {0}, ops = {0};
    char x[32] = "x";

    fleet_strbuf_append(&vars, "program chain loss=loss\nvar x fp32 input [4,16]\n"
                               "var y int32 input [4]\nvar loss fp32 scalar [1]\n"
                               "var lse fp32 activation [?]\n");
    for (int i = 0; i < layers; i++) {
        append_fc(&vars, &ops, i, x, 16, 16);
        fleet_strbuf_appendf(&vars, "var fc%d.tmp_2 fp32 activation [?]\n", i);
        fleet_strbuf_appendf(&ops, "forward relu fc%d.tmp_1 -> fc%d.tmp_2 ;\n", i, i);
        (void)snprintf(x, sizeof(x), "fc%d.tmp_2", i);
        if (!dropout)
            continue;
        fleet_strbuf_appendf(&vars, "var dropout_%d.tmp_0 fp32 activation [?]\n", i);
        fleet_strbuf_appendf(&ops, "forward dropout %s -> dropout_%d.tmp_0 ; rate=0.5 stream=%d\n",
                             x, i, i);
        (void)snprintf(x, sizeof(x), "dropout_%d.tmp_0", i);
    }
    fleet_strbuf_appendf(&ops, "forward cross_entropy %s y -> loss lse ;\n", x);
    fleet_strbuf_append(&vars, ops.text);
    read_program(vars.text, out);
}

/* x[4,32] -> fc 64 relu -> fc 10 -> softmax_with_cross_entropy with y */
void recorded_network(int hidden, struct program *out)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf vars = {0}, ops = {0};

    fleet_strbuf_append(&vars, "program network loss=loss\nvar x fp32 input [4,32]\n"
                               "var y int32 input [4]\nvar loss fp32 scalar [1]\n"
                               "var lse fp32 activation [?]\nvar fc0.tmp_2 fp32 activation [?]\n");
    append_fc(&vars, &ops, 0, "x", 32, hidden);
    fleet_strbuf_append(&ops, "forward relu fc0.tmp_1 -> fc0.tmp_2 ;\n");
    append_fc(&vars, &ops, 1, "fc0.tmp_2", hidden, 10);
    fleet_strbuf_append(&ops, "forward cross_entropy fc1.tmp_1 y -> loss lse ;\n");
    fleet_strbuf_append(&vars, ops.text);
    read_program(vars.text, out);
}

/* All passes except those that remove operators: Paddle keeps casts beside sums and norms, and
 * operators whose result is not used. */
static int run_passes(struct program *program, enum pass_stage stage,
                      const struct pass_context *context, struct fleet_error *err)
{
    for (const struct program_pass *pass = pass_table; pass->name; pass++) {
        if (pass->stage != stage || (pass->wanted && !pass->wanted(context)) ||
            strcmp(pass->name, "dead_code") == 0 || strncmp(pass->name, "fuse_", 5) == 0)
            continue;
        if (pass->apply(program, context, err) < 0)
            return fleet_error_wrap(err, "pass %s", pass->name);
    }
    return 0;
}

int recorded_rewrite(struct program *program, const struct pass_context *context,
                     struct fleet_error *err)
{
    int rc;

    if ((rc = run_passes(program, PASS_FORWARD, context, err)) < 0 ||
        (rc = autodiff_run(program, err)) < 0 ||
        (rc = run_passes(program, PASS_BACKWARD, context, err)) < 0)
        return rc;
    return verify_program(program, VERIFY_COMPLETE, err);
}

/* "Momentum+ClipGradByGlobalNorm" as a training block. */
void recorded_optimizer(const char *recorded, struct training_config *out)
{
    static const char *const names[][2] = {
        {"SGD", "sgd"}, {"Momentum", "momentum"}, {"Adam", "adam"}, {"AdamW", "adamw"}};
    size_t length = strcspn(recorded, "+"), i = 0;
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    FLEET_AUTO_JSON cJSON *json = NULL;
    struct fleet_errors errors = {0};

    while (i < FLEET_COUNT(names) &&
           (strlen(names[i][0]) != length || strncmp(names[i][0], recorded, length) != 0))
        i++;
    if (i == FLEET_COUNT(names))
        golden_skip("there is no optimizer for %.*s in these programs", (int)length, recorded);
    fleet_strbuf_appendf(&text,
                         "{\"model\":{\"name\":\"mlp\",\"sizes\":[32,10]},\"data\":{\"path\":\"t\","
                         "\"tokenizer\":\"cifar10\"},\"globalBatchSize\":8,\"microBatchSize\":4,"
                         "\"steps\":8,\"optimizer\":{\"name\":\"%s\",\"learningRate\":0.1%s%s}}",
                         names[i][1], strstr(recorded, "Decay") ? ",\"weightDecay\":0.01" : "",
                         strstr(recorded, "GlobalNorm") ? ",\"clip\":{\"globalNorm\":1}"
                         : strstr(recorded, "ByNorm")   ? ",\"clip\":{\"norm\":1}"
                         : strstr(recorded, "ByValue")  ? ",\"clip\":{\"value\":1}"
                                                        : "");
    json = cJSON_Parse(text.text);
    if (training_config_decode(json, "", out, &errors) < 0)
        golden_fail("%s", text.text);
}

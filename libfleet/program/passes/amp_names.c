/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/program/passes/amp_names.h"

#include <errno.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/program/passes/amp_lists.h"
#include "libfleet/program/passes/pass.h"
#include "libfleet/program/program.h"
#include "libfleet/strategy/strategy.h"

enum op_kind amp_names_inside(const struct program_op *op)
{
    if (op->kind != OP_LINEAR || op->attributes.activation == OP_ACTIVATION_NONE)
        return OP_KIND_COUNT;
    return op->attributes.activation == OP_ACTIVATION_GELU ? OP_GELU : OP_RELU;
}

struct list {
    const char *field;
    const struct strategy_strings *names;
};

/* All of them, in one message: a pass has one error. */
static int refuse_unknown(const struct list *list, struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf unknown = {0};
    size_t count = 0, first = 0;

    for (size_t i = 0; i < list->names->count; i++) {
        const char *name = list->names->items[i], *meant;

        if (amp_lists_knows(name))
            continue;
        meant = amp_lists_closest(name);
        first = count++ == 0 ? i : first;
        fleet_strbuf_appendf(&unknown, "%s\"%.60s\"%s%s%s", unknown.length ? ", " : "", name,
                             meant ? " (did you mean \"" : "", meant ? meant : "",
                             meant ? "\"?)" : "");
    }
    if (count == 0)
        return 0;
    if (count == 1)
        return fleet_error(err, -EINVAL, "%s[%zu]: no operator %s", list->field, first,
                           unknown.text);
    return fleet_error(err, -EINVAL, "%s: no operators %s", list->field, unknown.text);
}

/* Two of Paddle's operators that are one here cannot be in both lists. */
static int refuse_overlap(const struct list *white, const struct list *black,
                          struct fleet_error *err)
{
    for (int kind = 0; kind < OP_KIND_COUNT; kind++) {
        const char *in_white = amp_lists_find(white->names, (enum op_kind)kind);
        const char *in_black = amp_lists_find(black->names, (enum op_kind)kind);

        if (in_white && in_black)
            return fleet_error(err, -EINVAL,
                               "%s: \"%s\" and \"%s\" of custom_white_list are one operator here, "
                               "%s",
                               black->field, in_black, in_white,
                               op_definition((enum op_kind)kind)->name);
    }
    return 0;
}

static bool has_operator(const struct program *program, const char *name)
{
    for (int i = 0; i < program->op_count; i++) {
        enum op_kind inside = amp_names_inside(&program->ops[i]);

        if (amp_lists_means(name, program->ops[i].kind) ||
            (inside != OP_KIND_COUNT && amp_lists_means(name, inside)))
            return true;
    }
    return false;
}

static void report_idle_names(const struct program *program, const struct pass_context *context,
                              const struct list *list)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf names = {0};

    for (size_t i = 0; i < list->names->count; i++)
        if (!has_operator(program, list->names->items[i]))
            fleet_strbuf_appendf(&names, "%s%s", names.length ? ", " : "", list->names->items[i]);
    if (names.length > 0)
        pass_idle(context, list->field, "no operator of this model is called %s", names.text);
}

/* What the white list cannot change. */
static void report_idle_white(const struct program *program, const struct pass_context *context,
                              const struct list *white)
{
    const struct strategy_amp_config *configs = &context->strategy->amp_configs;

    if (white->names->count > 0 && (configs->use_pure_fp16 || configs->use_pure_bf16))
        pass_idle(context, white->field, "in pure 16 bits every operator is in 16 bits already");
    report_idle_names(program, context, white);
    if (amp_lists_find(white->names, OP_CROSS_ENTROPY))
        pass_idle(context, white->field, "cross_entropy reads 16 bits and computes in fp32 anyway");
}

int amp_names_check(const struct program *program, const struct pass_context *context,
                    struct fleet_error *err)
{
    const struct strategy_amp_config *configs = &context->strategy->amp_configs;
    struct list white = {"amp_configs.custom_white_list", &configs->custom_white_list};
    struct list black = {"amp_configs.custom_black_list", &configs->custom_black_list};

    if (!context->strategy->amp)
        return 0;
    if (refuse_unknown(&white, err) < 0 || refuse_unknown(&black, err) < 0 ||
        refuse_overlap(&white, &black, err) < 0)
        return -EINVAL;
    report_idle_white(program, context, &white);
    report_idle_names(program, context, &black);
    return 0;
}

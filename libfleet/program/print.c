/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Writing, and the table of attributes that writing and reading (print_parse.c) share, so that the
 * two cannot drift apart.
 */
#include "libfleet/program/print.h"

#include <inttypes.h>
#include <stdbool.h>

#include "libfleet/base/json.h"
#include "libfleet/program/print_internal.h"

#define AT(member) offsetof(struct op_attributes, member)

static const char *const activations[] = {"none", "gelu", "relu", NULL};
static const char *const clips[] = {"none", "value", "norm", "global_norm", NULL};
static const char *const groups[] = {"model", "sequence", "sharding", "pipeline", "data", NULL};
static const char *const spaces[] = {"none",   "gradients", "parameters", "state0",
                                     "state1", "buffers",   NULL};
static const char *const wires[] = {"own", "fp16", "bf16", NULL};
static const char *const reductions[] = {"sum", "max", "min", "prod", "avg", NULL};
static const char *const phases[] = {"any", "dense", NULL};
static const char *const decays[] = {"none", "l2", "l1", "decoupled", NULL};

const struct print_field print_fields[] = {
    {"epsilon", PRINT_DOUBLE, AT(epsilon), NULL},
    {"scale", PRINT_DOUBLE, AT(scale), NULL},
    {"rate", PRINT_DOUBLE, AT(rate), NULL},
    {"base", PRINT_DOUBLE, AT(base), NULL},
    {"momentum", PRINT_DOUBLE, AT(momentum), NULL},
    {"heads", PRINT_INT, AT(heads), NULL},
    {"kv_heads", PRINT_INT, AT(kv_heads), NULL},
    {"head_dim", PRINT_INT, AT(head_dim), NULL},
    {"causal", PRINT_BOOL, AT(causal), NULL},
    {"transposed", PRINT_BOOL, AT(transposed), NULL},
    {"transposed_a", PRINT_BOOL, AT(transposed_a), NULL},
    {"fp8", PRINT_BOOL, AT(fp8), NULL},
    {"inverse", PRINT_BOOL, AT(inverse), NULL},
    {"exact", PRINT_BOOL, AT(exact), NULL},
    {"mean", PRINT_BOOL, AT(mean), NULL},
    {"kept", PRINT_INT, AT(kept), NULL},
    {"order", PRINT_ORDER, AT(order), NULL},
    {"activation", PRINT_ENUM, AT(activation), activations},
    {"ignore_index", PRINT_INT64, AT(ignore_index), NULL},
    {"stream", PRINT_INT64, AT(stream), NULL},
    {"kernel", PRINT_PAIR, AT(kernel), NULL},
    {"stride", PRINT_PAIR, AT(stride), NULL},
    {"padding", PRINT_PAIR, AT(padding), NULL},
    {"round_up", PRINT_BOOL, AT(round_up), NULL},
    {"exclude_padding", PRINT_BOOL, AT(exclude_padding), NULL},
    {"group", PRINT_SET, AT(group), groups},
    {"space", PRINT_ENUM, AT(space), spaces},
    {"first", PRINT_INT64, AT(flat_first), NULL},
    {"count", PRINT_INT64, AT(flat_count), NULL},
    {"wire", PRINT_ENUM, AT(wire), wires},
    {"reduction", PRINT_ENUM, AT(reduction), reductions},
    {"root", PRINT_INT, AT(root), NULL},
    {"shift", PRINT_INT, AT(shift), NULL},
    {"ranks", PRINT_INT, AT(ranks), NULL},
    {"place", PRINT_INT, AT(place), NULL},
    {"owned", PRINT_BOOL, AT(owned), NULL},
    {"alike", PRINT_BOOL, AT(alike), NULL},
    {"divided", PRINT_BOOL, AT(divided), NULL},
    {"first_word", PRINT_INT64, AT(first_word), NULL},
    {"training", PRINT_BOOL, AT(training), NULL},
    {"phase", PRINT_ENUM, AT(phase), phases},
    {"sampled", PRINT_BOOL, AT(sampled), NULL},
    {"beta1", PRINT_DOUBLE, AT(optimizer.beta1), NULL},
    {"beta2", PRINT_DOUBLE, AT(optimizer.beta2), NULL},
    {"optimizer_epsilon", PRINT_DOUBLE, AT(optimizer.epsilon), NULL},
    {"optimizer_momentum", PRINT_DOUBLE, AT(optimizer.momentum), NULL},
    {"coefficient", PRINT_DOUBLE, AT(optimizer.coefficient), NULL},
    {"decay", PRINT_DOUBLE, AT(optimizer.decay), NULL},
    {"lambda", PRINT_DOUBLE, AT(optimizer.lambda), NULL},
    {"rescale", PRINT_DOUBLE, AT(optimizer.rescale), NULL},
    {"always_adapt", PRINT_BOOL, AT(optimizer.always_adapt), NULL},
    {"nesterov", PRINT_BOOL, AT(optimizer.nesterov), NULL},
    {"decay_kind", PRINT_ENUM, AT(optimizer.decay_kind), decays},
    {"clip", PRINT_ENUM, AT(optimizer.clip), clips},
    {"clip_limit", PRINT_DOUBLE, AT(optimizer.clip_limit), NULL},
    {"norm_index", PRINT_INT, AT(optimizer.norm_index), NULL},
    {0},
};

const char *const print_initials[] = {"zero", "one", "normal", "uniform", NULL};

static void append_set(const struct print_field *field, unsigned int set, struct fleet_strbuf *out)
{
    const char *before = "=";

    if (set)
        fleet_strbuf_appendf(out, " %s", field->name);
    for (int i = 0; field->words[i]; i++)
        if (set & 1u << i) {
            fleet_strbuf_appendf(out, "%s%s", before, field->words[i]);
            before = "+";
        }
}

static void append_field(const struct print_field *field, const struct op_attributes *a,
                         struct fleet_strbuf *out)
{
    const void *at = (const char *)a + field->offset;
    const int *pair = at;

    switch (field->kind) {
    case PRINT_DOUBLE:
        if (*(const double *)at != 0) {
            fleet_strbuf_appendf(out, " %s=", field->name);
            fleet_json_append_number(out, *(const double *)at);
        }
        break;
    case PRINT_INT:
        if (*(const int *)at)
            fleet_strbuf_appendf(out, " %s=%d", field->name, *(const int *)at);
        break;
    case PRINT_INT64:
        if (*(const int64_t *)at)
            fleet_strbuf_appendf(out, " %s=%" PRId64, field->name, *(const int64_t *)at);
        break;
    case PRINT_BOOL:
        if (*(const bool *)at)
            fleet_strbuf_appendf(out, " %s", field->name);
        break;
    case PRINT_ENUM:
        if (*(const unsigned int *)at)
            fleet_strbuf_appendf(out, " %s=%s", field->name,
                                 field->words[*(const unsigned int *)at]);
        break;
    case PRINT_SET:
        append_set(field, *(const unsigned int *)at, out);
        break;
    case PRINT_PAIR:
        if (pair[0] || pair[1])
            fleet_strbuf_appendf(out, " %s=%dx%d", field->name, pair[0], pair[1]);
        break;
    case PRINT_ORDER:
        if (pair[0] || pair[1] || pair[2] || pair[3])
            fleet_strbuf_appendf(out, " %s=%d,%d,%d,%d", field->name, pair[0], pair[1], pair[2],
                                 pair[3]);
        break;
    }
}

/* Dimension, size of the whole, parts: " slice=1:192:0+32,64+32". */
static void print_slice(const struct program_slice *slice, struct fleet_strbuf *out)
{
    fleet_strbuf_appendf(out, " slice=%d:%" PRId64, slice->dimension, slice->whole);
    for (int i = 0; i < slice->parts; i++)
        fleet_strbuf_appendf(out, "%c%" PRId64 "+%" PRId64, i ? ',' : ':', slice->first[i],
                             slice->count[i]);
}

static void print_var(const struct program *program, const struct program_var *var,
                      struct fleet_strbuf *out)
{
    fleet_strbuf_appendf(out, "var %s %s %s [", var->name, program_type_name(var->type),
                         program_role_name(var->role));
    if (var->ndim == PROGRAM_UNSHAPED)
        fleet_strbuf_append_char(out, '?');
    for (int i = 0; i < var->ndim; i++)
        fleet_strbuf_appendf(out, "%s%" PRId64, i ? "," : "", var->shape[i]);
    fleet_strbuf_append_char(out, ']');
    if (var->trained)
        fleet_strbuf_append(out, " trained");
    if (var->initial != PROGRAM_INITIAL_ZERO)
        fleet_strbuf_appendf(out, " initial=%s", print_initials[var->initial]);
    if (var->deviation != 0) {
        fleet_strbuf_append(out, " deviation=");
        fleet_json_append_number(out, (double)var->deviation);
    }
    if (var->slice.parts)
        print_slice(&var->slice, out);
    if (var->of != PROGRAM_NONE)
        fleet_strbuf_appendf(out, " of=%s", program->vars[var->of].name);
    if (var->slot)
        fleet_strbuf_appendf(out, " slot=%d", var->slot);
    if (var->flat_offset >= 0)
        fleet_strbuf_appendf(out, " flat=%" PRId64, var->flat_offset);
    if (var->layer >= 0)
        fleet_strbuf_appendf(out, " layer=%d", var->layer);
    if (var->number)
        fleet_strbuf_appendf(out, " number=%d", var->number);
    if (var->is_copy)
        fleet_strbuf_append(out, " copy");
    fleet_strbuf_append_char(out, '\n');
}

static const char *part_name(const struct program_op *op)
{
    if (op->section != PROGRAM_SECTION_MICRO_BATCH)
        return program_section_name(op->section);
    return op->weights ? "weights" : op->backward ? "backward" : "forward";
}

static void print_operands(const struct program *program, const int *operands, int count,
                           struct fleet_strbuf *out)
{
    for (int i = 0; i < count; i++)
        fleet_strbuf_appendf(out, " %s",
                             operands[i] == PROGRAM_NONE ? "-" : program->vars[operands[i]].name);
}

void print_operator(const struct program *program, const struct program_op *op,
                    struct fleet_strbuf *out)
{
    fleet_strbuf_appendf(out, "%s %s", part_name(op), op_definition(op->kind)->name);
    print_operands(program, op->inputs, op->input_count, out);
    fleet_strbuf_append(out, " ->");
    print_operands(program, op->outputs, op->output_count, out);
    fleet_strbuf_append(out, " ;");
    if (op->layer >= 0)
        fleet_strbuf_appendf(out, " layer=%d", op->layer);
    if (op->chunk > 0)
        fleet_strbuf_appendf(out, " chunk=%d", op->chunk);
    for (const struct print_field *field = print_fields; field->name; field++)
        append_field(field, &op->attributes, out);
}

void print_program(const struct program *program, struct fleet_strbuf *out)
{
    fleet_strbuf_appendf(out,
                         "program %s micro_batch_size=%d tokens_per_sample=%" PRId64
                         " merge_steps=%d merge_average=%d state_count=%d flat_count=%" PRId64
                         " buffer_count=%" PRId64 " loss=%s",
                         program->name, program->micro_batch_size, program->tokens_per_sample,
                         program->merge_steps, program->merge_average, program->state_count,
                         program->flat_count, program->buffer_count,
                         program->loss == PROGRAM_NONE ? "-" : program->vars[program->loss].name);
    if (program->loss_scaling != PROGRAM_NONE)
        fleet_strbuf_appendf(out, " loss_scaling=%s", program->vars[program->loss_scaling].name);
    if (program->whole_trained > 0)
        fleet_strbuf_appendf(out, " whole_trained=%d", program->whole_trained);
    if (program->offloads_states)
        fleet_strbuf_append(out, " offloads_states=1");
    fleet_strbuf_append_char(out, '\n');
    for (int i = 0; i < program->var_count; i++)
        print_var(program, &program->vars[i], out);
    for (int i = 0; i < program->op_count; i++) {
        print_operator(program, &program->ops[i], out);
        fleet_strbuf_append_char(out, '\n');
    }
}

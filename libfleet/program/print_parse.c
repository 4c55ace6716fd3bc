/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Reads the text of a program, a line at a time. Variables come before the operators that name
 * them, so one pass is enough; only what the head names (loss, loss scaling) is looked up at the
 * end.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "libfleet/base/error.h"
#include "libfleet/base/memory.h"
#include "libfleet/program/print.h"
#include "libfleet/program/print_internal.h"
#include "libfleet/program/print_reader.h"
#include "libfleet/program/slice.h"

static int read_pair(struct print_reader *r, const char *text, int out[2])
{
    char first[32];
    const char *cross = strchr(text, 'x');
    int64_t a = 0, b = 0;

    if (!cross || cross - text >= (int)sizeof(first))
        return print_reader_wrong(r, "'%s' is not a pair", text);
    memcpy(first, text, (size_t)(cross - text));
    first[cross - text] = '\0';
    if (print_reader_int(r, first, 0, INT32_MAX, &a) < 0 ||
        print_reader_int(r, cross + 1, 0, INT32_MAX, &b) < 0)
        return -EINVAL;
    out[0] = (int)a;
    out[1] = (int)b;
    return 0;
}

/* "0,2,1,3": always four. */
static int read_order(struct print_reader *r, const char *text, int out[4])
{
    const char *at = text;

    for (int i = 0; i < 4; i++, at++) {
        if (*at < '0' || *at > '3' || at[1] != (i < 3 ? ',' : '\0'))
            return print_reader_wrong(r, "'%s' is not an order", text);
        out[i] = *at++ - '0';
    }
    return 0;
}

/* "data+sharding" */
static int read_set(struct print_reader *r, const struct print_field *field, const char *text,
                    unsigned int *out)
{
    char word[32];

    for (*out = 0;; text++) {
        size_t length = strcspn(text, "+");
        int bit;

        (void)snprintf(word, sizeof(word), "%.*s", (int)length, text);
        if (length >= sizeof(word) || (bit = print_reader_find(word, field->words)) < 0)
            return print_reader_wrong(r, "%s=%s is not known", field->name, text);
        *out |= 1u << bit;
        text += length;
        if (!*text)
            return 0;
    }
}

static int read_field(struct print_reader *r, const struct print_field *field, const char *value,
                      struct op_attributes *a)
{
    void *at = (char *)a + field->offset;
    int64_t number = 0;
    int word;

    switch (field->kind) {
    case PRINT_DOUBLE:
        return print_reader_double(r, value, at);
    case PRINT_INT:
        if (print_reader_int(r, value, INT32_MIN, INT32_MAX, &number) < 0)
            return -EINVAL;
        *(int *)at = (int)number;
        return 0;
    case PRINT_INT64:
        return print_reader_int(r, value, INT64_MIN, INT64_MAX, at);
    case PRINT_BOOL:
        *(bool *)at = true;
        return *value ? print_reader_wrong(r, "%s takes no value", field->name) : 0;
    case PRINT_ENUM:
        if ((word = print_reader_find(value, field->words)) < 0)
            return print_reader_wrong(r, "%s=%s is not known", field->name, value);
        *(unsigned int *)at = (unsigned int)word;
        return 0;
    case PRINT_SET:
        return read_set(r, field, value, at);
    case PRINT_PAIR:
        return read_pair(r, value, at);
    case PRINT_ORDER:
        return read_order(r, value, at);
    }
    return 0;
}

static int read_attribute(struct print_reader *r, struct program_op *op)
{
    const char *value = print_reader_value(r);
    int64_t number = 0;

    if (strcmp(r->word, "layer") == 0) {
        if (print_reader_int(r, value, 0, INT32_MAX, &number) < 0)
            return -EINVAL;
        op->layer = (int)number;
        return 0;
    }
    if (strcmp(r->word, "chunk") == 0) {
        if (print_reader_int(r, value, 0, INT32_MAX, &number) < 0)
            return -EINVAL;
        op->chunk = (int)number;
        return 0;
    }
    for (const struct print_field *field = print_fields; field->name; field++)
        if (strcmp(r->word, field->name) == 0)
            return read_field(r, field, value, &op->attributes);
    return print_reader_wrong(r, "attribute %s is not known", r->word);
}

/* Operands up to the word `end`. */
static int read_operands(struct print_reader *r, const char *end, int *operands, int max,
                         int *out_count)
{
    int count = 0;

    for (;;) {
        int rc = print_reader_need(r, end), index = PROGRAM_NONE;
        if (rc < 0)
            return rc;
        if (strcmp(r->word, end) == 0)
            break;
        if (count == max)
            return print_reader_wrong(r, "more than %d operands before %s", max, end);
        if (strcmp(r->word, "-") != 0 &&
            (index = program_find_var(r->program, r->word)) == PROGRAM_NONE)
            return print_reader_wrong(r, "there is no variable %s", r->word);
        operands[count++] = index;
    }
    *out_count = count;
    return 0;
}

static int find_kind(const char *name)
{
    for (int kind = 0; kind < OP_KIND_COUNT; kind++)
        if (strcmp(name, op_definition((enum op_kind)kind)->name) == 0)
            return kind;
    return -1;
}

/* r->word holds the first word of the line. */
static int read_operator(struct print_reader *r)
{
    static const char *const parts[] = {"forward", "backward", "weights", "exchange",
                                        "check",   "update",   "average", NULL};
    struct program *p = r->program;
    struct program_op op = {.layer = -1};
    int part = print_reader_find(r->word, parts), kind, rc;

    if (part < 0)
        return print_reader_wrong(r, "a line cannot begin with %s", r->word);
    op.section = part < 3 ? PROGRAM_SECTION_MICRO_BATCH : (enum program_section)(part - 2);
    op.backward = part == 1 || part == 2;
    op.weights = part == 2;
    if ((rc = print_reader_need(r, "operator")) < 0)
        return rc;
    if ((kind = find_kind(r->word)) < 0)
        return print_reader_wrong(r, "there is no operator %s", r->word);
    op.kind = (enum op_kind)kind;
    if ((rc = read_operands(r, "->", op.inputs, OP_INPUTS_MAX, &op.input_count)) < 0 ||
        (rc = read_operands(r, ";", op.outputs, OP_OUTPUTS_MAX, &op.output_count)) < 0)
        return rc;
    while ((rc = print_reader_next(r)) > 0)
        if ((rc = read_attribute(r, &op)) < 0)
            return rc;
    if (rc < 0)
        return rc;
    if (p->op_count == PROGRAM_OPS_MAX)
        return print_reader_wrong(r, "more than %d operators", PROGRAM_OPS_MAX);
    if (p->op_count && op.section < p->ops[p->op_count - 1].section)
        return print_reader_wrong(r, "section %s follows a later one",
                                  program_section_name(op.section));
    (void)program_add_op(p, &op);
    return 0;
}

static int read_shape(struct print_reader *r, int *out_ndim, int64_t shape[PROGRAM_DIMS_MAX])
{
    char *at = r->word, *comma;
    size_t length = strlen(at);
    int ndim = 0;

    if (length < 2 || at[0] != '[' || at[length - 1] != ']')
        return print_reader_wrong(r, "'%s' is not a shape", at);
    at[length - 1] = '\0';
    at++;
    *out_ndim = strcmp(at, "?") == 0 ? PROGRAM_UNSHAPED : 0;
    if (*out_ndim == PROGRAM_UNSHAPED || !*at)
        return 0;
    for (; at; at = comma) {
        comma = strchr(at, ',');
        if (comma)
            *comma++ = '\0';
        if (ndim == PROGRAM_DIMS_MAX)
            return print_reader_wrong(r, "more than %d dimensions", PROGRAM_DIMS_MAX);
        if (print_reader_int(r, at, 1, PROGRAM_ELEMENTS_MAX, &shape[ndim++]) < 0)
            return -EINVAL;
    }
    *out_ndim = ndim;
    return 0;
}

/* The text up to `end` as a number; the rest, behind it. */
static int read_part(struct print_reader *r, char **at, char end, int64_t *out)
{
    char *text = *at, *stop = strchr(text, end);

    if (!stop)
        return print_reader_wrong(r, "slice=%s: %c is missing", text, end);
    *stop = '\0';
    *at = stop + 1;
    return print_reader_int(r, text, 0, PROGRAM_ELEMENTS_MAX, out);
}

/* As print.c writes it: dimension:whole:first+count,first+count. */
static int read_slice(struct print_reader *r, const char *value, struct program_slice *out)
{
    struct program_slice slice = {0};
    int64_t dimension = 0, end = 0;
    char text[sizeof(r->word)], *at = text, *comma;

    (void)snprintf(text, sizeof(text), "%s", value);
    if (read_part(r, &at, ':', &dimension) < 0 || read_part(r, &at, ':', &slice.whole) < 0)
        return -EINVAL;
    for (; at; at = comma) {
        int i = slice.parts++;
        comma = strchr(at, ',');
        if (comma)
            *comma++ = '\0';
        if (i == PROGRAM_SLICE_PARTS_MAX)
            return print_reader_wrong(r, "a slice of more than %d parts", PROGRAM_SLICE_PARTS_MAX);
        if (read_part(r, &at, '+', &slice.first[i]) < 0 ||
            print_reader_int(r, at, 1, PROGRAM_ELEMENTS_MAX, &slice.count[i]) < 0)
            return -EINVAL;
        if (slice.first[i] < end || slice.first[i] + slice.count[i] > slice.whole)
            return print_reader_wrong(
                r, "slice: its parts do not lie behind one another in the whole");
        end = slice.first[i] + slice.count[i];
    }
    slice.dimension = (int)(dimension < PROGRAM_DIMS_MAX ? dimension : PROGRAM_DIMS_MAX);
    *out = slice;
    return 0;
}

/* Does the variable's shape have the slice's size? */
static int check_slice(struct print_reader *r, const struct program_slice *slice, int ndim,
                       const int64_t *shape)
{
    if (slice->parts == 0 ||
        (slice->dimension < ndim && shape[slice->dimension] == slice_count(slice)))
        return 0;
    return print_reader_wrong(r, "its slice and its shape differ");
}

static int read_var_attribute(struct print_reader *r, struct program_var *var)
{
    const char *value = print_reader_value(r);
    int64_t number = 0;
    double deviation;
    int word, rc = 0;

    if (strcmp(r->word, "trained") == 0 && !*value) {
        var->trained = true;
    } else if (strcmp(r->word, "initial") == 0) {
        if ((word = print_reader_find(value, print_initials)) < 0)
            return print_reader_wrong(r, "initial=%s is not known", value);
        var->initial = (enum program_initial)word;
    } else if (strcmp(r->word, "deviation") == 0) {
        if ((rc = print_reader_double(r, value, &deviation)) == 0)
            var->deviation = (float)deviation;
    } else if (strcmp(r->word, "slice") == 0) {
        rc = read_slice(r, value, &var->slice);
    } else if (strcmp(r->word, "of") == 0) {
        if ((var->of = program_find_var(r->program, value)) == PROGRAM_NONE)
            return print_reader_wrong(r, "there is no variable %s", value);
    } else if (strcmp(r->word, "slot") == 0) {
        rc = print_reader_int(r, value, 0, 15, &number);
        var->slot = (int)number;
    } else if (strcmp(r->word, "flat") == 0) {
        rc = print_reader_int(r, value, 0, INT64_MAX / 8, &var->flat_offset);
    } else if (strcmp(r->word, "layer") == 0) {
        rc = print_reader_int(r, value, 0, INT32_MAX, &number);
        var->layer = (int)number;
    } else if (strcmp(r->word, "number") == 0) {
        rc = print_reader_int(r, value, 0, PROGRAM_VARS_MAX, &number);
        var->number = (int)number;
    } else if (strcmp(r->word, "copy") == 0 && !*value) {
        var->is_copy = true;
    } else {
        return print_reader_wrong(r, "attribute %s of a variable is not known", r->word);
    }
    return rc;
}

static int read_var(struct print_reader *r)
{
    static const char *const types[] = {"fp32", "bf16", "fp16", "int32", "uint8", NULL};
    static const char *const roles[] = {"input",      "parameter", "gradient", "state", "buffer",
                                        "activation", "scalar",    "host",     NULL};
    char name[sizeof(r->word)];
    int64_t shape[PROGRAM_DIMS_MAX];
    struct program_var var = {.of = PROGRAM_NONE, .flat_offset = -1, .layer = -1}, *added;
    int rc, type, role, ndim = 0, index;

    if ((rc = print_reader_need(r, "name")) < 0)
        return rc;
    memcpy(name, r->word, sizeof(name));
    if (program_find_var(r->program, name) != PROGRAM_NONE || strcmp(name, "-") == 0 ||
        strcmp(name, "->") == 0 || strcmp(name, ";") == 0)
        return print_reader_wrong(r, "%s cannot be the name of another variable", name);
    if ((rc = print_reader_need(r, "type")) < 0)
        return rc;
    if ((type = print_reader_find(r->word, types)) < 0)
        return print_reader_wrong(r, "type %s is not known", r->word);
    if ((rc = print_reader_need(r, "role")) < 0)
        return rc;
    if ((role = print_reader_find(r->word, roles)) < 0)
        return print_reader_wrong(r, "role %s is not known", r->word);
    if ((rc = print_reader_need(r, "shape")) < 0 || (rc = read_shape(r, &ndim, shape)) < 0)
        return rc;
    while ((rc = print_reader_next(r)) > 0)
        if ((rc = read_var_attribute(r, &var)) < 0)
            return rc;
    if (rc < 0 || (rc = check_slice(r, &var.slice, ndim, shape)) < 0)
        return rc;
    if (r->program->var_count == PROGRAM_VARS_MAX)
        return print_reader_wrong(r, "more than %d variables", PROGRAM_VARS_MAX);
    index = program_add_var(r->program, name, (enum program_type)type, (enum program_role)role,
                            ndim, shape);
    added = &r->program->vars[index];
    added->trained = var.trained;
    added->initial = var.initial;
    added->deviation = var.deviation;
    added->of = var.of;
    added->slot = var.slot;
    added->flat_offset = var.flat_offset;
    added->layer = var.layer;
    added->slice = var.slice;
    added->number = var.number;
    added->is_copy = var.is_copy;
    return 0;
}

static int read_head_attribute(struct print_reader *r)
{
    struct program *p = r->program;
    const char *value = print_reader_value(r);
    int64_t number = 0;

    if (strcmp(r->word, "loss") == 0 || strcmp(r->word, "loss_scaling") == 0) {
        (void)snprintf(r->word[4] ? r->loss_scaling : r->loss, sizeof(r->loss), "%s", value);
        return 0;
    }
    if (print_reader_int(r, value, 0, INT64_MAX / 8, &number) < 0)
        return -EINVAL;
    if (strcmp(r->word, "tokens_per_sample") == 0)
        p->tokens_per_sample = number;
    else if (strcmp(r->word, "flat_count") == 0)
        p->flat_count = number;
    else if (strcmp(r->word, "buffer_count") == 0)
        p->buffer_count = number;
    else if (number > INT32_MAX)
        return print_reader_wrong(r, "%s=%" PRId64 " is too large", r->word, number);
    else if (strcmp(r->word, "micro_batch_size") == 0)
        p->micro_batch_size = (int)number;
    else if (strcmp(r->word, "merge_steps") == 0)
        p->merge_steps = (int)number;
    else if (strcmp(r->word, "merge_average") == 0)
        p->merge_average = number != 0;
    else if (strcmp(r->word, "state_count") == 0)
        p->state_count = (int)number;
    else if (strcmp(r->word, "whole_trained") == 0)
        p->whole_trained = (int)number;
    else if (strcmp(r->word, "offloads_states") == 0)
        p->offloads_states = number != 0;
    else
        return print_reader_wrong(r, "%s is not known", r->word);
    return 0;
}

static int read_head(struct print_reader *r)
{
    int rc;

    if ((rc = print_reader_need(r, "program")) < 0)
        return rc;
    if (strcmp(r->word, "program") != 0)
        return print_reader_wrong(r, "does not begin with 'program'");
    if ((rc = print_reader_need(r, "name")) < 0)
        return rc;
    fleet_set_text(&r->program->name, r->word);
    while ((rc = print_reader_next(r)) > 0)
        if ((rc = read_head_attribute(r)) < 0)
            return rc;
    return rc;
}

/* A variable that the head names: "" and "-" are none. */
static int find_named(struct print_reader *r, const char *name, int *out)
{
    if (!name[0] || strcmp(name, "-") == 0)
        return 0;
    *out = program_find_var(r->program, name);
    return *out == PROGRAM_NONE ? print_reader_wrong(r, "there is no variable %s", name) : 0;
}

static int read_lines(struct print_reader *r)
{
    int rc = read_head(r);

    while (rc == 0 && print_reader_next_line(r)) {
        if ((rc = print_reader_next(r)) <= 0)
            continue;
        rc = strcmp(r->word, "var") == 0 ? read_var(r) : read_operator(r);
    }
    if (rc < 0 || (rc = find_named(r, r->loss, &r->program->loss)) < 0)
        return rc;
    return find_named(r, r->loss_scaling, &r->program->loss_scaling);
}

int print_parse(const char *text, size_t size, struct program *out, struct fleet_error *err)
{
    struct print_reader r = {.at = text, .end = text + size, .line = 1, .program = out, .err = err};
    int rc;

    if (size > PRINT_SIZE_MAX)
        return fleet_error(err, -EFBIG, "program text of %zu bytes, at most %zu are read", size,
                           PRINT_SIZE_MAX);
    program_init(out, "");
    if ((rc = read_lines(&r)) < 0)
        program_release(out);
    return rc;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/program/passes/tensor_names.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/program/program.h"
#include "libfleet/strategy/strategy.h"

int tensor_names_forward(const struct program *program)
{
    int count = 0;

    while (count < program->op_count && !program->ops[count].backward &&
           program->ops[count].section == PROGRAM_SECTION_MICRO_BATCH)
        count++;
    return count;
}

int tensor_names_block_output(const struct program *program, int layer)
{
    for (int i = tensor_names_forward(program) - 1; i >= 0; i--)
        if (program->ops[i].layer == layer)
            return program->ops[i].outputs[0];
    return PROGRAM_NONE;
}

int tensor_names_blocks(const struct program *program)
{
    int blocks = 0, forward = tensor_names_forward(program);

    for (int i = 0; i < forward; i++)
        if (program->ops[i].layer >= blocks)
            blocks = program->ops[i].layer + 1;
    return blocks;
}

/* "h.7" and "h.0": no slip of the finger. */
static bool differs_in_digits(const char *a, const char *b)
{
    for (;;) {
        a += strspn(a, "0123456789");
        b += strspn(b, "0123456789");
        if (*a != *b || !*a)
            return *a == *b;
        a++;
        b++;
    }
}

/* "; the blocks' outputs are h.0 … h.3", or what was meant. */
static void append_help(const struct program *program, const char *name, struct fleet_strbuf *out)
{
    FLEET_AUTO_FREE const char **names = calloc((size_t)program->var_count + 1, sizeof(*names));
    int blocks = tensor_names_blocks(program), first, last;
    const char *meant;
    size_t count = 0;

    fleet_assert(names);
    for (int i = 0; i < program->var_count; i++)
        if (program->vars[i].role == PROGRAM_ROLE_ACTIVATION && !strchr(program->vars[i].name, '@'))
            names[count++] = program->vars[i].name;
    meant = fleet_closest_word(name, names, count);
    if (meant && differs_in_digits(name, meant))
        meant = NULL;
    if (meant)
        fleet_strbuf_appendf(out, ", did you mean %s?", meant);
    first = blocks > 0 ? tensor_names_block_output(program, 0) : PROGRAM_NONE;
    last = blocks > 1 ? tensor_names_block_output(program, blocks - 1) : PROGRAM_NONE;
    if (first != PROGRAM_NONE && last != PROGRAM_NONE)
        fleet_strbuf_appendf(out, "%s outputs of this model's layers are %s … %s",
                             meant ? " The" : "; the", program->vars[first].name,
                             program->vars[last].name);
}

bool tensor_names_has(const struct program *program, const char *name)
{
    return program_find_var(program, name) != PROGRAM_NONE && !strchr(name, '@'); /* backward */
}

/* All that are not there, in one message: a pass has one error. */
int tensor_names_check(const struct program *program, const struct strategy_strings *names,
                       const char *knob, struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf missing = {0}, help = {0};
    size_t count = 0, first = 0;

    for (size_t i = 0; i < names->count; i++) {
        if (tensor_names_has(program, names->items[i]))
            continue;
        first = count++ == 0 ? i : first;
        fleet_strbuf_appendf(&missing, "%s\"%.60s\"", missing.length ? ", " : "", names->items[i]);
    }
    if (count == 0)
        return 0;
    append_help(program, names->items[first], &help);
    if (count == 1)
        return fleet_error(err, -EINVAL, "%s[%zu]: no tensor %s%s", knob, first, missing.text,
                           fleet_strbuf_text(&help));
    return fleet_error(err, -EINVAL, "%s: no tensors %s%s", knob, missing.text,
                       fleet_strbuf_text(&help));
}

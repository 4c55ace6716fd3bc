/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_OP_FIXTURE_H
#define TESTS_UNIT_OP_FIXTURE_H

/*
 * A program of one operator, from the shapes of its operands.
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/base/error.h"
#include "libfleet/program/print.h"
#include "libfleet/program/program.h"

struct shape_case {
    const char *vars; /* "x [2,3,4] w [4,5] y [?]"; fp32 activations; "x:int32" for another type,
                         "p!" a trained parameter, "p@GRAD!" its gradient, "s!0" a state */
    const char *op;   /* "linear x w - -> y - ; transposed" */
    const char *out;  /* "y [2,3,5] pre [2,3,5]" or a part of the error */
};

/* The program text of a case. */
static inline void write_vars(const char *vars, struct fleet_strbuf *out)
{
    char word[64], shape[64], name[64], type[32];
    int used;

    for (; sscanf(vars, " %63s %63s%n", word, shape, &used) == 2; vars += used) {
        char *colon = strchr(word, ':'), *bang = strchr(word, '!');

        (void)snprintf(type, sizeof(type), "%s", colon ? colon + 1 : "fp32");
        if (colon)
            *colon = '\0';
        if (bang)
            *bang = '\0';
        (void)snprintf(name, sizeof(name), "%s", word);
        if (!bang)
            fleet_strbuf_appendf(out, "var %s %s activation %s\n", name, type, shape);
        else if (strchr(name, '@'))
            fleet_strbuf_appendf(out, "var %s fp32 %s %s of=p%s\n", name,
                                 strstr(name, "GRAD") ? "gradient" : "state", shape,
                                 strstr(name, "GRAD") ? " flat=0" : "");
        else
            fleet_strbuf_appendf(out, "var %s fp32 parameter %s trained flat=0\n", name, shape);
    }
}

static inline void read_case(const struct shape_case *c, struct program *out)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    struct fleet_error err;

    fleet_strbuf_append(&text, "program test flat_count=64 whole_trained=2\n");
    write_vars(c->vars, &text);
    fleet_strbuf_appendf(&text, "%s %s\n",
                         strstr(c->op, "adam") || strstr(c->op, "sgd") ? "update" : "forward",
                         c->op);
    if (print_parse(text.text, text.length, out, &err) < 0)
        fail_msg("%s\n%s", err.text, text.text);
}

#endif

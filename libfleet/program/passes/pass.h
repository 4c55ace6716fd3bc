/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_PASSES_PASS_H
#define LIBFLEET_PROGRAM_PASSES_PASS_H

/*
 * A pass rewrites the program for one knob of the strategy. The table in pass.c is the order in
 * which passes run (spec/strategy.md 4.6, 5); plan_build() verifies the program after each.
 * A new knob is one file here and one line there.
 */

#include <stdbool.h>

#include "libfleet/program/program.h"

struct fleet_error;
struct strategy;
struct strategy_options;
struct training_config;

/* What passes may look at. Borrowed. */
struct pass_context {
    const struct training_config *training;
    const struct strategy *strategy;        /* the effective one, after selection */
    const struct strategy_options *options; /* NULL: the defaults */
    int world;
};

enum pass_stage {
    PASS_FORWARD,  /* before autodiff: rewrites the model */
    PASS_BACKWARD, /* after it: gradients are there */
};

struct pass {
    const char *name; /* of the knob, "amp"; of what it does where it always runs */
    enum pass_stage stage;
    bool (*wanted)(const struct pass_context *context); /* NULL: always */

    /* Rewrite; -EINVAL if the knob asks for what this program does not have, naming the field. */
    int (*apply)(struct program *program, const struct pass_context *context,
                 struct fleet_error *err);
};

/* All passes in the order in which they run; ends with name NULL. */
extern const struct pass pass_table[];

/* A pass of that name exists. */
bool pass_exists(const char *name);

#endif

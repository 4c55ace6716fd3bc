/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_PASSES_PASS_H
#define LIBFLEET_PROGRAM_PASSES_PASS_H

/*
 * A pass rewrites the program for one knob of the strategy. The table in pass.c is the order in
 * which passes run; plan_build() verifies the program after each.
 * A new knob is one file here and one line there.
 */

#include <stdbool.h>

#include "libfleet/program/program.h"

struct fleet_error;
struct select_notes;
struct strategy;
struct strategy_options;
struct training_config;

/* What passes may look at. Borrowed. */
struct pass_context {
    const struct training_config *training;
    const struct strategy *strategy;        /* the effective one, after selection */
    const struct strategy_options *options; /* NULL: the defaults */
    int world;
    bool is_draft;              /* for a search: verified behind the last pass alone */
    bool without_sharding;      /* the runtime has no pass for it here: the plan uses formulas */
    struct program_cell cell;   /* the rank's tensors and layers; zeroed: all of them */
    struct select_notes *idle;  /* see pass_idle(); NULL: not collected */
    struct select_notes *notes; /* what was chosen where the strategy left it open; NULL likewise */
};

enum pass_stage {
    PASS_FORWARD,  /* before autodiff: rewrites the model */
    PASS_BACKWARD, /* after it: gradients are there */
};

struct program_pass {
    const char *name; /* the knob, "amp"; of a pass that no knob runs (yet), its work */
    enum pass_stage stage;
    bool (*wanted)(const struct pass_context *context); /* NULL: always */

    /* Rewrite; -EINVAL if the knob asks for what this program does not have, naming the field. */
    int (*apply)(struct program *program, const struct pass_context *context,
                 struct fleet_error *err);
};

/* All passes in the order in which they run; ends with name NULL. */
extern const struct program_pass pass_table[];

/*
 * Tell that `knob` ("amp_configs.custom_white_list"; a unit's name if all of the pass is meant) has
 * nothing to do in this program; the text is one sentence without full stop. It ends up in the
 * plan's withoutEffect.
 */
__attribute__((format(printf, 3, 4))) void pass_idle(const struct pass_context *context,
                                                     const char *knob, const char *format, ...);

/* The knob that is on and keeps values of its own on each worker (localsgd, adaptive_localsgd,
 * dgc), or NULL. They are saved and handed on only where a worker has the whole model and all
 * samples of its micro-batches. */
const char *pass_private_knob(const struct pass_context *context);

/* A pass of that name exists. */
bool pass_exists(const char *name);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_VERIFY_H
#define LIBFLEET_PROGRAM_VERIFY_H

/* The invariants (1) to (6) of program.h, after the model, after autodiff and after every pass. */

#include "libfleet/program/program.h"

struct fleet_error;

/* How far a program has come: what is demanded beyond (1), (2), (4), (5). */
enum verify_stage {
    VERIFY_INFERENCE, /* forward operators alone, and no loss (prune.h) */
    VERIFY_FORWARD,   /* no gradients yet */
    VERIFY_BACKWARD,  /* and (3), (6) */
    VERIFY_COMPLETE,  /* and: laid out, every trained parameter is updated exactly once */
};

/*
 * 0, or -EINVAL (-EOVERFLOW for sizes) naming operator and variable of the first breach. Infers
 * every operator again, so `program` is only changed where shapes were still open.
 */
int verify_program(struct program *program, enum verify_stage stage, struct fleet_error *err);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_PROGRAM_PROGRAM_H
#define DISTRIBUTED_PROGRAM_PROGRAM_H

/* What the sources of include/fleet/fleet_program.h share. */

#include "agent/runtime/state.h"
#include "agent/runtime/step/running.h"
#include "distributed/distributed.h"
#include "include/fleet/fleet_program.h"
#include "libfleet/plan/memory_plan.h"

struct executor;

struct fleet_program {
    struct program program; /* pruned; with its backward part if it trains */
    struct memory_plan memory;
    struct backend *backend;
    struct state state;
    struct executor *executor;
    enum fleet_program_mode highest; /* not HIGHEST */
    int feeds[FLEET_PROGRAM_NAMES_MAX], feed_count;
    bool is_predicted[FLEET_PROGRAM_NAMES_MAX]; /* feeds that the fetches need without the loss */
    int fetches[FLEET_PROGRAM_NAMES_MAX], fetch_count; /* without the loss */
    int loss;                                          /* or PROGRAM_NONE */
    struct fleet_ddp_tensor *tensors;                  /* [tensor_count]; names of `program` */
    int tensor_count;
    struct running running; /* statistics of batch_norm */
    float *row;             /* [running.row] */
    uint64_t seed;
    int64_t runs; /* in the mode TRAIN */
};

/* The variables that a program is asked for, by index of its text. */
struct program_wish {
    int fetches[FLEET_PROGRAM_NAMES_MAX], fetch_count;
    int loss; /* PROGRAM_NONE in the mode PREDICT */
};

/*
 * Make a program of `source`, which is not changed. Feeds and fetches come in the order of `source`
 * and `wish`. Errors as fleet_program_compile().
 */
int program_make(const struct program *source, const struct program_wish *wish,
                 const struct fleet_program_options *options, struct fleet_program **out,
                 struct fleet_error *err);

/* The type in fleet.h. Every type of a program has one. */
enum fleet_type program_fleet_type(enum program_type type);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_AUTOPARALLEL_SEARCH_FULL_SEARCH_H
#define LIBFLEET_AUTOPARALLEL_SEARCH_FULL_SEARCH_H

/*
 * Our own search: the fastest division of a job over given devices that fits into their memory.
 * Pure.
 *
 * The space, all of it:
 *   data · sharding · pipeline · sequence · model = devices, in all divisors
 *   sharding stage      1, 2, 3; none with a sharding degree of 1
 *   pipeline            at most as many stages as the model has layers; 1 if it cannot be cut
 *   model               1, or divides heads and hidden of gpt and llama, and fits their kvHeads
 *   sequence            1, or divides the heads that a model rank has, and the tokens of a
 *                       micro-batch
 *   recompute           on and off, if the job's strategy has not set it
 *   micro-batch         powers of two that divide the global batch, and the job's own
 *   schedule            1F1B and F-then-B with more than one stage
 *   at least one micro-batch for each replica, and one for each of its stages
 *
 * The result is exact within it: combinations are looked at in the order of a lower bound of their
 * time (computing and bubble, step_slot_seconds()), until no other can be among the best or the
 * best that the built-in runtime can run. Memory, traffic and time of a combination come from its
 * plan (plan.h), the same that `fleetjob plan` prints and the controller checks.
 */

#include <stdbool.h>
#include <stdint.h>

#include "libfleet/autoparallel/search/links.h"
#include "libfleet/autoparallel/search/step_time.h"
#include "libfleet/plan/plan.h"

struct fleet_errors;
struct fleet_strbuf;

#define FULL_RIVALS_MAX  10
#define FULL_MISFITS_MAX 3
#define FULL_DEVICES_MAX 65536

struct full_choice {
    int data, sharding, pipeline, sequence, model;
    int stage; /* of sharding; 0: none */
    bool recompute, all_forward;
    int64_t micro_batch; /* samples */
};

struct full_rival {
    struct full_choice choice;
    struct step_time time;
    double bytes;      /* of the rank that needs most */
    double sent_bytes; /* of the rank that sends most, an update */
    bool cannot_run;   /* the built-in runtime lacks a pass for something in it */
};

struct full_request {
    const struct training_config *training;
    const struct strategy *strategy; /* the job's; degrees in it are replaced. NULL: none */
    enum strategy_policy policy;
    const struct strategy_options *options; /* NULL: the defaults */
    bool has_buddies;                       /* of plan_request: runPolicy.elastic.replicas */
    int devices;
    double memory; /* bytes of one device */
    const struct links *links;
};

struct full_result {
    struct full_rival rivals[FULL_RIVALS_MAX]; /* by time, then memory */
    int count;
    struct full_rival misfits[FULL_MISFITS_MAX]; /* fastest of those looked at that do not fit */
    int misfit_count;
    bool has_runnable;          /* … and fits */
    struct full_rival runnable; /* the best that needs no pass that the built-in runtime lacks */
    double least_bytes;         /* no combination that was looked at or ruled out needs less */
    int64_t combinations, looked_at; /* in the space; with a plan of their own */
};

/*
 * Returns 0; *out has no rival if nothing fits. -EINVAL with errors appended: the training block is
 * wrong, the model's size is not known, the space is empty, or the job's other settings contradict
 * all of it.
 */
int full_search(const struct full_request *request, struct full_result *out,
                struct fleet_errors *errors);

/* The strategy of a combination: the job's with degrees, units and schedule of `choice`. Release
 * *out. */
void full_strategy(const struct strategy *base, const struct full_choice *choice,
                   struct strategy *out);

/* Append "data 2, sharding 2 stage 1, pipeline 2 1F1B, sequence 2, model 2, micro-batch 4,
 * recompute": what is 1 or off is left out, except data. */
void full_describe(const struct full_choice *choice, struct fleet_strbuf *out);

/* The part of the step for which `rival` loses most beside `best`. */
enum step_part full_reason(const struct full_rival *best, const struct full_rival *rival);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_BASE_GENERATION_H
#define LIBFLEET_BASE_GENERATION_H

/*
 * One agreement on the members that train: a pair (epoch, counter).
 *
 * `epoch` counts the hubs of a job (the Lease's leaseTransitions; always 1 in `fleetjob run`),
 * `counter` the generations; it goes on counting when the epoch changes and is the number users
 * see. Pairs are ordered by epoch, then counter. All zero means "none yet".
 */

#include <stdbool.h>
#include <stdint.h>

struct fleet_object;

/* Larger numbers are refused: one more must still be an exact number in JSON. */
#define FLEET_GENERATION_NUMBER_MAX ((int64_t)1 << 52)

struct fleet_generation {
    int64_t epoch;
    int64_t counter;
};

/* How far a trainer, or a whole member, has joined a generation; in order. */
enum fleet_phase {
    /* Has left it after an abort or a lost peer, a complete vote applied, or never was in one:
     * holds the state of some step, or none, and waits for an assign. */
    FLEET_PHASE_WAITING,
    FLEET_PHASE_CONNECTED,  /* all its data connections are up */
    FLEET_PHASE_RESTORED,   /* its state is complete: the next thing is a step */
    FLEET_PHASE_FIRST_STEP, /* the first step of the generation is committed */
    FLEET_PHASE_COUNT,
};

/* {"epoch": 1, "counter": 3} in JSON, both required (field.h). */
extern const struct fleet_object fleet_generation_type;

/* < 0, 0, > 0 as `a` is older than, equal to, newer than `b`. */
static inline int fleet_generation_compare(struct fleet_generation a, struct fleet_generation b)
{
    if (a.epoch != b.epoch)
        return a.epoch < b.epoch ? -1 : 1;
    return a.counter < b.counter ? -1 : a.counter > b.counter;
}

/* {0, 0}: older than every generation. */
static inline bool fleet_generation_is_none(struct fleet_generation g)
{
    return g.epoch == 0 && g.counter == 0;
}

#endif

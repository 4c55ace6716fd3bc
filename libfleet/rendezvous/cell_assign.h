/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_RENDEZVOUS_CELL_ASSIGN_H
#define LIBFLEET_RENDEZVOUS_CELL_ASSIGN_H

/*
 * Seats of a new generation where ranks share a model: which members get one, and which. A seat is
 * a member's ranks; the cell of a seat is that of its first rank (strategy/cells.h). All members of
 * a job have the same number of ranks.
 *
 * Invariants, quoted by number in code and tests:
 *  (1) Each seat is taken once, or none is.
 *  (2) A survivor stays in its cell while that has seats for all of its survivors, and keeps its
 *      seat if that is still one of the cell's. If there are more survivors than seats, those come
 *      first that are needed, then those that hold a shard of the state which no other one of them
 *      holds, then those that hold the state, in each case with all processes before those with
 *      some, then those that come first in the list.
 *  (3) Seats that are left get, in this order, newcomers, survivors without a state, survivors of
 *      other cells. The last ones receive their new cell's state from a peer. A newcomer gets the
 *      seat that it wishes for, if it is free.
 *  (4) So a line of the state that any member holds has a holder. Where members hold the state with
 *      some processes only, and seats are short, those that cell_cover.h finds must be marked.
 */

#include <stdbool.h>
#include <stddef.h>

#include "libfleet/strategy/topology.h"

#define CELL_NONE (-1)

struct cell_member {
    int last;       /* seat in the last generation, or CELL_NONE: a newcomer */
    int cell;       /* whose state it holds, else of that seat, or CELL_NONE */
    bool holds;     /* the newest state of its cell, … */
    bool lacks;     /* … but some of its processes do not */
    bool is_needed; /* it stays in its cell before all others (cell_cover.h) */
    int shards[2];  /* that it holds of a divided state: its own, and one as its buddy; CELL_NONE */
    int wish;       /* of a newcomer: a seat, or CELL_NONE */
    int seat;       /* out: CELL_NONE = none, the member is a spare */
};

/* Seats come in multiples of it: so many members have whole replicas. */
int cell_assign_step(const struct topology *grid, int ranks_of_member);

/* The cell of seat `seat` of `seats`, which are a multiple of the step. */
int cell_assign_cell(const struct topology *grid, int ranks_of_member, int seats, int seat);

/* Seat `members[count]`, which come in order of preference. False: there are fewer members than
 * seats, and none has one. */
bool cell_assign(struct cell_member *members, size_t count, const struct topology *grid,
                 int ranks_of_member, int seats);

#endif

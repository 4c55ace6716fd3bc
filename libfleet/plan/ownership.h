/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PLAN_OWNERSHIP_H
#define LIBFLEET_PLAN_OWNERSHIP_H

/*
 * Which ranks hold which part of the committed state: the only source for the memory plan, for the
 * transfer between ranks when a generation begins, for the layout of a checkpoint, for going back
 * to one, and for the question whether a state is lost.
 *
 * A map is of one cell: ranks that run the same program on the same parameters. They are numbered
 * 0 … replicas - 1 here. Each line of the map gives a range of one flat space, or of several, to
 *
 *   ALL     every rank: the same bytes everywhere. A job without sharding has this one line.
 *   SHARD   the ranks r with r mod shards == shard, whose bytes are the same. If there is only one,
 *           it has a buddy, unless buddies are off.
 *   EACH    every rank, with values of its own that no other rank has (a copy of LocalSGD, a
 *           residual of DGC). The knob says what it costs to lose them; the state is not lost.
 *
 *  (1) The lines of a space do not overlap, ascend, and cover what the program has in it.
 *  (2) A parameter with its optimizer states lies in one line of each of their spaces.
 *  (3) Replicas need not be a multiple of shards: a job that lost a worker goes on. There are never
 *      more shards than replicas.
 */

#include <stdbool.h>
#include <stdint.h>

struct program;

/* The flat spaces that are state. Each step computes new gradients. A rank keeps the gradient of a
 * complete update until the parameters are shared, because it can repeat the update from it. */
enum ownership_space {
    OWNERSHIP_GRADIENTS,
    OWNERSHIP_PARAMETERS,
    OWNERSHIP_STATE0,
    OWNERSHIP_STATE1,
    OWNERSHIP_BUFFERS,
    OWNERSHIP_SPACES,
};

enum ownership_holders {
    OWNERSHIP_ALL,
    OWNERSHIP_SHARD,
    OWNERSHIP_EACH,
};

#define OWNERSHIP_BIT(space) (1U << (space))
#define OWNERSHIP_TO_END     INT64_MAX /* `end` of a line that takes the whole space */
#define OWNERSHIP_NOBODY     (-1)      /* as FLEET_DIVISION_NOBODY */

struct ownership_line {
    unsigned int spaces; /* a set of OWNERSHIP_BIT() */
    int64_t first, end;  /* elements of each of these spaces: [first, end) */
    enum ownership_holders holders;
    int shard; /* with SHARD */
};

struct ownership {
    struct ownership_line *lines; /* [count]; those of a space ascend */
    int count;
    int replicas, shards;
    bool has_buddies;
};

/* How the state is divided. */
struct ownership_rule {
    int replicas;         /* ranks of the cell, >= 1 */
    int shards;           /* wanted, >= 1; 1 = nothing is divided */
    unsigned int divided; /* spaces that are, a set of OWNERSHIP_BIT() */
    bool greedy;          /* whole parameters to the lightest shard, else in order: partition.h */
    bool has_buddies;
};

/* The map of a laid-out program. Release *out. */
void ownership_build(const struct program *program, const struct ownership_rule *rule,
                     struct ownership *out);

/* The map of the ranks that write a model of several stages into a checkpoint. Each stage has
 * `ranks` of them: shard s·ranks + r is rank r of stage s. Each parameter (program_var.stage) goes
 * to the lightest rank of its stage so far, in the spaces `divided`. The program has all
 * parameters. */
void ownership_build_stages(const struct program *program, int stages, int ranks,
                            unsigned int divided, struct ownership *out);

/* The map with one line, without a program. */
void ownership_build_whole(int replicas, struct ownership *out);
void ownership_release(struct ownership *map);

/* Each rank has values of its own for all of `space`, which has no line yet, or one that
 * ends here. */
void ownership_set_private(struct ownership *map, enum ownership_space space);

/* The line of `space` that holds `element`. NULL: none does. */
const struct ownership_line *ownership_find(const struct ownership *map, enum ownership_space space,
                                            int64_t element);

/* The line that gives what belongs to the parameter at `element` to a shard. NULL: all ranks hold
 * all of it. */
const struct ownership_line *ownership_part(const struct ownership *map, int64_t element);

/* The second holder of a shard that one rank would hold alone; OWNERSHIP_NOBODY: it has none. */
int ownership_buddy(const struct ownership *map, int shard);

/* `replica` holds the line, as one of ALL or EACH, of the shard's ranks, or as its buddy. -1 as
 * replica: of a rank that has no place yet; it holds what is not divided. */
bool ownership_holds(const struct ownership *map, const struct ownership_line *line, int replica);

/*
 * The rank that answers for a line towards `replica`: it sends the line after an update and writes
 * it into a checkpoint. `replica` itself where it owns the line; a buddy is no owner. Of a shard:
 * the owner in the group of `replica`, else the lowest.
 */
int ownership_owner(const struct ownership *map, const struct ownership_line *line, int replica);

/*
 * Memory of a rank has the ranges that it holds one behind the other: where `element` lies in it,
 * in elements, or OWNERSHIP_NOBODY where the rank does not hold it; and how many there are of a
 * space of `count` elements.
 */
int64_t ownership_place(const struct ownership *map, enum ownership_space space, int64_t element,
                        int replica);
int64_t ownership_elements(const struct ownership *map, enum ownership_space space, int64_t count,
                           int replica);

/* The rank that holds most. */
int ownership_heaviest(const struct ownership *map);

/* The first line that none of the ranks with has[replica] holds; NULL: together they have a whole
 * state. */
const struct ownership_line *ownership_lost(const struct ownership *map, const bool *has);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_STRATEGY_SELECT_H
#define LIBFLEET_STRATEGY_SELECT_H

/*
 * What is on: from what was asked for to what takes effect, and why the rest does not.
 *
 * Two policies. Full: all knobs that have a meaning together take effect together; a contradiction
 * is an error that names both knobs and the reason. Paddle: exactly what Paddle 2.0 would do, that
 * is one chain of units, each containing the next; what it drops silently is reported.
 *
 * Guarantees:
 *  (1) Every unit that was asked for is in `applied`, in `dropped` (Paddle only) or in
 *      `without_effect`, and in exactly one of them.
 *  (2) `applied` is outermost first.
 *  (3) `final` has what was dropped switched off and Paddle's forced values set; it is legal
 *      input again, and selecting it again gives the same `applied`.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libfleet/strategy/strategy.h"

struct fleet_errors;
struct topology;

#define SELECT_NAMES_MAX     24
#define SELECT_UNKNOWN_WORLD 0

enum strategy_policy {
    STRATEGY_FULL,
    STRATEGY_PADDLE,
};

/*
 * Units: switches that rewrite the program, and may contain another unit. First Paddle 2.0's, in
 * the order in which it lists candidates: by the name of their classes.
 */
enum unit {
    UNIT_AMP,
    UNIT_ADAPTIVE_LOCALSGD,
    UNIT_DGC,
    UNIT_FP16_ALLREDUCE,
    UNIT_GRADIENT_MERGE,
    UNIT_LAMB,
    UNIT_LARS,
    UNIT_LOCALSGD,
    UNIT_PIPELINE,
    UNIT_RECOMPUTE,
    UNIT_SHARDING,
    UNITS,
    UNIT_TENSOR_PARALLEL = UNITS, /* not in Paddle 2.0; applied like the others */
};

#define UNIT_BIT(unit) (1U << (unit))

struct select_options {
    enum strategy_policy policy;
    int world_size; /* ranks; SELECT_UNKNOWN_WORLD: select nothing, report contradictions */
    bool any_world; /* world_size is the fewest that may be: what needs several is kept, too */
    const char
        *optimizer; /* "momentum" or "Momentum", …; NULL: unknown, taken to be the right one */
    /* Of the training block: */
    bool has_decay;        /* the optimizer has a weight decay of its own */
    int64_t steps;         /* batches of the job; 0: unknown */
    bool lacks_batch_norm; /* the model has no batch normalization; false: it has, or is unknown */
    const struct fleet_errors *unread; /* values that could not be read, by full path; NULL: none */
};

struct select_names {
    const char *items[SELECT_NAMES_MAX]; /* [count], static strings */
    size_t count;
};

struct select_notes {
    struct {
        char *knob;    /* field name, dotted below a message */
        char *because; /* one sentence without full stop */
    } * items;         /* [count] */
    size_t count;
};

struct select_result {
    struct select_names applied;            /* outermost first */
    unsigned int units;                     /* the same, as a set of UNIT_BIT() */
    struct select_notes dropped;            /* Paddle would drop it and so do we */
    struct select_notes without_effect;     /* accepted, nothing to do here */
    struct select_names depends_on_workers; /* the result depends on the world size because of … */
    struct select_notes notes;              /* what was chosen where the strategy left it open */
    struct select_notes warnings;           /* legal and unusual: probably not what is meant */
    bool graph_executor;                    /* Paddle's data-parallel executor would stay in use */
    struct strategy final;                  /* the effective strategy */
};

/*
 * Returns 0 with *out filled (release it), or -EINVAL with errors appended and nothing in *out to
 * release. `path` stands in front of each path. Runs strategy_check() and topology_build() first,
 * so the caller need not. Where the number of ranks is not known, or `unread` is about what divides
 * them, -EINVAL comes without an error of that kind, too.
 */
int strategy_select(const struct strategy *s, const struct select_options *options,
                    const char *path, struct select_result *out, struct fleet_errors *errors);

/*
 * The same where something is wrong with it: `applied`, `final` and degrees as far as they can be
 * told, by a caller that asks what of it could not run in any case. An axis that a unit divides and
 * whose degree is not known has the degree 2. `path` is that of strategy_select(). Release *out.
 */
void select_roughly(const struct strategy *s, const struct select_options *options,
                    const char *path, struct select_result *out, struct topology *out_topology);

/* What decides which ranks work together could be read; `unread` may be NULL. */
bool select_knows_grid(const struct fleet_errors *unread, const char *path);

/* `auto` is on and nothing else is set: the selection chooses the units. */
bool select_is_auto(const struct strategy *s);

/* The unit is in `applied`. */
bool select_is_applied(const struct select_result *result, enum unit unit);

/* What an error begins with that asks for another optimizer. */
#define SELECT_NEEDS_OPTIMIZER "needs training.optimizer.name: "

/* Append the result's warnings to `warnings` (may be NULL), `path` in front of each path. */
void select_warn(const struct select_result *result, const char *path,
                 struct fleet_errors *warnings);

/* Free what a result owns; again, or all zero, is fine. */
void select_result_release(struct select_result *result);

/* Append a note; the text is one sentence without full stop. */
__attribute__((format(printf, 3, 4))) void select_note(struct select_notes *notes, const char *knob,
                                                       const char *format, ...);

/* The same, in place of the notes of that knob that are there. */
__attribute__((format(printf, 3, 4))) void select_renote(struct select_notes *notes,
                                                         const char *knob, const char *format, ...);

/* There is a note of that knob. */
bool select_has_note(const struct select_notes *notes, const char *knob);

void select_notes_release(struct select_notes *notes);

#define SELECT_AUTO_RESULT __attribute__((cleanup(select_result_release)))

#endif

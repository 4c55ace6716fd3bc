/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_STRATEGY_SELECT_H
#define LIBFLEET_STRATEGY_SELECT_H

/*
 * Decides which requested settings take effect, and gives the reason for those that do not.
 *
 * There are two policies. Full: all knobs that make sense together take effect together; a
 * contradiction is an error that names both knobs and the reason. Paddle: exactly what Paddle 2.0
 * does, that is one chain of units, each containing the next. Paddle drops some units silently;
 * here they are reported.
 *
 * Guarantees:
 *  (1) Every requested unit is in exactly one of `applied`, `dropped` (Paddle only) and
 *      `without_effect`.
 *  (2) `applied` starts with the outermost unit.
 *  (3) In `final` the dropped units are off and Paddle's forced values are set. `final` is legal
 *      input again, and selecting it again gives the same `applied`.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libfleet/strategy/strategy.h"
#include "libfleet/strategy/topology.h"
#include "libfleet/strategy/topology_fit.h"

struct fleet_errors;

#define SELECT_NAMES_MAX     24
#define SELECT_UNKNOWN_WORLD 0

enum strategy_policy {
    STRATEGY_FULL,
    STRATEGY_PADDLE,
};

/*
 * Units: switches that rewrite the program and may contain another unit. Those of Paddle 2.0 come
 * first, in the order in which Paddle lists its candidates: by class name.
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
    bool any_world; /* world_size is the least; units that need several ranks are kept, too */
    const char
        *optimizer; /* "momentum" or "Momentum", …; NULL: unknown, taken to be the right one */
    /* Of the training block: */
    bool has_decay;          /* the optimizer has a weight decay of its own */
    int64_t steps;           /* batches of the job; 0: unknown */
    bool lacks_batch_norm;   /* the model has no batch normalization; false: it has, or not known */
    struct topology_job job; /* for the numbers that errors suggest */
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
    struct select_notes dropped;            /* units that Paddle drops, too */
    struct select_notes without_effect;     /* accepted, but they change nothing here */
    struct select_names depends_on_workers; /* the result depends on the world size because of … */
    struct select_notes notes;              /* choices that the strategy left open */
    struct select_notes warnings;           /* legal but unusual, probably a mistake */
    bool graph_executor;                    /* Paddle would keep its data-parallel executor */
    struct strategy final;                  /* the effective strategy */
};

/*
 * Returns 0 with *out filled (release it), or -EINVAL with errors appended and nothing in *out to
 * release. Each reported path starts with `path`. Calls strategy_check() and topology_build()
 * first, so the caller need not. If the number of ranks is not known, or if `unread` names a field
 * that divides the ranks, nothing can be selected: the result is -EINVAL even without an error.
 */
int strategy_select(const struct strategy *s, const struct select_options *options,
                    const char *path, struct select_result *out, struct fleet_errors *errors);

/*
 * An estimate for a strategy that has errors: `applied`, `final` and the degrees as far as they are
 * known. A caller uses it to find what could not run in any case. If a unit divides an axis and the
 * degree is not known, the degree is taken to be 2. `path` is that of strategy_select(). Release
 * *out.
 */
void select_roughly(const struct strategy *s, const struct select_options *options,
                    const char *path, struct select_result *out, struct topology *out_topology);

/* The batches of an update that `s` asks for: those of sharding_configs.gradient_merge_acc_step, of
 * gradient_merge, or 1. */
int select_merge_steps(const struct strategy *s);

/* True if all fields that decide which ranks work together could be read. `unread` may be NULL. */
bool select_knows_grid(const struct fleet_errors *unread, const char *path);

/* True if `auto` is on and nothing else is set: then the selection chooses the units. */
bool select_is_auto(const struct strategy *s);

/* True if the unit is in `applied`. */
bool select_is_applied(const struct select_result *result, enum unit unit);

/* The beginning of every error that asks for another optimizer. */
#define SELECT_NEEDS_OPTIMIZER "needs training.optimizer.name: "

/* Append the result's warnings to `warnings` (may be NULL). Each path starts with `path`. */
void select_warn(const struct select_result *result, const char *path,
                 struct fleet_errors *warnings);

/* Free what a result owns. A second call, or an all-zero struct, is fine. */
void select_result_release(struct select_result *result);

/* Append a note; the text is one sentence without full stop. */
__attribute__((format(printf, 3, 4))) void select_note(struct select_notes *notes, const char *knob,
                                                       const char *format, ...);

/* Remove the notes of that knob. */
void select_drop_notes(struct select_notes *notes, const char *knob);

/* Replace the existing notes of that knob by this one. */
__attribute__((format(printf, 3, 4))) void select_renote(struct select_notes *notes,
                                                         const char *knob, const char *format, ...);

/* True if there is a note of that knob. */
bool select_has_note(const struct select_notes *notes, const char *knob);

void select_notes_release(struct select_notes *notes);

#define SELECT_AUTO_RESULT __attribute__((cleanup(select_result_release)))

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_STATE_H
#define AGENT_RUNTIME_STATE_H

/*
 * The memory of a rank: the committed state (parameters, optimizer states, buffers), and memory
 * that every step overwrites (gradient slots of the summation tree, inputs, arena, scratch).
 *
 * The memory outlives generations: a survivor keeps every byte. Only the number of gradient slots
 * depends on the rank's range of the micro-batches. One back end allocates all of it.
 */

#include <stddef.h>
#include <stdint.h>

#include "agent/runtime/executor/executor.h"

struct fleet_error;

/* The committed state as flat arrays of fp32, in the order they are sent and saved: memory of the
 * device, for backend_map(). */
#define STATE_PARTS_MAX 4

/* What ranks hold different ranges of. */
enum state_division {
    STATE_WHOLE,
    STATE_OPTIMIZER_DIVIDED,
    STATE_PARAMETERS_DIVIDED, /* and the optimizer states */
};

struct state_part {
    const char *name; /* "parameters", "state0", "state1", "buffers" */
    float *data;
    int64_t count; /* elements */
};

struct state {
    const struct program *program;    /* borrowed */
    const struct memory_plan *memory; /* borrowed; if it changes, call state_replace() */
    struct backend *backend;          /* allocates the memory; borrowed */
    struct executor_bases bases;
    float **slots;      /* [slot_count] gradient spaces; slots[0] gets the complete sum */
    size_t *slot_bytes; /* [slot_count] */
    int slot_count;
    size_t bytes; /* total that is allocated */
};

/* Allocate everything but gradient slots, zeroed. -ENOMEM with the number of bytes. */
int state_init(struct state *state, const struct program *program, const struct memory_plan *memory,
               struct backend *backend, struct fleet_error *err);
void state_release(struct state *state);

/* Allocate zeroed memory like that of the segment: the device's, or the host's. NULL and *err if
 * there is none. And free it; NULL is fine. */
void *state_allocate(struct state *state, enum memory_segment segment, size_t bytes,
                     struct fleet_error *err);
void state_deallocate(struct state *state, enum memory_segment segment, void *memory);

/* A copy of the memory that a micro-batch alone uses: of the segments inputs, arena and host. Other
 * segments of *out are the state's own. Free it before `state->memory` changes. -ENOMEM. */
int state_copy_transient(struct state *state, struct executor_bases *out, struct fleet_error *err);
void state_free_transient(struct state *state, const struct executor_bases *copy);

/* `memory[i]` of state_allocate() takes the place of segments[i], whose memory is freed. */
void state_replace(struct state *state, const enum memory_segment *segments, void *const *memory,
                   int count);

/* Make room for the memory that `memory` plans outside the committed state and the gradients.
 * -ENOMEM. */
int state_fit(struct state *state, const struct memory_plan *memory, struct fleet_error *err);

/* Allocate gradient slots until there are at least `count`. Existing ones keep their content. But
 * if the memory plan has other sizes now, all are new. -ENOMEM as state_init(). */
int state_reserve_slots(struct state *state, int count, struct fleet_error *err);

/* Free all gradient slots. */
void state_release_slots(struct state *state);

/* What random values are keyed by. */
struct state_seeds {
    uint64_t job;
    uint64_t divided; /* for parameters that are divided */
};

/*
 * Set the state before the first step. Parameters are random numbers keyed by (seed, name,
 * element), so every machine computes the same ones. The optimizer states that the rank holds are
 * zero. Buffers get the program's initial values. `threads` threads do the work (0: as many as the
 * CPU quota allows); their number changes no bit.
 */
void state_initialize(struct state *state, const struct state_seeds *seeds, int threads);

/* The parts of the committed state that are not divided; returns how many. Borrowed. */
int state_parts(const struct state *state, enum state_division division,
                struct state_part out[STATE_PARTS_MAX]);

/* Device address of a variable. It must not be a gradient. */
void *state_address(const struct state *state, int var);

/* Copy all values of a variable to `host`, and from it. */
void state_read(const struct state *state, int var, void *host);
void state_write(struct state *state, int var, const void *host);

/* As state_read(), but `host` has the values after backend_finish(). */
void state_read_later(const struct state *state, int var, void *host);

/* backend_map() and backend_unmap() of a variable. */
void *state_map(const struct state *state, int var, enum backend_access access);
void state_unmap(const struct state *state, int var, enum backend_access access, void *host);

#endif

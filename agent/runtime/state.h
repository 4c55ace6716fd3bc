/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_STATE_H
#define AGENT_RUNTIME_STATE_H

/*
 * The memory of a rank: what a committed step has made (parameters, optimizer states, buffers), and
 * what is remade every step (gradient slots of the summation tree, inputs, arena, scratch).
 *
 * It outlives generations: a survivor keeps every byte; only the number of gradient slots follows
 * the rank's range of the micro-batches. All of it comes from one back end's allocator.
 */

#include <stddef.h>
#include <stdint.h>

#include "agent/runtime/executor/executor.h"

struct fleet_error;

/* The committed state as flat arrays of fp32, in the order they are sent and saved: memory of the
 * device, for backend_map(). */
#define STATE_PARTS_MAX 4

struct state_part {
    const char *name; /* "parameters", "state0", "state1", "buffers" */
    float *data;
    int64_t count; /* elements */
};

struct state {
    const struct program *program;    /* borrowed */
    const struct memory_plan *memory; /* borrowed; state_replace() goes with a change of it */
    struct backend *backend;          /* whose memory it is; borrowed */
    struct executor_bases bases;
    float **slots; /* [slot_count] gradient spaces; slots[0] ends up with the complete sum */
    int slot_count;
    size_t bytes; /* allocated in all */
};

/* Allocate everything but gradient slots, zeroed. -ENOMEM with the number of bytes. */
int state_init(struct state *state, const struct program *program, const struct memory_plan *memory,
               struct backend *backend, struct fleet_error *err);
void state_release(struct state *state);

/* Zeroed memory as that of the segments, NULL and *err when there is none; and back, NULL is
 * fine. */
void *state_allocate(struct state *state, size_t bytes, struct fleet_error *err);
void state_deallocate(struct state *state, void *memory);

/* `memory[i]` of state_allocate() takes the place of segments[i], whose memory is freed. */
void state_replace(struct state *state, const enum memory_segment *segments, void *const *memory,
                   int count);

/* Have room for what `memory` places outside the committed state and the gradients. -ENOMEM. */
int state_fit(struct state *state, const struct memory_plan *memory, struct fleet_error *err);

/* Have at least `count` gradient slots; existing ones keep their content. -ENOMEM as
 * state_init(). */
int state_reserve_slots(struct state *state, int count, struct fleet_error *err);

/*
 * The state before the first step: parameters from numbers keyed by (seed, name, element), so they
 * are the same wherever they are made; optimizer states zero, those that the rank holds; buffers as
 * the program says. Made by
 * `threads` threads (0: as many as the CPU quota allows), whose number changes no bit.
 */
void state_initialize(struct state *state, uint64_t seed, int threads);

/* The parts of the committed state, optimizer states left out where ranks hold other parts of them;
 * returns how many. Borrowed. */
int state_parts(const struct state *state, bool is_divided, struct state_part out[STATE_PARTS_MAX]);

/* Device address of a variable that is no gradient. */
void *state_address(const struct state *state, int var);

/* The values of a variable, all of them, to `host` and from it. */
void state_read(const struct state *state, int var, void *host);
void state_write(struct state *state, int var, const void *host);

/* backend_map() of a variable, and its end. */
void *state_map(const struct state *state, int var, enum backend_access access);
void state_unmap(const struct state *state, int var, enum backend_access access, void *host);

#endif

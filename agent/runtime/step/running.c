/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Statistics are folded in the order of the micro-batches, not of the ranks, so that the buffers
 * do not depend on the number of ranks.
 */
#include "agent/runtime/step/running.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"

/* Operands of BATCH_NORM (op.h). */
#define INPUT_MEAN  3
#define INPUT_TOTAL 6
#define OUTPUT_MEAN 3

static void add_place(struct running *running, const struct program *program,
                      const struct program_op *op, int which)
{
    struct running_place *place = &running->places[running->place_count++];

    *place = (struct running_place){.stat = op->outputs[OUTPUT_MEAN + which],
                                    .buffer = op->inputs[INPUT_MEAN + which],
                                    .first = running->row,
                                    .momentum = (float)op->attributes.momentum};
    place->count = program_var_elements(&program->vars[place->stat]);
    running->row += place->count;
}

void running_init(struct running *running, const struct program *program)
{
    *running = (struct running){0};
    running->places = calloc((size_t)program->op_count * 2 + 1, sizeof(*running->places));
    fleet_assert(running->places != NULL);
    for (int i = 0; i < program->op_count; i++) {
        const struct program_op *op = &program->ops[i];
        if (op->kind == OP_BATCH_NORM && op->output_count > OUTPUT_MEAN + 1 &&
            op->outputs[OUTPUT_MEAN] != PROGRAM_NONE) { /* absent where it is recomputed */
            add_place(running, program, op, 0);
            add_place(running, program, op, 1);
            running->is_shared |= op->input_count > INPUT_TOTAL;
        }
    }
}

void running_release(struct running *running)
{
    free(running->places);
    *running = (struct running){0};
}

void running_take(const struct running *running, const struct state *state, float *row)
{
    for (int i = 0; i < running->place_count; i++) {
        const struct running_place *place = &running->places[i];
        state_read_later(state, place->stat, row + place->first);
    }
}

void running_pass_over(const struct running *running, float *row)
{
    for (int64_t i = 0; i < running->row; i++)
        row[i] = NAN;
}

static bool is_finite_row(const struct running *running, const float *row)
{
    for (int64_t i = 0; i < running->row; i++)
        if (!isfinite(row[i]))
            return false;
    return true;
}

static void fold_row(const struct running *running, struct state *state, const float *row)
{
    for (int i = 0; i < running->place_count; i++) {
        const struct running_place *place = &running->places[i];
        float *buffer = state_map(state, place->buffer, BACKEND_CHANGE), momentum = place->momentum;
        for (int64_t j = 0; j < place->count; j++)
            buffer[j] = (1.0f - momentum) * buffer[j] + momentum * row[place->first + j];
        state_unmap(state, place->buffer, BACKEND_CHANGE, buffer);
    }
}

void running_fold(const struct running *running, struct state *state, const float *rows,
                  int64_t stride, int64_t count)
{
    for (int64_t i = 0; i < count && running->row > 0; i++)
        if (is_finite_row(running, rows + i * stride))
            fold_row(running, state, rows + i * stride);
}

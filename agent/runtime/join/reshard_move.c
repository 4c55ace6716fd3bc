/* SPDX-License-Identifier: Apache-2.0 */

/* From the memory of ranks to the memory of ranks: messages, in batches of a bounded size. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "agent/runtime/join/reshard_internal.h"
#include "agent/runtime/trainer.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"

#define BATCH_BYTES ((size_t)32 << 20) /* of all ranks, in flight at a time */

/* A piece of memory that takes part in the batch at work. */
struct piece {
    float *memory;
    int64_t count;
    enum backend_access access;
};

struct move {
    struct trainer *trainer;
    const struct reshard_peer *peers;
    struct reshard_maps maps;
    struct reshard_side from, to;  /* own memory, before and after */
    struct comm_message *messages; /* [count] of the batch */
    struct piece *pieces;          /* [count] */
    int count, capacity;
    size_t batch_bytes; /* of all ranks */
    size_t moved_bytes; /* of all ranks, in all */
};

static float *memory_of(const struct move *move, const struct reshard_side *side, int var, int slot)
{
    const struct program_var *of = &move->trainer->job.plan.program.vars[var];

    if (slot >= reshard_slots(move->trainer))
        return (float *)move->trainer->state.bases.segment[MEMORY_PARAMETERS] + of->flat_offset;
    return side->states[slot] +
           ownership_place(side->map, reshard_spaces[slot], of->flat_offset, side->replica);
}

static void add_message(struct move *move, int peer, bool is_receive, float *memory, int64_t count)
{
    struct backend *backend = move->trainer->state.backend;
    enum backend_access access = is_receive ? BACKEND_WRITE : BACKEND_READ;
    void *host = backend_map(backend, memory, (size_t)count * sizeof(*memory), access);

    if (move->count == move->capacity) {
        move->capacity = move->capacity ? 2 * move->capacity : 64;
        move->messages = realloc(move->messages, (size_t)move->capacity * sizeof(*move->messages));
        move->pieces = realloc(move->pieces, (size_t)move->capacity * sizeof(*move->pieces));
        fleet_assert(move->messages && move->pieces);
    }
    move->pieces[move->count] = (struct piece){memory, count, access};
    move->messages[move->count++] = (struct comm_message){
        .peer = peer, .is_receive = is_receive, .data = host, .count = count, .type = COMM_FP32};
}

/* Every rank runs the same batches, with messages or without. */
static int flush(struct move *move, struct fleet_error *err)
{
    struct trainer *trainer = move->trainer;
    struct backend *backend = trainer->state.backend;
    int rc = 0;

    if (move->batch_bytes > 0)
        rc = comm_messages(trainer->net.cell, move->messages, move->count,
                           trainer_deadline_ms(trainer), err);
    for (int i = 0; i < move->count; i++)
        backend_unmap(backend, move->pieces[i].memory,
                      (size_t)move->pieces[i].count * sizeof(float), move->pieces[i].access,
                      move->messages[i].data);
    move->moved_bytes += move->batch_bytes;
    move->count = 0;
    move->batch_bytes = 0;
    return rc;
}

static void copy_own(struct move *move, int var, int slot, int64_t count)
{
    struct backend *backend = move->trainer->state.backend;
    float *from = memory_of(move, &move->from, var, slot);
    float *to = memory_of(move, &move->to, var, slot);
    size_t bytes = (size_t)count * sizeof(*from);
    void *read = backend_map(backend, from, bytes, BACKEND_READ);
    void *written = backend_map(backend, to, bytes, BACKEND_WRITE);

    memcpy(written, read, bytes);
    backend_unmap(backend, to, bytes, BACKEND_WRITE, written);
    backend_unmap(backend, from, bytes, BACKEND_READ, read);
}

/* One space of the parameter to rank r, which has not got it. */
static void move_to(struct move *move, int var, int slot, int source, int r)
{
    const struct program_var *of = &move->trainer->job.plan.program.vars[var];
    int64_t count = program_var_elements(of);
    int own = move->trainer->generation.place.replica;

    move->batch_bytes += (size_t)count * sizeof(float);
    if (own == source)
        add_message(move, r, false, memory_of(move, &move->from, var, slot), count);
    else if (own == r)
        add_message(move, source, true, memory_of(move, &move->to, var, slot), count);
}

/* All spaces of one parameter, to all ranks that hold it from now on. */
static int move_parameter(struct move *move, int var, struct fleet_error *err)
{
    const struct program *program = &move->trainer->job.plan.program;
    int64_t element = program->vars[var].flat_offset;
    int64_t count = program_var_elements(&program->vars[var]);
    int source = reshard_source_of(&move->maps, move->peers, element);
    int own = move->trainer->generation.place.replica;

    for (int r = 0; r < move->maps.world; r++) {
        if (!reshard_holds(move->to.map, element, r))
            continue;
        for (int slot = 0; slot < RESHARD_SLOTS; slot++) {
            if (slot != RESHARD_VALUES && program_state_of(program, var, slot) == PROGRAM_NONE)
                continue;
            if (!reshard_has(&move->maps, move->peers, r, element))
                move_to(move, var, slot, source, r);
            else if (r == own && slot < reshard_slots(move->trainer))
                copy_own(move, var, slot, count);
        }
    }
    return move->batch_bytes >= BATCH_BYTES ? flush(move, err) : 0;
}

static int move_all(struct move *move, struct fleet_error *err)
{
    const struct program *program = &move->trainer->job.plan.program;
    int rc = 0;

    reshard_maps_init(&move->maps, move->trainer, move->peers);
    for (int v = 0; v < program->var_count && rc == 0; v++)
        if (program->vars[v].role == PROGRAM_ROLE_PARAMETER)
            rc = move_parameter(move, v, err);
    if (rc == 0)
        rc = flush(move, err);
    reshard_maps_release(&move->maps);
    free(move->messages);
    free(move->pieces);
    return rc < 0 ? fleet_error_wrap(err, "move the divided state") : 0;
}

int reshard_move(struct trainer *trainer, const struct reshard_peer *peers,
                 const struct reshard_side *from, const struct reshard_side *to,
                 struct fleet_error *err)
{
    struct move move = {.trainer = trainer, .peers = peers, .from = *from, .to = *to};
    int rc = move_all(&move, err);

    if (rc == 0 && move.moved_bytes > 0 && trainer->generation.place.replica == 0)
        trainer_note(trainer, "%zu bytes of divided optimizer state have changed their owner",
                     move.moved_bytes);
    return rc;
}

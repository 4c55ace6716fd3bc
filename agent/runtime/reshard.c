/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/reshard.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "agent/runtime/trainer.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"

#define BATCH_BYTES ((size_t)32 << 20) /* of all ranks, in flight at a time */
#define SLOTS       2                  /* optimizer states of a parameter, at most */
#define SLOT_VALUES (-1)               /* the parameter itself */
#define READ_MS     3600e3 /* a disk may be slow; a rank that dies breaks the connection */

static const enum memory_segment segments[SLOTS] = {MEMORY_STATE0, MEMORY_STATE1};
static const enum ownership_space spaces[SLOTS] = {OWNERSHIP_STATE0, OWNERSHIP_STATE1};

/* The divided spaces of one rank: its map, and its memory. */
struct side {
    const struct ownership *map;
    int replica;
    float *states[SLOTS];
};

/* ---- who has what ---------------------------------------------------------------------------- */

struct reshard_peer reshard_own(const struct trainer *trainer)
{
    const struct placement *placement = &trainer->placement;

    if (trainer->progress.committed == TRAINER_NO_STATE || placement->replica < 0)
        return (struct reshard_peer){.source = RESHARD_NONE};
    return (struct reshard_peer){.source = RESHARD_HELD,
                                 .replicas = placement->map.replicas,
                                 .shards = placement->map.shards,
                                 .replica = placement->replica};
}

struct fleet_part reshard_part(const struct trainer *trainer)
{
    struct reshard_peer own = reshard_own(trainer);
    const struct ownership *map = &trainer->placement.map;
    struct fleet_part part = {.lost = trainer->placement.lost};

    if (own.source == RESHARD_HELD && map->shards > 1) {
        part.division = (struct fleet_division){map->replicas, map->shards, map->has_buddies};
        part.first = trainer->placement.replica;
        part.count = 1;
    }
    return part;
}

/* The maps of the memory that the peers hold; few differ. */
struct maps {
    struct ownership *maps; /* [world]; replicas 0: that of another rank is the same */
    int *of;                /* [world] index into maps, -1 = holds nothing */
    int world;
};

static void maps_init(struct maps *maps, const struct trainer *trainer,
                      const struct reshard_peer *peers)
{
    int world = trainer->generation.replicas;

    *maps = (struct maps){.maps = calloc((size_t)world, sizeof(*maps->maps)),
                          .of = calloc((size_t)world, sizeof(*maps->of)),
                          .world = world};
    fleet_assert(maps->maps && maps->of);
    for (int r = 0; r < world; r++) {
        int same = 0;
        maps->of[r] = -1;
        if (peers[r].source != RESHARD_HELD)
            continue;
        while (same < r && (maps->maps[same].replicas != peers[r].replicas ||
                            maps->maps[same].shards != peers[r].shards))
            same++;
        maps->of[r] = same;
        if (same == r)
            plan_ownership(&trainer->job.plan, (int)peers[r].replicas, (int)peers[r].shards,
                           &maps->maps[r]);
    }
}

static void maps_release(struct maps *maps)
{
    for (int r = 0; r < maps->world; r++)
        ownership_release(&maps->maps[r]);
    free(maps->maps);
    free(maps->of);
}

/* By this map the replica holds what is divided of the parameter at `element`. */
static bool holds_element(const struct ownership *map, int64_t element, int replica)
{
    const struct ownership_line *line = ownership_part(map, element);

    return !line || ownership_holds(map, line, replica);
}

static bool has_element(const struct maps *maps, const struct reshard_peer *peers, int r,
                        int64_t element)
{
    return maps->of[r] >= 0 &&
           holds_element(&maps->maps[maps->of[r]], element, (int)peers[r].replica);
}

/* The lowest rank that holds it, or -1. */
static int source_of(const struct maps *maps, const struct reshard_peer *peers, int64_t element)
{
    for (int r = 0; r < maps->world; r++)
        if (has_element(maps, peers, r, element))
            return r;
    return -1;
}

int reshard_lost(const struct trainer *trainer, const struct reshard_peer *peers)
{
    const struct program *program = &trainer->job.plan.program;
    struct maps maps;
    int lost = -1;

    if (plan_shards(&trainer->job.plan) == 1 && trainer->placement.map.shards == 1)
        return -1;
    for (int r = 0; r < trainer->generation.replicas; r++)
        if (peers[r].source == RESHARD_ZERO || peers[r].source == RESHARD_FILES)
            return -1;
    maps_init(&maps, trainer, peers);
    for (int v = 0; v < program->var_count && lost < 0; v++) {
        const struct program_var *var = &program->vars[v];
        if (var->role != PROGRAM_ROLE_PARAMETER || source_of(&maps, peers, var->flat_offset) >= 0)
            continue;
        lost = 0;
        for (int r = 0; r < maps.world; r++)
            if (maps.of[r] >= 0)
                lost = ownership_part(&maps.maps[maps.of[r]], var->flat_offset)->shard;
    }
    maps_release(&maps);
    return lost;
}

/* ---- moving ---------------------------------------------------------------------------------- */

/* A piece of memory that takes part in the batch at work. */
struct piece {
    float *memory;
    int64_t count;
    enum backend_access access;
};

struct move {
    struct trainer *trainer;
    const struct reshard_peer *peers;
    struct maps maps;
    struct side from, to;          /* own memory, before and after */
    struct comm_message *messages; /* [count] of the batch */
    struct piece *pieces;          /* [count] */
    int count, capacity;
    size_t batch_bytes; /* of all ranks */
    size_t moved_bytes; /* of all ranks, in all */
};

static float *memory_of(const struct move *move, const struct side *side, int var, int slot)
{
    const struct program_var *of = &move->trainer->job.plan.program.vars[var];

    if (slot == SLOT_VALUES)
        return (float *)move->trainer->state.bases.segment[MEMORY_PARAMETERS] + of->flat_offset;
    return side->states[slot] +
           ownership_place(side->map, spaces[slot], of->flat_offset, side->replica);
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
    int source = source_of(&move->maps, move->peers, element);
    int own = move->trainer->generation.place.replica;

    for (int r = 0; r < move->maps.world; r++) {
        if (!holds_element(move->to.map, element, r))
            continue;
        for (int slot = SLOT_VALUES; slot < program->state_count; slot++) {
            if (slot >= 0 && program_state_of(program, var, slot) == PROGRAM_NONE)
                continue;
            if (!has_element(&move->maps, move->peers, r, element))
                move_to(move, var, slot, source, r);
            else if (r == own && slot >= 0)
                copy_own(move, var, slot, count);
        }
    }
    return move->batch_bytes >= BATCH_BYTES ? flush(move, err) : 0;
}

static int move_all(struct move *move, struct fleet_error *err)
{
    const struct program *program = &move->trainer->job.plan.program;
    int rc = 0;

    maps_init(&move->maps, move->trainer, move->peers);
    for (int v = 0; v < program->var_count && rc == 0; v++)
        if (program->vars[v].role == PROGRAM_ROLE_PARAMETER)
            rc = move_parameter(move, v, err);
    if (rc == 0)
        rc = flush(move, err);
    maps_release(&move->maps);
    free(move->messages);
    free(move->pieces);
    return rc < 0 ? fleet_error_wrap(err, "move the divided state") : 0;
}

/* ---- from files ------------------------------------------------------------------------------ */

/* Bytes of a space that rank r holds. */
static size_t held_bytes(const struct trainer *trainer, const struct ownership *map, int slot,
                         int r)
{
    const struct program *program = &trainer->job.plan.program;

    if (slot >= program->state_count)
        return 0;
    return (size_t)ownership_elements(map, spaces[slot], program->flat_count, r) * sizeof(float);
}

/* One rank's part from the first rank, which has read it into `read`, to its own memory. */
static int hand_out(struct trainer *trainer, const struct side *to, int r, float *const *read,
                    struct fleet_error *err)
{
    struct backend *backend = trainer->state.backend;
    int own = trainer->generation.place.replica, rc, count = 0;
    struct comm_message messages[SLOTS];
    void *hosts[SLOTS] = {NULL};

    for (int slot = 0; slot < SLOTS && (own == 0 || own == r) && r > 0; slot++) {
        size_t bytes = held_bytes(trainer, to->map, slot, r);
        if (own == r)
            hosts[slot] = backend_map(backend, to->states[slot], bytes, BACKEND_WRITE);
        messages[count++] = (struct comm_message){.peer = own == r ? 0 : r,
                                                  .is_receive = own == r,
                                                  .data = own == r ? hosts[slot] : read[slot],
                                                  .count = (int64_t)bytes,
                                                  .type = COMM_UINT8};
    }
    rc = comm_messages(trainer->net.cell, messages, count, fleet_monotonic_ms() + READ_MS, err);
    for (int slot = 0; slot < SLOTS; slot++)
        if (hosts[slot])
            backend_unmap(backend, to->states[slot], held_bytes(trainer, to->map, slot, r),
                          BACKEND_WRITE, hosts[slot]);
    return rc;
}

/* On the first rank: rank r's part from the files, into its own memory or into `read`. */
static int read_part(struct trainer *trainer, const struct side *to, int r, float *const *read,
                     struct fleet_error *err)
{
    if (trainer->generation.place.replica != 0)
        return 0;
    return save_read_divided(trainer, to->map, r, r == 0 ? trainer->state.backend : NULL,
                             r == 0 ? to->states : read, err);
}

/* The first rank needs room for one more rank's part meanwhile. */
static int read_all(struct trainer *trainer, const struct side *to, struct fleet_error *err)
{
    int heaviest = ownership_heaviest(to->map), rc = 0;
    float *read[SLOTS] = {NULL};

    for (int slot = 0; slot < SLOTS && trainer->generation.place.replica == 0; slot++) {
        read[slot] = malloc(held_bytes(trainer, to->map, slot, heaviest) + 1);
        fleet_assert(read[slot] != NULL);
    }
    for (int r = 0; r < trainer->generation.replicas && rc == 0; r++) {
        rc = read_part(trainer, to, r, read, err);
        if (rc == 0)
            rc = hand_out(trainer, to, r, read, err);
    }
    for (int slot = 0; slot < SLOTS; slot++)
        free(read[slot]);
    return rc < 0 ? fleet_error_wrap(err, "read the divided state") : 0;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static struct side side_of(const struct placement *placement, void *const *states)
{
    struct side side = {.map = &placement->map, .replica = placement->replica};

    for (int slot = 0; slot < SLOTS; slot++)
        side.states[slot] = states[slot];
    return side;
}

static struct side own_side(const struct trainer *trainer)
{
    void *const states[SLOTS] = {trainer->state.bases.segment[segments[0]],
                                 trainer->state.bases.segment[segments[1]]};

    return side_of(&trainer->placement, states);
}

static int fill(struct trainer *trainer, const struct reshard_peer *peers, const struct side *to,
                struct fleet_error *err)
{
    struct move move = {.trainer = trainer, .peers = peers, .from = own_side(trainer), .to = *to};
    int rc;

    for (int r = 0; r < trainer->generation.replicas; r++) {
        if (peers[r].source == RESHARD_ZERO)
            return 0; /* as it was allocated */
        if (peers[r].source == RESHARD_FILES)
            return read_all(trainer, to, err);
    }
    rc = move_all(&move, err);
    if (rc == 0 && move.moved_bytes > 0 && trainer->generation.place.replica == 0)
        trainer_note(trainer, "%zu bytes of divided optimizer state have changed their owner",
                     move.moved_bytes);
    return rc;
}

/* Nothing to bring anywhere: all hold all, before and after. */
static bool is_as_before(const struct trainer *trainer, const struct placement *next)
{
    const struct memory_plan *old = trainer->state.memory;

    return next->map.shards == 1 && trainer->placement.map.shards == 1 &&
           memcmp(old->bytes, next->memory.bytes, sizeof(old->bytes)) == 0;
}

/* The next placement is the trainer's; its old memory, which a checkpoint may be reading, goes. */
static void adopt(struct trainer *trainer, struct placement *next, void *const *states)
{
    if (states) {
        save_finish(trainer);
        state_replace(&trainer->state, segments, states, SLOTS);
    }
    placement_release(&trainer->placement);
    trainer->placement = *next;
}

static int allocate(struct trainer *trainer, const struct placement *next, void **states,
                    struct fleet_error *err)
{
    for (int slot = 0; slot < SLOTS; slot++) {
        states[slot] = state_allocate(&trainer->state, next->memory.bytes[segments[slot]], err);
        if (!states[slot])
            return err->code;
    }
    return 0;
}

/*
 * A rank that had nothing takes the new places at once, the others when all have theirs: so the old
 * places are there until the new ones are there.
 */
static int take_turns(struct trainer *trainer, struct placement *next, void *const *states,
                      bool had_none, struct fleet_error *err)
{
    int rc;

    if (had_none)
        adopt(trainer, next, states);
    rc = comm_barrier(trainer->net.cell, fleet_monotonic_ms() + READ_MS, err);
    if (rc == 0 && !had_none)
        adopt(trainer, next, states);
    return rc < 0 ? fleet_error_wrap(err, "move the divided state") : 0;
}

static void give_back(struct trainer *trainer, struct placement *next, void *const *states)
{
    for (int slot = 0; slot < SLOTS; slot++)
        state_deallocate(&trainer->state, states[slot]);
    placement_release(next);
}

int reshard_apply(struct trainer *trainer, const struct reshard_peer *peers, bool *out_has_moved,
                  struct fleet_error *err)
{
    bool had_none = peers[trainer->generation.place.replica].source != RESHARD_HELD;
    struct placement next;
    void *states[SLOTS] = {NULL};
    struct side to;
    int rc = placement_build(&trainer->job.plan, trainer->generation.replicas,
                             trainer->generation.place.replica, &next, err);

    *out_has_moved = false;
    if (rc < 0)
        return rc;
    if (is_as_before(trainer, &next)) {
        adopt(trainer, &next, NULL);
        return 0;
    }
    rc = allocate(trainer, &next, states, err);
    to = side_of(&next, states);
    if (rc == 0)
        rc = fill(trainer, peers, &to, err);
    if (rc < 0) {
        give_back(trainer, &next, states);
        return rc;
    }
    rc = take_turns(trainer, &next, states, had_none, err);
    *out_has_moved = rc == 0 || had_none;
    if (!*out_has_moved)
        give_back(trainer, &next, states);
    return rc;
}

int reshard_undivided(struct trainer *trainer, struct fleet_error *err)
{
    void *states[SLOTS] = {NULL};
    struct placement next;
    int rc;

    if (trainer->generation.replicas == 1 || trainer->placement.map.shards == 1 ||
        plan_shards(&trainer->job.plan) > 1)
        return 0;
    rc = placement_build(&trainer->job.plan, trainer->generation.replicas,
                         trainer->generation.place.replica, &next, err);
    if (rc < 0)
        return rc;
    rc = allocate(trainer, &next, states, err);
    if (rc < 0) {
        give_back(trainer, &next, states);
        return rc;
    }
    adopt(trainer, &next, states);
    executor_free(trainer->device.executor); /* it knows the old places */
    trainer->device.executor = NULL;
    return 0;
}

int reshard_read(struct trainer *trainer, struct fleet_error *err)
{
    struct side own = own_side(trainer);

    return own.map->shards > 1 ? read_all(trainer, &own, err) : 0;
}

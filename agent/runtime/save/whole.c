/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/save/whole.h"

#include <stdlib.h>
#include <string.h>

#include "agent/runtime/checkpoint/checkpoint.h"
#include "agent/runtime/trainer.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/program/slice.h"

/* The rank's own variable for one of the whole program; PROGRAM_NONE: other stages have it. */
static int own_var(const struct trainer *trainer, int whole)
{
    const struct plan *plan = &trainer->job.plan;

    return plan->is_cut ? program_find_var(&plan->program, plan->whole.vars[whole].name) : whole;
}

/* Is cell `cell` of the stage that answers for a tensor? Of several, that is the first. */
static bool is_of_stage(const struct trainer *trainer, int whole, int cell)
{
    const struct plan *plan = &trainer->job.plan;

    return !plan->is_cut || plan->whole.vars[whole].stage ==
                                cells_coordinate(&plan->topology, cell, TOPOLOGY_PIPELINE);
}

/* Does cell `cell` give something of a tensor to all? One that is not divided comes from the first
 * cell of its stage. Ranks that share sequences have the same tensors: the first ones give them. */
static bool gives_part(const struct trainer *trainer, int whole, const struct program_var *var,
                       int cell)
{
    const struct topology *grid = &trainer->job.plan.topology;

    return is_of_stage(trainer, whole, cell) &&
           cells_coordinate(grid, cell, TOPOLOGY_SEQUENCE) == 0 &&
           (var->slice.parts > 0 || cells_coordinate(grid, cell, TOPOLOGY_MODEL) == 0);
}

/* The elements of a part to their places in the whole tensor. */
static void scatter(const struct program_var *part, const float *from, float *to)
{
    int64_t count = program_var_elements(part), run;

    for (int64_t done = 0; done < count; done += run) {
        int64_t place = slice_place(part, done, &run);
        memcpy(to + place, from + done, (size_t)run * sizeof(*to));
    }
}

/* The part that cell `cell` has of a tensor; this rank has `var` of it. */
static struct program_var part_of_cell(const struct trainer *trainer, const struct program_var *var,
                                       int cell)
{
    const struct topology *grid = &trainer->job.plan.topology;

    return slice_of_rank(var, grid->degree[TOPOLOGY_MODEL],
                         cells_coordinate(grid, cell, TOPOLOGY_MODEL));
}

/* `var`: this rank's, or the whole tensor if other stages have it; then `mine` is NULL. */
static int gather(struct trainer *trainer, int whole, const struct program_var *var,
                  const float *mine, float *out, struct fleet_error *err)
{
    struct comm *comm = trainer->net.groups.communication.groups[EXCHANGE_CELLS];
    int cells = cells_count(&trainer->job.plan.topology);
    FLEET_AUTO_FREE float *parts = NULL;
    FLEET_AUTO_FREE size_t *bytes = calloc((size_t)cells, sizeof(*bytes));
    const float *from;
    size_t sum = 0;

    fleet_assert(bytes != NULL);
    for (int cell = 0; cell < cells; cell++) {
        struct program_var part = part_of_cell(trainer, var, cell);
        if (gives_part(trainer, whole, var, cell))
            bytes[cell] = (size_t)program_var_elements(&part) * sizeof(*parts);
        sum += bytes[cell];
    }
    parts = malloc(sum + 1);
    fleet_assert(parts != NULL);
    if (comm_all_gather_varying(comm, mine, bytes, parts, trainer_deadline_ms(trainer), err) < 0)
        return fleet_error_wrap(err, "gather %s", var->name);
    from = parts;
    for (int cell = 0; cell < cells; cell++) {
        struct program_var part = part_of_cell(trainer, var, cell);
        if (bytes[cell] > 0)
            scatter(&part, from, out);
        from += bytes[cell] / sizeof(*from);
    }
    return 0;
}

/* The replica that owns a divided parameter sends it to the others of its cell. */
static int share_divided(struct trainer *trainer, const struct program_var *var, const float *flat,
                         float *out, struct fleet_error *err)
{
    const struct placement *placement = &trainer->placement;
    const struct ownership_line *line = ownership_part(&placement->map, var->flat_offset);
    int64_t at = ownership_place(&placement->map, OWNERSHIP_PARAMETERS, var->flat_offset,
                                 placement->replica);
    size_t bytes = (size_t)program_var_elements(var) * sizeof(*out);
    int owner = ownership_owner(&placement->map, line, 0);

    if (owner == placement->replica)
        trainer->state.backend->vtable->copy_out(trainer->state.backend, out, flat + at, bytes);
    if (comm_broadcast(trainer->net.cell, out, bytes, owner, trainer_deadline_ms(trainer), err) < 0)
        return fleet_error_wrap(err, "gather %s", var->name);
    return 0;
}

/* What the cell has of a divided parameter, then what other cells have of it. */
static int gather_divided(struct trainer *trainer, int whole, const struct program_var *var,
                          bool is_own, const float *flat, float *out, struct fleet_error *err)
{
    bool is_all = var->slice.parts == 0 && !trainer->job.plan.is_cut;
    FLEET_AUTO_FREE float *part = NULL;
    int rc = 0;

    if (is_all)
        return share_divided(trainer, var, flat, out, err);
    if (is_own) {
        part = malloc((size_t)program_var_elements(var) * sizeof(*part) + 1);
        fleet_assert(part != NULL);
        rc = share_divided(trainer, var, flat, part, err);
    }
    return rc < 0 ? rc : gather(trainer, whole, var, part, out, err);
}

/* Ranks of one cell hold parts of the parameters. */
static bool are_parameters_divided(const struct trainer *trainer)
{
    return placement_division(trainer, trainer->placement.map.shards) == STATE_PARAMETERS_DIVIDED;
}

int whole_gather(struct trainer *trainer, int var, const float *flat, float *out,
                 struct fleet_error *err)
{
    int own = own_var(trainer, var), rc = 0;
    const struct program_var *of = own == PROGRAM_NONE ? &plan_whole(&trainer->job.plan)->vars[var]
                                                       : &trainer->job.plan.program.vars[own];
    struct backend *backend = trainer->state.backend;
    float *device = own == PROGRAM_NONE ? NULL : (float *)flat + of->flat_offset, *mine = NULL;
    size_t bytes = (size_t)program_var_elements(of) * sizeof(*device);

    if (are_parameters_divided(trainer))
        return gather_divided(trainer, var, of, own != PROGRAM_NONE, flat, out, err);
    if (device)
        mine = backend_map(backend, device, bytes, BACKEND_READ);
    if (of->slice.parts == 0 && !trainer->job.plan.is_cut)
        memcpy(out, mine, bytes);
    else
        rc = gather(trainer, var, of, mine, out, err);
    if (device)
        backend_unmap(backend, device, bytes, BACKEND_READ, mine);
    return rc;
}

static int digest_parameter(struct trainer *trainer, int var, struct fleet_sha256 *sha,
                            struct fleet_error *err)
{
    size_t bytes =
        (size_t)slice_whole_elements(&plan_whole(&trainer->job.plan)->vars[var]) * sizeof(float);
    FLEET_AUTO_FREE float *whole = malloc(bytes + 1);
    int rc;

    fleet_assert(whole != NULL);
    rc = whole_gather(trainer, var, trainer->state.bases.segment[MEMORY_PARAMETERS], whole, err);
    if (rc == 0)
        fleet_sha256_update(sha, whole, bytes);
    return rc;
}

int whole_weights_sha256(struct trainer *trainer, char out[FLEET_SHA256_HEX_SIZE],
                         struct fleet_error *err)
{
    const struct program *program = plan_whole(&trainer->job.plan);
    FLEET_AUTO_FREE int *parameters = NULL;
    uint8_t digest[FLEET_SHA256_SIZE];
    struct fleet_sha256 *sha;
    int count, rc = 0;

    if (cells_count(&trainer->job.plan.topology) == 1 && !are_parameters_divided(trainer)) {
        checkpoint_weights_sha256(program, trainer->state.backend,
                                  trainer->state.bases.segment[MEMORY_PARAMETERS], out);
        return 0;
    }
    sha = fleet_sha256_new();
    count = program_parameters(program, false, &parameters);
    for (int i = 0; i < count && rc == 0; i++)
        rc = digest_parameter(trainer, parameters[i], sha, err);
    fleet_sha256_finish(sha, digest);
    fleet_hex_encode(digest, sizeof(digest), out);
    return rc;
}

/* ---- a checkpoint ---------------------------------------------------------------------------- */

static const enum ownership_space spaces[WHOLE_SPACES] = {OWNERSHIP_PARAMETERS, OWNERSHIP_STATE0,
                                                          OWNERSHIP_STATE1};
static const enum memory_segment segments[WHOLE_SPACES] = {MEMORY_PARAMETERS, MEMORY_STATE0,
                                                           MEMORY_STATE1};

void whole_release(struct whole *whole)
{
    if (!whole->is_made)
        return;
    for (int i = 0; i < WHOLE_SPACES; i++)
        free(whole->spaces[i]);
    ownership_release(&whole->map);
    program_release(&whole->program);
    *whole = (struct whole){0};
}

/* The same variables with the shapes of whole tensors. */
static void make_program(const struct program *program, struct program *out)
{
    program_copy(program, out);
    for (int v = 0; v < out->var_count; v++) {
        struct program_var *var = &out->vars[v];
        const struct program_var *of = var->of >= 0 ? &program->vars[var->of] : &program->vars[v];
        if (of->role != PROGRAM_ROLE_PARAMETER)
            continue;
        slice_whole_shape(of, var->shape);
        var->slice = (struct program_slice){0};
    }
    program_layout(out);
}

/* Its program and map, and memory for what this rank writes. */
static void begin(const struct trainer *trainer, struct whole *whole)
{
    const struct plan *plan = &trainer->job.plan;
    int cell = trainer->generation.place.cell, cells = cells_count(&plan->topology);
    int stages = plan->topology.degree[TOPOLOGY_PIPELINE];
    struct ownership_rule rule = {.replicas = cells, .shards = cells, .greedy = true};

    whole_release(whole);
    whole->is_made = true;
    make_program(plan_whole(plan), &whole->program);
    for (int i = 0; i < WHOLE_SPACES; i++)
        rule.divided |= OWNERSHIP_BIT(spaces[i]);
    if (plan->is_cut)
        ownership_build_stages(&whole->program, stages, cells / stages, rule.divided, &whole->map);
    else
        ownership_build(&whole->program, &rule, &whole->map);
    for (int i = 0; i <= plan->program.state_count && trainer->generation.place.replica == 0; i++) {
        size_t bytes =
            (size_t)ownership_elements(&whole->map, spaces[i], whole->program.flat_count, cell) *
            sizeof(float);
        whole->spaces[i] = calloc(1, bytes + 1);
        fleet_assert(whole->spaces[i] != NULL);
        whole->bytes += bytes;
    }
}

/* One tensor of one space on its way to the rank that writes it. */
struct collection {
    struct trainer *trainer;
    int whole;                     /* of plan_whole() */
    const struct program_var *var; /* our part; the whole tensor if another stage has it */
    int writer;                    /* cell; its rank of the first replica */
    int replica;                   /* of the ranks that send: they own the space's line */
    float *mine, *out;             /* device and host memory; NULL: not ours */
};

static int rank_of(const struct collection *c, int cell, int replica)
{
    return cells_rank(&c->trainer->job.plan.topology, (struct cell_place){cell, replica});
}

/* A tensor that is not divided comes from the writer's cell alone. Ranks that share sequences have
 * the same parts: those of the writer's place send them. */
static bool collects_from(const struct collection *c, int cell)
{
    const struct topology *grid = &c->trainer->job.plan.topology;

    return is_of_stage(c->trainer, c->whole, cell) &&
           cells_coordinate(grid, cell, TOPOLOGY_SEQUENCE) ==
               cells_coordinate(grid, c->writer, TOPOLOGY_SEQUENCE) &&
           (c->var->slice.parts > 0 || cell == c->writer);
}

/* On the writer: a message from each other rank that has a part, or the part itself. Each is as
 * large as the tensor at most. */
static int expect_parts(const struct collection *c, float *parts, const float *mine,
                        struct comm_message *messages)
{
    int cells = cells_count(&c->trainer->job.plan.topology), count = 0;
    int64_t whole = slice_whole_elements(c->var);

    for (int cell = 0; cell < cells; cell++) {
        struct program_var part = part_of_cell(c->trainer, c->var, cell);
        int64_t elements = program_var_elements(&part);
        int from = rank_of(c, cell, c->replica);
        if (!collects_from(c, cell))
            continue;
        if (from == c->trainer->generation.rank)
            memcpy(parts + cell * whole, mine, (size_t)elements * sizeof(*mine));
        else
            messages[count++] = (struct comm_message){.peer = from,
                                                      .is_receive = true,
                                                      .data = parts + cell * whole,
                                                      .count = elements,
                                                      .type = COMM_FP32};
    }
    return count;
}

static bool sends(const struct collection *c)
{
    const struct cell_place *place = &c->trainer->generation.place;

    return place->replica == c->replica && collects_from(c, place->cell) &&
           rank_of(c, c->writer, 0) != c->trainer->generation.rank;
}

/* All ranks call it; only some have messages. */
static int collect(const struct collection *c, struct fleet_error *err)
{
    struct trainer *trainer = c->trainer;
    int cells = cells_count(&trainer->job.plan.topology), count = 0, rc;
    size_t bytes = (size_t)program_var_elements(c->var) * sizeof(float);
    size_t whole = (size_t)slice_whole_elements(c->var) * sizeof(float);
    FLEET_AUTO_FREE struct comm_message *messages = calloc((size_t)cells, sizeof(*messages));
    FLEET_AUTO_FREE float *parts = c->out ? malloc((size_t)cells * whole + 1) : NULL;
    float *mine =
        c->mine ? backend_map(trainer->state.backend, c->mine, bytes, BACKEND_READ) : NULL;

    fleet_assert(messages && (parts || !c->out));
    if (c->out)
        count = expect_parts(c, parts, mine, messages);
    else if (sends(c))
        messages[count++] = (struct comm_message){.peer = rank_of(c, c->writer, 0),
                                                  .data = mine,
                                                  .count = program_var_elements(c->var),
                                                  .type = COMM_FP32};
    rc = comm_messages(trainer->net.comm, messages, count, trainer_deadline_ms(trainer), err);
    if (mine)
        backend_unmap(trainer->state.backend, c->mine, bytes, BACKEND_READ, mine);
    for (int cell = 0; cell < cells && c->out && rc == 0; cell++) {
        struct program_var part = part_of_cell(c->trainer, c->var, cell);
        if (collects_from(c, cell))
            scatter(&part, parts + (size_t)cell * (whole / sizeof(float)), c->out);
    }
    return rc < 0 ? fleet_error_wrap(err, "collect %s", c->var->name) : 0;
}

/* `var` of the whole program. The ranks of a stage write its tensors. Ranks of other stages have
 * nothing to do with it. */
static int collect_tensor(struct trainer *trainer, struct whole *whole, int var, int space,
                          struct fleet_error *err)
{
    int own = own_var(trainer, var);
    const struct program_var *of =
        own == PROGRAM_NONE ? &whole->program.vars[var] : &trainer->job.plan.program.vars[own];
    const struct ownership *map = &trainer->placement.map;
    const struct cell_place *place = &trainer->generation.place;
    int64_t whole_at = whole->program.vars[var].flat_offset;
    struct collection c = {.trainer = trainer, .whole = var, .var = of};

    if (own != PROGRAM_NONE)
        c.replica = ownership_owner(map, ownership_find(map, spaces[space], of->flat_offset), 0);
    c.writer = ownership_find(&whole->map, spaces[space], whole_at)->shard;
    if (c.replica == place->replica && own != PROGRAM_NONE)
        c.mine = (float *)trainer->state.bases.segment[segments[space]] +
                 ownership_place(map, spaces[space], of->flat_offset, place->replica);
    if (place->replica == 0 && place->cell == c.writer)
        c.out = whole->spaces[space] +
                ownership_place(&whole->map, spaces[space], whole_at, place->cell);
    return collect(&c, err);
}

int whole_make(struct trainer *trainer, struct whole *whole, struct fleet_error *err)
{
    const struct program *program = plan_whole(&trainer->job.plan);
    int rc = 0;

    begin(trainer, whole);
    for (int v = 0; v < program->var_count && rc == 0; v++) {
        if (program->vars[v].role != PROGRAM_ROLE_PARAMETER)
            continue;
        rc = collect_tensor(trainer, whole, v, 0, err);
        for (int slot = 0; slot < program->state_count && rc == 0; slot++)
            if (program_state_of(program, v, slot) != PROGRAM_NONE)
                rc = collect_tensor(trainer, whole, v, 1 + slot, err);
    }
    return rc;
}

void whole_state_of(const struct whole *whole, int cell, struct checkpoint_state *out)
{
    checkpoint_state_init(out, &whole->program, NULL, whole->spaces[0], whole->spaces[1],
                          whole->spaces[2], NULL);
    out->map = &whole->map;
    out->replica = cell;
}

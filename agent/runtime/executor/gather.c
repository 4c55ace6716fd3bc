/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/executor/gather.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/runtime/backend/cpu/kernels/typed.h"
#include "agent/runtime/comm/comm.h"
#include "agent/runtime/comm/device.h"
#include "libfleet/base/assert.h"
#include "libfleet/plan/ownership.h"

#define BLOCK 256 /* elements that are converted at a time */

/* Elements that a line and a part of a gather have in common; false: none. */
static bool overlap(const struct ownership_line *line, const struct gathers_part *part,
                    int64_t *out_first, int64_t *out_count)
{
    int64_t first = line->first > part->first ? line->first : part->first;
    int64_t end = line->end < part->end ? line->end : part->end;

    *out_first = first;
    *out_count = end - first;
    return line->spaces & OWNERSHIP_BIT(OWNERSHIP_PARAMETERS) && first < end;
}

/* Pieces of lines that travel alone in gather number `op`. */
static size_t count_pieces(const struct gather *g, int op)
{
    size_t count = 0;
    int64_t first, elements;

    for (int i = 0; i < g->map->count; i++)
        for (int part = g->parts.starts[op]; part < g->parts.starts[op + 1]; part++)
            count += overlap(&g->map->lines[i], &g->parts.items[part], &first, &elements);
    return count;
}

void gather_init(struct gather *out, const struct program *program, const struct ownership *map,
                 int replica)
{
    size_t most = 0;

    *out = (struct gather){.map = map, .program = program, .replica = replica};
    gathers_parts_init(program, &out->parts);
    for (int i = 0; i < program->op_count; i++) {
        size_t pieces = gathers_is(&program->ops[i]) ? count_pieces(out, i) : 0;
        most = pieces > most ? pieces : most;
    }
    out->messages = calloc(most * (size_t)map->replicas + 1, sizeof(*out->messages));
    out->pieces = calloc(2 * most + 1, sizeof(*out->pieces));
    fleet_assert(out->messages && out->pieces);
}

void gather_release(struct gather *gather)
{
    gathers_parts_release(&gather->parts);
    free(gather->messages);
    free(gather->pieces);
    *gather = (struct gather){0};
}

/* ---- 16 bits --------------------------------------------------------------------------------- */

/* Values on their way in 16 bits lie in the second half of the memory that will have them in fp32,
 * so they need no memory of their own. */
static uint16_t *halves_of(void *memory, int64_t count)
{
    return (uint16_t *)memory + count;
}

static void narrow(uint16_t *halves, const float *from, int64_t count, enum program_type type)
{
    if (type == PROGRAM_BF16)
        for (int64_t i = 0; i < count; i++)
            halves[i] = typed_to_bf16(from[i]);
    else
        for (int64_t i = 0; i < count; i++)
            halves[i] = typed_to_fp16(from[i]);
}

/* In place: a block is written where this block and those before it were read. */
static void widen(float *memory, int64_t count, enum program_type type)
{
    const char *halves = (const char *)halves_of(memory, count);
    uint16_t block[BLOCK];

    for (int64_t first = 0; first < count; first += BLOCK) {
        int64_t n = count - first < BLOCK ? count - first : BLOCK;

        memcpy(block, halves + (size_t)first * sizeof(block[0]), (size_t)n * sizeof(block[0]));
        for (int64_t i = 0; i < n; i++)
            memory[first + i] =
                type == PROGRAM_BF16 ? typed_of_bf16(block[i]) : typed_of_fp16(block[i]);
    }
}

/* ---- messages -------------------------------------------------------------------------------- */

static void *map_piece(struct gather *g, struct backend *backend, const float *device,
                       int64_t count, enum backend_access access)
{
    struct gather_piece *piece = &g->pieces[g->piece_count++];

    *piece = (struct gather_piece){.device = (void *)device,
                                   .bytes = (size_t)count * sizeof(*device),
                                   .access = access,
                                   .type = PROGRAM_FP32};
    piece->host = backend_map(backend, piece->device, piece->bytes, access);
    return piece->host;
}

static enum comm_type type_of(enum program_type type)
{
    return type == PROGRAM_BF16 ? COMM_BF16 : type == PROGRAM_FP16 ? COMM_FP16 : COMM_FP32;
}

static void add_message(struct gather *g, int peer, bool is_receive, void *data, int64_t count,
                        enum program_type type)
{
    g->messages[g->message_count++] = (struct comm_message){.peer = peer,
                                                            .is_receive = is_receive,
                                                            .data = data,
                                                            .count = count,
                                                            .type = type_of(type)};
}

/* To each rank that expects the line from this one. */
static void send_to_all(struct gather *g, const struct ownership_line *line, void *host,
                        int64_t count, enum program_type type)
{
    for (int r = 0; r < g->map->replicas; r++)
        if (r != g->replica && !ownership_holds(g->map, line, r) &&
            ownership_owner(g->map, line, r) == g->replica)
            add_message(g, r, false, host, count, type);
}

/* What a part of the gather and a line have in common. */
static void take_part(struct gather *g, struct backend *backend, const struct ownership_line *line,
                      const struct gathers_part *part, const float *held, float *out)
{
    int64_t first, count, place;
    void *from, *to, *sent;

    if (!overlap(line, part, &first, &count))
        return;
    to = map_piece(g, backend, out + first, count, BACKEND_WRITE);
    g->pieces[g->piece_count - 1].type = part->type;
    place = ownership_place(g->map, OWNERSHIP_PARAMETERS, first, g->replica);
    sent = part->type == PROGRAM_FP32 ? to : halves_of(to, count);
    if (place == OWNERSHIP_NOBODY) {
        add_message(g, ownership_owner(g->map, line, g->replica), true, sent, count, part->type);
        return;
    }
    from = map_piece(g, backend, held + place, count, BACKEND_READ);
    if (part->type == PROGRAM_FP32)
        memcpy(to, from, (size_t)count * sizeof(*held));
    else
        narrow(sent, from, count, part->type);
    send_to_all(g, line, part->type == PROGRAM_FP32 ? from : sent, count, part->type);
}

/* ---- between devices ------------------------------------------------------------------------- */

/* A gather at work. */
struct device_gather {
    struct gather *gather;
    struct comm *comm;
    struct backend *queue;
    const float *held;
    float *out;       /* element 0 of the space: the range lies behind it */
    uint16_t *halves; /* the same in 16 bits */
    struct fleet_error *err;
};

static int cast(const struct device_gather *d, void *to, enum program_type to_type,
                const void *from, enum program_type from_type, int64_t count)
{
    return comm_device_cast(d->comm, d->queue,
                            &(struct comm_device_cast){.to = to,
                                                       .from = from,
                                                       .to_type = type_of(to_type),
                                                       .from_type = type_of(from_type),
                                                       .scale = 1.0f,
                                                       .count = count},
                            d->err);
}

/* Copy what this rank holds of the part, and list its messages. */
static int put_part(const struct device_gather *d, const struct ownership_line *line,
                    const struct gathers_part *part)
{
    struct gather *g = d->gather;
    bool is_narrow = part->type != PROGRAM_FP32;
    int64_t first, count, place;
    void *sent;
    int rc;

    if (!overlap(line, part, &first, &count))
        return 0;
    place = ownership_place(g->map, OWNERSHIP_PARAMETERS, first, g->replica);
    sent = is_narrow ? (void *)(d->halves + first) : d->out + first;
    if (place == OWNERSHIP_NOBODY) {
        add_message(g, ownership_owner(g->map, line, g->replica), true, sent, count, part->type);
        return 0;
    }
    if (is_narrow)
        rc = cast(d, sent, part->type, d->held + place, PROGRAM_FP32, count);
    else
        rc = comm_device_copy(d->comm, d->queue, sent, d->held + place,
                              (size_t)count * sizeof(float), d->err);
    send_to_all(g, line, sent, count, part->type);
    return rc;
}

static int widen_part(const struct device_gather *d, const struct ownership_line *line,
                      const struct gathers_part *part)
{
    int64_t first, count;

    if (part->type == PROGRAM_FP32 || !overlap(line, part, &first, &count))
        return 0;
    return cast(d, d->out + first, PROGRAM_FP32, d->halves + first, part->type, count);
}

typedef int (*part_step)(const struct device_gather *d, const struct ownership_line *line,
                         const struct gathers_part *part);

static int each_part(const struct device_gather *d, const int *starts, part_step step)
{
    const struct gather *g = d->gather;
    int rc = 0;

    for (int i = 0; i < g->map->count && rc == 0; i++)
        for (int part = starts[0]; part < starts[1] && rc == 0; part++)
            rc = step(d, &g->map->lines[i], &g->parts.items[part]);
    return rc;
}

static int run_on_device(struct device_gather *d, const struct program_op *op, const int *starts,
                         double deadline_ms)
{
    struct gather *g = d->gather;
    struct comm_call call = {
        .operation = COMM_MESSAGES, .messages = g->messages, .queue = d->queue};
    size_t bytes = gathers_halves(op);
    int rc;

    if (bytes > 0) {
        d->halves = comm_device_scratch(d->comm, bytes, d->err);
        if (!d->halves)
            return -ENOMEM;
        d->halves -= op->attributes.flat_first;
    }
    rc = each_part(d, starts, put_part);
    call.message_count = g->message_count;
    if (rc == 0)
        rc = comm_device_run(d->comm, &call, g->is_captured, deadline_ms, d->err);
    return rc < 0 ? rc : each_part(d, starts, widen_part);
}

/* ---- the whole ------------------------------------------------------------------------------- */

int gather_run(struct gather *gather, struct comm *comm, struct backend *backend,
               const struct program_op *op, const float *held, float *out, double deadline_ms,
               struct fleet_error *err)
{
    const int *starts = &gather->parts.starts[op - gather->program->ops];
    int rc = 0;

    gather->message_count = gather->piece_count = 0;
    if (comm && comm->world > 1 && comm_has_device(comm))
        return run_on_device(&(struct device_gather){.gather = gather,
                                                     .comm = comm,
                                                     .queue = backend,
                                                     .held = held,
                                                     .out = out - op->attributes.flat_first,
                                                     .err = err},
                             op, starts, deadline_ms);
    for (int i = 0; i < gather->map->count; i++)
        for (int part = starts[0]; part < starts[1]; part++)
            take_part(gather, backend, &gather->map->lines[i], &gather->parts.items[part], held,
                      out - op->attributes.flat_first);
    if (comm && comm->world > 1)
        rc = comm_messages(comm, gather->messages, gather->message_count, deadline_ms, err);
    for (int i = 0; i < gather->piece_count; i++) {
        const struct gather_piece *piece = &gather->pieces[i];
        if (piece->type != PROGRAM_FP32)
            widen(piece->host, (int64_t)(piece->bytes / sizeof(float)), piece->type);
        backend_unmap(backend, piece->device, piece->bytes, piece->access, piece->host);
    }
    return rc;
}

void gather_copy(struct backend *backend, const struct program_op *op, const float *held,
                 float *out)
{
    size_t bytes = (size_t)op->attributes.flat_count * sizeof(*held);
    float *from = (float *)held + op->attributes.flat_first;
    void *read = backend_map(backend, from, bytes, BACKEND_READ);
    void *written = backend_map(backend, out, bytes, BACKEND_WRITE);

    memcpy(written, read, bytes);
    backend_unmap(backend, out, bytes, BACKEND_WRITE, written);
    backend_unmap(backend, from, bytes, BACKEND_READ, read);
}

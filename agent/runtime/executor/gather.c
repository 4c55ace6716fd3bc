/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/executor/gather.h"

#include <stdlib.h>
#include <string.h>

#include "agent/runtime/backend/cpu/kernels/typed.h"
#include "agent/runtime/comm/comm.h"
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

static void add_message(struct gather *g, int peer, bool is_receive, void *data, int64_t count,
                        enum program_type type)
{
    g->messages[g->message_count++] =
        (struct comm_message){.peer = peer,
                              .is_receive = is_receive,
                              .data = data,
                              .count = count,
                              .type = type == PROGRAM_BF16   ? COMM_BF16
                                      : type == PROGRAM_FP16 ? COMM_FP16
                                                             : COMM_FP32};
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

int gather_run(struct gather *gather, struct comm *comm, struct backend *backend,
               const struct program_op *op, const float *held, float *out, double deadline_ms,
               struct fleet_error *err)
{
    const int *starts = &gather->parts.starts[op - gather->program->ops];
    int rc = 0;

    gather->message_count = gather->piece_count = 0;
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

/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/executor/gather.h"

#include <stdlib.h>
#include <string.h>

#include "agent/runtime/comm/comm.h"
#include "libfleet/base/assert.h"
#include "libfleet/plan/gathers.h"
#include "libfleet/plan/ownership.h"

/* Elements of the parameters that a line and a gather have in common; false: none. */
static bool overlap(const struct ownership_line *line, const struct program_op *op,
                    int64_t *out_first, int64_t *out_count)
{
    const struct op_attributes *range = &op->attributes;
    int64_t range_end = range->flat_first + range->flat_count;
    int64_t first = line->first > range->flat_first ? line->first : range->flat_first;
    int64_t end = line->end < range_end ? line->end : range_end;

    *out_first = first;
    *out_count = end - first;
    return line->spaces & OWNERSHIP_BIT(OWNERSHIP_PARAMETERS) && first < end;
}

/* Lines of the map that the gather reads. */
static int lines_of(const struct ownership *map, const struct program_op *op)
{
    int64_t first, count;
    int lines = 0;

    for (int i = 0; i < map->count; i++)
        lines += overlap(&map->lines[i], op, &first, &count);
    return lines;
}

void gather_init(struct gather *out, const struct program *program, const struct ownership *map,
                 int replica)
{
    size_t most = 0;

    *out = (struct gather){.map = map, .replica = replica};
    for (int i = 0; i < program->op_count; i++) {
        size_t lines = gathers_is(&program->ops[i]) ? (size_t)lines_of(map, &program->ops[i]) : 0;
        most = lines > most ? lines : most;
    }
    out->messages = calloc(most * (size_t)map->replicas + 1, sizeof(*out->messages));
    out->pieces = calloc(2 * most + 1, sizeof(*out->pieces));
    fleet_assert(out->messages && out->pieces);
}

void gather_release(struct gather *gather)
{
    free(gather->messages);
    free(gather->pieces);
    *gather = (struct gather){0};
}

static void *map_piece(struct gather *g, struct backend *backend, const float *device,
                       int64_t count, enum backend_access access)
{
    struct gather_piece *piece = &g->pieces[g->piece_count++];

    *piece = (struct gather_piece){
        .device = (void *)device, .bytes = (size_t)count * sizeof(*device), .access = access};
    piece->host = backend_map(backend, piece->device, piece->bytes, access);
    return piece->host;
}

static void add_message(struct gather *g, int peer, bool is_receive, void *data, int64_t count)
{
    g->messages[g->message_count++] = (struct comm_message){
        .peer = peer, .is_receive = is_receive, .data = data, .count = count, .type = COMM_FP32};
}

/* To each rank that expects the line from this one. */
static void send_to_all(struct gather *g, const struct ownership_line *line, void *host,
                        int64_t count)
{
    for (int r = 0; r < g->map->replicas; r++)
        if (r != g->replica && !ownership_holds(g->map, line, r) &&
            ownership_owner(g->map, line, r) == g->replica)
            add_message(g, r, false, host, count);
}

static void take_line(struct gather *g, struct backend *backend, const struct ownership_line *line,
                      const struct program_op *op, const float *held, float *out)
{
    int64_t first, count, place;
    void *from, *to;

    if (!overlap(line, op, &first, &count))
        return;
    to = map_piece(g, backend, out + (first - op->attributes.flat_first), count, BACKEND_WRITE);
    place = ownership_place(g->map, OWNERSHIP_PARAMETERS, first, g->replica);
    if (place == OWNERSHIP_NOBODY) {
        add_message(g, ownership_owner(g->map, line, g->replica), true, to, count);
        return;
    }
    from = map_piece(g, backend, held + place, count, BACKEND_READ);
    memcpy(to, from, (size_t)count * sizeof(*held));
    send_to_all(g, line, from, count);
}

int gather_run(struct gather *gather, struct comm *comm, struct backend *backend,
               const struct program_op *op, const float *held, float *out, double deadline_ms,
               struct fleet_error *err)
{
    int rc = 0;

    gather->message_count = gather->piece_count = 0;
    for (int i = 0; i < gather->map->count; i++)
        take_line(gather, backend, &gather->map->lines[i], op, held, out);
    if (comm && comm->world > 1)
        rc = comm_messages(comm, gather->messages, gather->message_count, deadline_ms, err);
    for (int i = 0; i < gather->piece_count; i++) {
        const struct gather_piece *piece = &gather->pieces[i];
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

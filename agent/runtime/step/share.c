/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A message for each part of a segment that has one owner, to each rank that expects it of this
 * owner. All segments go at once, so that all links are busy. The list is made once a generation.
 */
#include "agent/runtime/step/share.h"

#include <inttypes.h>
#include <stdlib.h>

#include "agent/runtime/comm/device.h"
#include "agent/runtime/trainer.h"
#include "libfleet/base/error.h"
#include "libfleet/base/memory.h"

/* A part of a segment with one owner. */
struct share_part {
    int64_t first, count;
    bool is_own;
    size_t message, message_count; /* the messages that carry it */
    void *seen;                    /* the memory that the messages use */
};

static float *memory_of(const struct trainer *trainer, const struct share_part *part)
{
    return (float *)trainer->state.bases.segment[MEMORY_PARAMETERS] + part->first;
}

static void add_message(struct share *share, struct share_part *part, int peer)
{
    share->messages = fleet_grow(share->messages, share->message_count, sizeof(*share->messages));
    share->messages[share->message_count++] = (struct comm_message){
        .peer = peer, .is_receive = !part->is_own, .count = part->count, .type = COMM_FP32};
    part->message_count++;
}

static void add_part(struct trainer *trainer, const struct ownership_line *line, int64_t first,
                     int64_t end)
{
    const struct ownership *map = &trainer->placement.map;
    struct share *share = &trainer->share;
    int own = trainer->generation.place.replica, owner = ownership_owner(map, line, own);
    struct share_part part = {.first = first,
                              .count = end - first,
                              .is_own = owner == own,
                              .message = share->message_count};

    if (!part.is_own)
        add_message(share, &part, owner);
    for (int r = 0; r < trainer->generation.replicas && part.is_own; r++)
        if (r != own && ownership_owner(map, line, r) == own)
            add_message(share, &part, r);
    share->parts = fleet_grow(share->parts, share->part_count, sizeof(*share->parts));
    share->parts[share->part_count++] = part;
}

/* The parameters of a line are where its optimizer states are. */
static void add_segment(struct trainer *trainer, const struct op_attributes *range)
{
    const struct ownership *map = &trainer->placement.map;
    int64_t range_end = range->flat_first + range->flat_count;

    for (int i = 0; i < map->count; i++) {
        const struct ownership_line *line = &map->lines[i];
        int64_t first = line->first > range->flat_first ? line->first : range->flat_first;
        int64_t end = line->end < range_end ? line->end : range_end;
        if (line->holders == OWNERSHIP_SHARD && first < end)
            add_part(trainer, line, first, end);
    }
}

static bool is_of_parameters(const struct program_op *op)
{
    return op->kind == OP_ALL_GATHER && op->section == PROGRAM_SECTION_UPDATE &&
           op->attributes.owned && op->attributes.space == OP_SPACE_PARAMETERS;
}

void share_prepare(struct trainer *trainer)
{
    const struct program *program = &trainer->job.plan.program;

    share_release(&trainer->share);
    trainer->share.complete = TRAINER_NO_STATE;
    for (int i = 0; i < program->op_count && trainer->placement.map.shards > 1; i++)
        if (is_of_parameters(&program->ops[i]))
            add_segment(trainer, &program->ops[i].attributes);
}

void share_release(struct share *share)
{
    free(share->parts);
    free(share->messages);
    *share = (struct share){0};
}

/* Without the library of a device it is a view of the host. */
static void map_part(struct trainer *trainer, struct share_part *part)
{
    part->seen = comm_has_device(trainer->net.cell)
                     ? memory_of(trainer, part)
                     : backend_map(trainer->state.backend, memory_of(trainer, part),
                                   (size_t)part->count * sizeof(float),
                                   part->is_own ? BACKEND_READ : BACKEND_WRITE);
    for (size_t i = 0; i < part->message_count; i++)
        trainer->share.messages[part->message + i].data = part->seen;
}

static void unmap_part(struct trainer *trainer, const struct share_part *part)
{
    if (!comm_has_device(trainer->net.cell))
        backend_unmap(trainer->state.backend, memory_of(trainer, part),
                      (size_t)part->count * sizeof(float),
                      part->is_own ? BACKEND_READ : BACKEND_WRITE, part->seen);
}

int share_parameters(struct trainer *trainer, struct fleet_error *err)
{
    struct share *share = &trainer->share;
    struct comm_call call = {.operation = COMM_MESSAGES};
    int rc;

    if (trainer->placement.map.shards == 1 || share->complete == trainer->progress.committed)
        return 0;
    for (size_t i = 0; i < share->part_count; i++)
        map_part(trainer, &share->parts[i]);
    call.messages = share->messages;
    call.message_count = (int)share->message_count;
    if (comm_has_device(trainer->net.cell))
        call.queue = trainer->device.backend;
    rc = comm_run(trainer->net.cell, &call, trainer_deadline_ms(trainer), err);
    for (size_t i = 0; i < share->part_count; i++)
        unmap_part(trainer, &share->parts[i]);
    if (rc < 0)
        return fleet_error_wrap(err, "share the parameters of update %" PRId64,
                                trainer->progress.committed);
    share->complete = trainer->progress.committed;
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */

/* The steps of libfleet/autoparallel/mesh/reshard.h, carried out by messages between processes. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "distributed/mesh/dtensor.h"
#include "distributed/mesh/exchange.h"
#include "libfleet/base/assert.h"

struct run {
    const char *what;
    const struct fleet_tensor *global;
    const struct mesh *mesh; /* of the source */
    struct placement now[MESH_DIMS_MAX];
    int rank;
    int64_t place; /* in `mesh`; -1: outside */
    void *data;    /* the part under `now`, owned */
};

static struct rect slice_at(const struct run *run, const struct placement *placements,
                            int64_t place)
{
    const struct layout_on_mesh layout = {run->mesh, placements};

    return dtensor_slice(&layout, run->global, place);
}

static enum comm_reduction reduction_of(enum placement_reduction reduction)
{
    static const enum comm_reduction reductions[] = {
        [PLACEMENT_SUM] = COMM_SUM, [PLACEMENT_AVG] = COMM_AVG,   [PLACEMENT_MAX] = COMM_MAX,
        [PLACEMENT_MIN] = COMM_MIN, [PLACEMENT_PROD] = COMM_PROD,
    };

    return reductions[reduction];
}

void reshard_fill_neutral(enum comm_type type, enum placement_reduction reduction, void *data,
                          int64_t count)
{
    static const uint16_t one_fp16 = 0x3c00, one_bf16 = 0x3f80;
    static const uint8_t one_8 = 1;
    static const int32_t one_32 = 1;
    static const int64_t one_64 = 1;
    static const float one_fp32 = 1;
    static const double one_fp64 = 1;
    static const void *const ones[COMM_TYPES] = {
        [COMM_UINT8] = &one_8,   [COMM_INT8] = &one_8,    [COMM_INT32] = &one_32,
        [COMM_INT64] = &one_64,  [COMM_FP16] = &one_fp16, [COMM_BF16] = &one_bf16,
        [COMM_FP32] = &one_fp32, [COMM_FP64] = &one_fp64, [COMM_BOOL] = &one_8,
    };
    size_t size = comm_type_size(type);

    if (reduction != PLACEMENT_PROD) {
        memset(data, 0, (size_t)count * size);
        return;
    }
    for (int64_t i = 0; i < count; i++)
        memcpy((char *)data + (size_t)i * size, ones[type], size);
}

/* ---- steps along a dimension of the mesh ----------------------------------------------------- */

/* The line through this process, before and after the step; every list is owned. */
struct line {
    int *ranks;
    struct rect *held, *wanted;
    struct exchange exchange;
};

static void line_release(struct line *line)
{
    free(line->ranks);
    free(line->held);
    free(line->wanted);
}

static int line_new(const struct run *run, const struct reshard_step *step,
                    const struct placement *after, struct line *out, struct fleet_error *err)
{
    int64_t n = run->mesh->shape[step->axis],
            own = mesh_coordinate(run->mesh, run->place, step->axis);
    struct line line = {calloc((size_t)n, sizeof(*line.ranks)),
                        calloc((size_t)n, sizeof(*line.held)),
                        calloc((size_t)n, sizeof(*line.wanted)),
                        {0}};

    if (!line.ranks || !line.held || !line.wanted) {
        line_release(&line);
        return fleet_error(err, -ENOMEM, "%s: out of memory", run->what);
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t place = run->place + (i - own) * mesh_stride(run->mesh, step->axis);

        line.ranks[i] = (int)run->mesh->ids[place];
        line.held[i] = slice_at(run, run->now, place);
        line.wanted[i] = slice_at(run, after, place);
    }
    line.exchange = (struct exchange){
        .what = run->what,
        .type = (enum comm_type)run->global->type,
        .dims = dtensor_dims(run->global),
        .count = (int)n,
        .own = (int)own,
        .ranks = line.ranks,
        .held = line.held,
        .wanted = line.wanted,
        .reduces = step->before.kind == PLACEMENT_PARTIAL,
        .reduction = reduction_of(step->before.reduction),
    };
    *out = line;
    return 0;
}

/* R → S: no process needs anything from another. */
static int slice(struct run *run, const struct placement *after, void **out,
                 struct fleet_error *err)
{
    struct rect held = slice_at(run, run->now, run->place),
                wanted = slice_at(run, after, run->place);
    int dims = dtensor_dims(run->global);
    size_t size = comm_type_size((enum comm_type)run->global->type);

    *out = malloc((size_t)rect_elements(&wanted, dims) * size + 1);
    if (!*out)
        return fleet_error(err, -ENOMEM, "%s: out of memory", run->what);
    rect_copy(&wanted, dims, size, run->data, &held, *out, &wanted);
    return 0;
}

/* R → P, in place. */
static void keep(struct run *run, const struct reshard_step *step)
{
    enum placement_reduction reduction = step->after.reduction;
    struct rect held = slice_at(run, run->now, run->place);

    if (mesh_coordinate(run->mesh, run->place, step->axis) > 0 &&
        (reduction == PLACEMENT_SUM || reduction == PLACEMENT_PROD))
        reshard_fill_neutral((enum comm_type)run->global->type, reduction, run->data,
                             rect_elements(&held, dtensor_dims(run->global)));
}

static int along_axis(struct run *run, const struct reshard_step *step, struct fleet_error *err)
{
    struct placement after[MESH_DIMS_MAX];
    struct line line;
    void *result = NULL;
    int rc;

    if (run->place < 0)
        return 0;
    memcpy(after, run->now, sizeof(after));
    after[step->axis] = step->after;
    if (step->kind == RESHARD_KEEP) {
        keep(run, step);
    } else if (step->kind == RESHARD_SLICE) {
        rc = slice(run, after, &result, err);
        if (rc < 0)
            return rc;
    } else {
        rc = line_new(run, step, after, &line, err);
        if (rc < 0)
            return rc;
        if (step->kind == RESHARD_ALL_REDUCE)
            rc = exchange_all_reduce(
                &line.exchange, run->data,
                rect_elements(&line.held[line.exchange.own], line.exchange.dims), &result, err);
        else
            rc = exchange_run(&line.exchange, run->data, &result, err);
        line_release(&line);
        if (rc < 0)
            return rc;
    }
    if (result) {
        free(run->data);
        run->data = result;
    }
    memcpy(run->now, after, sizeof(after));
    return 0;
}

/* ---- steps to another mesh ------------------------------------------------------------------- */

/* The place of the source that sends to place `to`. */
static int64_t source_of(const struct reshard_step *step, const struct mesh *target, int64_t to)
{
    int64_t stride;

    if (step->kind == RESHARD_SEND)
        return to;
    stride = mesh_stride(target, step->axis); /* BROADCAST */
    return to / (stride * target->shape[step->axis]) * stride + to % stride;
}

/* Messages from places of the source to those of the target. */
static int post(struct run *run, const struct reshard_step *step, const struct mesh *target,
                int64_t place, struct fleet_tensor mine, struct fleet_tensor wanted,
                struct fleet_error *err)
{
    struct fleet_p2p *list = calloc((size_t)target->size + 1, sizeof(*list));
    int count = 0, rc;

    if (!list)
        return fleet_error(err, -ENOMEM, "%s: out of memory", run->what);
    for (int64_t to = 0; to < target->size && mine.shape[0] > 0; to++)
        if (run->place >= 0 && source_of(step, target, to) == run->place &&
            target->ids[to] != run->rank)
            list[count++] = (struct fleet_p2p){false, (int)target->ids[to], mine};
    if (place >= 0 && wanted.shape[0] > 0) {
        int64_t from = run->mesh->ids[source_of(step, target, place)];

        if (from == run->rank)
            memcpy(wanted.data, mine.data,
                   (size_t)mine.shape[0] * comm_type_size((enum comm_type)mine.type));
        else
            list[count++] = (struct fleet_p2p){true, (int)from, wanted};
    }
    rc = count ? fleet_batch_p2p(list, count, NULL, NULL, err) : 0;
    free(list);
    return rc < 0 ? fleet_error_wrap(err, "%s", run->what) : 0;
}

static int to_mesh(struct run *run, const struct reshard_step *step,
                   const struct layout_on_mesh *to, struct fleet_error *err)
{
    int dims = dtensor_dims(run->global);
    enum fleet_type type = run->global->type;
    int64_t place = process_mesh_place(to->mesh, run->rank), elements = 0, held = 0;
    struct rect rect;
    void *result;
    int rc;

    if (step->kind == RESHARD_COPY)
        return 0; /* the processes of the part hold it */
    if (place >= 0) {
        rect = dtensor_slice(to, run->global, place);
        elements = rect_elements(&rect, dims);
    }
    if (run->place >= 0) {
        rect = slice_at(run, run->now, run->place);
        held = rect_elements(&rect, dims);
    }
    result = malloc((size_t)elements * comm_type_size((enum comm_type)type) + 1);
    if (!result)
        return fleet_error(err, -ENOMEM, "%s: out of memory", run->what);
    rc = post(run, step, to->mesh, place, (struct fleet_tensor){run->data, type, 1, {held}},
              (struct fleet_tensor){result, type, 1, {elements}}, err);
    if (rc < 0) {
        free(result);
        return rc;
    }
    free(run->data);
    run->data = result;
    return 0;
}

/* ---- the whole ------------------------------------------------------------------------------- */

int reshard_run(const char *what, const struct fleet_tensor *global,
                const struct layout_on_mesh *from, const struct layout_on_mesh *to,
                const void *data, void **out, struct fleet_error *err)
{
    struct run run = {.what = what, .global = global, .mesh = from->mesh};
    struct reshard reshard;
    struct fleet_group *world;
    size_t bytes = 0;
    int rc = group_ready(what, NULL, &world, err);

    if (rc < 0)
        return rc;
    if (reshard_build(from->mesh, from->placements, to->mesh, to->placements, &reshard, err) < 0)
        return fleet_error_wrap(err, "%s", what);
    run.rank = world->comm->rank;
    run.place = process_mesh_place(from->mesh, run.rank);
    memcpy(run.now, from->placements, (size_t)from->mesh->dims * sizeof(run.now[0]));
    if (run.place >= 0) {
        struct rect held = dtensor_slice(from, global, run.place);
        bytes = (size_t)rect_elements(&held, dtensor_dims(global)) *
                comm_type_size((enum comm_type)global->type);
    }
    run.data = malloc(bytes + 1);
    if (!run.data)
        return fleet_error(err, -ENOMEM, "%s: out of memory", what);
    if (bytes > 0)
        memcpy(run.data, data, bytes);
    for (int i = 0; i < reshard.count && rc == 0; i++) {
        const struct reshard_step *step = &reshard.steps[i];

        if (step->kind == RESHARD_SEND || step->kind == RESHARD_COPY ||
            step->kind == RESHARD_BROADCAST)
            rc = to_mesh(&run, step, to, err);
        else
            rc = along_axis(&run, step, err);
    }
    if (rc < 0) {
        free(run.data);
        return rc;
    }
    *out = run.data;
    return 0;
}

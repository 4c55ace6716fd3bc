/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "libfleet/autoparallel/search/elimination_internal.h"
#include "libfleet/base/assert.h"

/* ---- back to strategies ---------------------------------------------------------------------- */

struct recovery {
    const struct work *work;
    int *choices; /* of each node */
    size_t *node_place, *edge_place;
};

static const struct cells_origin *origin_of(const struct recovery *r, const struct work_step *step,
                                            size_t cell, size_t place)
{
    const struct cells *made = &r->work->pool[step->made];

    return &made->origin[cells_first(made, cell) + place];
}

static void recover_edge(struct recovery *r, const struct work_step *step)
{
    size_t columns = (size_t)r->work->pool[step->made].columns;
    size_t cell = (size_t)r->choices[step->u] * columns + (size_t)r->choices[step->v];
    const struct cells_origin *origin = origin_of(r, step, cell, r->edge_place[step->e]);

    r->edge_place[step->e1] = origin->first;
    r->edge_place[step->e2] = origin->last;
    if (step->rule == WORK_OPERATOR) {
        r->choices[step->w] = origin->strategy;
        r->node_place[step->w] = origin->middle;
    }
}

static void recover_node(struct recovery *r, const struct work_step *step)
{
    int choice = r->choices[step->u];
    const struct cells_origin *origin = origin_of(r, step, (size_t)choice, r->node_place[step->u]);

    r->choices[step->w] = origin->strategy;
    r->node_place[step->u] = origin->first;
    r->node_place[step->w] = origin->last;
    if (step->e1 != ELIMINATION_NO_EDGE)
        r->edge_place[step->e1] = origin->middle;
    if (step->rule == WORK_STAR)
        r->choices[step->u] = step->pairs_u[choice];
}

/* The best strategy of the last node, and the place of its tuple. */
static bool choose_last(const struct work *work, int last, struct recovery *r)
{
    const struct cells *cells = &work->pool[work->nodes[last].cells];
    double best = INFINITY;

    for (int s = 0; s < work->nodes[last].choices; s++)
        if (cells_least(cells, (size_t)s) < best) {
            best = cells_least(cells, (size_t)s);
            r->choices[last] = s;
            r->node_place[last] = 0;
        }
    return isfinite(best);
}

bool work_recover(const struct work *work, int last, int *choices)
{
    struct recovery r = {.work = work, .choices = choices};
    bool found;

    r.node_place = calloc((size_t)work->node_count, sizeof(*r.node_place));
    r.edge_place = calloc((size_t)work->edge_count + 1, sizeof(*r.edge_place));
    fleet_assert(r.node_place && r.edge_place);
    found = choose_last(work, last, &r);
    for (int i = work->step_count - 1; i >= 0 && found; i--) {
        const struct work_step *step = &work->steps[i];

        if (step->rule == WORK_EDGE || step->rule == WORK_OPERATOR)
            recover_edge(&r, step);
        else
            recover_node(&r, step);
    }
    free(r.node_place);
    free(r.edge_place);
    return found;
}

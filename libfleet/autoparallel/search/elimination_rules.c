/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "libfleet/autoparallel/search/elimination_internal.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/memory.h"

/* ---- cells ----------------------------------------------------------------------------------- */

int work_add_cells(struct work *work, const struct cells *cells)
{
    work->pool = fleet_grow(work->pool, (size_t)work->pool_count, sizeof(*work->pool));
    work->pool[work->pool_count] = *cells;
    return work->pool_count++;
}

void work_begin(struct work *work, struct cells *made, int rows, int columns)
{
    cells_init(made, rows, columns, work->question->keeps_lists);
    work->maker.out = made;
    work->maker.cell = 0;
}

/* Every tuple of cells `a` and `b`, and of `middle` between them, together. */
static void offer_all(struct work *work, const struct cells *a, size_t a_cell,
                      const struct cells *middle, size_t middle_cell, const struct cells *b,
                      size_t b_cell, int strategy)
{
    size_t m0 = middle ? cells_first(middle, middle_cell) : 0;
    size_t m1 = middle ? cells_end(middle, middle_cell) : 1;
    size_t a0 = cells_first(a, a_cell), b0 = cells_first(b, b_cell);
    bool lists = work->question->keeps_lists;

    for (size_t i = a0; i < cells_end(a, a_cell); i++)
        for (size_t m = m0; m < m1; m++)
            for (size_t j = b0; j < cells_end(b, b_cell); j++) {
                struct cells_candidate candidate = {
                    .score = a->score[i] + (middle ? middle->score[m] : 0) + b->score[j],
                    .origin = {(uint16_t)strategy, (uint16_t)(i - a0), (uint16_t)(m - m0),
                               (uint16_t)(j - b0)}};

                if (lists)
                    candidate.memory =
                        a->memory[i] + (middle ? middle->memory[m] : 0) + b->memory[j];
                cells_offer(&work->maker, &candidate);
            }
}

/* The cells of `edge` with `node` as rows; the caller releases *copy if it was needed. */
static const struct cells *seen_from(const struct work *work, int edge, int node,
                                     struct cells *copy)
{
    const struct cells *cells = &work->pool[work->edges[edge].cells];

    *copy = (struct cells){0};
    if (work->edges[edge].a == node)
        return cells;
    cells_transpose(cells, copy);
    return copy;
}

/* ---- nodes and edges ------------------------------------------------------------------------- */

int work_other_end(const struct work *work, int edge, int node)
{
    return work->edges[edge].a == node ? work->edges[edge].b : work->edges[edge].a;
}

static void attach(struct work *work, int node, int edge)
{
    struct work_node *n = &work->nodes[node];

    n->edges = fleet_grow(n->edges, (size_t)n->degree, sizeof(*n->edges));
    n->edges[n->degree++] = edge;
}

static void detach(struct work *work, int node, int edge)
{
    struct work_node *n = &work->nodes[node];
    int kept = 0;

    for (int i = 0; i < n->degree; i++)
        if (n->edges[i] != edge)
            n->edges[kept++] = n->edges[i];
    n->degree = kept;
}

static void drop_edge(struct work *work, int edge)
{
    detach(work, work->edges[edge].a, edge);
    detach(work, work->edges[edge].b, edge);
    work->edges[edge].is_gone = true;
}

static int edge_between(const struct work *work, int u, int v)
{
    for (int i = 0; i < work->nodes[u].degree; i++)
        if (work_other_end(work, work->nodes[u].edges[i], u) == v)
            return work->nodes[u].edges[i];
    return ELIMINATION_NO_EDGE;
}

static struct work_step *add_step(struct work *work, struct work_step step)
{
    work->steps = fleet_grow(work->steps, (size_t)work->step_count, sizeof(*work->steps));
    work->steps[work->step_count] = step;
    return &work->steps[work->step_count++];
}

static int new_edge(struct work *work, int a, int b, int cells)
{
    work->edges = fleet_grow(work->edges, (size_t)work->edge_count, sizeof(*work->edges));
    work->edges[work->edge_count] = (struct work_edge){.a = a, .b = b, .cells = cells};
    return work->edge_count++;
}

/* ---- the rules ------------------------------------------------------------------------------- */

/* Rule "edge": one edge of `e1` and `e2`, which join the same nodes; detached, not attached. */
static int join_edges(struct work *work, int e1, int e2)
{
    int a = work->edges[e1].a, b = work->edges[e1].b, e;
    struct cells made, copy;
    const struct cells *first = &work->pool[work->edges[e1].cells];
    const struct cells *second = seen_from(work, e2, a, &copy);

    work_begin(work, &made, first->rows, first->columns);
    for (size_t cell = 0; cell < (size_t)first->rows * (size_t)first->columns; cell++) {
        offer_all(work, first, cell, NULL, 0, second, cell, 0);
        cells_close(&work->maker);
    }
    cells_release(&copy);
    e = new_edge(work, a, b, work_add_cells(work, &made));
    add_step(work, (struct work_step){.rule = WORK_EDGE,
                                      .u = a,
                                      .v = b,
                                      .e1 = e1,
                                      .e2 = e2,
                                      .e = e,
                                      .made = work->edges[e].cells});
    return e;
}

/* Give the graph an edge, joined to one that is there. */
static void insert_edge(struct work *work, int edge)
{
    int a = work->edges[edge].a, b = work->edges[edge].b, there = edge_between(work, a, b);

    if (there != ELIMINATION_NO_EDGE) {
        drop_edge(work, there);
        work->edges[edge].is_gone = true;
        edge = join_edges(work, there, edge);
    }
    attach(work, a, edge);
    attach(work, b, edge);
}

void work_insert_edge(struct work *work, int a, int b, int cells)
{
    insert_edge(work, new_edge(work, a, b, cells));
}

/* The best of w's strategies for each pair of u's and v's, one tuple a cell. */
static void choose_best(const struct cells *a, const struct cells *b, const struct cells *c,
                        struct cells *made)
{
    size_t columns = (size_t)c->columns;

    cells_init(made, a->rows, c->columns, false);
    made->count = (size_t)a->rows * columns;
    for (size_t u = 0; u < (size_t)a->rows; u++) {
        double *out = made->score + u * columns;
        struct cells_origin *origin = made->origin + u * columns;

        for (size_t v = 0; v < columns; v++) {
            out[v] = INFINITY;
            origin[v] = (struct cells_origin){0};
        }
        for (size_t w = 0; w < (size_t)b->columns; w++) {
            const double *last = c->score + w * columns;
            double so_far = a->score[u * (size_t)a->columns + w] + b->score[w];

            if (!isfinite(so_far))
                continue;
            for (size_t v = 0; v < columns; v++)
                if (so_far + last[v] < out[v]) {
                    out[v] = so_far + last[v];
                    origin[v].strategy = (uint16_t)w;
                }
        }
    }
}

/* The same with lists. */
static void choose_lists(struct work *work, const struct cells *a, const struct cells *b,
                         const struct cells *c, struct cells *made)
{
    size_t columns = (size_t)c->columns, inner = (size_t)b->columns;

    work_begin(work, made, a->rows, c->columns);
    for (size_t u = 0; u < (size_t)a->rows; u++)
        for (size_t v = 0; v < columns; v++) {
            for (size_t w = 0; w < inner; w++)
                offer_all(work, a, u * inner + w, b, w, c, w * columns + v, (int)w);
            cells_close(&work->maker);
        }
}

void work_eliminate_operator(struct work *work, int w)
{
    int e1 = work->nodes[w].edges[0], e2 = work->nodes[w].edges[1];
    int u = work_other_end(work, e1, w), v = work_other_end(work, e2, w), e;
    struct cells a_copy, c_copy, made;
    const struct cells *a = seen_from(work, e1, u, &a_copy);
    const struct cells *c = seen_from(work, e2, w, &c_copy);
    const struct cells *b = &work->pool[work->nodes[w].cells];

    if (work->question->keeps_lists)
        choose_lists(work, a, b, c, &made);
    else
        choose_best(a, b, c, &made);
    cells_release(&a_copy);
    cells_release(&c_copy);
    drop_edge(work, e1);
    drop_edge(work, e2);
    work->nodes[w].is_gone = true;
    e = new_edge(work, u, v, work_add_cells(work, &made));
    add_step(work, (struct work_step){.rule = WORK_OPERATOR,
                                      .w = w,
                                      .u = u,
                                      .v = v,
                                      .e1 = e1,
                                      .e2 = e2,
                                      .e = e,
                                      .made = work->edges[e].cells});
    insert_edge(work, e);
}

/* Fold w into u over edge e1, or over none. */
void work_fold(struct work *work, int w, int u, int e1)
{
    struct cells copy = {0}, made;
    const struct cells *edge = e1 == ELIMINATION_NO_EDGE ? NULL : seen_from(work, e1, u, &copy);
    const struct cells *ours = &work->pool[work->nodes[u].cells];
    const struct cells *gone = &work->pool[work->nodes[w].cells];
    size_t columns = (size_t)work->nodes[w].choices;

    work_begin(work, &made, 1, work->nodes[u].choices);
    for (size_t su = 0; su < (size_t)work->nodes[u].choices; su++) {
        for (size_t sw = 0; sw < columns; sw++)
            offer_all(work, ours, su, edge, su * columns + sw, gone, sw, (int)sw);
        cells_close(&work->maker);
    }
    cells_release(&copy);
    if (e1 != ELIMINATION_NO_EDGE)
        drop_edge(work, e1);
    work->nodes[w].is_gone = true;
    work->nodes[u].cells = work_add_cells(work, &made);
    add_step(work, (struct work_step){
                       .rule = WORK_FOLD, .w = w, .u = u, .e1 = e1, .made = work->nodes[u].cells});
}

/* ---- stars ----------------------------------------------------------------------------------- */

struct pair {
    double score;
    int w, u;
};

static int compare_pairs(const void *a, const void *b)
{
    const struct pair *x = a, *y = b;

    if (x->score != y->score)
        return x->score < y->score ? -1 : 1;
    return x->w != y->w ? x->w - y->w : x->u - y->u;
}

/* The pairs of strategies of w and u that are possible; of too many, the cheapest. */
static int list_pairs(struct work *work, int w, int u, const struct cells *edge, struct pair **out)
{
    const struct cells *gone = &work->pool[work->nodes[w].cells];
    const struct cells *ours = &work->pool[work->nodes[u].cells];
    int inner = work->nodes[u].choices, count = 0;
    struct pair *pairs = calloc((size_t)work->nodes[w].choices * (size_t)inner, sizeof(*pairs));

    fleet_assert(pairs);
    for (int sw = 0; sw < work->nodes[w].choices; sw++)
        for (int su = 0; su < inner; su++) {
            double score = cells_least(gone, (size_t)sw) + cells_least(ours, (size_t)su) +
                           cells_least(edge, (size_t)sw * (size_t)inner + (size_t)su);

            if (isfinite(score))
                pairs[count++] = (struct pair){score, sw, su};
        }
    if (count > ELIMINATION_PAIRS_MAX) {
        qsort(pairs, (size_t)count, sizeof(*pairs), compare_pairs);
        count = ELIMINATION_PAIRS_MAX;
        work->is_exact = false;
    }
    *out = pairs;
    return count;
}

/* Edge `e` of `node` now belongs to u, whose strategy i is strategy from[i] of `node`. */
static void move_edge(struct work *work, int e, int node, int u, const int *from, int count)
{
    int other = work_other_end(work, e, node);
    struct cells copy, made;
    const struct cells *cells = seen_from(work, e, node, &copy);

    cells_pick_rows(cells, from, count, &made);
    cells_release(&copy);
    work->edges[e] = (struct work_edge){.a = u, .b = other, .cells = work_add_cells(work, &made)};
}

static void move_edges(struct work *work, const struct work_step *step, int count)
{
    int w_degree = work->nodes[step->w].degree, u_degree = work->nodes[step->u].degree;

    for (int i = 0; i < u_degree; i++)
        move_edge(work, work->nodes[step->u].edges[i], step->u, step->u, step->pairs_u, count);
    for (int i = 0; i < w_degree; i++) {
        int e = work->nodes[step->w].edges[i];

        detach(work, work_other_end(work, e, step->w), e);
        move_edge(work, e, step->w, step->u, step->pairs_w, count);
    }
}

/* Node u stands for both from now on. */
bool work_merge_star(struct work *work, int w, int u)
{
    int e1 = edge_between(work, w, u), count;
    struct cells copy, made;
    const struct cells *edge = seen_from(work, e1, w, &copy);
    struct work_step step = {.rule = WORK_STAR, .w = w, .u = u, .e1 = e1};
    struct pair *pairs;
    size_t inner = (size_t)work->nodes[u].choices;

    count = list_pairs(work, w, u, edge, &pairs);
    step.pairs_w = calloc((size_t)count + 1, sizeof(int));
    step.pairs_u = calloc((size_t)count + 1, sizeof(int));
    fleet_assert(step.pairs_w && step.pairs_u);
    work_begin(work, &made, 1, count);
    for (int i = 0; i < count; i++) {
        step.pairs_w[i] = pairs[i].w;
        step.pairs_u[i] = pairs[i].u;
        offer_all(work, &work->pool[work->nodes[u].cells], (size_t)pairs[i].u, edge,
                  (size_t)pairs[i].w * inner + (size_t)pairs[i].u,
                  &work->pool[work->nodes[w].cells], (size_t)pairs[i].w, pairs[i].w);
        cells_close(&work->maker);
    }
    free(pairs);
    cells_release(&copy);
    step.made = work_add_cells(work, &made);
    drop_edge(work, e1);
    add_step(work, step);
    if (count == 0)
        return false;
    move_edges(work, &step, count);
    work->nodes[u].cells = step.made;
    work->nodes[u].choices = count;
    work->nodes[w].is_gone = true;
    for (int i = 0; i < work->nodes[w].degree; i++)
        insert_edge(work, work->nodes[w].edges[i]);
    return true;
}

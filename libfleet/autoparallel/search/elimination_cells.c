/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/autoparallel/search/elimination_internal.h"
#include "libfleet/base/assert.h"

static void *resize(void *items, size_t count, size_t size)
{
    void *moved = realloc(items, count * size);

    fleet_assert(moved);
    return moved;
}

static void reserve(struct cells *cells, size_t more)
{
    if (cells->count + more <= cells->capacity && cells->score && cells->origin)
        return;
    cells->capacity = 2 * cells->capacity + more;
    cells->score = resize(cells->score, cells->capacity, sizeof(*cells->score));
    cells->origin = resize(cells->origin, cells->capacity, sizeof(*cells->origin));
    if (cells->start)
        cells->memory = resize(cells->memory, cells->capacity, sizeof(*cells->memory));
}

void cells_init(struct cells *cells, int rows, int columns, bool has_lists)
{
    size_t size = (size_t)rows * (size_t)columns;

    *cells = (struct cells){.rows = rows, .columns = columns};
    if (has_lists) {
        cells->start = calloc(size + 1, sizeof(*cells->start));
        fleet_assert(cells->start);
    }
    reserve(cells, size);
}

void cells_release(struct cells *cells)
{
    free(cells->start);
    free(cells->score);
    free(cells->memory);
    free(cells->origin);
    *cells = (struct cells){0};
}

/* ---- one cell after the other ---------------------------------------------------------------- */

void cells_offer(struct cells_maker *maker, const struct cells_candidate *candidate)
{
    if (!isfinite(candidate->score) || (maker->keeps_lists && candidate->memory > maker->limit))
        return;
    if (!maker->keeps_lists && maker->count == 1) {
        if (candidate->score < maker->candidates[0].score)
            maker->candidates[0] = *candidate;
        return;
    }
    if (maker->count == maker->capacity) {
        maker->capacity = 2 * maker->capacity + 64;
        maker->candidates = resize(maker->candidates, maker->capacity, sizeof(*maker->candidates));
    }
    maker->candidates[maker->count++] = *candidate;
}

static int compare_candidates(const void *a, const void *b)
{
    const struct cells_candidate *x = a, *y = b;

    if (x->score != y->score)
        return x->score < y->score ? -1 : 1;
    return (x->memory > y->memory) - (x->memory < y->memory);
}

static void append(struct cells *cells, const struct cells_candidate *candidate)
{
    reserve(cells, 1);
    cells->score[cells->count] = candidate->score;
    cells->origin[cells->count] = candidate->origin;
    if (cells->start)
        cells->memory[cells->count] = candidate->memory;
    cells->count++;
}

/* Those that need less memory than all cheaper ones, to the front. */
static size_t prune(struct cells_maker *maker)
{
    struct cells_candidate *items = maker->candidates;
    size_t kept = 0;

    qsort(items, maker->count, sizeof(*items), compare_candidates);
    for (size_t i = 0; i < maker->count; i++)
        if (kept == 0 || items[i].memory < items[kept - 1].memory)
            items[kept++] = items[i];
    return kept;
}

void cells_close(struct cells_maker *maker)
{
    static const struct cells_candidate nothing = {.score = INFINITY};
    struct cells *out = maker->out;
    size_t kept = maker->count;

    if (!maker->keeps_lists) {
        append(out, maker->count > 0 ? &maker->candidates[0] : &nothing);
        maker->count = 0;
        return;
    }
    if (kept > 0)
        kept = prune(maker);
    /* The cheapest and the smallest stay, and evenly many between them. */
    maker->was_cut |= kept > FRONT_MAX;
    for (size_t i = 0; i < kept && i < FRONT_MAX; i++)
        append(out, &maker->candidates[kept > FRONT_MAX ? i * (kept - 1) / (FRONT_MAX - 1) : i]);
    maker->count = 0;
    out->start[++maker->cell] = out->count;
}

/* ---- other arrangements ---------------------------------------------------------------------- */

static void copy_cell(const struct cells *from, size_t cell, struct cells *to, size_t place)
{
    size_t first = cells_first(from, cell), end = cells_end(from, cell);

    reserve(to, end - first);
    for (size_t i = first; i < end; i++) {
        to->score[to->count] = from->score[i];
        to->origin[to->count] = from->origin[i];
        if (to->start)
            to->memory[to->count] = from->memory[i];
        to->count++;
    }
    if (to->start)
        to->start[place + 1] = to->count;
}

void cells_transpose(const struct cells *cells, struct cells *out)
{
    size_t rows = (size_t)cells->rows, columns = (size_t)cells->columns;

    cells_init(out, cells->columns, cells->rows, cells->start != NULL);
    for (size_t j = 0; j < columns; j++)
        for (size_t i = 0; i < rows; i++)
            copy_cell(cells, i * columns + j, out, j * rows + i);
}

void cells_pick_rows(const struct cells *cells, const int *from, int count, struct cells *out)
{
    size_t columns = (size_t)cells->columns;

    cells_init(out, count, cells->columns, cells->start != NULL);
    for (size_t i = 0; i < (size_t)count; i++)
        for (size_t j = 0; j < columns; j++)
            copy_cell(cells, (size_t)from[i] * columns + j, out, i * columns + j);
}

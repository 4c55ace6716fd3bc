/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/program/slice.h"

#include <string.h>

#include "libfleet/base/assert.h"

struct program_slice slice_of(int64_t whole, int blocks, int dimension,
                              const struct program_cell *cell)
{
    struct program_slice slice = {.parts = blocks, .dimension = dimension, .whole = whole};
    int64_t size = whole / blocks, ranks = cell->model_ranks;

    fleet_assert(blocks >= 1 && blocks <= PROGRAM_SLICE_PARTS_MAX && size * blocks == whole &&
                 size >= ranks && ranks >= 1);
    for (int i = 0; i < blocks; i++) {
        int64_t first = (size * cell->model_rank + ranks - 1) / ranks;
        slice.first[i] = i * size + first;
        slice.count[i] = (size * (cell->model_rank + 1) + ranks - 1) / ranks - first;
    }
    return slice;
}

int64_t slice_count(const struct program_slice *slice)
{
    int64_t count = 0;

    for (int i = 0; i < slice->parts; i++)
        count += slice->count[i];
    return count;
}

void slice_whole_shape(const struct program_var *var, int64_t out[PROGRAM_DIMS_MAX])
{
    memcpy(out, var->shape, sizeof(var->shape));
    if (var->slice.parts > 0)
        out[var->slice.dimension] = var->slice.whole;
}

int64_t slice_whole_elements(const struct program_var *var)
{
    int64_t shape[PROGRAM_DIMS_MAX], count = 1;

    slice_whole_shape(var, shape);
    for (int i = 0; i < var->ndim; i++)
        count *= shape[i];
    return count;
}

struct program_var slice_of_rank(const struct program_var *var, int model_ranks, int model_rank)
{
    struct program_cell cell = {.model_ranks = model_ranks, .model_rank = model_rank};
    struct program_var part = *var;

    if (var->slice.parts == 0)
        return part;
    part.slice = slice_of(var->slice.whole, var->slice.parts, var->slice.dimension, &cell);
    part.shape[var->slice.dimension] = slice_count(&part.slice);
    return part;
}

int64_t slice_place(const struct program_var *var, int64_t element, int64_t *out_run)
{
    const struct program_slice *slice = &var->slice;
    int64_t inner = 1, extent, outer, row, column;
    int part = 0;

    fleet_assert(element >= 0 && element < program_var_elements(var));
    if (slice->parts == 0) {
        *out_run = program_var_elements(var) - element;
        return element;
    }
    extent = var->shape[slice->dimension];
    for (int i = slice->dimension + 1; i < var->ndim; i++)
        inner *= var->shape[i];
    outer = element / (extent * inner);
    row = element / inner % extent;
    column = element % inner;
    while (row >= slice->count[part])
        row -= slice->count[part++];
    *out_run = (slice->count[part] - row) * inner - column;
    return (outer * slice->whole + slice->first[part] + row) * inner + column;
}

/* The row of the part at `row` of the whole tensor, or SLICE_NOWHERE. *out_rows: this row and those
 * that follow it in the part, or outside of it. */
static int64_t find_row(const struct program_slice *slice, int64_t row, int64_t *out_rows)
{
    int64_t before = 0;

    for (int i = 0; i < slice->parts; i++) {
        if (row < slice->first[i]) {
            *out_rows = slice->first[i] - row;
            return SLICE_NOWHERE;
        }
        if (row < slice->first[i] + slice->count[i]) {
            *out_rows = slice->first[i] + slice->count[i] - row;
            return before + row - slice->first[i];
        }
        before += slice->count[i];
    }
    *out_rows = slice->whole - row;
    return SLICE_NOWHERE;
}

int64_t slice_find(const struct program_var *var, int64_t place, int64_t *out_run)
{
    const struct program_slice *slice = &var->slice;
    int64_t inner = 1, outer, column, row, rows;

    fleet_assert(place >= 0 && place < slice_whole_elements(var));
    if (slice->parts == 0) {
        *out_run = program_var_elements(var) - place;
        return place;
    }
    for (int i = slice->dimension + 1; i < var->ndim; i++)
        inner *= var->shape[i];
    outer = place / (slice->whole * inner);
    column = place % inner;
    row = find_row(slice, place / inner % slice->whole, &rows);
    *out_run = rows * inner - column;
    return row == SLICE_NOWHERE ? SLICE_NOWHERE
                                : (outer * var->shape[slice->dimension] + row) * inner + column;
}

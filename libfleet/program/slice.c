/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/program/slice.h"

#include "libfleet/base/assert.h"

struct program_slice slice_of(int64_t whole, int blocks, int dimension,
                              const struct program_cell *cell)
{
    struct program_slice slice = {.parts = blocks, .dimension = dimension, .whole = whole};
    int64_t size = whole / blocks, ranks = cell->model_ranks;

    fleet_assert(blocks >= 1 && blocks <= PROGRAM_SLICE_PARTS_MAX && size * blocks == whole &&
                 size >= ranks && ranks >= 1);
    for (int i = 0; i < blocks; i++) {
        int64_t first = size * cell->model_rank / ranks;
        slice.first[i] = i * size + first;
        slice.count[i] = size * (cell->model_rank + 1) / ranks - first;
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

/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Columns put side by side, or taken apart; types may differ.
 *
 * Floor: each part and the whole moved once. Grid: a launch a part, a thread an element of it.
 * Determinism: no sums.
 */
#include "cuda/kernels/device.cuh"

#define THREADS 256

struct side {
    const void *from;
    void *to;
    enum program_type from_type, to_type;
    int64_t from_first, to_first, from_width, to_width; /* where a row begins, and row to row */
    int64_t rows, columns;
};

__global__ void __launch_bounds__(THREADS) concat_kernel(const struct side s)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, row, column;

    if (i >= s.rows * s.columns)
        return;
    row = i / s.columns;
    column = i % s.columns;
    store(s.to, s.to_type, row * s.to_width + s.to_first + column,
          load(s.from, s.from_type, row * s.from_width + s.from_first + column));
}

static cudaError_t run(cudaStream_t stream, const struct fleet_cuda_concat *c, bool is_split)
{
    int64_t width = 0, first = 0;
    cudaError_t status = cudaSuccess;

    if (c->part_count < 0 || c->part_count > OP_INPUTS_MAX || c->rows < 0 ||
        !is_float(c->whole_type))
        return cudaErrorInvalidValue;
    for (int i = 0; i < c->part_count; i++) {
        if (c->parts[i].columns < 0 || !is_float(c->parts[i].type))
            return cudaErrorInvalidValue;
        width += c->parts[i].columns;
    }
    for (int i = 0; i < c->part_count && status == cudaSuccess; i++) {
        int64_t columns = c->parts[i].columns;
        struct side s;
        s.rows = c->rows;
        s.columns = columns;
        s.from = is_split ? c->whole : c->parts[i].data;
        s.to = is_split ? c->parts[i].data : c->whole;
        s.from_type = is_split ? c->whole_type : c->parts[i].type;
        s.to_type = is_split ? c->parts[i].type : c->whole_type;
        s.from_width = is_split ? width : columns;
        s.to_width = is_split ? columns : width;
        s.from_first = is_split ? first : 0;
        s.to_first = is_split ? 0 : first;
        first += columns;
        if (c->rows * columns > 0)
            status = CUDA_LAUNCH(concat_kernel, dim3(blocks_for(c->rows * columns, THREADS)),
                                 dim3(THREADS), 0, stream, s);
    }
    return status;
}

cudaError_t fleet_cuda_concat(cudaStream_t stream, const struct fleet_cuda_concat *c)
{
    return run(stream, c, false);
}

cudaError_t fleet_cuda_split(cudaStream_t stream, const struct fleet_cuda_concat *c)
{
    return run(stream, c, true);
}

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_BACKEND_CPU_KERNELS_GEMM_H
#define AGENT_RUNTIME_BACKEND_CPU_KERNELS_GEMM_H

/*
 * Matrix products: C[m,n] = A[m,k] · B[k,n], fp32 sums.
 *
 * Blocks of A and B are packed into panels that the inner loop reads from end to end, then tiles of
 * C are computed, each by one task (Goto and van de Geijn, ACM TOMS 34(3), 2008). Any strides: a
 * transposed operand is a matter of packing. Operands in 16 bits are widened while they are packed.
 *
 * Each element of C is a sum over k in ascending order, in blocks of GEMM_K: c = (…(s0 + s1) + …).
 * That order is a matter of shape alone, so the bits do not depend on threads or tiles.
 */

#include "agent/runtime/backend/cpu/cpu_internal.h"
#include "agent/runtime/backend/cpu/kernels/typed.h"
#include "agent/runtime/backend/cpu/vector.h"
#include "agent/runtime/backend/cpu/vector_math.h"
#include "libfleet/program/ops/operand.h"

/* The inner tile: rows times vectors of sixteen columns, held in registers. */
#if defined(__AVX512F__)
#define GEMM_ROWS    8
#define GEMM_VECTORS 2
#elif defined(__AVX2__)
#define GEMM_ROWS    6
#define GEMM_VECTORS 1
#else
#define GEMM_ROWS    2
#define GEMM_VECTORS 1
#endif
#define GEMM_COLUMNS (GEMM_VECTORS * V_LANES)

#define GEMM_K        384                            /* depth of a packed block */
#define GEMM_M        (1920 / GEMM_ROWS * GEMM_ROWS) /* rows of a packed block of A */
#define GEMM_N        1024                           /* columns of a packed block of B */
#define GEMM_TASK_M   (96 / GEMM_ROWS * GEMM_ROWS)   /* rows of C of one task */
#define GEMM_DIRECT_N 128 /* products with fewer columns read A where it lies */
#define GEMM_TASK_N   256 /* columns of C of one task */

_Static_assert(GEMM_M *GEMM_K * sizeof(float) <= CPU_PACKED_A_BYTES, "A does not fit");
_Static_assert(GEMM_N *GEMM_K * sizeof(float) <= CPU_PACKED_B_BYTES, "B does not fit");
_Static_assert(GEMM_N <= OPERAND_PRODUCT_COLUMNS, "op_cost() counts fewer sums");
_Static_assert(GEMM_N % GEMM_COLUMNS == 0 && GEMM_TASK_N % GEMM_COLUMNS == 0, "panels");

/*
 * Element (i, j) lies at data[i·row + j·column]; one of the strides is 1. Or `pack` makes panels
 * itself (convolutions): out[l·width + i] = element (first + i, p + l) of A, or (p + l, first + i)
 * of B, for i < count, l < k; the rest of the width is 0.
 */
struct gemm_operand {
    const void *data;
    enum program_type type; /* FP32, BF16, FP16 */
    int64_t row, column;
    void (*pack)(const void *context, int64_t first, int count, int width, int64_t p, int64_t k,
                 float *out);
    const void *context;
};

/* What is done to finished columns [from, to) of row `row`; sums[0] is column `from`. */
typedef void (*gemm_finish)(const void *context, int64_t row, int64_t from, int64_t to,
                            float *sums);

struct gemm {
    int64_t m, n, k;
    struct gemm_operand a, b;
    float *c; /* fp32; rows `ldc` elements apart; ignored with `wide` */
    int64_t ldc;
    float *wide;        /* not NULL: sums go here, [m][GEMM_N], and `finish` takes them away */
    bool accumulate;    /* C += instead of C = */
    gemm_finish finish; /* NULL: nothing */
    const void *finish_context;
};

/* ---- packing --------------------------------------------------------------------------------- */

static inline int64_t gemm_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* out[p·width + i] = element (i, p) for i < count, 0 for count <= i < width; p < k. Elements of one
 * p lie side by side in memory, or (the other function) those of one i. */
static void gemm_pack_along_slowly(const struct gemm_operand *from, int64_t at, int64_t step,
                                   int count, int width, int64_t k, float *out)
{
    for (int64_t p = 0; p < k; p++, at += step, out += width)
        for (int i = 0; i < width; i += V_LANES) {
            v16 x = typed_load_n(from->data, from->type, at + i, count - i);
            v_store_n(out + i, width - i, x);
        }
}

/* A whole panel of fp32: the width is a constant here. */
V_INLINE void gemm_copy(const float *from, int64_t step, int width, int64_t k, float *out)
{
    for (int64_t p = 0; p < k; p++, from += step, out += width)
        memcpy(out, from, (size_t)width * sizeof(float));
}

static void gemm_pack_along(const struct gemm_operand *from, int64_t at, int64_t step, int count,
                            int width, int64_t k, float *out)
{
    if (from->type != PROGRAM_FP32 || count < width)
        gemm_pack_along_slowly(from, at, step, count, width, k, out);
    else if (width == GEMM_COLUMNS)
        gemm_copy((const float *)from->data + at, step, GEMM_COLUMNS, k, out);
    else
        gemm_copy((const float *)from->data + at, step, GEMM_ROWS, k, out);
}

static void gemm_pack_across_slowly(const struct gemm_operand *from, int64_t at, int64_t step,
                                    int count, int width, int64_t k, float *out)
{
    for (int i = 0; i < count; i++)
        for (int64_t p = 0; p < k; p += V_LANES) {
            int n = (int)gemm_min(V_LANES, k - p);
            float lanes[V_LANES];
            v_store(lanes, typed_load_n(from->data, from->type, at + i * step + p, n));
            for (int l = 0; l < n; l++)
                out[(p + l) * width + i] = lanes[l];
        }
    for (int i = count; i < width; i++)
        for (int64_t p = 0; p < k; p++)
            out[p * width + i] = 0;
}

#if defined(__AVX2__)
/* Four rows of four, turned. */
static inline __attribute__((always_inline)) void gemm_turn(const float *from, int64_t step,
                                                            float *out, int width)
{
    __m128 a = _mm_loadu_ps(from), b = _mm_loadu_ps(from + step);
    __m128 c = _mm_loadu_ps(from + 2 * step), d = _mm_loadu_ps(from + 3 * step);

    _MM_TRANSPOSE4_PS(a, b, c, d);
    _mm_storeu_ps(out, a);
    _mm_storeu_ps(out + width, b);
    _mm_storeu_ps(out + 2 * width, c);
    _mm_storeu_ps(out + 3 * width, d);
}
#endif

static void gemm_pack_across(const struct gemm_operand *from, int64_t at, int64_t step, int count,
                             int width, int64_t k, float *out)
{
#if defined(__AVX2__)
    const float *data = (const float *)from->data + at;
    int i = 0;

    if (from->type != PROGRAM_FP32) {
        gemm_pack_across_slowly(from, at, step, count, width, k, out);
        return;
    }
    for (; i + 4 <= count; i += 4) {
        int64_t p = 0;
        for (; p + 4 <= k; p += 4)
            gemm_turn(data + i * step + p, step, out + p * width + i, width);
        for (; p < k; p++)
            for (int l = i; l < i + 4; l++)
                out[p * width + l] = data[l * step + p];
    }
    for (; i < width; i++)
        for (int64_t p = 0; p < k; p++)
            out[p * width + i] = i < count ? data[i * step + p] : 0;
#else
    gemm_pack_across_slowly(from, at, step, count, width, k, out);
#endif
}

/* Rows [row, row+count) and depth [p, p+k) of A as one panel. */
static void gemm_pack_a(const struct gemm_operand *a, int64_t row, int count, int64_t p, int64_t k,
                        float *out)
{
    int64_t at = row * a->row + p * a->column;

    if (a->pack)
        a->pack(a->context, row, count, GEMM_ROWS, p, k, out);
    else if (a->row == 1)
        gemm_pack_along(a, at, a->column, count, GEMM_ROWS, k, out);
    else
        gemm_pack_across(a, at, a->row, count, GEMM_ROWS, k, out);
}

/* Columns [column, column+count) and depth [p, p+k) of B as one panel. */
static void gemm_pack_b(const struct gemm_operand *b, int64_t column, int count, int64_t p,
                        int64_t k, float *out)
{
    int64_t at = p * b->row + column * b->column;

    if (b->pack)
        b->pack(b->context, column, count, GEMM_COLUMNS, p, k, out);
    else if (b->column == 1)
        gemm_pack_along(b, at, b->row, count, GEMM_COLUMNS, k, out);
    else
        gemm_pack_across(b, at, b->column, count, GEMM_COLUMNS, k, out);
}

/* ---- the inner tile -------------------------------------------------------------------------- */

/* GEMM_ROWS rows of A: element (i, p) lies at data[i·row + p·step], and row or step is 1. Packed or
 * as the operand lies, the sums are the same. */
struct gemm_rows {
    const float *data;
    int64_t row, step;
};

/* sum += the product's next term, for `right` from B and the tile's rows from A. */
#define GEMM_MULTIPLY(element)                                                         \
    do {                                                                               \
        v16 right[GEMM_VECTORS];                                                       \
        _Pragma("GCC unroll 4") for (int j = 0; j < GEMM_VECTORS; j++) right[j] =      \
            v_load(b + j * V_LANES);                                                   \
        _Pragma("GCC unroll 16") for (int i = 0; i < GEMM_ROWS; i++)                   \
        {                                                                              \
            v16 left = v_set(element);                                                 \
            _Pragma("GCC unroll 4") for (int j = 0; j < GEMM_VECTORS; j++) sum[i][j] = \
                v_fma(left, right[j], sum[i][j]);                                      \
        }                                                                              \
    } while (0)

/* A tile's sums begin at zero, … */
#define GEMM_CLEAR()                                             \
    _Pragma("GCC unroll 16") for (int i = 0; i < GEMM_ROWS; i++) \
        _Pragma("GCC unroll 4") for (int j = 0; j < GEMM_VECTORS; j++) sum[i][j] = v_zero()

/* … and go to C[rows, columns], which they are added to or take the place of. */
#define GEMM_STORE()                                                   \
    _Pragma("GCC unroll 16") for (int i = 0; i < GEMM_ROWS; i++)       \
        _Pragma("GCC unroll 4") for (int j = 0; j < GEMM_VECTORS; j++) \
    {                                                                  \
        float *to = c + i * ldc + j * V_LANES;                         \
        int n = columns - j * V_LANES;                                 \
        if (i >= rows || n <= 0)                                       \
            continue;                                                  \
        if (accumulate)                                                \
            sum[i][j] = v_add(v_load_n(to, n), sum[i][j]);             \
        v_store_n(to, n, sum[i][j]);                                   \
    }

/* C[rows, columns] (+)= A · panel of B; `rows`, `columns` <= the tile's. */
static void gemm_tile(int64_t k, struct gemm_rows a, const float *b, float *c, int64_t ldc,
                      int rows, int columns, bool accumulate)
{
    v16 sum[GEMM_ROWS][GEMM_VECTORS];

    GEMM_CLEAR();
    if (a.row == 1) {
        const float *left_rows = a.data;
        for (int64_t p = 0; p < k; p++, left_rows += a.step, b += GEMM_COLUMNS)
            GEMM_MULTIPLY(left_rows[i]);
    } else {
        const float *left_rows[GEMM_ROWS];
#pragma GCC unroll 16
        for (int i = 0; i < GEMM_ROWS; i++)
            left_rows[i] = a.data + i * a.row;
        for (int64_t p = 0; p < k; p++, b += GEMM_COLUMNS)
            GEMM_MULTIPLY(left_rows[i][p]);
    }
    GEMM_STORE();
}

/* Rows of A that need no packing: fp32, all of the tile's, in a product with few columns, where a
 * packed panel would hardly be read again. */
static inline bool gemm_is_direct(const struct gemm *gemm, int64_t rows)
{
    return gemm->n <= GEMM_DIRECT_N && !gemm->a.pack && gemm->a.type == PROGRAM_FP32 &&
           rows >= GEMM_ROWS;
}

static inline struct gemm_rows gemm_direct(const struct gemm *gemm, int64_t row, int64_t p)
{
    const struct gemm_operand *a = &gemm->a;

    return (struct gemm_rows){(const float *)a->data + row * a->row + p * a->column, a->row,
                              a->column};
}

static inline struct gemm_rows gemm_packed(const float *panel)
{
    return (struct gemm_rows){panel, 1, GEMM_ROWS};
}

#include "agent/runtime/backend/cpu/kernels/gemm_bf16.h"

/* ---- all of it ------------------------------------------------------------------------------- */

/* One block of the loops over n, k, m. */
struct gemm_block {
    const struct gemm *gemm;
    float *packed_a, *packed_b;
    float *c; /* element (row, column) of C or of `wide` */
    int64_t ldc;
    int64_t row, rows, column, columns, p, k;
    int64_t depth; /* of the packed block: k, or pairs */
    int64_t panels_a, panels_b;
    int64_t tasks_across;
};

/* Elements along k of one packed block, and floats that a packed row of it takes. */
static inline int64_t gemm_depth(const struct gemm *gemm)
{
#if defined(__AVX512BF16__)
    if (gemm_is_bf16(gemm))
        return 2 * GEMM_PAIRS;
#endif
    (void)gemm;
    return GEMM_K;
}

static inline int64_t gemm_packed_depth(const struct gemm *gemm, int64_t k)
{
#if defined(__AVX512BF16__)
    if (gemm_is_bf16(gemm))
        return (k + 1) / 2;
#endif
    (void)gemm;
    return k;
}

static void gemm_pack_left(const struct gemm *gemm, int64_t row, int count, int64_t p, int64_t k,
                           float *out)
{
#if defined(__AVX512BF16__)
    if (gemm_is_bf16(gemm)) {
        gemm_pack_pairs(&gemm->a, row * gemm->a.row + p * gemm->a.column, gemm->a.column,
                        gemm->a.row, count, GEMM_ROWS, k, out);
        return;
    }
#endif
    gemm_pack_a(&gemm->a, row, count, p, k, out);
}

static void gemm_pack_right(const struct gemm *gemm, int64_t column, int count, int64_t p,
                            int64_t k, float *out)
{
#if defined(__AVX512BF16__)
    if (gemm_is_bf16(gemm)) {
        gemm_pack_pairs(&gemm->b, p * gemm->b.row + column * gemm->b.column, gemm->b.row,
                        gemm->b.column, count, GEMM_COLUMNS, k, out);
        return;
    }
#endif
    gemm_pack_b(&gemm->b, column, count, p, k, out);
}

static inline void gemm_any_tile(const struct gemm *gemm, int64_t depth, struct gemm_rows a,
                                 const float *b, float *c, int64_t ldc, int rows, int columns,
                                 bool accumulate)
{
#if defined(__AVX512BF16__)
    if (gemm_is_bf16(gemm)) {
        gemm_tile_bf16(depth, a.data, b, c, ldc, rows, columns, accumulate);
        return;
    }
#endif
    (void)gemm;
    gemm_tile(depth, a, b, c, ldc, rows, columns, accumulate);
}

static void gemm_pack_task(void *context, int64_t task, int thread)
{
    const struct gemm_block *block = context;

    (void)thread;
    if (task < block->panels_b) {
        int64_t column = task * GEMM_COLUMNS;
        gemm_pack_right(block->gemm, block->column + column,
                        (int)gemm_min(GEMM_COLUMNS, block->columns - column), block->p, block->k,
                        block->packed_b + column * block->depth);
    } else {
        int64_t row = (task - block->panels_b) * GEMM_ROWS;
        if (!gemm_is_direct(block->gemm, block->rows - row))
            gemm_pack_left(block->gemm, block->row + row,
                           (int)gemm_min(GEMM_ROWS, block->rows - row), block->p, block->k,
                           block->packed_a + row * block->depth);
    }
}

static void gemm_finish_rows(const struct gemm_block *block, int64_t row, int64_t row_end,
                             int64_t column, int64_t column_end)
{
    const struct gemm *gemm = block->gemm;

    for (int64_t i = row; i < row_end; i++)
        gemm->finish(gemm->finish_context, block->row + i, block->column + column,
                     block->column + column_end, block->c + i * block->ldc + column);
}

static void gemm_task(void *context, int64_t task, int thread)
{
    const struct gemm_block *block = context;
    const struct gemm *gemm = block->gemm;
    int64_t row = task / block->tasks_across * GEMM_TASK_M;
    int64_t column = task % block->tasks_across * GEMM_TASK_N;
    int64_t row_end = gemm_min(row + GEMM_TASK_M, block->rows);
    int64_t column_end = gemm_min(column + GEMM_TASK_N, block->columns);
    bool accumulate = gemm->accumulate || block->p > 0;

    (void)thread;
    for (int64_t j = column; j < column_end; j += GEMM_COLUMNS)
        for (int64_t i = row; i < row_end; i += GEMM_ROWS) {
            struct gemm_rows a = gemm_is_direct(gemm, block->rows - i)
                                     ? gemm_direct(gemm, block->row + i, block->p)
                                     : gemm_packed(block->packed_a + i * block->depth);
            gemm_any_tile(gemm, block->depth, a, block->packed_b + j * block->depth,
                          block->c + i * block->ldc + j, block->ldc,
                          (int)gemm_min(GEMM_ROWS, row_end - i),
                          (int)gemm_min(GEMM_COLUMNS, column_end - j), accumulate);
        }
    if (gemm->finish && block->p + block->k == gemm->k)
        gemm_finish_rows(block, row, row_end, column, column_end);
}

static int64_t gemm_pieces(int64_t count, int64_t size)
{
    return (count + size - 1) / size;
}

static void gemm_run_block(struct cpu_backend *cpu, struct gemm_block *block, bool pack_b)
{
    const struct gemm *gemm = block->gemm;

    block->ldc = gemm->wide ? GEMM_N : gemm->ldc;
    block->c = gemm->wide ? gemm->wide + block->row * GEMM_N
                          : gemm->c + block->row * gemm->ldc + block->column;
    block->panels_a = gemm_pieces(block->rows, GEMM_ROWS);
    block->panels_b = pack_b ? gemm_pieces(block->columns, GEMM_COLUMNS) : 0;
    block->tasks_across = gemm_pieces(block->columns, GEMM_TASK_N);
    cpu_parallel(cpu, block->panels_a + block->panels_b, gemm_pack_task, block);
    cpu_parallel(cpu, gemm_pieces(block->rows, GEMM_TASK_M) * block->tasks_across, gemm_task,
                 block);
}

/* The whole product on all threads. m, n, k >= 1. */
static void gemm_run(struct cpu_backend *cpu, const struct gemm *gemm)
{
    struct gemm_block block = {.gemm = gemm, .packed_a = cpu->packed_a, .packed_b = cpu->packed_b};

    for (block.column = 0; block.column < gemm->n; block.column += GEMM_N) {
        block.columns = gemm_min(GEMM_N, gemm->n - block.column);
        for (block.p = 0; block.p < gemm->k; block.p += gemm_depth(gemm)) {
            block.k = gemm_min(gemm_depth(gemm), gemm->k - block.p);
            block.depth = gemm_packed_depth(gemm, block.k);
            for (block.row = 0; block.row < gemm->m; block.row += GEMM_M) {
                block.rows = gemm_min(GEMM_M, gemm->m - block.row);
                gemm_run_block(cpu, &block, block.row == 0);
            }
        }
    }
}

/*
 * A small product by the calling task alone: C[m,n] (+)= A · B in fp32, packed into `buffer`, which
 * holds gemm_small_floats(m, n, k) floats. k <= GEMM_K.
 */
static inline int64_t gemm_small_floats(int64_t m, int64_t n, int64_t k)
{
    return (gemm_pieces(m, GEMM_ROWS) * GEMM_ROWS + gemm_pieces(n, GEMM_COLUMNS) * GEMM_COLUMNS) *
           k;
}

static void gemm_small(const struct gemm *gemm, float *buffer)
{
    int64_t depth = gemm_packed_depth(gemm, gemm->k);
    float *packed_a = buffer;
    float *packed_b = buffer + gemm_pieces(gemm->m, GEMM_ROWS) * GEMM_ROWS * depth;

    for (int64_t i = 0; i < gemm->m; i += GEMM_ROWS)
        if (!gemm_is_direct(gemm, gemm->m - i))
            gemm_pack_left(gemm, i, (int)gemm_min(GEMM_ROWS, gemm->m - i), 0, gemm->k,
                           packed_a + i * depth);
    for (int64_t j = 0; j < gemm->n; j += GEMM_COLUMNS) {
        int columns = (int)gemm_min(GEMM_COLUMNS, gemm->n - j);
        gemm_pack_right(gemm, j, columns, 0, gemm->k, packed_b);
        for (int64_t i = 0; i < gemm->m; i += GEMM_ROWS)
            gemm_any_tile(gemm, depth,
                          gemm_is_direct(gemm, gemm->m - i) ? gemm_direct(gemm, i, 0)
                                                            : gemm_packed(packed_a + i * depth),
                          packed_b, gemm->c + i * gemm->ldc + j, gemm->ldc,
                          (int)gemm_min(GEMM_ROWS, gemm->m - i), columns, gemm->accumulate);
    }
}

#endif

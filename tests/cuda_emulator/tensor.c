/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Tensor cores: what a whole warp does at once, in the layout of fragments of PTX (ISA 8.7, 9.7.14,
 * "Matrix Fragments for mma.m16n8k16", and "ldmatrix"). cuda/kernels/tensor_core.cuh draws it.
 *
 * Each lane brings a struct; the last one to come works on all 32.
 */
#include <stdint.h>
#include <string.h>

#include "tests/cuda_emulator/emulator.h"
#include "tests/cuda_emulator/internal.h"

#define ROWS  16
#define DEPTH 16
#define WIDTH 8

struct product {
    float d[4];
    unsigned a[4], b[2];
};

/* Element 0 or 1 of a register, by its type. */
static float element(unsigned bits, int which, bool is_bf16)
{
    uint16_t half = (uint16_t)(which ? bits >> 16 : bits);
    uint32_t wide = (uint32_t)half << 16;
    _Float16 narrow;
    float x;

    if (is_bf16) {
        memcpy(&x, &wide, sizeof(x));
        return x;
    }
    memcpy(&narrow, &half, sizeof(narrow));
    return (float)narrow;
}

static void multiply(void *lanes[WARP], bool is_bf16)
{
    float a[ROWS][DEPTH], b[DEPTH][WIDTH];

    for (int lane = 0; lane < WARP; lane++) {
        const struct product *p = lanes[lane];
        int g = lane / 4, t = lane % 4;
        for (int r = 0; r < 4; r++)
            for (int e = 0; e < 2; e++)
                a[g + r % 2 * 8][2 * t + e + r / 2 * 8] = element(p->a[r], e, is_bf16);
        for (int r = 0; r < 2; r++)
            for (int e = 0; e < 2; e++)
                b[2 * t + e + r * 8][g] = element(p->b[r], e, is_bf16);
    }
    for (int lane = 0; lane < WARP; lane++) {
        struct product *p = lanes[lane];
        for (int e = 0; e < 4; e++) {
            int row = lane / 4 + e / 2 * 8, column = 2 * (lane % 4) + e % 2;
            double sum = (double)p->d[e];
            for (int k = 0; k < DEPTH; k++)
                sum += (double)a[row][k] * (double)b[k][column];
            p->d[e] = (float)sum;
        }
    }
}

static void multiply_bf16(void *lanes[WARP])
{
    multiply(lanes, true);
}

static void multiply_fp16(void *lanes[WARP])
{
    multiply(lanes, false);
}

void emulator_mma(float d[4], const unsigned a[4], unsigned b0, unsigned b1, bool is_bf16,
                  const char *file, int line)
{
    struct product p = {.b = {b0, b1}};

    memcpy(p.d, d, sizeof(p.d));
    memcpy(p.a, a, sizeof(p.a));
    emulator_together(is_bf16 ? multiply_bf16 : multiply_fp16, &p, file, line);
    memcpy(d, p.d, sizeof(p.d));
}

struct load {
    uint16_t row[8]; /* that this lane gives the address of */
    unsigned r[4];   /* that it gets */
};

static void load_rows(void *lanes[WARP], bool turned)
{
    for (int lane = 0; lane < WARP; lane++) {
        struct load *to = lanes[lane];
        int g = lane / 4, t = lane % 4;
        for (int matrix = 0; matrix < 4; matrix++) {
            const struct load *straight = lanes[8 * matrix + g];
            const struct load *upper = lanes[8 * matrix + 2 * t],
                              *lower = lanes[8 * matrix + 2 * t + 1];
            unsigned first = turned ? upper->row[g] : straight->row[2 * t];
            unsigned second = turned ? lower->row[g] : straight->row[2 * t + 1];
            to->r[matrix] = first | second << 16;
        }
    }
}

static void load_straight(void *lanes[WARP])
{
    load_rows(lanes, false);
}

static void load_turned(void *lanes[WARP])
{
    load_rows(lanes, true);
}

void emulator_ldmatrix(unsigned r[4], const void *row, bool turned, const char *file, int line)
{
    struct load l;

    if ((uintptr_t)row % sizeof(l.row) != 0 || !memory_is_shared(row))
        emulator_fail("%s:%d: ldmatrix from %p: must be 16 bytes of shared memory, aligned to them",
                      file, line, row);
    emulator_maybe_yield(64);
    memory_access(row, sizeof(l.row), ACCESS_READ, __builtin_return_address(0));
    memcpy(l.row, row, sizeof(l.row));
    emulator_together(turned ? load_turned : load_straight, &l, file, line);
    memcpy(r, l.r, sizeof(l.r));
}

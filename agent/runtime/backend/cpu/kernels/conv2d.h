/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_BACKEND_CPU_KERNELS_CONV2D_H
#define AGENT_RUNTIME_BACKEND_CPU_KERNELS_CONV2D_H

/*
 * Convolutions as matrix products over all images of the micro-batch, whose columns (im2col) are
 * never stored: they are made while panels are packed (Chetlur et al., 1410.0759, 3.1).
 *
 *   y[o, (b,r,c)]        = Σ over (i,u,v)   weight[o, (i,u,v)] · x[b, i, r·s+u-p, c·s+v-p]
 *   d_weight[o, (i,u,v)] = Σ over (b,r,c)   d_y[b,o,r,c]       · the same element of x
 *   d_x[i, (b,h,w)]      = Σ over (o,u,v)   weight[o,i,u,v]    · d_y[b, o, (h+p-u)/s, (w+p-v)/s]
 *
 * where an element outside the image, or a fraction, is 0. Sums run in the order written.
 */

#include "agent/runtime/backend/cpu/kernels/gemm.h"
#include "agent/runtime/backend/cpu/kernels/kernel.h"

struct conv2d {
    const void *x, *weight, *d_y;
    enum program_type x_type, weight_type, d_type;
    int64_t batch, in, out;     /* images, channels */
    int64_t h, w, out_h, out_w; /* of x and y */
    int64_t window[2], stride[2], padding[2];
    void *result; /* [batch, channels, plane] of the product at hand */
    enum program_type result_type;
    int64_t result_channels, result_plane;
};

static inline float conv2d_at(const void *data, enum program_type type, int64_t i)
{
    if (type == PROGRAM_FP32)
        return ((const float *)data)[i];
    return type == PROGRAM_BF16 ? typed_of_bf16(((const uint16_t *)data)[i])
                                : typed_of_fp16(((const uint16_t *)data)[i]);
}

/* The place of a tap: number t of (channel, u, v). */
struct conv2d_tap {
    int64_t channel, u, v;
};

static inline struct conv2d_tap conv2d_tap(const struct conv2d *c, int64_t t)
{
    return (struct conv2d_tap){t / (c->window[0] * c->window[1]), t / c->window[1] % c->window[0],
                               t % c->window[1]};
}

static inline void conv2d_next_tap(const struct conv2d *c, struct conv2d_tap *tap)
{
    if (++tap->v < c->window[1])
        return;
    tap->v = 0;
    if (++tap->u < c->window[0])
        return;
    tap->u = 0;
    tap->channel++;
}

/* `count` pixels of one output row from column `column`, each `step` floats apart in `out`. */
static void conv2d_row(const struct conv2d *c, const struct conv2d_tap *tap, int64_t image,
                       int64_t row, int64_t column, int64_t count, int64_t step, float *out)
{
    int64_t y = row * c->stride[0] + tap->u - c->padding[0];
    int64_t x = column * c->stride[1] + tap->v - c->padding[1];
    int64_t at = ((image * c->in + tap->channel) * c->h + y) * c->w;

    for (int64_t i = 0; i < count; i++, x += c->stride[1])
        out[i * step] =
            y < 0 || y >= c->h || x < 0 || x >= c->w ? 0.0f : conv2d_at(c->x, c->x_type, at + x);
}

/* Columns (b,r,c) from `first`, taps from p: B of the forward product. */
static void conv2d_pack_pixels(const void *context, int64_t first, int count, int width, int64_t p,
                               int64_t k, float *out)
{
    const struct conv2d *c = context;
    struct conv2d_tap tap = conv2d_tap(c, p);
    int64_t plane = c->out_h * c->out_w;

    for (int64_t l = 0; l < k; l++, out += width, conv2d_next_tap(c, &tap)) {
        int i = 0;
        while (i < count) { /* pieces of one output row */
            int64_t pixel = (first + i) % plane, column = pixel % c->out_w;
            int piece = (int)gemm_min(count - i, c->out_w - column);
            conv2d_row(c, &tap, (first + i) / plane, pixel / c->out_w, column, piece, 1, out + i);
            i += piece;
        }
        for (; i < width; i++)
            out[i] = 0;
    }
}

/* Taps from `first`, pixels from p: B of the product for d_weight. */
static void conv2d_pack_taps(const void *context, int64_t first, int count, int width, int64_t p,
                             int64_t k, float *out)
{
    const struct conv2d *c = context;
    int64_t plane = c->out_h * c->out_w;

    for (int i = 0; i < width; i++) {
        struct conv2d_tap tap = conv2d_tap(c, first + i);
        int64_t l = 0;
        while (l < k) {
            int64_t pixel = (p + l) % plane, column = pixel % c->out_w;
            int64_t piece = gemm_min(k - l, c->out_w - column);
            if (i < count)
                conv2d_row(c, &tap, (p + l) / plane, pixel / c->out_w, column, piece, width,
                           out + l * width + i);
            else
                for (int64_t j = 0; j < piece; j++)
                    out[(l + j) * width + i] = 0;
            l += piece;
        }
    }
}

/* Output channels from `first`, pixels from p: A of the product for d_weight. */
static void conv2d_pack_d_y(const void *context, int64_t first, int count, int width, int64_t p,
                            int64_t k, float *out)
{
    const struct conv2d *c = context;
    int64_t plane = c->out_h * c->out_w;

    for (int64_t l = 0; l < k; l++, out += width) {
        int64_t image = (p + l) / plane, pixel = (p + l) % plane;
        int64_t at = (image * c->out + first) * plane + pixel;
        for (int i = 0; i < width; i++)
            out[i] = i < count ? conv2d_at(c->d_y, c->d_type, at + i * plane) : 0.0f;
    }
}

/* Input channels from `first`, taps (o,u,v) from p: A of the product for d_x. */
static void conv2d_pack_weight(const void *context, int64_t first, int count, int width, int64_t p,
                               int64_t k, float *out)
{
    const struct conv2d *c = context;
    int64_t taps = c->window[0] * c->window[1];

    for (int64_t l = 0; l < k; l++, out += width) {
        int64_t at = ((p + l) / taps * c->in + first) * taps + (p + l) % taps;
        for (int i = 0; i < width; i++)
            out[i] = i < count ? conv2d_at(c->weight, c->weight_type, at + i * taps) : 0.0f;
    }
}

/* Pixels (b,h,w) of x from `first`, taps (o,u,v) from p: B of the product for d_x. */
static void conv2d_pack_back(const void *context, int64_t first, int count, int width, int64_t p,
                             int64_t k, float *out)
{
    const struct conv2d *c = context;
    struct conv2d_tap tap = conv2d_tap(c, p);
    int64_t plane = c->h * c->w;

    for (int64_t l = 0; l < k; l++, out += width, conv2d_next_tap(c, &tap))
        for (int i = 0; i < width; i++) {
            int64_t image = (first + i) / plane, pixel = (first + i) % plane;
            int64_t y = pixel / c->w + c->padding[0] - tap.u;
            int64_t x = pixel % c->w + c->padding[1] - tap.v;
            bool hit = i < count && y >= 0 && x >= 0 && y % c->stride[0] == 0 &&
                       x % c->stride[1] == 0 && y / c->stride[0] < c->out_h &&
                       x / c->stride[1] < c->out_w;
            out[i] =
                hit ? conv2d_at(c->d_y, c->d_type,
                                ((image * c->out + tap.channel) * c->out_h + y / c->stride[0]) *
                                        c->out_w +
                                    x / c->stride[1])
                    : 0.0f;
        }
}

/* Row `channel` of a product, columns (b, pixel), goes to [b, channel, pixel]. */
static void conv2d_finish_row(const void *context, int64_t row, int64_t from, int64_t to,
                              float *sums)
{
    const struct conv2d *c = context;

    while (from < to) {
        int64_t image = from / c->result_plane, pixel = from % c->result_plane;
        int64_t piece = gemm_min(to - from, c->result_plane - pixel);
        int64_t at = (image * c->result_channels + row) * c->result_plane + pixel;
        for (int64_t i = 0; i < piece; i += V_LANES)
            typed_store_n(c->result, c->result_type, at + i, piece - i,
                          v_load_n(sums + i, piece - i));
        sums += piece;
        from += piece;
    }
}

static struct conv2d conv2d_of(const struct kernel_call *call, int x, int weight, int y)
{
    const struct program_var *x_var = kernel_in(call, x), *w_var = kernel_in(call, weight);
    const struct program_var *y_var = y < 0 ? kernel_out(call, 0) : kernel_in(call, y);

    return (struct conv2d){
        .x = call->in[x],
        .weight = call->in[weight],
        .d_y = y < 0 ? NULL : call->in[y],
        .x_type = x_var->type,
        .weight_type = w_var->type,
        .d_type = y_var->type,
        .batch = x_var->shape[0],
        .in = x_var->shape[1],
        .out = w_var->shape[0],
        .h = x_var->shape[2],
        .w = x_var->shape[3],
        .out_h = y_var->shape[2],
        .out_w = y_var->shape[3],
        .window = {w_var->shape[2], w_var->shape[3]},
        .stride = {call->op->attributes.stride[0], call->op->attributes.stride[1]},
        .padding = {call->op->attributes.padding[0], call->op->attributes.padding[1]}};
}

static int conv2d_kernel(struct backend *backend, const struct kernel_call *call,
                         struct fleet_error *err)
{
    struct conv2d c = conv2d_of(call, 0, 1, -1);
    int64_t taps = c.in * c.window[0] * c.window[1];
    struct gemm gemm = {.m = c.out,
                        .n = c.batch * c.out_h * c.out_w,
                        .k = taps,
                        .a = {.data = c.weight, .type = c.weight_type, .row = taps, .column = 1},
                        .b = {.pack = conv2d_pack_pixels, .context = &c},
                        .wide = call->scratch,
                        .finish = conv2d_finish_row,
                        .finish_context = &c};

    (void)err;
    c.result = call->out[0];
    c.result_type = kernel_out_type(call, 0);
    c.result_channels = c.out;
    c.result_plane = c.out_h * c.out_w;
    gemm_run(cpu_backend(backend), &gemm);
    return 0;
}

static void conv2d_grad_x(struct cpu_backend *cpu, const struct kernel_call *call, struct conv2d c)
{
    struct gemm gemm = {.m = c.in,
                        .n = c.batch * c.h * c.w,
                        .k = c.out * c.window[0] * c.window[1],
                        .a = {.pack = conv2d_pack_weight, .context = &c},
                        .b = {.pack = conv2d_pack_back, .context = &c},
                        .wide = call->scratch,
                        .finish = conv2d_finish_row,
                        .finish_context = &c};

    c.result = call->out[0];
    c.result_type = kernel_out_type(call, 0);
    c.result_channels = c.in;
    c.result_plane = c.h * c.w;
    gemm_run(cpu, &gemm);
}

static void conv2d_grad_weight(struct cpu_backend *cpu, const struct kernel_call *call,
                               struct conv2d c)
{
    struct gemm gemm = {.m = c.out,
                        .n = c.in * c.window[0] * c.window[1],
                        .k = c.batch * c.out_h * c.out_w,
                        .a = {.pack = conv2d_pack_d_y, .context = &c},
                        .b = {.pack = conv2d_pack_taps, .context = &c},
                        .wide = call->scratch,
                        .finish = conv2d_finish_row,
                        .finish_context = &c};

    c.result = call->out[1];
    c.result_type = kernel_out_type(call, 1);
    c.result_channels = c.out; /* one image whose plane is a channel's taps */
    c.result_plane = gemm.n;
    gemm_run(cpu, &gemm);
}

static int conv2d_grad_kernel(struct backend *backend, const struct kernel_call *call,
                              struct fleet_error *err)
{
    struct conv2d c = conv2d_of(call, 1, 2, 0);

    (void)err;
    if (call->out[0])
        conv2d_grad_x(cpu_backend(backend), call, c);
    if (call->out[1])
        conv2d_grad_weight(cpu_backend(backend), call, c);
    return 0;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A PNG is read back, by a reader that knows no more than the standards say: signature, chunks and
 * their checksums, zlib's checksum, deflate's fixed codes, the filter of each row. The pixels are
 * those that were drawn; a loss curve has its colours where its numbers are.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cli/curve.h"
#include "cli/png.h"

struct image {
    uint32_t width, height;
    uint8_t *pixels; /* [height][width][3] */
};

static uint32_t big(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

/* ---- inflate --------------------------------------------------------------------------------- */

struct stream {
    const uint8_t *bytes;
    size_t size, bit;
};

static uint32_t take(struct stream *stream, int count)
{
    uint32_t value = 0;

    for (int i = 0; i < count; i++, stream->bit++) {
        if (stream->bit / 8 >= stream->size)
            fail_msg("the data end too early");
        value |= (uint32_t)(stream->bytes[stream->bit / 8] >> stream->bit % 8 & 1) << i;
    }
    return value;
}

/* Codes of 7, 8 and 9 bits lie in ranges of their own. */
static uint32_t take_symbol(struct stream *stream)
{
    uint32_t code = 0;

    for (int bits = 1; bits <= 9; bits++) {
        code = code << 1 | take(stream, 1);
        if (bits == 7 && code <= 0x17)
            return 256 + code;
        if (bits == 8 && code >= 0x30 && code <= 0xbf)
            return code - 0x30;
        if (bits == 8 && code >= 0xc0 && code <= 0xc7)
            return 280 + code - 0xc0;
        if (bits == 9 && code >= 0x190)
            return 144 + code - 0x190;
    }
    fail_msg("code %u has no symbol", code);
    return 0;
}

/* RFC 1951: lengths 3 … 10 without extra bits, then four codes for each number of extra bits. */
static size_t take_length(struct stream *stream, uint32_t symbol)
{
    uint32_t extra = symbol < 265 || symbol == 285 ? 0 : (symbol - 261) / 4;
    size_t length = 3;

    if (symbol == 285)
        return 258;
    for (uint32_t s = 257; s < symbol; s++)
        length += (size_t)1 << (s < 265 ? 0 : (s - 261) / 4);
    return length + take(stream, (int)extra);
}

static void inflate(const uint8_t *bytes, size_t size, uint8_t *out, size_t wanted)
{
    struct stream stream = {.bytes = bytes, .size = size};
    uint32_t symbol, a = 1, b = 0;
    size_t done = 0;

    assert_int_equal((bytes[0] * 256 + bytes[1]) % 31, 0);
    assert_int_equal(bytes[0] & 15, 8);
    stream.bit = 16;
    assert_int_equal(take(&stream, 1), 1);
    assert_int_equal(take(&stream, 2), 1);
    while ((symbol = take_symbol(&stream)) != 256) {
        size_t length = symbol < 256 ? 1 : take_length(&stream, symbol);
        if (symbol > 256)
            assert_int_equal(take(&stream, 5), 0); /* the byte before */
        assert_true(done + length <= wanted && (symbol < 256 || done > 0));
        for (; length > 0; length--, done++)
            out[done] = symbol < 256 ? (uint8_t)symbol : out[done - 1];
    }
    assert_int_equal(done, wanted);
    for (size_t i = 0; i < wanted; i++) {
        a = (a + out[i]) % 65521;
        b = (b + a) % 65521;
    }
    assert_int_equal((stream.bit + 7) / 8 + 4, size);
    assert_int_equal(big(bytes + size - 4), b << 16 | a);
}

/* ---- the file -------------------------------------------------------------------------------- */

static uint32_t crc_of(const uint8_t *bytes, size_t size)
{
    uint32_t crc = 0xffffffff;

    for (size_t i = 0; i < size * 8; i++) {
        uint32_t bit = (crc ^ (uint32_t)(bytes[i / 8] >> i % 8)) & 1;
        crc = (crc >> 1) ^ (bit ? 0xedb88320u : 0);
    }
    return crc ^ 0xffffffff;
}

/* The chunk at *at, which moves behind it. */
static const uint8_t *chunk(const struct fleet_strbuf *file, size_t *at, const char *type,
                            size_t *out_size)
{
    const uint8_t *bytes = (const uint8_t *)file->text + *at;

    *out_size = big(bytes);
    assert_true(*at + *out_size + 12 <= file->length);
    assert_memory_equal(bytes + 4, type, 4);
    assert_int_equal(big(bytes + 8 + *out_size), crc_of(bytes + 4, *out_size + 4));
    *at += *out_size + 12;
    return bytes + 8;
}

static void read_png(const struct fleet_strbuf *file, struct image *out)
{
    static const uint8_t format[] = {8, 2, 0, 0, 0};
    const uint8_t *header, *data;
    size_t at = 8, size, row;
    uint8_t *rows;

    assert_memory_equal(file->text, "\x89PNG\r\n\x1a\n", 8);
    header = chunk(file, &at, "IHDR", &size);
    assert_int_equal(size, 13);
    *out = (struct image){.width = big(header), .height = big(header + 4)};
    assert_memory_equal(header + 8, format, 5);
    row = (size_t)out->width * 3;
    rows = malloc((row + 1) * out->height);
    out->pixels = calloc(out->height, row);
    assert_non_null(rows);
    assert_non_null(out->pixels);
    data = chunk(file, &at, "IDAT", &size);
    inflate(data, size, rows, (row + 1) * out->height);
    for (uint32_t y = 0; y < out->height; y++) {
        assert_int_equal(rows[(row + 1) * y], 2); /* up */
        for (size_t i = 0; i < row; i++)
            out->pixels[row * y + i] = (uint8_t)(rows[(row + 1) * y + 1 + i] +
                                                 (y > 0 ? out->pixels[row * (y - 1) + i] : 0));
    }
    (void)chunk(file, &at, "IEND", &size);
    assert_int_equal(at, file->length);
    free(rows);
}

/* Noise, ramps and runs of every length up to beyond the longest match. */
static void test_png__reads_back(void **state)
{
    enum {
        WIDTH = 97,
        HEIGHT = 131
    };
    static uint8_t pixels[HEIGHT * WIDTH * 3];
    struct fleet_strbuf file = {0};
    struct image image;
    uint32_t noise = 1;
    size_t run = 0, left = 0;

    (void)state;
    for (size_t i = 0; i < sizeof(pixels); i++) {
        noise = noise * 1664525 + 1013904223;
        if (left == 0)
            left = ++run % 300;
        else
            left--;
        pixels[i] = i < 3000            ? (uint8_t)(noise >> 24)
                    : left > 0 && i > 0 ? pixels[i - 1]
                                        : (uint8_t)(noise >> 20);
    }
    png_append(&file, pixels, WIDTH, HEIGHT);
    read_png(&file, &image);
    assert_int_equal(image.width, WIDTH);
    assert_int_equal(image.height, HEIGHT);
    assert_memory_equal(image.pixels, pixels, sizeof(pixels));
    free(image.pixels);
    fleet_strbuf_release(&file);
}

/* Pixels of a row between two columns that are not white. */
static int marked(const struct image *image, uint32_t y, uint32_t from, uint32_t to)
{
    int count = 0;

    for (uint32_t x = from; x < to; x++) {
        const uint8_t *p = image->pixels + ((size_t)y * image->width + x) * 3;
        count += p[0] < 200 && p[2] > p[0]; /* a blue one */
    }
    return count;
}

/* A loss that falls from 4 to 1: blue in the upper left and lower right quarter, none in the
 * others. */
static void test_png__a_curve_is_where_its_numbers_are(void **state)
{
    struct fleet_strbuf file = {0};
    struct curve curve = {0};
    struct image image;
    int upper[2] = {0}, lower[2] = {0};

    (void)state;
    for (int i = 0; i < 100; i++)
        curve_add(&curve, i + 1, 4.0 - 3.0 * i / 99.0);
    curve_add_restart(&curve, 50);
    curve_draw(&curve, "gpt-4", CURVE_PNG, &file);
    assert_true(file.length < 200000);
    read_png(&file, &image);
    for (uint32_t y = 0; y < image.height; y++) {
        int *half = y < image.height / 2 ? upper : lower;
        half[0] += marked(&image, y, 130, image.width / 2 - 80);
        half[1] += marked(&image, y, image.width / 2 + 80, image.width - 50);
    }
    if (upper[0] < 500 || lower[1] < 500 || upper[1] > upper[0] / 2 || lower[0] > lower[1] / 2)
        fail_msg("blue pixels: upper %d %d, lower %d %d", upper[0], upper[1], lower[0], lower[1]);
    free(image.pixels);
    fleet_strbuf_release(&file);
    curve_release(&curve);
}

static void test_png__draws_any_losses(void **state)
{
    static const double losses[][4] = {
        {1, 1, 1, 1}, {NAN, 2, INFINITY, 1}, {NAN, NAN, NAN, NAN}, {0, -1e30, 1e30, 0}};

    (void)state;
    for (size_t c = 0; c < sizeof(losses) / sizeof(losses[0]); c++) {
        struct fleet_strbuf file = {0};
        struct curve curve = {0};
        struct image image;
        for (int i = 0; i < 4; i++)
            curve_add(&curve, i + 1, losses[c][i]);
        curve_add_restart(&curve, 1);
        curve_draw(&curve, "A <name> & ünïcode", CURVE_PNG, &file);
        read_png(&file, &image);
        free(image.pixels);
        fleet_strbuf_release(&file);
        curve_release(&curve);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_png__reads_back),
        cmocka_unit_test(test_png__a_curve_is_where_its_numbers_are),
        cmocka_unit_test(test_png__draws_any_losses),
    };

    return cmocka_run_group_tests_name("png", tests, NULL, NULL);
}

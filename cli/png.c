/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/png.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"

#define MATCH_MIN 3
#define MATCH_MAX 258
#define FILTER_UP 2

static void put_big(struct fleet_strbuf *out, uint32_t value)
{
    for (int shift = 24; shift >= 0; shift -= 8)
        fleet_strbuf_append_char(out, (char)(value >> shift & 0xff));
}

/* The CRC-32 of PNG's annex D. */
static uint32_t crc32_of(const char *bytes, size_t size)
{
    uint32_t crc = 0xffffffff;

    for (size_t i = 0; i < size; i++) {
        crc ^= (uint8_t)bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
    }
    return ~crc;
}

static void put_chunk(struct fleet_strbuf *out, const char *type, const char *data, size_t size)
{
    size_t begin;

    put_big(out, (uint32_t)size);
    begin = out->length;
    fleet_strbuf_append_bytes(out, type, 4);
    fleet_strbuf_append_bytes(out, data, size);
    put_big(out, crc32_of(out->text + begin, out->length - begin));
}

/* ---- deflate ---------------------------------------------------------------------------------- */

struct bits {
    struct fleet_strbuf *out;
    uint32_t held;
    int count; /* bits in `held`, the oldest lowest */
};

static void put_bits(struct bits *bits, uint32_t value, int count)
{
    bits->held |= value << bits->count;
    for (bits->count += count; bits->count >= 8; bits->count -= 8) {
        fleet_strbuf_append_char(bits->out, (char)(bits->held & 0xff));
        bits->held >>= 8;
    }
}

/* Huffman codes are sent with their highest bit first. */
static void put_code(struct bits *bits, uint32_t code, int count)
{
    while (count-- > 0)
        put_bits(bits, code >> count & 1, 1);
}

/* RFC 1951, 3.2.6: the fixed code of a literal, a length or the end. */
static void put_symbol(struct bits *bits, uint32_t symbol)
{
    if (symbol < 144)
        put_code(bits, 0x30 + symbol, 8);
    else if (symbol < 256)
        put_code(bits, 0x190 + symbol - 144, 9);
    else if (symbol < 280)
        put_code(bits, symbol - 256, 7);
    else
        put_code(bits, 0xc0 + symbol - 280, 8);
}

/* RFC 1951, 3.2.5: `length` bytes as the one before. */
static void put_match(struct bits *bits, uint32_t length)
{
    static const uint16_t first[] = {3,  4,  5,  6,   7,   8,   9,   10,  11, 13,
                                     15, 17, 19, 23,  27,  31,  35,  43,  51, 59,
                                     67, 83, 99, 115, 131, 163, 195, 227, 258};
    static const uint8_t extra[] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2,
                                    2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
    uint32_t code = sizeof(extra) - 1;

    while (first[code] > length)
        code--;
    put_symbol(bits, 257 + code);
    put_bits(bits, length - first[code], extra[code]);
    put_code(bits, 0, 5); /* distance 1 */
}

static void deflate_runs(struct bits *bits, const uint8_t *bytes, size_t size)
{
    put_bits(bits, 1, 1); /* the last block */
    put_bits(bits, 1, 2); /* fixed codes */
    for (size_t i = 0; i < size;) {
        size_t run = 0;
        while (i > 0 && i + run < size && run < MATCH_MAX && bytes[i + run] == bytes[i - 1])
            run++;
        if (run >= MATCH_MIN)
            put_match(bits, (uint32_t)run);
        else
            put_symbol(bits, bytes[i]);
        i += run >= MATCH_MIN ? run : 1;
    }
    put_symbol(bits, 256);
    put_bits(bits, 0, 7); /* to the end of a byte */
}

static uint32_t adler32_of(const uint8_t *bytes, size_t size)
{
    uint32_t a = 1, b = 0;

    for (size_t i = 0; i < size; i++) {
        a = (a + bytes[i]) % 65521;
        b = (b + a) % 65521;
    }
    return b << 16 | a;
}

/* ---- the file --------------------------------------------------------------------------------- */

/* Rows with the filter "up" in front. Heap. */
static uint8_t *filter_rows(const uint8_t *pixels, size_t row, uint32_t height)
{
    uint8_t *out = malloc((row + 1) * height);

    fleet_assert(out);
    for (uint32_t y = 0; y < height; y++) {
        uint8_t *to = out + (row + 1) * y;
        const uint8_t *from = pixels + row * y;
        *to++ = FILTER_UP;
        for (size_t i = 0; i < row; i++)
            to[i] = (uint8_t)(from[i] - (y > 0 ? from[i - row] : 0));
    }
    return out;
}

void png_append(struct fleet_strbuf *out, const uint8_t *pixels, uint32_t width, uint32_t height)
{
    static const char signature[] = "\x89PNG\r\n\x1a\n";
    static const char format[] = {8, 2, 0, 0, 0}; /* 8 bits, RGB, the only methods, no interlace */
    FLEET_AUTO_STRBUF struct fleet_strbuf header = {0}, data = {0};
    size_t row = (size_t)width * 3, size = (row + 1) * height;
    uint8_t *rows = filter_rows(pixels, row, height);
    struct bits bits = {.out = &data};

    put_big(&header, width);
    put_big(&header, height);
    fleet_strbuf_append_bytes(&header, format, sizeof(format));
    fleet_strbuf_append_bytes(&data, "\x78\x01", 2); /* zlib: deflate, 32 KiB */
    deflate_runs(&bits, rows, size);
    put_big(&data, adler32_of(rows, size));
    free(rows);
    fleet_strbuf_append_bytes(out, signature, 8);
    put_chunk(out, "IHDR", header.text, header.length);
    put_chunk(out, "IDAT", data.text, data.length);
    put_chunk(out, "IEND", "", 0);
}

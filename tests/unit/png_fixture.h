/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_PNG_FIXTURE_H
#define TESTS_UNIT_PNG_FIXTURE_H

/*
 * The pixels of a PNG picture, counted by colour.
 */

#include <png.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/base/strbuf.h"

#define SCALE 2 /* pixels on a side of one of the canvas */

struct image {
    int width, height;
    uint8_t *pixels; /* [height][width][3] */
};

static inline void read_png(const struct fleet_strbuf *file, struct image *out)
{
    png_image image = {.version = PNG_IMAGE_VERSION};

    if (!png_image_begin_read_from_memory(&image, file->text, file->length))
        fail_msg("%s", image.message);
    image.format = PNG_FORMAT_RGB;
    *out = (struct image){(int)image.width, (int)image.height, malloc(PNG_IMAGE_SIZE(image))};
    assert_non_null(out->pixels);
    if (!png_image_finish_read(&image, NULL, out->pixels, 0, NULL))
        fail_msg("%s", image.message);
}

static const uint8_t *pixel(const struct image *image, int x, int y)
{
    return image->pixels + ((size_t)y * (size_t)image->width + (size_t)x) * 3;
}

static inline bool is_white(const uint8_t *p)
{
    return p[0] == 0xff && p[1] == 0xff && p[2] == 0xff;
}

/* Pixels that are not white in a box of the canvas. */
static inline int ink(const struct image *image, double left, double top, double right,
                      double bottom)
{
    int count = 0;

    for (int y = (int)(top * SCALE); y < (int)(bottom * SCALE); y++)
        for (int x = (int)(left * SCALE); x < (int)(right * SCALE); x++)
            count += !is_white(pixel(image, x, y));
    return count;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */

/*
 * FreeType converts a line into its outline (FT_Stroker), and an outline into the coverage of each
 * pixel (FT_Outline_Render). This file blends the colour into the pixels. Letters are outlines
 * already. libpng writes the file. FreeType measures in 1/64 pixels; y points upwards from the
 * lower left corner.
 */
#include <ft2build.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include FT_FREETYPE_H
#include FT_OUTLINE_H
#include FT_STROKER_H
#include <png.h>

#include "cli/drawing/canvas.h"
#include "cli/drawing/font.h"
#include "libfleet/base/assert.h"

#define SCALE       2 /* pixels on a side of one of the canvas */
#define UNITS       64.0
#define CHANNELS    3
#define CORNERS_MAX 512 /* corners of a piece of a line: an outline has at most 32767 points */

struct png {
    struct canvas canvas;
    int width, height; /* pixels */
    uint8_t *pixels;   /* [height][width][CHANNELS] */
    struct font *font;
    FT_Stroker stroker;

    /* the line under construction */
    struct canvas_pen pen;
    FT_Vector corners[CORNERS_MAX];
    int count;
    double dashed; /* progress of the line in a dash and its gap, 1/64 pixels */

    /* The coverage of a line or letter. It is blended into the pixels at the end, because the
     * pieces of a line overlap. */
    uint8_t *mask; /* [height][width], 0 outside of rows [first_row, last_row] */
    int first_row, last_row;
};

/* ---- outlines -------------------------------------------------------------------------------- */

/* Add the part of a piece in row `y`. FreeType has clipped the spans to the picture. */
static void cover(int y, int count, const FT_Span *spans, void *user)
{
    struct png *png = user;
    int row = png->height - 1 - y;
    uint8_t *mask = png->mask + (size_t)row * (size_t)png->width;

    png->first_row = row < png->first_row ? row : png->first_row;
    png->last_row = row > png->last_row ? row : png->last_row;
    for (int i = 0; i < count; i++)
        for (int x = spans[i].x; x < spans[i].x + spans[i].len; x++)
            mask[x] = spans[i].coverage > mask[x] ? spans[i].coverage : mask[x];
}

static void fill(struct png *png, FT_Outline *outline)
{
    FT_Raster_Params params = {
        .flags = FT_RASTER_FLAG_AA | FT_RASTER_FLAG_DIRECT | FT_RASTER_FLAG_CLIP,
        .gray_spans = cover,
        .user = png,
        .clip_box = {.xMin = 0, .yMin = 0, .xMax = png->width, .yMax = png->height},
    };

    font_must(FT_Outline_Render(font_library(png->font), outline, &params));
}

/* Blend the colour into the covered pixels, and clear the mask. */
static void mix(struct png *png, int colour, double opacity)
{
    uint32_t tint = canvas_tints[colour].light;

    for (int row = png->first_row; row <= png->last_row; row++) {
        uint8_t *mask = png->mask + (size_t)row * (size_t)png->width;
        uint8_t *pixel = png->pixels + (size_t)row * (size_t)png->width * CHANNELS;
        for (int x = 0; x < png->width; x++, pixel += CHANNELS)
            for (int c = 0; c < CHANNELS && mask[x] > 0; c++) {
                double ink = tint >> (8 * (CHANNELS - 1 - c)) & 0xff;
                pixel[c] = (uint8_t)lround(pixel[c] + mask[x] / 255.0 * opacity * (ink - pixel[c]));
            }
        memset(mask, 0, (size_t)png->width);
    }
    png->first_row = png->height;
    png->last_row = -1;
}

/* ---- lines ----------------------------------------------------------------------------------- */

static FT_Vector place(const struct png *png, double x, double y)
{
    return (FT_Vector){(FT_Pos)lround(x * SCALE * UNITS),
                       (FT_Pos)lround((png->height - y * SCALE) * UNITS)};
}

static bool is_same(FT_Vector a, FT_Vector b)
{
    return a.x == b.x && a.y == b.y;
}

/* Its corners must differ: FT_Stroker makes a broken outline of a line without length. */
static void begin_stroke(struct png *png, FT_Vector at)
{
    FT_Stroker_Set(png->stroker, (FT_Fixed)lround(png->pen.width * SCALE * UNITS / 2.0),
                   png->pen.dash > 0 ? FT_STROKER_LINECAP_BUTT : FT_STROKER_LINECAP_ROUND,
                   FT_STROKER_LINEJOIN_ROUND, 0);
    font_must(FT_Stroker_BeginSubPath(png->stroker, &at, 1));
}

static void end_stroke(struct png *png)
{
    FT_UInt points, contours;
    FT_Outline outline;

    font_must(FT_Stroker_EndSubPath(png->stroker));
    font_must(FT_Stroker_GetCounts(png->stroker, &points, &contours));
    font_must(FT_Outline_New(font_library(png->font), points, (FT_Int)contours, &outline));
    outline.n_points = outline.n_contours = 0; /* FT_Stroker_Export() appends */
    FT_Stroker_Export(png->stroker, &outline);
    fill(png, &outline);
    (void)FT_Outline_Done(font_library(png->font), &outline);
}

/* From one corner to the next. */
static void stroke_dashes(struct png *png, FT_Vector from, FT_Vector to)
{
    double dash = png->pen.dash * SCALE * UNITS;
    double length = hypot((double)(to.x - from.x), (double)(to.y - from.y));

    for (double done = 0; done < length;) {
        bool is_dash = png->dashed < dash;
        double piece = fmin(length - done, (is_dash ? dash : 2.0 * dash) - png->dashed), ends[2];
        FT_Vector places[2];

        ends[0] = done / length;
        ends[1] = (done + piece) / length;
        for (int i = 0; i < 2; i++)
            places[i] = (FT_Vector){from.x + (FT_Pos)lround(ends[i] * (double)(to.x - from.x)),
                                    from.y + (FT_Pos)lround(ends[i] * (double)(to.y - from.y))};
        if (is_dash && !is_same(places[0], places[1])) {
            begin_stroke(png, places[0]);
            font_must(FT_Stroker_LineTo(png->stroker, &places[1]));
            end_stroke(png);
        }
        done += fmax(piece, 1.0); /* at least 1/64 pixel, so that the loop ends */
        png->dashed = fmod(png->dashed + fmax(piece, 1.0), 2.0 * dash);
    }
}

/* Draw the corners so far, and keep the last one. */
static void stroke_corners(struct png *png)
{
    if (png->count > 1 && png->pen.dash > 0) {
        for (int i = 1; i < png->count; i++)
            stroke_dashes(png, png->corners[i - 1], png->corners[i]);
    } else if (png->count > 1) {
        begin_stroke(png, png->corners[0]);
        for (int i = 1; i < png->count; i++)
            font_must(FT_Stroker_LineTo(png->stroker, &png->corners[i]));
        end_stroke(png);
    }
    png->corners[0] = png->corners[png->count > 0 ? png->count - 1 : 0];
    png->count = png->count > 0 ? 1 : 0;
}

static void end_line(struct png *png)
{
    stroke_corners(png);
    png->count = 0;
    png->dashed = 0.0;
    mix(png, png->pen.colour, png->pen.opacity);
}

static void begin_line(struct canvas *canvas, const struct canvas_pen *pen, double x, double y)
{
    struct png *png = (struct png *)canvas;

    end_line(png);
    png->pen = *pen;
    png->corners[png->count++] = place(png, x, y);
}

static void go_on(struct canvas *canvas, double x, double y)
{
    struct png *png = (struct png *)canvas;
    FT_Vector to = place(png, x, y);

    if (is_same(png->corners[png->count - 1], to))
        return;
    if (png->count == CORNERS_MAX)
        stroke_corners(png);
    png->corners[png->count++] = to;
}

/* ---- text ------------------------------------------------------------------------------------ */

static void write_text(struct canvas *canvas, int colour, double size, enum canvas_anchor anchor,
                       bool upwards, double x, double y, const char *text)
{
    static const FT_Matrix quarter = {0, -0x10000, 0x10000, 0};
    struct png *png = (struct png *)canvas;
    double width = font_width(png->font, size, text), at, advance;

    end_line(png);
    at = anchor == CANVAS_END ? -width : anchor == CANVAS_MIDDLE ? -width / 2.0 : 0.0;
    while (*text) {
        FT_Vector origin = upwards ? place(png, x, y - at) : place(png, x + at, y);
        FT_Outline *outline;
        text = font_letter(png->font, size * SCALE, text, &outline, &advance);
        if (upwards)
            FT_Outline_Transform(outline, &quarter);
        FT_Outline_Translate(outline, origin.x, origin.y);
        fill(png, outline);
        at += advance / SCALE;
    }
    mix(png, colour, 1.0);
}

/* ---- the whole ------------------------------------------------------------------------------- */

static void write_file(struct canvas *canvas, struct fleet_strbuf *out)
{
    struct png *png = (struct png *)canvas;
    png_image image = {.version = PNG_IMAGE_VERSION,
                       .width = (png_uint_32)png->width,
                       .height = (png_uint_32)png->height,
                       .format = PNG_FORMAT_RGB};
    png_alloc_size_t size;
    int is_written;
    void *bytes;

    end_line(png);
    FT_Stroker_Done(png->stroker);
    size = PNG_IMAGE_PNG_SIZE_MAX(image);
    bytes = malloc(size);
    fleet_assert(bytes);
    is_written = png_image_write_to_memory(&image, bytes, &size, 0, png->pixels, 0, NULL);
    fleet_assert(is_written); /* it can only run out of memory */
    fleet_strbuf_append_bytes(out, bytes, size);
    free(bytes);
    free(png->pixels);
    free(png->mask);
    font_free(png->font);
    free(png);
}

static const struct canvas_vtable vtable = {begin_line, go_on, write_text, write_file};

struct canvas *canvas_png_new(double width, double height)
{
    struct png *png = calloc(1, sizeof(*png));
    size_t bytes;

    fleet_assert(png);
    png->canvas.vtable = &vtable;
    png->font = font_new();
    font_must(FT_Stroker_New(font_library(png->font), &png->stroker));
    png->width = (int)ceil(width) * SCALE;
    png->height = (int)ceil(height) * SCALE;
    bytes = (size_t)png->width * (size_t)png->height * CHANNELS;
    png->pixels = malloc(bytes);
    fleet_assert(png->pixels);
    memset(png->pixels, 0xff, bytes);
    png->mask = calloc((size_t)png->width, (size_t)png->height);
    fleet_assert(png->mask);
    png->first_row = png->height;
    png->last_row = -1;
    return &png->canvas;
}

/* SPDX-License-Identifier: Apache-2.0 */

/* Lines as the share of each pixel they cover (its distance to the line decides), letters from a small
 * font of 5 by 7 squares, on a white ground, at twice the resolution. */
#include <ctype.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "cli/canvas.h"
#include "cli/png.h"
#include "libfleet/base/assert.h"

#define SCALE        2
#define GLYPH_WIDTH  5
#define GLYPH_HEIGHT 7
#define GLYPH_STEP   6    /* squares from letter to letter */
#define GLYPH_EM     9.0  /* squares in the size of a letter */
#define DESCENT      2    /* squares of g, j, p, q, y below the line */
#define DASH         12.0 /* pixels of a dash and its gap */

struct png {
    struct canvas canvas;
    int width, height; /* pixels */
    uint8_t *pixels;   /* [height][width][3] */
    enum canvas_style style;
    double x, y; /* where the line has come to, pixels */
};

struct pen {
    uint8_t colour[3];
    double opacity, width;
};

static const struct pen pens[CANVAS_STYLE_COUNT] = {
    [CANVAS_GRID] = {{0x88, 0x88, 0x88}, 0.3, 1.0 * SCALE},
    [CANVAS_STEPS] = {{0x4a, 0x90, 0xd9}, 0.5, 1.0 * SCALE},
    [CANVAS_MEAN] = {{0x1f, 0x5f, 0xa8}, 1.0, 2.0 * SCALE},
    [CANVAS_RESTART] = {{0xcc, 0x33, 0x33}, 1.0, 1.0 * SCALE},
};

/* Seven rows of five squares each, the left one in the highest bit. */
static const struct glyph {
    char letter;
    uint8_t rows[GLYPH_HEIGHT];
} glyphs[] = {
    {'0', {0x0e, 0x11, 0x13, 0x15, 0x19, 0x11, 0x0e}},
    {'1', {0x04, 0x0c, 0x04, 0x04, 0x04, 0x04, 0x0e}},
    {'2', {0x0e, 0x11, 0x01, 0x02, 0x04, 0x08, 0x1f}},
    {'3', {0x1f, 0x02, 0x04, 0x02, 0x01, 0x11, 0x0e}},
    {'4', {0x02, 0x06, 0x0a, 0x12, 0x1f, 0x02, 0x02}},
    {'5', {0x1f, 0x10, 0x1e, 0x01, 0x01, 0x11, 0x0e}},
    {'6', {0x06, 0x08, 0x10, 0x1e, 0x11, 0x11, 0x0e}},
    {'7', {0x1f, 0x01, 0x02, 0x04, 0x08, 0x08, 0x08}},
    {'8', {0x0e, 0x11, 0x11, 0x0e, 0x11, 0x11, 0x0e}},
    {'9', {0x0e, 0x11, 0x11, 0x0f, 0x01, 0x02, 0x0c}},
    {'-', {0x00, 0x00, 0x00, 0x0e, 0x00, 0x00, 0x00}},
    {'.', {0x00, 0x00, 0x00, 0x00, 0x00, 0x0c, 0x0c}},
    {'+', {0x00, 0x04, 0x04, 0x1f, 0x04, 0x04, 0x00}},
    {'a', {0x00, 0x00, 0x0e, 0x01, 0x0f, 0x11, 0x0f}},
    {'b', {0x10, 0x10, 0x16, 0x19, 0x11, 0x11, 0x1e}},
    {'c', {0x00, 0x00, 0x0e, 0x10, 0x10, 0x11, 0x0e}},
    {'d', {0x01, 0x01, 0x0d, 0x13, 0x11, 0x11, 0x0f}},
    {'e', {0x00, 0x00, 0x0e, 0x11, 0x1f, 0x10, 0x0e}},
    {'f', {0x06, 0x09, 0x08, 0x1c, 0x08, 0x08, 0x08}},
    {'g', {0x00, 0x0f, 0x11, 0x11, 0x0f, 0x01, 0x0e}},
    {'h', {0x10, 0x10, 0x16, 0x19, 0x11, 0x11, 0x11}},
    {'i', {0x04, 0x00, 0x0c, 0x04, 0x04, 0x04, 0x0e}},
    {'j', {0x02, 0x00, 0x06, 0x02, 0x02, 0x12, 0x0c}},
    {'k', {0x10, 0x10, 0x12, 0x14, 0x18, 0x14, 0x12}},
    {'l', {0x0c, 0x04, 0x04, 0x04, 0x04, 0x04, 0x0e}},
    {'m', {0x00, 0x00, 0x1a, 0x15, 0x15, 0x11, 0x11}},
    {'n', {0x00, 0x00, 0x16, 0x19, 0x11, 0x11, 0x11}},
    {'o', {0x00, 0x00, 0x0e, 0x11, 0x11, 0x11, 0x0e}},
    {'p', {0x00, 0x00, 0x1e, 0x11, 0x1e, 0x10, 0x10}},
    {'q', {0x00, 0x00, 0x0d, 0x13, 0x0f, 0x01, 0x01}},
    {'r', {0x00, 0x00, 0x16, 0x19, 0x10, 0x10, 0x10}},
    {'s', {0x00, 0x00, 0x0e, 0x10, 0x0e, 0x01, 0x1e}},
    {'t', {0x08, 0x08, 0x1c, 0x08, 0x08, 0x09, 0x06}},
    {'u', {0x00, 0x00, 0x11, 0x11, 0x11, 0x13, 0x0d}},
    {'v', {0x00, 0x00, 0x11, 0x11, 0x11, 0x0a, 0x04}},
    {'w', {0x00, 0x00, 0x11, 0x11, 0x15, 0x15, 0x0a}},
    {'x', {0x00, 0x00, 0x11, 0x0a, 0x04, 0x0a, 0x11}},
    {'y', {0x00, 0x00, 0x11, 0x11, 0x0f, 0x01, 0x0e}},
    {'z', {0x00, 0x00, 0x1f, 0x02, 0x04, 0x08, 0x1f}},
};

static void blend(struct png *png, int x, int y, const uint8_t colour[3], double share)
{
    uint8_t *pixel;

    if (x < 0 || y < 0 || x >= png->width || y >= png->height || share <= 0)
        return;
    pixel = png->pixels + ((size_t)y * (size_t)png->width + (size_t)x) * 3;
    for (int c = 0; c < 3; c++)
        pixel[c] = (uint8_t)lround(pixel[c] + share * (colour[c] - pixel[c]));
}

/* ---- lines ------------------------------------------------------------------------------------ */

/* Distance of pixel (px, py) to the piece from (x0, y0) to (x1, y1). */
static double distance(double px, double py, double x0, double y0, double x1, double y1)
{
    double dx = x1 - x0, dy = y1 - y0, length = dx * dx + dy * dy;
    double t = length > 0 ? ((px - x0) * dx + (py - y0) * dy) / length : 0.0;

    t = fmin(fmax(t, 0.0), 1.0);
    return hypot(px - x0 - t * dx, py - y0 - t * dy);
}

static void draw_piece(struct png *png, double x0, double y0, double x1, double y1)
{
    const struct pen *pen = &pens[png->style];
    double reach = pen->width / 2 + 1;
    int first_x = (int)fmax(floor(fmin(x0, x1) - reach), 0);
    int last_x = (int)fmin(ceil(fmax(x0, x1) + reach), png->width - 1);
    int first_y = (int)fmax(floor(fmin(y0, y1) - reach), 0);
    int last_y = (int)fmin(ceil(fmax(y0, y1) + reach), png->height - 1);

    for (int y = first_y; y <= last_y; y++)
        for (int x = first_x; x <= last_x; x++) {
            double away = distance(x + 0.5, y + 0.5, x0, y0, x1, y1);
            double share = fmin(fmax(pen->width / 2 + 0.5 - away, 0.0), 1.0);
            if (png->style == CANVAS_RESTART && fmod(y, DASH) < DASH / 2)
                continue;
            blend(png, x, y, pen->colour, share * pen->opacity);
        }
}

static void png_move(struct canvas *canvas, enum canvas_style style, double x, double y)
{
    struct png *png = (struct png *)canvas;

    png->style = style;
    png->x = x * SCALE;
    png->y = y * SCALE;
}

static void png_line(struct canvas *canvas, double x, double y)
{
    struct png *png = (struct png *)canvas;

    draw_piece(png, png->x, png->y, x * SCALE, y * SCALE);
    png->x = x * SCALE;
    png->y = y * SCALE;
}

/* ---- letters ---------------------------------------------------------------------------------- */

static const struct glyph *glyph_of(char letter)
{
    for (size_t i = 0; i < sizeof(glyphs) / sizeof(*glyphs); i++)
        if (glyphs[i].letter == tolower((unsigned char)letter))
            return &glyphs[i];
    return NULL;
}

static void draw_glyph(struct png *png, const struct glyph *glyph, int left, int top, int square,
                       const uint8_t colour[3])
{
    for (int y = 0; y < GLYPH_HEIGHT * square; y++)
        for (int x = 0; x < GLYPH_WIDTH * square; x++)
            if (glyph->rows[y / square] >> (GLYPH_WIDTH - 1 - x / square) & 1)
                blend(png, left + x, top + y, colour, 1.0);
}

static void png_text(struct canvas *canvas, enum canvas_style style, double size,
                     enum canvas_anchor anchor, double x, double y, const char *text)
{
    static const uint8_t grey[] = {0x44, 0x44, 0x44};
    struct png *png = (struct png *)canvas;
    int square = (int)fmax(1.0, round(size * SCALE / GLYPH_EM));
    int width = (int)strlen(text) * GLYPH_STEP * square;
    int left = (int)lround(x * SCALE), top = (int)lround(y * SCALE) - GLYPH_HEIGHT * square;

    left -= anchor == CANVAS_END ? width : anchor == CANVAS_MIDDLE ? width / 2 : 0;
    for (; *text; text++, left += GLYPH_STEP * square) {
        const struct glyph *glyph = glyph_of(*text);
        int drop = strchr("gjpqy", tolower((unsigned char)*text)) ? DESCENT * square : 0;
        if (glyph)
            draw_glyph(png, glyph, left, top + drop, square,
                       style == CANVAS_RESTART ? pens[style].colour : grey);
    }
}

/* ---- the whole -------------------------------------------------------------------------------- */

static void png_finish(struct canvas *canvas, struct fleet_strbuf *out)
{
    struct png *png = (struct png *)canvas;

    png_append(out, png->pixels, (uint32_t)png->width, (uint32_t)png->height);
    free(png->pixels);
    free(png);
}

static const struct canvas_vtable vtable = {png_move, png_line, png_text, png_finish};

struct canvas *canvas_png(double width, double height)
{
    struct png *png = calloc(1, sizeof(*png));
    size_t bytes;

    fleet_assert(png);
    png->canvas = (struct canvas){&vtable, width, height};
    png->width = (int)width * SCALE;
    png->height = (int)height * SCALE;
    bytes = (size_t)png->width * (size_t)png->height * 3;
    png->pixels = malloc(bytes);
    fleet_assert(png->pixels);
    memset(png->pixels, 0xff, bytes);
    return &png->canvas;
}

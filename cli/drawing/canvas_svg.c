/* SPDX-License-Identifier: Apache-2.0 */

/* An SVG is text. Colours are classes of a style sheet, so that the picture is readable on a light
 * and a dark background. The sheet has only the classes that the picture uses. */
#include <stdbool.h>
#include <stdlib.h>

#include "cli/drawing/canvas.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/json.h"

#define COLOURS (CANVAS_SERIES + CANVAS_SERIES_MAX)

struct svg {
    struct canvas canvas;
    double width, height;
    struct fleet_strbuf body;
    bool has_path; /* a path is open */
    bool is_used[COLOURS];
};

static void end_path(struct svg *svg)
{
    if (svg->has_path)
        fleet_strbuf_append(&svg->body, "\"/>\n");
    svg->has_path = false;
}

static void svg_move(struct canvas *canvas, const struct canvas_pen *pen, double x, double y)
{
    struct svg *svg = (struct svg *)canvas;

    end_path(svg);
    svg->is_used[pen->colour] = true;
    fleet_strbuf_appendf(&svg->body, "<path class=\"c%d\" stroke-width=\"%g\"", pen->colour,
                         pen->width);
    if (pen->opacity < 1.0)
        fleet_strbuf_appendf(&svg->body, " opacity=\"%g\"", pen->opacity);
    if (pen->dash > 0)
        fleet_strbuf_appendf(&svg->body, " stroke-dasharray=\"%g\" stroke-linecap=\"butt\"",
                             pen->dash);
    fleet_strbuf_appendf(&svg->body, " d=\"M%.2f %.2f", x, y);
    svg->has_path = true;
}

static void svg_line(struct canvas *canvas, double x, double y)
{
    fleet_strbuf_appendf(&((struct svg *)canvas)->body, "L%.2f %.2f", x, y);
}

/* Replace characters that XML forbids by U+FFFD. */
static void append_escaped(struct fleet_strbuf *out, const char *text)
{
    for (size_t length; *text; text += length > 0 ? length : 1) {
        length = fleet_utf8_length(text);
        if (*text == '<')
            fleet_strbuf_append(out, "&lt;");
        else if (*text == '&')
            fleet_strbuf_append(out, "&amp;");
        else if (length > 0 && (unsigned char)*text >= ' ')
            fleet_strbuf_append_bytes(out, text, length);
        else
            fleet_strbuf_append(out, "\ufffd");
    }
}

static void svg_text(struct canvas *canvas, int colour, double size, enum canvas_anchor anchor,
                     bool upwards, double x, double y, const char *text)
{
    static const char *const anchors[] = {"start", "middle", "end"};
    struct svg *svg = (struct svg *)canvas;

    end_path(svg);
    svg->is_used[colour] = true;
    fleet_strbuf_appendf(&svg->body, "<text class=\"c%d\" font-size=\"%g\" text-anchor=\"%s\"",
                         colour, size, anchors[anchor]);
    if (upwards)
        fleet_strbuf_appendf(&svg->body, " transform=\"translate(%.1f %.1f) rotate(-90)\">", x, y);
    else
        fleet_strbuf_appendf(&svg->body, " x=\"%.1f\" y=\"%.1f\">", x, y);
    append_escaped(&svg->body, text);
    fleet_strbuf_append(&svg->body, "</text>\n");
}

static void append_classes(const struct svg *svg, bool dark, struct fleet_strbuf *out)
{
    for (int colour = 0; colour < COLOURS; colour++)
        if (svg->is_used[colour])
            fleet_strbuf_appendf(out, " .c%d { color: #%06x }", colour,
                                 dark ? canvas_tints[colour].dark : canvas_tints[colour].light);
}

static void svg_finish(struct canvas *canvas, struct fleet_strbuf *out)
{
    struct svg *svg = (struct svg *)canvas;

    end_path(svg);
    fleet_strbuf_appendf(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" "
        "height=\"%.0f\" font-family=\"DejaVu Sans, sans-serif\">\n"
        "<style>\n"
        "text { fill: currentColor }\n"
        "path { fill: none; stroke: currentColor; stroke-linejoin: round }\n"
        "path:not([stroke-linecap]) { stroke-linecap: round }\n",
        svg->width, svg->height, svg->width, svg->height);
    append_classes(svg, false, out);
    fleet_strbuf_append(out, "\n@media (prefers-color-scheme: dark) {");
    append_classes(svg, true, out);
    fleet_strbuf_append(out, " }\n</style>\n");
    fleet_strbuf_append_bytes(out, fleet_strbuf_text(&svg->body), svg->body.length);
    fleet_strbuf_append(out, "</svg>\n");
    fleet_strbuf_release(&svg->body);
    free(svg);
}

static const struct canvas_vtable vtable = {svg_move, svg_line, svg_text, svg_finish};

struct canvas *canvas_svg_new(double width, double height)
{
    struct svg *svg = calloc(1, sizeof(*svg));

    fleet_assert(svg);
    svg->canvas.vtable = &vtable;
    svg->width = width;
    svg->height = height;
    return &svg->canvas;
}

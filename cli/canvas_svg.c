/* SPDX-License-Identifier: Apache-2.0 */

/* An SVG is its own text: colours by style sheet, so that it is readable on light and dark ground. */
#include <stdbool.h>
#include <stdlib.h>

#include "cli/canvas.h"
#include "libfleet/base/assert.h"

struct svg {
    struct canvas canvas;
    struct fleet_strbuf body;
    bool has_path; /* a path is open */
};

static const char *const classes[] = {"g", "s", "m", "r"};

static void end_path(struct svg *svg)
{
    if (svg->has_path)
        fleet_strbuf_append(&svg->body, "\"/>\n");
    svg->has_path = false;
}

static void svg_move(struct canvas *canvas, enum canvas_style style, double x, double y)
{
    struct svg *svg = (struct svg *)canvas;

    end_path(svg);
    fleet_strbuf_appendf(&svg->body, "<path class=\"%s\" d=\"M%.1f %.1f", classes[style], x, y);
    svg->has_path = true;
}

static void svg_line(struct canvas *canvas, double x, double y)
{
    fleet_strbuf_appendf(&((struct svg *)canvas)->body, "L%.1f %.1f", x, y);
}

static void append_escaped(struct fleet_strbuf *out, const char *text)
{
    for (; *text; text++)
        if (*text == '<')
            fleet_strbuf_append(out, "&lt;");
        else if (*text == '&')
            fleet_strbuf_append(out, "&amp;");
        else if ((unsigned char)*text >= ' ')
            fleet_strbuf_append_char(out, *text);
}

static void svg_text(struct canvas *canvas, enum canvas_style style, double size,
                     enum canvas_anchor anchor, double x, double y, const char *text)
{
    static const char *const anchors[] = {"start", "middle", "end"};
    struct svg *svg = (struct svg *)canvas;

    end_path(svg);
    fleet_strbuf_appendf(&svg->body,
                         "<text class=\"%s\" font-size=\"%g\" text-anchor=\"%s\" x=\"%.1f\" "
                         "y=\"%.1f\">",
                         classes[style], size, anchors[anchor], x, y);
    append_escaped(&svg->body, text);
    fleet_strbuf_append(&svg->body, "</text>\n");
}

static void svg_finish(struct canvas *canvas, struct fleet_strbuf *out)
{
    struct svg *svg = (struct svg *)canvas;

    end_path(svg);
    fleet_strbuf_appendf(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" "
        "height=\"%.0f\" font-family=\"sans-serif\">\n"
        "<style>\n"
        "text { fill: #444; stroke: none } path { fill: none } .g { stroke: #8884 }\n"
        ".s { stroke: #4a90d980 } .m { stroke: #1f5fa8; stroke-width: 2 }\n"
        ".r { stroke: #c33; stroke-dasharray: 3 3 } text.r { stroke: none; fill: #c33 }\n"
        "text.g, text.s, text.m { stroke: none }\n"
        "@media (prefers-color-scheme: dark) { text { fill: #bbb } .m { stroke: #7ab8ff } }\n"
        "</style>\n",
        canvas->width, canvas->height, canvas->width, canvas->height);
    fleet_strbuf_append_bytes(out, fleet_strbuf_text(&svg->body), svg->body.length);
    fleet_strbuf_append(out, "</svg>\n");
    fleet_strbuf_release(&svg->body);
    free(svg);
}

static const struct canvas_vtable vtable = {svg_move, svg_line, svg_text, svg_finish};

struct canvas *canvas_svg(double width, double height)
{
    struct svg *svg = calloc(1, sizeof(*svg));

    fleet_assert(svg);
    svg->canvas = (struct canvas){&vtable, width, height};
    return &svg->canvas;
}

/* ---- any canvas ------------------------------------------------------------------------------- */

void canvas_move(struct canvas *canvas, enum canvas_style style, double x, double y)
{
    canvas->vtable->move(canvas, style, x, y);
}

void canvas_line(struct canvas *canvas, double x, double y)
{
    canvas->vtable->line(canvas, x, y);
}

void canvas_text(struct canvas *canvas, enum canvas_style style, double size,
                 enum canvas_anchor anchor, double x, double y, const char *text)
{
    canvas->vtable->text(canvas, style, size, anchor, x, y, text);
}

void canvas_finish(struct canvas *canvas, struct fleet_strbuf *out)
{
    canvas->vtable->finish(canvas, out);
}

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_DRAWING_FONT_H
#define CLI_DRAWING_FONT_H

/*
 * The font of all pictures: DejaVu Sans, whose file the build puts into the program (FONT in the
 * Makefile), so that a picture needs no font on the machine and looks the same on all of them.
 * FreeType reads it.
 *
 * Sizes and widths are in pixels of the picture. Text is UTF-8; a byte that is none counts as
 * U+FFFD. A letter that the font does not have is its empty box.
 */

#include <ft2build.h>
#include FT_FREETYPE_H

struct font;

/* Never NULL. */
struct font *font_new(void);
void font_free(struct font *font); /* NULL is fine */

/* From the first letter's origin to where a next one would begin. */
double font_width(const struct font *font, double size, const char *text);

/*
 * The first letter of `text` at `size`: its outline, in 1/64 pixels from its origin, y upwards.
 * The outline is the font's until the next call, and may be changed. *out_advance: pixels to the
 * next letter. Returns what is behind the letter. `text` is not empty.
 */
const char *font_letter(const struct font *font, double size, const char *text,
                        FT_Outline **out_outline, double *out_advance);

/* For calls of FreeType that fail only when memory is missing: aborts if `error` is one. */
void font_must(FT_Error error);

/* The library that the outlines belong to; borrowed. */
FT_Library font_library(const struct font *font);

#endif

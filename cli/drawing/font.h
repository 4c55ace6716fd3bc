/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_DRAWING_FONT_H
#define CLI_DRAWING_FONT_H

/*
 * The font of all pictures: DejaVu Sans, whose file the build puts into the program (FONT in the
 * Makefile), so that a picture needs no font on the machine and looks the same on all of them.
 * FreeType reads it.
 *
 * Sizes and widths are in pixels of the picture. Text is UTF-8; a byte that is not valid counts as
 * U+FFFD. For a letter that it lacks, the font has an empty box.
 */

#include <ft2build.h>
#include FT_FREETYPE_H

struct font;

/* Never NULL. */
struct font *font_new(void);
void font_free(struct font *font); /* NULL is fine */

/* The width of `text`: from the origin of its first letter to that of a next one. */
double font_width(const struct font *font, double size, const char *text);

/*
 * The first letter of `text` at `size`: its outline, in 1/64 pixels from its origin, y upwards.
 * The outline belongs to the font and is valid until the next call; the caller may change it.
 * *out_advance: pixels to the next letter. Returns the rest of `text`, which must not be empty.
 */
const char *font_letter(const struct font *font, double size, const char *text,
                        FT_Outline **out_outline, double *out_advance);

/* Abort if `error` is one. For calls of FreeType that fail only if memory runs out. */
void font_must(FT_Error error);

/* The library that the outlines belong to; borrowed. */
FT_Library font_library(const struct font *font);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/drawing/font.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/json.h"

/* The bytes of the font file, between two symbols. */
__asm__(".section .rodata\n"
        ".balign 16\n"
        "font_file:\n"
        ".incbin \"" FONT_FILE "\"\n"
        "font_file_end:\n"
        ".byte 0\n"
        ".previous\n");

extern const uint8_t font_file[], font_file_end[];

struct font {
    FT_Library library;
    FT_Face face;
};

void font_must(FT_Error error)
{
    fleet_assert(error == 0);
}

struct font *font_new(void)
{
    struct font *font = calloc(1, sizeof(*font));
    FT_Long size = (FT_Long)((uintptr_t)font_file_end - (uintptr_t)font_file);

    fleet_assert(font);
    font_must(FT_Init_FreeType(&font->library));
    font_must(FT_New_Memory_Face(font->library, font_file, size, 0, &font->face));
    return font;
}

void font_free(struct font *font)
{
    if (!font)
        return;
    (void)FT_Done_Face(font->face);
    (void)FT_Done_FreeType(font->library);
    free(font);
}

FT_Library font_library(const struct font *font)
{
    return font->library;
}

/* The character at `text`, `length` bytes of valid UTF-8. */
static FT_ULong decode(const char *text, size_t length)
{
    static const uint8_t masks[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    FT_ULong character = (uint8_t)text[0] & masks[length];

    for (size_t i = 1; i < length; i++)
        character = character << 6 | ((uint8_t)text[i] & 0x3f);
    return character;
}

const char *font_letter(const struct font *font, double size, const char *text,
                        FT_Outline **out_outline, double *out_advance)
{
    size_t length = fleet_utf8_length(text);
    FT_ULong character = length > 0 ? decode(text, length) : 0xfffd;

    (void)FT_Set_Char_Size(font->face, 0, (FT_F26Dot6)lround(size * 64.0), 72, 72);
    font_must(FT_Load_Char(font->face, character, FT_LOAD_NO_HINTING | FT_LOAD_NO_BITMAP));
    *out_outline = &font->face->glyph->outline;
    *out_advance = (double)font->face->glyph->linearHoriAdvance / 65536.0;
    return text + (length > 0 ? length : 1);
}

double font_width(const struct font *font, double size, const char *text)
{
    double width = 0.0, advance;
    FT_Outline *outline;

    while (*text) {
        text = font_letter(font, size, text, &outline, &advance);
        width += advance;
    }
    return width;
}

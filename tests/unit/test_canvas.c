/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The canvas, in the pixels of its picture: lines cover what they should, letters are letters,
 * and odd coordinates are harmless.
 */
#include <math.h>
#include <png.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cli/drawing/canvas.h"
#include "libfleet/base/strbuf.h"
#include "tests/unit/png_fixture.h"

/* ---- the canvas ------------------------------------------------------------------------------ */

static const struct canvas_pen thick = {CANVAS_SERIES, 4.0, 1.0, 0};

static void finish(struct canvas *canvas, struct image *out)
{
    struct fleet_strbuf file = {0};

    canvas_finish(canvas, &file);
    read_png(&file, out);
    fleet_strbuf_release(&file);
}

static void test_canvas__a_line_covers_what_it_should(void **state)
{
    struct canvas *canvas = canvas_new(CANVAS_PNG, 100, 50);
    struct image image;
    int covered;

    (void)state;
    canvas_move(canvas, &thick, 20, 25);
    canvas_line(canvas, 80, 25);
    finish(canvas, &image);
    assert_int_equal(image.width, 200);
    assert_int_equal(image.height, 100);
    covered = ink(&image, 0, 0, 100, 50);
    /* 60 by 4, and a half circle of radius 2 at each end, four pixels for one */
    if (abs(covered - (int)((60 * 4 + M_PI * 4) * 4)) > 40)
        fail_msg("%d pixels have ink", covered);
    assert_int_equal(covered, ink(&image, 17, 22, 83, 28)); /* and none elsewhere */
    assert_int_equal(pixel(&image, 100, 50)[0], 0x1f);
    assert_int_equal(pixel(&image, 100, 50)[1], 0x5f);
    assert_int_equal(pixel(&image, 100, 50)[2], 0xa8);
    free(image.pixels);
}

/* A pale line of thousands of corners has one tint, also where its pieces overlap. */
static void test_canvas__a_long_pale_line_is_even(void **state)
{
    static const struct canvas_pen pale = {CANVAS_SERIES, 3.0, 0.5, 0};
    struct canvas *canvas = canvas_new(CANVAS_PNG, 200, 60);
    struct image image;

    (void)state;
    canvas_move(canvas, &pale, 10, 10);
    for (int i = 0; i < 5000; i++)
        canvas_line(canvas, 10 + 180.0 * (i % 1000) / 1000.0, i % 2 ? 10 : 50);
    finish(canvas, &image);
    for (int x = 30; x < 370; x++)
        for (int y = 30; y < 90; y++)
            if (pixel(&image, x, y)[0] != 0x8f) /* half of 0x1f, half of 0xff */
                fail_msg("pixel (%d, %d) has red %d", x, y, pixel(&image, x, y)[0]);
    free(image.pixels);
}

static void test_canvas__dashes_have_gaps(void **state)
{
    static const struct canvas_pen dashed = {CANVAS_ALARM, 2.0, 1.0, 5.0};
    struct canvas *canvas = canvas_new(CANVAS_PNG, 120, 20);
    struct image image;
    int changes = 0;

    (void)state;
    canvas_move(canvas, &dashed, 10, 10);
    canvas_line(canvas, 110, 10);
    finish(canvas, &image);
    for (int x = 1; x < image.width; x++)
        changes += is_white(pixel(&image, x, 20)) != is_white(pixel(&image, x - 1, 20));
    assert_int_equal(changes, 20); /* ten dashes */
    free(image.pixels);
}

/* What has no length, lies outside or is nothing draws nothing, and breaks nothing. */
static void test_canvas__odd_lines_are_harmless(void **state)
{
    static const struct canvas_pen dashed = {CANVAS_ALARM, 1.0, 1.0, 4.0};
    static const double places[] = {-1e4, -1, 0, 5, 5, 30, 1e4};
    struct canvas *canvas = canvas_new(CANVAS_PNG, 30, 30);
    struct image image;

    (void)state;
    for (size_t i = 0; i + 1 < sizeof(places) / sizeof(*places); i++)
        for (int pen = 0; pen < 2; pen++) {
            canvas_move(canvas, pen ? &thick : &dashed, places[i], places[i]);
            canvas_line(canvas, places[i], places[i]);
            canvas_line(canvas, places[i + 1], places[i]);
        }
    canvas_text(canvas, CANVAS_TEXT, 12, CANVAS_START, 0, 10, "");
    canvas_text(canvas, CANVAS_TEXT, 12, CANVAS_END, -50, -50, "outside");
    finish(canvas, &image);
    assert_int_equal(image.width, 60);
    assert_true(ink(&image, 0, 0, 30, 30) > 100);
    free(image.pixels);
}

static int letter_ink(const char *text)
{
    struct canvas *canvas = canvas_new(CANVAS_PNG, 60, 40);
    struct image image;
    int count;

    canvas_text(canvas, CANVAS_TEXT, 24, CANVAS_START, 5, 30, text);
    finish(canvas, &image);
    count = ink(&image, 0, 0, 60, 40);
    free(image.pixels);
    return count;
}

/* Letters of a real font: upper and lower case differ, a p goes below the line, accents and
 * dashes are there. */
static void test_canvas__letters_are_letters(void **state)
{
    static const char *const pairs[][2] = {{"p", "P"}, {"a", "A"}, {"u", "ü"}, {"-", "–"},
                                           {"x", "é"}, {"i", "l"}, {".", "…"}};
    struct canvas *canvas = canvas_new(CANVAS_PNG, 60, 40);
    struct image image;

    (void)state;
    for (size_t i = 0; i < sizeof(pairs) / sizeof(*pairs); i++) {
        int a = letter_ink(pairs[i][0]), b = letter_ink(pairs[i][1]);
        if (a < 5 || b < 5 || a == b)
            fail_msg("\"%s\" has %d pixels, \"%s\" %d", pairs[i][0], a, pairs[i][1], b);
    }
    assert_int_equal(letter_ink(" "), 0);
    assert_true(letter_ink("\xff") > 20); /* no UTF-8: the sign for that */
    canvas_text(canvas, CANVAS_TEXT, 24, CANVAS_START, 5, 20, "p");
    finish(canvas, &image);
    assert_true(ink(&image, 0, 21, 60, 40) > 20); /* below the base line */
    assert_true(ink(&image, 0, 0, 60, 19) > 50);
    free(image.pixels);
}

static void test_canvas__anchors_and_turns_place_the_text(void **state)
{
    struct canvas *canvas = canvas_new(CANVAS_PNG, 300, 100);
    struct image image;

    (void)state;
    canvas_text(canvas, CANVAS_TEXT, 12, CANVAS_START, 150, 20, "anchor");
    canvas_text(canvas, CANVAS_TEXT, 12, CANVAS_END, 150, 40, "anchor");
    canvas_text(canvas, CANVAS_TEXT, 12, CANVAS_MIDDLE, 150, 60, "anchor");
    canvas_text_upwards(canvas, CANVAS_TEXT, 12, CANVAS_MIDDLE, 20, 50, "anchor");
    finish(canvas, &image);
    assert_true(ink(&image, 150, 5, 300, 25) > 100);
    assert_int_equal(ink(&image, 30, 5, 150, 25), 0);
    assert_true(ink(&image, 30, 28, 150, 45) > 100);
    assert_int_equal(ink(&image, 151, 28, 300, 45), 0);
    assert_true(ink(&image, 30, 48, 150, 65) > 50 && ink(&image, 150, 48, 300, 65) > 50);
    assert_true(ink(&image, 8, 50, 24, 80) > 50 && ink(&image, 8, 20, 24, 50) > 50);
    assert_int_equal(ink(&image, 0, 0, 8, 100), 0);
    free(image.pixels);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_canvas__a_line_covers_what_it_should),
        cmocka_unit_test(test_canvas__a_long_pale_line_is_even),
        cmocka_unit_test(test_canvas__dashes_have_gaps),
        cmocka_unit_test(test_canvas__odd_lines_are_harmless),
        cmocka_unit_test(test_canvas__letters_are_letters),
        cmocka_unit_test(test_canvas__anchors_and_turns_place_the_text),
    };

    return cmocka_run_group_tests_name("canvas", tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Goal: a PNG shows what was drawn, and an SVG says the same.
 * Method: pictures are read back by libpng, whose reader shares nothing with our drawing, and
 * looked at pixel by pixel: where there is ink, its colour, and whether the letters differ.
 * A blank picture fails each test.
 */
#include <math.h>
#include <png.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cli/curves/picture.h"
#include "cli/drawing/canvas.h"
#include "libfleet/base/strbuf.h"

#define SCALE 2 /* pixels on a side of one of the canvas */

struct image {
    int width, height;
    uint8_t *pixels; /* [height][width][3] */
};

static void read_png(const struct fleet_strbuf *file, struct image *out)
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

static bool is_white(const uint8_t *p)
{
    return p[0] == 0xff && p[1] == 0xff && p[2] == 0xff;
}

/* Pixels that are not white in a box of the canvas. */
static int ink(const struct image *image, double left, double top, double right, double bottom)
{
    int count = 0;

    for (int y = (int)(top * SCALE); y < (int)(bottom * SCALE); y++)
        for (int x = (int)(left * SCALE); x < (int)(right * SCALE); x++)
            count += !is_white(pixel(image, x, y));
    return count;
}

/* Like `ink`, where blue is much stronger than red. */
static int blue(const struct image *image, double left, double top, double right, double bottom)
{
    int count = 0;

    for (int y = (int)(top * SCALE); y < (int)(bottom * SCALE); y++)
        for (int x = (int)(left * SCALE); x < (int)(right * SCALE); x++)
            count += pixel(image, x, y)[2] > pixel(image, x, y)[0] + 60;
    return count;
}

static int red(const struct image *image)
{
    int count = 0;

    for (int y = 0; y < image->height; y++)
        for (int x = 0; x < image->width; x++)
            count += pixel(image, x, y)[0] > pixel(image, x, y)[2] + 60 &&
                     pixel(image, x, y)[1] < pixel(image, x, y)[0] - 60;
    return count;
}

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

/* ---- curves ---------------------------------------------------------------------------------- */

static void draw_one(const struct curve *curve, enum canvas_format format, struct fleet_strbuf *out)
{
    struct picture picture = {.runs = {{curve, "label"}}, .count = 1};

    picture_draw(&picture, format, out);
}

static void draw_png(const struct curve *curve, struct image *out)
{
    struct fleet_strbuf file = {0};

    draw_one(curve, CANVAS_PNG, &file);
    if (file.length > 300000)
        fail_msg("%zu bytes", file.length);
    read_png(&file, out);
    fleet_strbuf_release(&file);
}

/* A loss that falls from 4 to 1: blue in the upper left and lower right quarter, none in the
 * others; red where training was restarted; a title, numbers and labels around it. */
static void test_picture__a_curve_is_where_its_numbers_are(void **state)
{
    struct curve curve = {0};
    struct image image;

    (void)state;
    for (int i = 0; i < 100; i++)
        curve_add(&curve, i + 1, 4.0 - 3.0 * i / 99.0);
    draw_png(&curve, &image);
    assert_int_equal(red(&image), 0);
    free(image.pixels);
    curve_add_mark(&curve, CURVE_RESTART, 50);
    curve_describe(&curve, "gpt-4", "a model");
    draw_png(&curve, &image);
    assert_int_equal(image.width, 1600);
    assert_true(blue(&image, 60, 70, 400, 225) > 1000);
    assert_true(blue(&image, 430, 230, 770, 390) > 1000);
    assert_int_equal(blue(&image, 430, 70, 770, 200), 0);
    assert_int_equal(blue(&image, 60, 260, 380, 390), 0);
    assert_true(red(&image) > 300);
    assert_true(ink(&image, 24, 10, 100, 34) > 200);   /* the title */
    assert_true(ink(&image, 5, 200, 20, 260) > 60);    /* "loss" */
    assert_true(ink(&image, 380, 424, 440, 440) > 60); /* "step" */
    free(image.pixels);
    curve_release(&curve);
}

static void test_picture__a_single_step_is_a_point(void **state)
{
    struct curve curve = {0};
    struct image image;
    int count;

    (void)state;
    curve_add(&curve, 7, 3.25);
    draw_png(&curve, &image);
    count = blue(&image, 70, 50, 770, 370);
    if (count < 60 || count > 400)
        fail_msg("the point has %d pixels", count);
    free(image.pixels);
    curve_release(&curve);
}

/* Held-out losses have their own colour: there is orange with them, and none without. */
static void test_picture__held_out_losses_are_a_line_of_their_own(void **state)
{
    struct curve curve = {0};
    struct image image;

    (void)state;
    for (int i = 1; i <= 40; i++)
        curve_add(&curve, i, 5.0 - 0.1 * i);
    draw_png(&curve, &image);
    assert_int_equal(red(&image), 0);
    free(image.pixels);
    for (int i = 10; i <= 40; i += 10)
        curve_add_evaluation(&curve, i, 5.2 - 0.1 * i);
    draw_png(&curve, &image);
    assert_true(red(&image) > 1000);
    free(image.pixels);
    curve_release(&curve);
}

/* Where the blue of the run's first half lies: a divergence must not press it flat. */
static double height_of_first_half(const struct image *image)
{
    int first = image->height, last = 0;

    for (int y = 110; y < 730; y++)
        for (int x = 200; x < 700; x++)
            if (pixel(image, x, y)[2] > pixel(image, x, y)[0] + 60) {
                first = y < first ? y : first;
                last = y > last ? y : last;
            }
    return (double)(last - first) / SCALE;
}

static void test_picture__a_divergence_does_not_flatten_the_rest(void **state)
{
    struct curve curve = {0};
    struct image image;

    (void)state;
    for (int i = 1; i <= 200; i++)
        curve_add(&curve, i, i <= 150 ? 2.0 + 3.5 * exp(-i / 40.0) : 3.2e16);
    draw_png(&curve, &image);
    if (height_of_first_half(&image) < 60)
        fail_msg("the first half is %.0f pixels high", height_of_first_half(&image));
    free(image.pixels);
    curve_release(&curve);
}

static void test_picture__draws_any_losses(void **state)
{
    static const double losses[][4] = {
        {5, 4, 3, 2},           {1, 1, 1, 1},        {NAN, 2, INFINITY, 1},
        {NAN, NAN, NAN, NAN},   {0, -1e30, 1e30, 0}, {1e308, -1e308, 1, 2},
        {5e-324, 1, 1e-300, 3}, {-1, -2, -3, -4},    {1e99, 2e99, 1e99, 0.1}};

    (void)state;
    for (size_t c = 0; c < sizeof(losses) / sizeof(losses[0]); c++)
        for (int count = 1; count <= 4; count++) {
            struct fleet_strbuf svg = {0};
            struct curve curve = {0};
            struct image image;
            for (int i = 0; i < count; i++)
                curve_add(&curve, i + 1, losses[c][i]);
            curve_add_evaluation(&curve, 2, losses[c][1]);
            curve_add_mark(&curve, CURVE_RESTART, 1);
            curve_add_mark(&curve, CURVE_RESUME, -1);
            curve_describe(&curve, "A <name> & ünïcode \xfe\x01", NULL);
            draw_png(&curve, &image);
            assert_true(ink(&image, 60, 60, 770, 400) > 500);
            free(image.pixels);
            draw_one(&curve, CANVAS_SVG, &svg);
            assert_non_null(strstr(svg.text, "A &lt;name> &amp; ünïcode \ufffd\ufffd"));
            assert_non_null(strstr(svg.text, "</svg>\n"));
            if (strstr(svg.text, "nan") || strstr(svg.text, "inf"))
                fail_msg("losses %zu, %d of them: the drawing holds no number:\n%s", c, count,
                         svg.text);
            fleet_strbuf_release(&svg);
            curve_release(&curve);
        }
}

static void expect_in(const struct fleet_strbuf *svg, const char *words)
{
    if (!strstr(svg->text, words))
        fail_msg("no \"%s\" in:\n%s", words, svg->text);
}

/* The legend has what is drawn, and nothing else. */
static void test_picture__the_legend_says_what_there_is(void **state)
{
    struct fleet_strbuf svg = {0};
    struct curve curve = {0};

    (void)state;
    for (int i = 1; i <= 100; i++)
        curve_add(&curve, i, 3.0 - 0.01 * i);
    draw_one(&curve, CANVAS_SVG, &svg);
    expect_in(&svg, ">label</text>"); /* the title of a job without a name */
    expect_in(&svg, ">loss</text>");
    expect_in(&svg, ">step</text>");
    expect_in(&svg, ">training loss</text>");
    expect_in(&svg, ">average of 5 steps</text>");
    assert_null(strstr(svg.text, "held-out"));
    assert_null(strstr(svg.text, "restart"));
    assert_null(strstr(svg.text, "not finite"));
    fleet_strbuf_release(&svg);
    curve_add(&curve, 101, 1e20);
    curve_add(&curve, 102, NAN);
    curve_add_evaluation(&curve, 102, 2.5);
    curve_add_mark(&curve, CURVE_RESTART, 20);
    curve_add_mark(&curve, CURVE_RESTART, 30);
    curve_add_mark(&curve, CURVE_RESUME, 40);
    curve_describe(&curve, "job", "what it trains");
    draw_one(&curve, CANVAS_SVG, &svg);
    expect_in(&svg, ">job</text>");
    expect_in(&svg, ">what it trains</text>");
    expect_in(&svg, ">held-out loss</text>");
    expect_in(&svg, ">restart (2)</text>");
    expect_in(&svg, ">resumed (1)</text>");
    expect_in(&svg, ">beyond the axis, up to 1e20</text>");
    expect_in(&svg, ">not finite (1)</text>");
    fleet_strbuf_release(&svg);
    curve_release(&curve);
}

/* Runs of different lengths share the axes; each has its colour and its label. */
static void test_picture__several_runs_are_reported_apart(void **state)
{
    struct picture picture = {.count = PICTURE_RUNS_MAX};
    struct curve curves[PICTURE_RUNS_MAX] = {0};
    char labels[PICTURE_RUNS_MAX][80];
    struct fleet_strbuf svg = {0}, png = {0};
    struct image image;

    (void)state;
    for (int r = 0; r < PICTURE_RUNS_MAX; r++) {
        (void)snprintf(labels[r], sizeof(labels[r]), r == 3 ? "%d/%070d" : "run %d", r, 0);
        picture.runs[r] = (struct picture_run){&curves[r], labels[r]};
        for (int i = 1; i <= 30 * r; i++) /* the first one has no losses */
            curve_add(&curves[r], i, 5.0 - 0.01 * i + 0.1 * r);
    }
    picture_draw(&picture, CANVAS_SVG, &svg);
    expect_in(&svg, ">Losses of 10 runs</text>");
    expect_in(&svg, ">run 0 (no losses)</text>");
    expect_in(&svg, ">run 9</text>");
    expect_in(&svg, ">…0000000000");
    for (int r = 1; r < PICTURE_RUNS_MAX; r++) {
        char path[64];
        (void)snprintf(path, sizeof(path), "<path class=\"c%d\" stroke-width=\"2\"",
                       CANVAS_SERIES + r);
        expect_in(&svg, path);
    }
    picture_draw(&picture, CANVAS_PNG, &png);
    read_png(&png, &image);
    assert_true(ink(&image, 60, 60, 770, 370) > 10000);
    free(image.pixels);
    fleet_strbuf_release(&svg);
    fleet_strbuf_release(&png);
    for (int r = 0; r < PICTURE_RUNS_MAX; r++)
        curve_release(&curves[r]);
}

static void test_picture__stays_small_however_many_steps(void **state)
{
    struct fleet_strbuf out = {0};
    struct curve curve = {0};

    (void)state;
    for (int step = 1; step <= 200000; step++)
        curve_add(&curve, step, 2.0 + sin(step) / step);
    draw_one(&curve, CANVAS_SVG, &out);
    if (out.length > 60000)
        fail_msg("expected at most 60000 bytes, got %zu", out.length);
    fleet_strbuf_release(&out);
    curve_release(&curve);
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
        cmocka_unit_test(test_picture__a_curve_is_where_its_numbers_are),
        cmocka_unit_test(test_picture__a_single_step_is_a_point),
        cmocka_unit_test(test_picture__held_out_losses_are_a_line_of_their_own),
        cmocka_unit_test(test_picture__a_divergence_does_not_flatten_the_rest),
        cmocka_unit_test(test_picture__draws_any_losses),
        cmocka_unit_test(test_picture__the_legend_says_what_there_is),
        cmocka_unit_test(test_picture__several_runs_are_reported_apart),
        cmocka_unit_test(test_picture__stays_small_however_many_steps),
    };

    return cmocka_run_group_tests_name("png", tests, NULL, NULL);
}

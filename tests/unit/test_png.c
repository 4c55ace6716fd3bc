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
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cli/curves/picture.h"
#include "cli/drawing/canvas.h"
#include "libfleet/base/strbuf.h"
#include "tests/unit/png_fixture.h"

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

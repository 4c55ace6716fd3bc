/* SPDX-License-Identifier: Apache-2.0 */

/* Layouts: the examples of the header, what is none, and that slices cover the tensor evenly. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/autoparallel/layout.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/base/random.h"
#include "libfleet/base/strbuf.h"

static const struct layout rows_and_columns = {
    .axes = 2, .devices = {2, 4}, .dims = 2, .map = {1, 0}, .shape = {8, 16}};
static const struct layout columns_alone = {
    .axes = 2, .devices = {2, 4}, .dims = 2, .map = {LAYOUT_NONE, 1}, .shape = {8, 16}};

static void expect_slice(const struct layout *layout, int64_t rank, int64_t row, int64_t rows,
                         int64_t column, int64_t columns)
{
    int64_t first[LAYOUT_DIMS_MAX], count[LAYOUT_DIMS_MAX];

    layout_slice(layout, rank, first, count);
    assert_int_equal(first[0], row);
    assert_int_equal(count[0], rows);
    assert_int_equal(first[1], column);
    assert_int_equal(count[1], columns);
}

static void test_layout__slices_as_its_examples_say(void **state)
{
    (void)state;
    assert_int_equal(layout_check(&rows_and_columns, NULL), 0);
    expect_slice(&rows_and_columns, 5, 4, 4, 4, 4);
    assert_int_equal(layout_copies(&rows_and_columns), 1);
    assert_int_equal(layout_slice_elements(&rows_and_columns), 16);
    for (int rank = 0; rank < 8; rank++)
        expect_slice(&columns_alone, rank, 0, 8, rank < 4 ? 0 : 8, 8);
    assert_int_equal(layout_copies(&columns_alone), 4);
}

static void test_layout__moves_a_rank_along_an_axis(void **state)
{
    (void)state;
    assert_int_equal(layout_digit(&rows_and_columns, 5, 0), 1);
    assert_int_equal(layout_digit(&rows_and_columns, 5, 1), 1);
    assert_int_equal(layout_rank_with(&rows_and_columns, 5, 0, 3), 7);
    assert_int_equal(layout_rank_with(&rows_and_columns, 5, 1, 0), 1);
}

static void test_layout__prints_itself(void **state)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    (void)state;
    layout_print(&columns_alone, &text);
    assert_string_equal(text.text, "D=[2,4] T=[-1,1] S=[8,16]");
}

static void test_layout__says_why_it_is_none(void **state)
{
    static const struct {
        struct layout layout;
        const char *message;
    } cases[] = {
        {{.axes = 1, .devices = {0}}, "device matrix: entry 0 is 0, must be at least 1"},
        {{.axes = 17}, "device matrix has 17 entries, may have 0 to 16"},
        {{.axes = 2, .devices = {65536, 2}}, "device matrix: more than 65536 devices"},
        {{.dims = 25}, "the tensor has 25 dimensions, may have 0 to 24"},
        {{.axes = 1, .devices = {2}, .dims = 1, .map = {1}, .shape = {8}},
         "tensor map: entry 0 is 1, may be -1 to 0"},
        {{.axes = 1, .devices = {2}, .dims = 1, .map = {-2}, .shape = {8}},
         "tensor map: entry 0 is -2, may be -1 to 0"},
        {{.axes = 1, .devices = {2}, .dims = 2, .map = {0, 0}, .shape = {8, 8}},
         "tensor map: entry 1 is 0, as one before it is"},
        {{.axes = 1, .devices = {4}, .dims = 1, .map = {0}, .shape = {6}},
         "dimension 0 has 6 elements, 4 parts do not divide it"},
        {{.dims = 1, .map = {-1}, .shape = {0}},
         "dimension 0 has 0 elements, must have at least 1"},
        {{.dims = 2, .map = {-1, -1}, .shape = {INT64_MAX, 2}}, "the tensor has too many elements"},
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(cases); i++) {
        struct fleet_error err;
        assert_true(layout_check(&cases[i].layout, &err) < 0);
        assert_string_equal(err.text, cases[i].message);
    }
}

static int64_t draw(uint64_t *counter, int64_t below)
{
    struct fleet_random_key key = fleet_random_key(7, "layouts", 0);

    return (int64_t)(fleet_random_u64(key, (*counter)++) % (uint64_t)below);
}

static struct layout draw_layout(uint64_t *counter)
{
    struct layout layout = {.axes = 1 + (int)draw(counter, 3), .dims = (int)draw(counter, 4)};
    unsigned int used = 0;

    for (int i = 0; i < layout.axes; i++)
        layout.devices[i] = 1 + draw(counter, 4);
    for (int i = 0; i < layout.dims; i++) {
        int index = (int)draw(counter, layout.axes + 1) - 1;
        layout.map[i] = index >= 0 && (used & 1U << index) ? LAYOUT_NONE : index;
        if (layout.map[i] != LAYOUT_NONE)
            used |= 1U << index;
        layout.shape[i] = layout_parts(&layout, i) * (1 + draw(counter, 3));
    }
    return layout;
}

/* How many devices hold each element. */
static void test_layout__slices_cover_the_tensor_as_often_as_there_are_copies(void **state)
{
    uint64_t counter = 0;

    (void)state;
    for (int round = 0; round < 500; round++) {
        struct layout layout = draw_layout(&counter);
        int64_t elements = layout_elements(&layout);
        int *holders = calloc((size_t)elements, sizeof(*holders));
        fleet_assert(holders);
        assert_int_equal(layout_check(&layout, NULL), 0);
        for (int64_t rank = 0; rank < layout_devices(&layout); rank++) {
            int64_t first[LAYOUT_DIMS_MAX], count[LAYOUT_DIMS_MAX];
            layout_slice(&layout, rank, first, count);
            for (int64_t e = 0; e < elements; e++) {
                int64_t rest = e;
                bool mine = true;
                for (int d = layout.dims - 1; d >= 0; d--) {
                    int64_t at = rest % layout.shape[d];
                    rest /= layout.shape[d];
                    mine = mine && at >= first[d] && at < first[d] + count[d];
                }
                holders[e] += mine;
            }
        }
        for (int64_t e = 0; e < elements; e++)
            assert_int_equal(holders[e], layout_copies(&layout));
        free(holders);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout__slices_as_its_examples_say),
        cmocka_unit_test(test_layout__moves_a_rank_along_an_axis),
        cmocka_unit_test(test_layout__prints_itself),
        cmocka_unit_test(test_layout__says_why_it_is_none),
        cmocka_unit_test(test_layout__slices_cover_the_tensor_as_often_as_there_are_copies),
    };

    return cmocka_run_group_tests_name("layout", tests, NULL, NULL);
}

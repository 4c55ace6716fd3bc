/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Steps between layouts, carried out on arrays: for all layouts each device ends with exactly
 * the slice that the target gives it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/autoparallel/layout/redistribution.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/base/strbuf.h"

#define DEVICES_MAX 8
#define LAYOUTS_MAX 400

/* ---- devices --------------------------------------------------------------------------------- */

struct local {
    int dims;
    int64_t shape[LAYOUT_DIMS_MAX];
    int32_t *data;
};

static int64_t elements_of(const struct local *local)
{
    int64_t elements = 1;

    for (int i = 0; i < local->dims; i++)
        elements *= local->shape[i];
    return elements;
}

static void fill_new(struct local *local, int dims, const int64_t *shape)
{
    local->dims = dims;
    memcpy(local->shape, shape, (size_t)dims * sizeof(*shape));
    local->data = calloc((size_t)elements_of(local), sizeof(*local->data));
    fleet_assert(local->data);
}

/* Element number `e` of a box lies there in the array. */
static int64_t offset_in(const struct local *local, const int64_t *first, const int64_t *count,
                         int64_t e)
{
    int64_t offset = 0, stride = 1;

    for (int d = local->dims - 1; d >= 0; d--) {
        offset += (first[d] + e % count[d]) * stride;
        e /= count[d];
        stride *= local->shape[d];
    }
    return offset;
}

/* Copy a box of `from` to the place `to_first` of `to`. */
static void copy_box(const struct local *from, const int64_t *from_first, struct local *to,
                     const int64_t *to_first, const int64_t *count)
{
    int64_t elements = 1;

    for (int d = 0; d < from->dims; d++)
        elements *= count[d];
    for (int64_t e = 0; e < elements; e++)
        to->data[offset_in(to, to_first, count, e)] =
            from->data[offset_in(from, from_first, count, e)];
}

/* The slice of a tensor whose element e has the value e. */
static struct local slice_of(const struct layout *layout, int64_t rank)
{
    int64_t first[LAYOUT_DIMS_MAX], count[LAYOUT_DIMS_MAX];
    struct local whole = {.dims = layout->dims}, slice;

    memcpy(whole.shape, layout->shape, sizeof(whole.shape));
    layout_slice(layout, rank, first, count);
    fill_new(&slice, layout->dims, count);
    for (int64_t e = 0; e < elements_of(&slice); e++)
        slice.data[e] = (int32_t)offset_in(&whole, first, count, e);
    return slice;
}

static int64_t member(const struct redistribution_step *step, int64_t rank, int64_t digit)
{
    return rank + (digit - rank / step->stride % step->parts) * step->stride;
}

/* The part of member `from` that device `rank` receives, or its own for a split. */
static void receive(const struct redistribution_step *step, const struct local *before,
                    int64_t rank, int64_t from, struct local *after)
{
    int64_t source[LAYOUT_DIMS_MAX] = {0}, target[LAYOUT_DIMS_MAX] = {0}, count[LAYOUT_DIMS_MAX];

    memcpy(count, before[from].shape, sizeof(count));
    if (step->split != LAYOUT_NONE) {
        count[step->split] /= step->parts;
        source[step->split] = rank / step->stride % step->parts * count[step->split];
    }
    if (step->concat != LAYOUT_NONE)
        target[step->concat] = from / step->stride % step->parts * count[step->concat];
    copy_box(&before[from], source, after, target, count);
}

static void run_step(const struct redistribution_step *step, struct local *devices, int64_t count)
{
    struct local after[DEVICES_MAX];

    for (int64_t rank = 0; rank < count; rank++) {
        fill_new(&after[rank], step->dims, step->shape);
        if (step->kind == REDISTRIBUTION_RESHAPE) {
            assert_int_equal(elements_of(&after[rank]), elements_of(&devices[rank]));
            memcpy(after[rank].data, devices[rank].data,
                   (size_t)elements_of(&after[rank]) * sizeof(int32_t));
        } else if (step->kind == REDISTRIBUTION_SPLIT) {
            receive(step, devices, rank, rank, &after[rank]);
        } else {
            for (int64_t digit = 0; digit < step->parts; digit++)
                receive(step, devices, rank, member(step, rank, digit), &after[rank]);
        }
    }
    for (int64_t rank = 0; rank < count; rank++)
        free(devices[rank].data);
    memcpy(devices, after, sizeof(after[0]) * (size_t)count);
}

static void fail_pair(const struct layout *from, const struct layout *to, const char *what)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    layout_print(from, &text);
    fleet_strbuf_append(&text, " to ");
    layout_print(to, &text);
    fail_msg("%s: %s", text.text, what);
}

static int gathers(const struct redistribution *steps)
{
    int count = 0;

    for (int i = 0; i < steps->count; i++)
        count += steps->steps[i].kind == REDISTRIBUTION_ALL_GATHER;
    return count;
}

/* Returns the number of steps that gather. */
static int check_pair(const struct layout *from, const struct layout *to, bool all_to_all)
{
    static struct redistribution steps;
    struct local devices[DEVICES_MAX];
    int64_t count = layout_devices(from);

    assert_true(count <= DEVICES_MAX);
    assert_int_equal(redistribution_build(from, to, all_to_all, &steps, NULL), 0);
    for (int64_t rank = 0; rank < count; rank++)
        devices[rank] = slice_of(from, rank);
    for (int i = 0; i < steps.count; i++) {
        if (!all_to_all && steps.steps[i].kind == REDISTRIBUTION_ALL_TO_ALL)
            fail_pair(from, to, "exchanges without enable_alltoall");
        run_step(&steps.steps[i], devices, count);
    }
    for (int64_t rank = 0; rank < count; rank++) {
        struct local wanted = slice_of(to, rank);
        if (devices[rank].dims != wanted.dims ||
            memcmp(devices[rank].shape, wanted.shape,
                   (size_t)wanted.dims * sizeof(wanted.shape[0])) != 0)
            fail_pair(from, to, "another shape");
        if (memcmp(devices[rank].data, wanted.data,
                   (size_t)elements_of(&wanted) * sizeof(int32_t)) != 0)
            fail_pair(from, to, "other values");
        free(wanted.data);
        free(devices[rank].data);
    }
    return gathers(&steps);
}

/* ---- layouts --------------------------------------------------------------------------------- */

struct matrix {
    int axes;
    int64_t devices[3];
};

static const struct matrix of_eight[] = {
    {1, {8}}, {2, {2, 4}}, {2, {4, 2}}, {3, {2, 2, 2}}, {3, {2, 1, 4}},
};
static const struct matrix of_six[] = {{1, {6}}, {2, {2, 3}}, {2, {3, 2}}};

/* Every map of `shape` on `matrix` that is a layout, behind the first `count` of the list. */
static size_t list_maps(const struct matrix *matrix, int dims, const int64_t *shape,
                        struct layout *list, size_t count)
{
    int choices = matrix->axes + 1, all = 1;

    for (int d = 0; d < dims; d++)
        all *= choices;
    for (int code = 0; code < all; code++) {
        struct layout layout = {.axes = matrix->axes, .dims = dims};
        memcpy(layout.devices, matrix->devices, sizeof(matrix->devices));
        for (int d = 0, rest = code; d < dims; d++, rest /= choices) {
            layout.shape[d] = shape[d];
            layout.map[d] = rest % choices - 1;
        }
        if (layout_check(&layout, NULL) < 0)
            continue;
        assert_true(count < LAYOUTS_MAX);
        list[count++] = layout;
    }
    return count;
}

static size_t list_layouts(const struct matrix *matrices, size_t matrix_count, int dims,
                           const int64_t *shape, struct layout *list)
{
    size_t count = 0;

    for (size_t m = 0; m < matrix_count; m++)
        count = list_maps(&matrices[m], dims, shape, list, count);
    return count;
}

static bool is_finer(const struct layout *from, const struct layout *to)
{
    if (from->axes != to->axes || memcmp(from->devices, to->devices, sizeof(from->devices)) != 0)
        return false;
    for (int d = 0; d < from->dims; d++)
        if (from->map[d] != LAYOUT_NONE && from->map[d] != to->map[d])
            return false;
    return true;
}

static void check_all_pairs(const struct matrix *matrices, size_t matrix_count, int dims,
                            const int64_t *shape, size_t least)
{
    static struct layout list[LAYOUTS_MAX];
    size_t count = list_layouts(matrices, matrix_count, dims, shape, list);

    assert_true(count >= least);
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j < count; j++) {
            (void)check_pair(&list[i], &list[j], false);
            if (check_pair(&list[i], &list[j], true) > 0 && is_finer(&list[i], &list[j]))
                fail_pair(&list[i], &list[j], "gathers, though the target only divides further");
        }
}

static void test_redistribution__is_right_for_all_pairs_on_eight_devices(void **state)
{
    (void)state;
    check_all_pairs(of_eight, FLEET_COUNT(of_eight), 1, (const int64_t[]){16}, 12);
    check_all_pairs(of_eight, FLEET_COUNT(of_eight), 2, (const int64_t[]){16, 8}, 40);
    check_all_pairs(of_eight, FLEET_COUNT(of_eight), 3, (const int64_t[]){8, 4, 8}, 90);
}

/* [2,3] and [3,2] have no common matrix. */
static void test_redistribution__is_right_for_all_pairs_on_six_devices(void **state)
{
    (void)state;
    check_all_pairs(of_six, FLEET_COUNT(of_six), 2, (const int64_t[]){6, 12}, 17);
    check_all_pairs(of_six, FLEET_COUNT(of_six), 3, (const int64_t[]){6, 1, 6}, 17);
}

static void check_shapes(int dims, const int64_t *shape, int other_dims, const int64_t *other)
{
    static struct layout from[LAYOUTS_MAX], to[LAYOUTS_MAX];
    size_t from_count = list_layouts(of_eight, FLEET_COUNT(of_eight), dims, shape, from);
    size_t to_count = list_layouts(of_eight, FLEET_COUNT(of_eight), other_dims, other, to);

    assert_true(from_count > 10 && to_count > 10);
    for (size_t i = 0; i < from_count; i++)
        for (size_t j = 0; j < to_count; j++) {
            (void)check_pair(&from[i], &to[j], true);
            (void)check_pair(&to[j], &from[i], false);
        }
}

static void test_redistribution__reshapes_on_the_way(void **state)
{
    (void)state;
    check_shapes(3, (const int64_t[]){4, 4, 8}, 2, (const int64_t[]){16, 8});
    check_shapes(2, (const int64_t[]){16, 8}, 1, (const int64_t[]){128});
    check_shapes(2, (const int64_t[]){8, 12}, 2, (const int64_t[]){24, 4});
    check_shapes(3, (const int64_t[]){2, 6, 8}, 2,
                 (const int64_t[]){16, 6}); /* through the whole */
}

/* ---- steps and cost -------------------------------------------------------------------------- */

static void expect_steps(const struct layout *from, const struct layout *to, bool all_to_all,
                         const char *wanted)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    static struct redistribution steps;

    assert_int_equal(redistribution_build(from, to, all_to_all, &steps, NULL), 0);
    for (int i = 0; i < steps.count; i++) {
        const struct redistribution_step *step = &steps.steps[i];
        fleet_strbuf_appendf(&text, "%s%s %d %d /%d", i ? "; " : "",
                             redistribution_name(step->kind), step->split, step->concat,
                             (int)step->parts);
    }
    assert_string_equal(fleet_strbuf_text(&text), wanted);
}

static struct layout on_two_by_four(int first, int second)
{
    return (struct layout){
        .axes = 2, .devices = {2, 4}, .dims = 2, .map = {first, second}, .shape = {16, 16}};
}

static void test_redistribution__takes_the_steps_of_the_specification(void **state)
{
    struct layout none = on_two_by_four(-1, -1), rows = on_two_by_four(1, -1);
    struct layout columns = on_two_by_four(-1, 1), both = on_two_by_four(1, 0);
    struct layout turned = on_two_by_four(0, 1);

    (void)state;
    expect_steps(&rows, &rows, true, "");
    expect_steps(&none, &both, true, "split 0 -1 /2; split 1 -1 /4");
    expect_steps(&rows, &columns, true, "all_to_all 1 0 /2");
    expect_steps(&rows, &columns, false, "all_gather -1 0 /2; split 1 -1 /2");
    expect_steps(&both, &rows, true, "all_gather -1 1 /4");
    /* a ring: the first dimension is gathered, then the axes can change places */
    expect_steps(&both, &turned, true, "all_gather -1 0 /2; all_to_all 0 1 /4; split 1 -1 /2");
}

/* Slices of 4 KiB between axes of 4. */
static void test_redistribution__costs_what_the_table_says(void **state)
{
    static struct redistribution steps;
    struct redistribution_cost cost;
    struct layout rows = on_two_by_four(0, -1), columns = on_two_by_four(-1, 0);
    struct layout none = on_two_by_four(-1, -1);

    (void)state;
    assert_int_equal(redistribution_build(&none, &rows, true, &steps, NULL), 0);
    redistribution_cost(&steps, 1024, 4, &cost);
    assert_true(cost.forward == 0 && cost.backward == 0);
    assert_true(cost.computation == 4096 && cost.memory == 4096);
    assert_int_equal(redistribution_build(&rows, &none, true, &steps, NULL), 0);
    redistribution_cost(&steps, 1024, 4, &cost);
    assert_true(cost.forward == 0.5 * 4 * 4096 && cost.backward == 0.5 * 4096);
    assert_true(cost.computation == 4096 + 4096 && cost.memory == 4 * 4096 + 4096);
    assert_int_equal(redistribution_build(&columns, &none, true, &steps, NULL), 0);
    redistribution_cost(&steps, 1024, 4, &cost);
    assert_true(cost.computation == 10 * 4096 && cost.memory == 10 * 4096);
    assert_int_equal(redistribution_build(&rows, &columns, true, &steps, NULL), 0);
    redistribution_cost(&steps, 1024, 4, &cost);
    assert_true(cost.forward == 2 * 4096 && cost.backward == 2 * 4096);
    assert_true(cost.computation == 2 * 4096 && cost.memory == 2 * 4096);
}

static void test_redistribution__needs_equal_devices_and_elements(void **state)
{
    static struct redistribution steps;
    struct layout a = on_two_by_four(-1, -1), b = a;
    struct fleet_error err;

    (void)state;
    b.devices[0] = 1;
    assert_true(redistribution_build(&a, &b, true, &steps, &err) < 0);
    assert_string_equal(err.text, "layouts on 8 and on 4 devices");
    b = a;
    b.shape[1] = 8;
    assert_true(redistribution_build(&a, &b, true, &steps, &err) < 0);
    assert_string_equal(err.text, "layouts of tensors with 256 and with 128 elements");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_redistribution__is_right_for_all_pairs_on_eight_devices),
        cmocka_unit_test(test_redistribution__is_right_for_all_pairs_on_six_devices),
        cmocka_unit_test(test_redistribution__reshapes_on_the_way),
        cmocka_unit_test(test_redistribution__takes_the_steps_of_the_specification),
        cmocka_unit_test(test_redistribution__costs_what_the_table_says),
        cmocka_unit_test(test_redistribution__needs_equal_devices_and_elements),
    };

    return cmocka_run_group_tests_name("redistribution", tests, NULL, NULL);
}

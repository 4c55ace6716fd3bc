/* SPDX-License-Identifier: Apache-2.0 */

/* fleet_split_new() by two real processes: outputs and gradients are those of the whole layer. */
#include <errno.h>

#include "include/fleet/fleet_mesh.h"
#include "tests/integration/library_processes.h"

#define WORLD   2
#define BATCH   3
#define ROWS    4
#define COLUMNS 6

/* Small integers: sums have no rounding. */
static float weight[ROWS * COLUMNS], bias[COLUMNS], in[BATCH * ROWS], out_gradient[BATCH * COLUMNS];
static float want[BATCH * COLUMNS], want_in[BATCH * ROWS], want_weight[ROWS * COLUMNS];
static float want_bias[COLUMNS];
static const int64_t words[BATCH] = {3, 0, 3};

static void fill(float *to, int count, int seed)
{
    for (int i = 0; i < count; i++)
        to[i] = (float)((i * 7 + seed) % 11 - 5);
}

/* The whole layer. */
static void compute(bool has_bias)
{
    fill(weight, ROWS * COLUMNS, 1);
    fill(bias, COLUMNS, 2);
    fill(in, BATCH * ROWS, 3);
    fill(out_gradient, BATCH * COLUMNS, 4);
    memset(want_in, 0, sizeof(want_in));
    memset(want_weight, 0, sizeof(want_weight));
    memset(want_bias, 0, sizeof(want_bias));
    for (int i = 0; i < BATCH; i++)
        for (int c = 0; c < COLUMNS; c++) {
            float g = out_gradient[i * COLUMNS + c], sum = has_bias ? bias[c] : 0;

            for (int r = 0; r < ROWS; r++) {
                sum += in[i * ROWS + r] * weight[r * COLUMNS + c];
                want_in[i * ROWS + r] += g * weight[r * COLUMNS + c];
                want_weight[r * COLUMNS + c] += in[i * ROWS + r] * g;
            }
            want[i * COLUMNS + c] = sum;
            want_bias[c] += g;
        }
}

static struct fleet_tensor matrix(void *data, int64_t rows, int64_t columns)
{
    return (struct fleet_tensor){data, FLEET_FP32, 2, {rows, columns}};
}

/* Columns first … of a matrix, as one of its own. */
static struct fleet_tensor cut(const float *from, int rows, int columns, int first, int count,
                               float *to)
{
    for (int i = 0; i < rows; i++)
        memcpy(to + i * count, from + i * columns + first, (size_t)count * sizeof(float));
    return matrix(to, rows, count);
}

static void check_matrix(const struct fleet_tensor *got, const float *all, int columns, int row,
                         int column)
{
    for (int i = 0; i < got->shape[0]; i++)
        for (int c = 0; c < got->shape[1]; c++)
            CHECK(((float *)got->data)[i * got->shape[1] + c] ==
                  all[(row + i) * columns + column + c]);
}

static struct fleet_split *make(struct fleet_split_options options)
{
    struct fleet_tensor w = matrix(weight, ROWS, COLUMNS), b = {bias, FLEET_FP32, 1, {COLUMNS}};
    struct fleet_split *split = NULL;

    options.rows = ROWS;
    options.columns = COLUMNS;
    options.partitions = WORLD;
    CHECK(fleet_env_init(&err) == 0);
    compute(options.has_bias);
    CHECK(fleet_split_new(&options, &w, options.has_bias ? &b : NULL, NULL, &split, &err) == 0);
    return split;
}

static void linear(struct fleet_split_options options)
{
    struct fleet_split *split = make(options);
    bool is_rows = options.axis == 0, is_whole = is_rows || options.gather_out;
    int rows = is_rows ? ROWS / WORLD : ROWS, columns = is_rows ? COLUMNS : COLUMNS / WORLD;
    int row = is_rows ? rank * rows : 0, column = is_rows ? 0 : rank * columns;
    float in_part[BATCH * ROWS], g_part[BATCH * COLUMNS], out[BATCH * COLUMNS], back[BATCH * ROWS];
    struct fleet_tensor x = cut(in, BATCH, ROWS, row, rows, in_part);
    struct fleet_tensor y = matrix(out, BATCH, is_whole ? COLUMNS : columns);
    struct fleet_tensor g = cut(out_gradient, BATCH, COLUMNS, is_whole ? 0 : column,
                                is_whole ? COLUMNS : columns, g_part);
    struct fleet_tensor x_gradient = matrix(back, BATCH, rows);

    CHECK(fleet_split_forward(split, &x, &y, &err) == 0);
    check_matrix(&y, want, COLUMNS, 0, is_whole ? 0 : column);
    CHECK(fleet_split_backward(split, &x, &g, &x_gradient, &err) == 0);
    check_matrix(&x_gradient, want_in, ROWS, 0, row);
    check_matrix(fleet_split_weight(split), weight, COLUMNS, row, column);
    check_matrix(fleet_split_weight_gradient(split), want_weight, COLUMNS, row, column);
    CHECK(fleet_split_bias(split)->shape[0] == (options.has_bias ? columns : 0));
    for (int c = 0; options.has_bias && c < columns; c++)
        CHECK(((float *)fleet_split_bias_gradient(split)->data)[c] == want_bias[column + c]);
    x.shape[1]++;
    CHECK(fleet_split_forward(split, &x, &y, &err) == -EINVAL);
    CHECK(strstr(err.text, "in has a wrong type or shape"));
    fleet_split_free(split);
}

static void rows_of_a_linear_layer(void)
{
    linear((struct fleet_split_options){.has_bias = true});
}

static void columns_of_a_linear_layer(void)
{
    linear((struct fleet_split_options){.axis = 1, .has_bias = true});
}

static void gathered_columns(void)
{
    linear((struct fleet_split_options){.axis = 1, .gather_out = true});
}

static void embedding(void)
{
    struct fleet_split *split = make((struct fleet_split_options){.kind = FLEET_SPLIT_EMBEDDING});
    int64_t wrong[BATCH] = {0, ROWS, 0};
    float out[BATCH * COLUMNS], *gradient = fleet_split_weight_gradient(split)->data;
    struct fleet_tensor x = {(void *)words, FLEET_INT64, 1, {BATCH}};
    struct fleet_tensor y = matrix(out, BATCH, COLUMNS), g = matrix(out_gradient, BATCH, COLUMNS);

    CHECK(fleet_split_forward(split, &x, &y, &err) == 0);
    for (int i = 0; i < BATCH * COLUMNS; i++)
        CHECK(out[i] == weight[words[i / COLUMNS] * COLUMNS + i % COLUMNS]);
    CHECK(fleet_split_backward(split, &x, &g, NULL, &err) == 0);
    for (int c = 0; c < COLUMNS; c++) { /* row 3 twice, row 0 once */
        if (rank == 1)
            CHECK(gradient[COLUMNS + c] == out_gradient[c] + out_gradient[2 * COLUMNS + c]);
        else
            CHECK(gradient[c] == out_gradient[COLUMNS + c]);
    }
    CHECK(fleet_split_backward(split, &x, &g, &g, &err) == -EINVAL);
    x.data = wrong;
    CHECK(fleet_split_forward(split, &x, &y, &err) == -EINVAL);
    CHECK(strstr(err.text, "in[1] is 4, the vocabulary has 4 rows"));
    fleet_split_free(split);
}

static void refused(struct fleet_split_options options, const char *words_of_it)
{
    struct fleet_tensor w = matrix(weight, options.rows, options.columns);
    struct fleet_split *split = NULL;

    CHECK(fleet_split_new(&options, &w, NULL, NULL, &split, &err) == -EINVAL);
    CHECK(!split && strstr(err.text, words_of_it));
}

static void arguments(void)
{
    struct fleet_split_options good = {FLEET_SPLIT_LINEAR, 4, 6, 0, 2, false, false}, o = good;
    struct fleet_tensor w = matrix(weight, 3, 3);
    struct fleet_split *split = NULL;

    CHECK(fleet_split_new(&good, &w, NULL, NULL, &split, &err) == FLEET_NOT_INITIALIZED);
    CHECK(fleet_env_init(&err) == 0);
    CHECK(fleet_split_new(&good, &w, NULL, NULL, &split, &err) == -EINVAL);
    CHECK(fleet_split_new(&good, NULL, NULL, NULL, &split, &err) == -EINVAL);
    CHECK(fleet_split_new(NULL, &w, NULL, NULL, &split, &err) == -EINVAL);
    o.axis = 2;
    refused(o, "axis is 2, allowed: 0 and 1");
    o = (struct fleet_split_options){FLEET_SPLIT_EMBEDDING, 4, 6, 1, 2, false, false};
    refused(o, "axis is 1, allowed: 0 for an embedding");
    o = good;
    o.rows = 3;
    refused(o, "2 ranks do not divide 3 rows");
    o = good;
    o.partitions = 4;
    refused(o, "partitions is 4, the group has 2 ranks");
    o = good;
    o.kind = (enum fleet_split_kind)2;
    refused(o, "kind is 2");
}

static void test_split__rows_of_a_linear_layer(void **state)
{
    (void)state;
    run_processes(WORLD, rows_of_a_linear_layer, -1);
}

static void test_split__columns_of_a_linear_layer(void **state)
{
    (void)state;
    run_processes(WORLD, columns_of_a_linear_layer, -1);
}

static void test_split__gathered_columns(void **state)
{
    (void)state;
    run_processes(WORLD, gathered_columns, -1);
}

static void test_split__embedding(void **state)
{
    (void)state;
    run_processes(WORLD, embedding, -1);
}

static void test_split__arguments(void **state)
{
    (void)state;
    run_processes(WORLD, arguments, -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split__rows_of_a_linear_layer),
        cmocka_unit_test(test_split__columns_of_a_linear_layer),
        cmocka_unit_test(test_split__gathered_columns),
        cmocka_unit_test(test_split__embedding),
        cmocka_unit_test(test_split__arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

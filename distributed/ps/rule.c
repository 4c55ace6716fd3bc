/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/ps/rule.h"

#include <errno.h>
#include <math.h>

size_t ps_rule_state(enum fleet_ps_rule rule, size_t width)
{
    switch (rule) {
    case FLEET_PS_ADAGRAD:
        return 1;
    case FLEET_PS_STD_ADAGRAD:
        return width;
    case FLEET_PS_ADAM:
        return 2 * width + 2; /* m, v, beta1^t, beta2^t */
    case FLEET_PS_SGD:
    case FLEET_PS_SUM:
        break;
    }
    return 0;
}

void ps_rule_reset(const struct fleet_ps_table *table, float *state, size_t width)
{
    size_t count = ps_rule_state(table->rule, width);

    for (size_t i = 0; i < count; i++)
        state[i] = 0;
    if (table->rule == FLEET_PS_ADAM) {
        state[2 * width] = table->beta1;
        state[2 * width + 1] = table->beta2;
    }
}

static void adagrad(const struct fleet_ps_table *t, float *w, float *sum, const float *g,
                    size_t width)
{
    float rate = t->learning_rate * sqrtf(t->initial_g2sum / (t->initial_g2sum + *sum));
    double squares = 0;

    for (size_t i = 0; i < width; i++)
        w[i] -= rate * g[i];
    for (size_t i = 0; i < width; i++)
        squares += (double)g[i] * g[i];
    *sum += (float)(squares / (double)width);
}

static void std_adagrad(const struct fleet_ps_table *t, float *w, float *sums, const float *g,
                        size_t width)
{
    for (size_t i = 0; i < width; i++) {
        w[i] -= t->learning_rate * g[i] * sqrtf(t->initial_g2sum / (t->initial_g2sum + sums[i]));
        sums[i] += g[i] * g[i];
    }
}

static void adam(const struct fleet_ps_table *t, float *w, float *state, const float *g,
                 size_t width)
{
    float *m = state, *v = state + width, *powers = state + 2 * width;
    float correction = sqrtf(1 - powers[1]);
    float rate = t->learning_rate * correction / (1 - powers[0]);

    for (size_t i = 0; i < width; i++) {
        m[i] = t->beta1 * m[i] + (1 - t->beta1) * g[i];
        v[i] = t->beta2 * v[i] + (1 - t->beta2) * g[i] * g[i];
        w[i] -= rate * (m[i] / (sqrtf(v[i]) + t->epsilon * correction));
    }
    powers[0] *= t->beta1;
    powers[1] *= t->beta2;
}

void ps_rule_apply(const struct fleet_ps_table *table, float *w, float *state, const float *g,
                   size_t width)
{
    float bound = table->weight_bound;

    switch (table->rule) {
    case FLEET_PS_SGD:
        for (size_t i = 0; i < width; i++)
            w[i] -= table->learning_rate * g[i];
        break;
    case FLEET_PS_ADAGRAD:
        adagrad(table, w, state, g, width);
        break;
    case FLEET_PS_STD_ADAGRAD:
        std_adagrad(table, w, state, g, width);
        break;
    case FLEET_PS_ADAM:
        adam(table, w, state, g, width);
        break;
    case FLEET_PS_SUM:
        for (size_t i = 0; i < width; i++)
            w[i] += g[i];
        break;
    }
    for (size_t i = 0; bound > 0 && i < width; i++)
        w[i] = w[i] > bound ? bound : w[i] < -bound ? -bound : w[i];
}

/* ---- a table's description ------------------------------------------------------------------- */

void fleet_ps_table_defaults(struct fleet_ps_table *table)
{
    if (!table)
        return;
    *table = (struct fleet_ps_table){.learning_rate = 0.05F,
                                     .beta1 = 0.9F,
                                     .beta2 = 0.999F,
                                     .epsilon = 1e-8F,
                                     .initial_g2sum = 3,
                                     .weight_bound = 10,
                                     .initial_range = 1e-4F,
                                     .show_coefficient = 0.1F,
                                     .click_coefficient = 1,
                                     .base_threshold = 1.5F,
                                     .delta_threshold = 0.25F,
                                     .delta_keep_days = 16,
                                     .decay = 0.98F,
                                     .delete_threshold = 0.8F,
                                     .delete_after_unseen_days = 30};
}

static int check_number(const char *name, float value, double min, double max,
                        struct fleet_error *err)
{
    if (value >= min && value <= max)
        return 0;
    return fleet_error(err, -EINVAL, "%s is %g, allowed: %g to %g", name, (double)value, min, max);
}

static int check_numbers(const struct fleet_ps_table *t, struct fleet_error *err)
{
    const struct {
        const char *name;
        float value;
        double min, max;
    } numbers[] = {{"learning_rate", t->learning_rate, 0, 1e6},
                   {"beta1", t->beta1, 0, 0.9999999},
                   {"beta2", t->beta2, 0, 0.9999999},
                   {"epsilon", t->epsilon, 0, 1},
                   {"initial_g2sum", t->initial_g2sum, 1e-12, 1e12},
                   {"weight_bound", t->weight_bound, 0, 1e30},
                   {"initial_range", t->initial_range, 0, 1e6},
                   {"show_coefficient", t->show_coefficient, 0, 1e6},
                   {"click_coefficient", t->click_coefficient, 0, 1e6},
                   {"base_threshold", t->base_threshold, 0, 1e12},
                   {"delta_threshold", t->delta_threshold, 0, 1e12},
                   {"delta_keep_days", t->delta_keep_days, 0, 65535},
                   {"decay", t->decay, 0, 1},
                   {"delete_threshold", t->delete_threshold, 0, 1e12},
                   {"delete_after_unseen_days", t->delete_after_unseen_days, 0, 65535}};

    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        int rc =
            check_number(numbers[i].name, numbers[i].value, numbers[i].min, numbers[i].max, err);
        if (rc < 0)
            return rc;
    }
    if (t->entry == FLEET_PS_ENTRY_PROBABILITY)
        return check_number("entry_value (a probability)", t->entry_value, 0, 1, err);
    if (t->entry == FLEET_PS_ENTRY_COUNT)
        return check_number("entry_value (a count)", t->entry_value, 1, 16777216, err);
    return check_number("entry_value", t->entry_value, 0, 1e12, err);
}

int ps_table_check(const struct fleet_ps_table *table, struct fleet_error *err)
{
    if (table->id < 0 || table->id >= FLEET_PS_TABLES_MAX)
        return fleet_error(err, -EINVAL, "id is %d, allowed: 0 to %d", table->id,
                           FLEET_PS_TABLES_MAX - 1);
    if ((table->width != 0) == (table->length != 0))
        return fleet_error(err, -EINVAL,
                           "table %d: set width (a sparse table) or length (a dense one)",
                           table->id);
    if (table->width < 0 || table->width > FLEET_PS_WIDTH_MAX)
        return fleet_error(err, -EINVAL, "table %d: width is %d, allowed: 1 to %d", table->id,
                           table->width, FLEET_PS_WIDTH_MAX);
    if (table->length < 0 || table->length > (int64_t)1 << 40)
        return fleet_error(err, -EINVAL, "table %d: length is %lld, allowed: 1 to 2^40", table->id,
                           (long long)table->length);
    if ((unsigned)table->rule > FLEET_PS_SUM || (unsigned)table->entry > FLEET_PS_ENTRY_SHOW_CLICK)
        return fleet_error(err, -EINVAL, "table %d: unknown rule %d or entry %d", table->id,
                           (int)table->rule, (int)table->entry);
    if (table->length > 0 && table->rule == FLEET_PS_ADAGRAD)
        return fleet_error(err, -EINVAL,
                           "table %d: FLEET_PS_ADAGRAD has one sum a row, and a dense table has no "
                           "rows; use FLEET_PS_STD_ADAGRAD",
                           table->id);
    if (table->length > 0 && table->entry != FLEET_PS_ENTRY_ALL)
        return fleet_error(err, -EINVAL, "table %d: a dense table has no entry rule", table->id);
    return check_numbers(table, err) < 0 ? fleet_error_wrap(err, "table %d", table->id) : 0;
}

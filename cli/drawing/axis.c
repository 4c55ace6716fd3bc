/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/drawing/axis.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define SAME      1e-9 /* values whose relative difference is smaller are equal */
#define FEW       2.2  /* up to this many decades get ticks between the powers of ten */
#define SHORT_MAX 1e9  /* larger numbers have exponents */

static double measure_of(bool is_log, double value)
{
    return is_log ? log10(value) : value;
}

static double value_of(bool is_log, double at)
{
    return is_log ? pow(10.0, at) : at;
}

void axis_init(struct axis *axis, double low, double high, double margin, bool is_log, double from,
               double to)
{
    double a = measure_of(is_log, low), b = measure_of(is_log, high);

    if (b - a <= SAME * fmax(fabs(a), fabs(b)))
        margin = is_log ? 0.5 : a == 0.0 ? 1.0 : 0.1 * fabs(a);
    else
        margin *= b - a;
    *axis =
        (struct axis){value_of(is_log, a - margin), value_of(is_log, b + margin), is_log, from, to};
}

double axis_measure(const struct axis *axis, double value)
{
    return measure_of(axis->is_log, fmin(fmax(value, axis->low), axis->high));
}

double axis_place_measure(const struct axis *axis, double measure)
{
    double low = measure_of(axis->is_log, axis->low), high = measure_of(axis->is_log, axis->high);

    return axis->from + (axis->to - axis->from) * (measure - low) / (high - low);
}

double axis_place(const struct axis *axis, double value)
{
    return axis_place_measure(axis, axis_measure(axis, value));
}

/* ---- ticks ----------------------------------------------------------------------------------- */

/* 1, 2 or 5 times a power of ten, so that at most `wanted` of them cover the range. */
static double round_interval(double range, int wanted)
{
    double rough = range / wanted, power = pow(10.0, floor(log10(rough)));
    static const double factors[] = {1.0, 2.0, 5.0};

    for (int i = 0; i < 3; i++)
        if (rough <= factors[i] * power * (1.0 + SAME))
            return factors[i] * power;
    return 10.0 * power;
}

/* With as many decimals as the interval has. */
static void format_tick(double value, double interval, char out[24])
{
    int decimals = (int)fmax(0.0, -floor(log10(interval) + SAME));

    if (fabs(value) < interval / 2.0)
        (void)snprintf(out, 24, "0");
    else if (fabs(value) >= 10000.0 || decimals > 6)
        axis_number(value, out);
    else
        (void)snprintf(out, 24, "%.*f", decimals, value);
}

static size_t linear_ticks(const struct axis *axis, int wanted, bool whole, struct axis_tick *ticks)
{
    double interval = round_interval(axis->high - axis->low, wanted);
    size_t count = 0;

    if (whole)
        interval = fmax(interval, 1.0);
    for (double i = ceil(axis->low / interval - SAME);
         i * interval <= axis->high + SAME * interval && count < AXIS_TICKS_MAX; i++) {
        ticks[count].value = i * interval;
        format_tick(i * interval, interval, ticks[count].text);
        /* the numbers would need too many digits */
        if (count == 0 || strcmp(ticks[count].text, ticks[count - 1].text) != 0)
            count++;
    }
    return count;
}

static size_t log_ticks(const struct axis *axis, int wanted, struct axis_tick *ticks)
{
    static const double factors[] = {1.0, 2.0, 5.0};
    double first = floor(log10(axis->low)), last = ceil(log10(axis->high));
    double every = fmax(1.0, ceil((last - first) / wanted));
    int factor_count = log10(axis->high) - log10(axis->low) < FEW ? 3 : 1;
    size_t count = 0;

    for (double power = ceil(first / every) * every; power <= last; power += every)
        for (int i = 0; i < factor_count; i++) {
            double value = factors[i] * pow(10.0, power);
            if (value < axis->low || value > axis->high || count == AXIS_TICKS_MAX)
                continue;
            ticks[count].value = value;
            axis_number(value, ticks[count++].text);
        }
    return count;
}

size_t axis_ticks(const struct axis *axis, int wanted, bool whole,
                  struct axis_tick ticks[AXIS_TICKS_MAX])
{
    size_t count = axis->is_log ? log_ticks(axis, wanted, ticks) : 0;

    /* a short logarithmic axis may have less than two powers of ten */
    return count >= 2 ? count : linear_ticks(axis, wanted, whole, ticks);
}

/* "1.50" → "1.5", "2.00" → "2" */
static void drop_zeros(char *text)
{
    size_t length = strlen(text);

    if (!strchr(text, '.'))
        return;
    while (text[length - 1] == '0')
        text[--length] = '\0';
    if (text[length - 1] == '.')
        text[length - 1] = '\0';
}

/* "3.2e+16" → "3.2e16", "1e-06" → "1e-6" */
static void shorten_exponent(char *text)
{
    char *e = strchr(text, 'e'), *to, *from;

    if (!e)
        return;
    to = e + (e[1] == '-' ? 2 : 1);
    from = e + 2;
    from += strspn(from, "0");
    memmove(to, from, strlen(from) + 1);
}

void axis_number(double value, char out[24])
{
    static const struct {
        double size;
        char letter;
    } units[] = {{1e6, 'M'}, {1e3, 'k'}};

    for (int i = 0; i < 2; i++)
        if (fabs(value) >= fmax(10000.0, units[i].size) && fabs(value) < SHORT_MAX) {
            (void)snprintf(out, 20, "%.3f", value / units[i].size);
            drop_zeros(out);
            (void)snprintf(out + strlen(out), 2, "%c", units[i].letter);
            return;
        }
    (void)snprintf(out, 24, "%.4g", value);
    shorten_exponent(out);
}

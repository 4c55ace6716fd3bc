/* SPDX-License-Identifier: Apache-2.0 */

/*
 * RFC 3339 is parsed by hand and written with gmtime_r. The C library's parsers depend on locale
 * and time zone, and Kubernetes writes one fixed form.
 */
#include "libfleet/base/clock.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

double fleet_monotonic_ms(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

int64_t fleet_wall_ms(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

void fleet_rfc3339_format(int64_t wall_ms, char out[FLEET_RFC3339_SIZE])
{
    time_t seconds = (time_t)(wall_ms / 1000);
    int ms = (int)(wall_ms % 1000);
    struct tm tm;
    size_t used;

    if (ms < 0) {
        ms += 1000;
        seconds -= 1;
    }
    if (!gmtime_r(&seconds, &tm) || tm.tm_year > 8099 || tm.tm_year < -1900)
        (void)gmtime_r(&(time_t){0}, &tm);
    used = strftime(out, FLEET_RFC3339_SIZE, "%04Y-%m-%dT%H:%M:%S", &tm);
    if (ms)
        (void)snprintf(out + used, FLEET_RFC3339_SIZE - used, ".%03dZ", ms);
    else
        (void)snprintf(out + used, FLEET_RFC3339_SIZE - used, "Z");
}

/* Read `count` decimal digits at *p and advance *p; -1 if there are fewer. */
static int take_digits(const char **p, int count)
{
    int value = 0;

    for (int i = 0; i < count; i++, (*p)++) {
        if (**p < '0' || **p > '9')
            return -1;
        value = value * 10 + (**p - '0');
    }
    return value;
}

static bool take_char(const char **p, char c)
{
    if (**p != c)
        return false;
    (*p)++;
    return true;
}

/* The fraction after '.', in milliseconds; -1 if it has no digit, or more than nine. */
static int take_fraction_ms(const char **p)
{
    int ms = 0, digits = 0;

    for (; **p >= '0' && **p <= '9'; (*p)++, digits++)
        if (digits < 3)
            ms = ms * 10 + (**p - '0');
    if (digits == 0 || digits > 9)
        return -1;
    for (; digits < 3; digits++)
        ms *= 10;
    return ms;
}

/* Convert "Z" or "±hh:mm" to minutes east of UTC; false if it is neither. */
static bool take_zone(const char **p, int *out)
{
    int sign, hours, minutes;

    *out = 0;
    if (take_char(p, 'Z') || take_char(p, 'z'))
        return true;
    if (**p != '+' && **p != '-')
        return false;
    sign = *(*p)++ == '-' ? -1 : 1;
    hours = take_digits(p, 2);
    if (hours < 0 || hours > 23 || !take_char(p, ':'))
        return false;
    minutes = take_digits(p, 2);
    if (minutes < 0 || minutes > 59)
        return false;
    *out = sign * (hours * 60 + minutes);
    return true;
}

static bool is_date_valid(int year, int month, int day)
{
    static const int days[12] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;

    if (month < 1 || month > 12 || day < 1)
        return false;
    return day <= days[month - 1] + (month == 2 && leap ? 1 : 0);
}

int fleet_rfc3339_parse(const char *text, int64_t *out_wall_ms)
{
    const char *p = text;
    struct tm tm = {0};
    int year, month, day, ms = 0, zone;

    if (strnlen(text, 65) > 64)
        return -EINVAL;
    year = take_digits(&p, 4);
    if (year < 0 || !take_char(&p, '-') || (month = take_digits(&p, 2)) < 0 || !take_char(&p, '-'))
        return -EINVAL;
    day = take_digits(&p, 2);
    if (!is_date_valid(year, month, day) || !(take_char(&p, 'T') || take_char(&p, 't')))
        return -EINVAL;
    tm.tm_year = year - 1900;
    tm.tm_mon = month - 1;
    tm.tm_mday = day;
    if ((tm.tm_hour = take_digits(&p, 2)) < 0 || tm.tm_hour > 23 || !take_char(&p, ':'))
        return -EINVAL;
    if ((tm.tm_min = take_digits(&p, 2)) < 0 || tm.tm_min > 59 || !take_char(&p, ':'))
        return -EINVAL;
    if ((tm.tm_sec = take_digits(&p, 2)) < 0 || tm.tm_sec > 60)
        return -EINVAL;
    if (take_char(&p, '.') && (ms = take_fraction_ms(&p)) < 0)
        return -EINVAL;
    if (!take_zone(&p, &zone) || *p)
        return -EINVAL;
    *out_wall_ms = ((int64_t)timegm(&tm) - (int64_t)zone * 60) * 1000 + ms;
    return 0;
}

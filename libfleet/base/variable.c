/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/base/variable.h"

#include <errno.h>
#include <stdlib.h>

#include "libfleet/base/error.h"

int fleet_variable_parse(const char *what, const char *text, int min, int max, int *out,
                         struct fleet_error *err)
{
    char *end = NULL;
    long value;

    errno = 0;
    value = strtol(text, &end, 10);
    if (errno || end == text || *end || value < min || value > max)
        return fleet_error(err, -EINVAL, "%s is \"%.40s\", not a number between %d and %d", what,
                           text, min, max);
    *out = (int)value;
    return 0;
}

int fleet_variable_number(const char *name, int min, int max, int missing, int *out,
                          struct fleet_error *err)
{
    const char *text = getenv(name);

    if (text && text[0])
        return fleet_variable_parse(name, text, min, max, out, err);
    if (missing < min)
        return fleet_error(err, -EINVAL, "%s is not set", name);
    *out = missing;
    return 0;
}

int fleet_variable_threads(int *out, struct fleet_error *err)
{
    const char *text = getenv(FLEET_THREADS_ENV);

    *out = 0;
    return text && text[0]
               ? fleet_variable_parse(FLEET_THREADS_ENV, text, 1, FLEET_THREADS_MAX, out, err)
               : 0;
}

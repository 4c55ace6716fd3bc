/* SPDX-License-Identifier: Apache-2.0 */

/* The meaning of a scalar without quotes, by the rules of YAML 1.1 and Go's numbers (yaml.h). */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_build.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/base/yaml_internal.h"

static bool is_one_of(const char *text, const char *const *words)
{
    for (; *words; words++)
        if (strcmp(text, *words) == 0)
            return true;
    return false;
}

/* Integers as in Go: an optional sign, then 0x, 0o or 0, 0b, or decimal digits. */
static bool read_integer(const char *text, double *out)
{
    const char *digits = text + (*text == '-' || *text == '+');
    int base = 10;
    char *end;

    if (!isdigit((unsigned char)*digits))
        return false;
    if (digits[0] == '0' && digits[1]) {
        int letter = tolower((unsigned char)digits[1]);
        base = letter == 'x' ? 16 : letter == 'b' ? 2 : 8;
        digits += letter == 'x' || letter == 'b' || letter == 'o' ? 2 : 1;
    }
    if (!isxdigit((unsigned char)*digits))
        return false;
    errno = 0;
    unsigned long long value = strtoull(digits, &end, base);
    if (*end || errno)
        return false;
    *out = *text == '-' ? -(double)value : (double)value;
    return true;
}

/* [-+]? ( .digits | digits [. digits*] ) [e [-+] digits] */
static bool is_decimal(const char *text)
{
    const char *p = text + (*text == '-' || *text == '+');
    size_t before = strspn(p, "0123456789"), after = 0;

    p += before;
    if (*p == '.') {
        after = strspn(p + 1, "0123456789");
        p += 1 + after;
    }
    if (before + after == 0)
        return false;
    if (*p == 'e' || *p == 'E') {
        p += 1 + (p[1] == '-' || p[1] == '+');
        size_t digits = strspn(p, "0123456789");
        if (digits == 0)
            return false;
        p += digits;
    }
    return *p == '\0';
}

static char *without_underscores(const char *text)
{
    struct fleet_strbuf out = {0};

    for (; *text; text++)
        if (*text != '_')
            fleet_strbuf_append_char(&out, *text);
    return fleet_strbuf_take(&out);
}

/* Spelled with a point or an exponent; kept for fleet_json_float_spelling(). */
static cJSON *create_float(double value, const char *text)
{
    cJSON *json = fleet_json_new_number(value);

    fleet_json_set_float_spelling(json, text, strlen(text));
    return json;
}

/* Spelled as YAML 1.1 does; kept for fleet_json_bool_spelling(). */
static cJSON *create_bool(bool value, const char *text)
{
    cJSON *json = fleet_json_new_bool(value);

    if (strcasecmp(text, value ? "true" : "false") != 0)
        fleet_json_set_bool_spelling(json, text);
    return json;
}

/* The meaning of a plain scalar; NULL if JSON cannot express it. */
cJSON *fleet_yaml_plain(const char *text)
{
    static const char *const yes[] = {"y",    "Y",    "yes", "Yes", "YES", "true",
                                      "True", "TRUE", "on",  "On",  "ON",  NULL};
    static const char *const no[] = {"n",     "N",     "no",  "No",  "NO",  "false",
                                     "False", "FALSE", "off", "Off", "OFF", NULL};
    static const char *const nothing[] = {"", "~", "null", "Null", "NULL", NULL};
    static const char *const not_finite[] = {".nan",  ".NaN",  ".NAN",  ".inf",  ".Inf",
                                             ".INF",  "+.inf", "+.Inf", "+.INF", "-.inf",
                                             "-.Inf", "-.INF", NULL};
    FLEET_AUTO_FREE char *digits = NULL;
    double value;

    if (is_one_of(text, nothing))
        return cJSON_CreateNull();
    if (is_one_of(text, yes))
        return create_bool(true, text);
    if (is_one_of(text, no))
        return create_bool(false, text);
    if (is_one_of(text, not_finite))
        return NULL;
    if (!isdigit((unsigned char)*text) && !strchr("+-.", *text))
        return fleet_json_new_string(text);
    digits = without_underscores(text);
    if (read_integer(digits, &value))
        return fleet_json_new_number(value);
    if (!is_decimal(digits))
        return fleet_json_new_string(text);
    value = strtod(digits, NULL);
    return isfinite(value) ? create_float(value, text) : NULL;
}

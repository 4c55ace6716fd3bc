/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_STRATEGY_TEXT_H
#define TESTS_UNIT_STRATEGY_TEXT_H

/* Strategies from short JSON with ' for ", and lists of errors as one string, for the tests. */

#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "libfleet/base/errors.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/strategy/strategy_json.h"

/* The caller deletes; NULL if it is not JSON. */
static inline cJSON *strategy_text_json(const char *text)
{
    char *json = strdup(text);
    cJSON *root;

    for (char *c = json; *c; c++)
        if (*c == '\'')
            *c = '"';
    root = cJSON_Parse(json);
    free(json);
    return root;
}

/* "path: message; path: message", freed by the caller. Empties the list. */
static inline char *strategy_text_errors(struct fleet_errors *errors)
{
    struct fleet_strbuf out = {0};

    fleet_strbuf_append(&out, "");
    for (size_t i = 0; i < errors->count && i < FLEET_ERRORS_MAX; i++)
        fleet_strbuf_appendf(&out, "%s%s%s%s", i ? "; " : "", errors->items[i].path,
                             *errors->items[i].path ? ": " : "", errors->items[i].message);
    fleet_errors_release(errors);
    return fleet_strbuf_take(&out);
}

/* Fill *s; NULL, or what was refused (freed by the caller). */
static inline char *strategy_text_read(struct strategy *s, const char *text)
{
    struct fleet_errors errors = {0};
    cJSON *root = strategy_text_json(text);
    int code = strategy_json_decode(root, "", s, &errors);

    cJSON_Delete(root);
    return code < 0 ? strategy_text_errors(&errors) : NULL;
}

#endif

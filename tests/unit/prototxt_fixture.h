/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_PROTOTXT_FIXTURE_H
#define TESTS_UNIT_PROTOTXT_FIXTURE_H

/* Strategies as text: read, printed and compared, for the tests of the text format. */
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/strategy/knobs.h"
#include "libfleet/strategy/prototxt.h"
#include "tests/golden/golden.h"
#include "tests/unit/strategy_text.h"

#define CASES 54

static inline void read_text(struct strategy *s, const char *name, const char *text, size_t size)
{
    struct fleet_error err;

    strategy_init(s);
    if (prototxt_merge(s, name, text, size, &err) < 0)
        fail_msg("%s", err.text);
}

static inline char *print_text(const struct strategy *s, enum strategy_dialect dialect)
{
    struct fleet_strbuf out = {0};
    struct fleet_error err;

    fleet_strbuf_append(&out, "");
    if (prototxt_print(s, dialect, &out, &err) < 0)
        fail_msg("%s", err.text);
    return fleet_strbuf_take(&out);
}

/* JSON as recorded, where mode may stand, which a resource may not set. */
static inline void read_recorded(struct strategy *s, const cJSON *recorded)
{
    cJSON *json = cJSON_Duplicate(recorded, true);
    cJSON *mode = cJSON_DetachItemFromObject(json, "mode");
    struct fleet_errors errors = {0};

    if (strategy_json_decode(json, "", s, &errors) < 0)
        fail_msg("recorded values: %s: %s", errors.items[0].path, errors.items[0].message);
    if (!cJSON_GetObjectItem(json, "a_sync_configs")) { /* a file says a_sync without its effect */
        s->has_a_sync_configs = s->a_sync_configs.has_k_steps = 0;
        s->a_sync_configs.k_steps = -1;
    }
    if (mode) {
        s->mode = knob_mode_number(mode->valuestring);
        s->has_mode = KNOB_BY_NAME;
    }
    cJSON_Delete(mode);
    cJSON_Delete(json);
}

static inline void expect_same(const char *name, const struct strategy *got,
                               const struct strategy *wanted)
{
    cJSON *a = strategy_json_encode(got), *b = strategy_json_encode(wanted);

    if (!strategy_means_same(got, wanted))
        fail_msg("%s\n  expected: %s\n  actual:   %s", name, cJSON_PrintUnformatted(b),
                 cJSON_PrintUnformatted(a));
    cJSON_Delete(a);
    cJSON_Delete(b);
}

/* ---- recorded files -------------------------------------------------------------------------- */

/* "01-default" … in order; the caller frees the names. */
static inline size_t list_files(const char *folder, const char *suffix, char **names, size_t max)
{
    char path[256];
    struct dirent *entry;
    size_t count = 0;
    DIR *dir;

    (void)snprintf(path, sizeof(path), "tests/golden/paddle/%s", folder);
    dir = opendir(path);
    if (!dir)
        fail_msg("%s is missing", path);
    while ((entry = readdir(dir)) && count < max) {
        size_t length = strlen(entry->d_name), end = strlen(suffix);
        if (length > end && strcmp(entry->d_name + length - end, suffix) == 0)
            names[count++] = strndup(entry->d_name, length - end);
    }
    (void)closedir(dir);
    return count;
}

#endif

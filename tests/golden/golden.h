/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_GOLDEN_GOLDEN_H
#define TESTS_GOLDEN_GOLDEN_H

/*
 * Readers for the recordings below tests/golden, for tests that run in the repository's root; the
 * environment variable GOLDEN_DIR names another folder of the same layout. A file that is missing
 * or broken fails the test.
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cjson/cJSON.h>
#include <cmocka.h>

#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"

#define GOLDEN_SIZE_MAX (64U << 20)

/* The folder of the recordings. */
static inline const char *golden_folder(void)
{
    const char *folder = getenv("GOLDEN_DIR");

    return folder && folder[0] ? folder : "tests/golden";
}

/* The bytes of the recording <name>, with a final NUL; the caller frees. */
static inline char *golden_text(const char *name, size_t *out_size)
{
    struct fleet_error err;
    char path[1024], *text = NULL;

    (void)snprintf(path, sizeof(path), "%s/%s", golden_folder(), name);
    if (fleet_file_read(path, GOLDEN_SIZE_MAX, &text, out_size, &err) < 0)
        fail_msg("%s", err.text);
    return text;
}

/* The same as JSON; the caller deletes. A NUL in a string of a recording is FLEET_JSON_NUL. */
static inline cJSON *golden_json(const char *name)
{
    struct fleet_error err;
    size_t size = 0;
    char *text = golden_text(name, &size);
    cJSON *root = NULL;

    if (fleet_json_parse_foreign(text, size, GOLDEN_SIZE_MAX, &root, &err) < 0)
        fail_msg("%s: %s", name, err.text);
    free(text);
    return root;
}

#endif

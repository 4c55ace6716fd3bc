/* SPDX-License-Identifier: Apache-2.0 */

/* Any bytes: an error, or a tree that prints as JSON which reads back equal. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"
#include "libfleet/base/yaml.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A reader that takes faults reads what the strict reader reads, and has none then. */
static void check_faults(const char *text, size_t size, const cJSON *strict)
{
    FLEET_AUTO_JSON cJSON *documents = NULL;
    struct fleet_errors faults = {0};
    int rc = fleet_yaml_tolerate(text, size, 0, &documents, &faults, NULL);

    fleet_assert(!strict || (rc == 0 && faults.count == 0 &&
                             fleet_json_equal(strict, cJSON_GetArrayItem(documents, 0))));
    fleet_errors_release(&faults);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    FLEET_AUTO_JSON cJSON *json = NULL, *again = NULL;
    FLEET_AUTO_FREE char *text = NULL;
    struct fleet_error err = {0};

    (void)fleet_yaml_to_json((const char *)data, size, &json, &err);
    check_faults((const char *)data, size, json);
    if (!json) {
        fleet_assert(err.code < 0 && err.text[0] != '\0');
        return 0;
    }
    text = fleet_json_print(json);
    /* The printed form is YAML as well: the same tree again. */
    if (strlen(text) > FLEET_YAML_SIZE_MAX)
        return 0;
    fleet_assert(fleet_yaml_to_json(text, strlen(text), &again, &err) == 0);
    fleet_assert(fleet_json_equal(json, again));
    return 0;
}

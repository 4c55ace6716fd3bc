/* SPDX-License-Identifier: Apache-2.0 */

/* What readers share: files and members that have to be there. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"
#include "tests/golden/runner.h"

#define SIZE_MAX_OF_A_FILE ((size_t)256 << 20)

bool golden_is_brief(void)
{
    const char *variant = getenv("FLEET_TEST_VARIANT");

    return variant && strcmp(variant, "release") != 0;
}

void golden_close(const char *what, double actual, double expected, double tolerance)
{
    if (actual == expected || (isnan(actual) && isnan(expected)))
        return;
    if (!(fabs(actual - expected) <= tolerance))
        golden_fail("%s is %.9g, expected %.9g within %.3g", what, actual, expected, tolerance);
}

/* ---- files ----------------------------------------------------------------------------------- */

char *golden_text(const char *path, size_t *out_size)
{
    struct fleet_error err;
    char *text = NULL;

    if (fleet_file_read(path, SIZE_MAX_OF_A_FILE, &text, out_size, &err) < 0)
        golden_fail("%s", err.text);
    return text;
}

cJSON *golden_json(const char *path)
{
    struct fleet_error err;
    size_t size = 0;
    char *text = golden_text(path, &size);
    cJSON *root = NULL;

    if (fleet_json_parse_foreign(text, size, SIZE_MAX_OF_A_FILE, &root, &err) < 0)
        golden_fail("%s: %s", path, err.text);
    free(text);
    return root;
}

bool golden_exists(const char *path)
{
    return access(path, F_OK) == 0;
}

void golden_tensors(const char *path, struct safetensors_file *out)
{
    struct fleet_error err;

    if (safetensors_open(path, out, &err) < 0)
        golden_fail("%s", err.text);
}

const struct safetensors_tensor *golden_tensor(const struct safetensors_file *file,
                                               const char *name)
{
    const struct safetensors_tensor *found = safetensors_find(file, name);

    if (!found)
        golden_fail("there is no tensor %s", name);
    return found;
}

float *golden_floats(const struct safetensors_tensor *tensor)
{
    int64_t count = safetensors_elements(tensor);
    float *out = malloc((size_t)count * sizeof(*out) + 1);
    struct fleet_error err;

    golden_check(out);
    if (safetensors_read_f32(tensor, 0, count, out, &err) < 0)
        golden_fail("%s", err.text);
    return out;
}

int32_t *golden_integers(const struct safetensors_tensor *tensor)
{
    int64_t count = safetensors_elements(tensor);
    int32_t *out = malloc((size_t)count * sizeof(*out) + 1);
    struct fleet_error err;
    int rc = 0;

    golden_check(out);
    if (tensor->type != SAFETENSORS_I64)
        rc = safetensors_read_i32(tensor, 0, count, out, &err);
    for (int64_t i = 0; tensor->type == SAFETENSORS_I64 && i < count && rc == 0; i++) {
        int64_t wide = 0;
        rc = safetensors_read(tensor, (uint64_t)i * 8, &wide, 8, &err);
        out[i] = (int32_t)wide;
    }
    if (rc < 0)
        golden_fail("%s", err.text);
    return out;
}

/* ---- members --------------------------------------------------------------------------------- */

const cJSON *golden_at(const cJSON *object, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);

    if (!item)
        golden_fail("has no %s", key);
    return item;
}

const char *golden_string(const cJSON *object, const char *key)
{
    const cJSON *item = golden_at(object, key);

    if (!cJSON_IsString(item))
        golden_fail("%s is no string", key);
    return item->valuestring;
}

double golden_number(const cJSON *object, const char *key)
{
    const cJSON *item = golden_at(object, key);

    if (!cJSON_IsNumber(item))
        golden_fail("%s is no number", key);
    return item->valuedouble;
}

double golden_number_or(const cJSON *object, const char *key, double otherwise)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);

    return item && !cJSON_IsNull(item) ? golden_number(object, key) : otherwise;
}

int golden_int(const cJSON *object, const char *key)
{
    double number = golden_number(object, key);

    if (number != rint(number) || fabs(number) > 2e9)
        golden_fail("%s is %.9g, which is no integer", key, number);
    return (int)number;
}

bool golden_bool_or(const cJSON *object, const char *key, bool otherwise)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);

    if (item && !cJSON_IsBool(item))
        golden_fail("%s is neither true nor false", key);
    return item ? cJSON_IsTrue(item) : otherwise;
}

const cJSON *golden_array(const cJSON *object, const char *key)
{
    const cJSON *item = golden_at(object, key);

    if (!cJSON_IsArray(item))
        golden_fail("%s is no list", key);
    return item;
}

double golden_item(const cJSON *array, int i)
{
    const cJSON *item = cJSON_GetArrayItem(array, i);

    if (!cJSON_IsNumber(item))
        golden_fail("element %d of %s is no number", i,
                    array && array->string ? array->string : "the list");
    return item->valuedouble;
}

void golden_known_keys(const cJSON *object, const char *const *known)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, object)
    {
        size_t i = 0;
        while (known[i] && strcmp(known[i], item->string) != 0)
            i++;
        if (!known[i])
            golden_skip("%s is not known here", item->string);
    }
}

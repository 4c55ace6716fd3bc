/* SPDX-License-Identifier: Apache-2.0 */

#include "libfleet/autoparallel/dataset.h"

#include <inttypes.h>

#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"

static int64_t number_of(const cJSON *item)
{
    int64_t value = 1;

    (void)fleet_json_item_int(item, &value);
    return value;
}

/* The number of parts of an input, and how many of its dimensions are divided. */
static int64_t parts_of(const cJSON *input, int *out_divided)
{
    const cJSON *item;
    int64_t parts = 1;

    *out_divided = 0;
    cJSON_ArrayForEach(item, input)
    {
        if (number_of(item) <= 1)
            continue;
        parts = number_of(item);
        ++*out_divided;
    }
    return parts;
}

static void add(struct fleet_errors *errors, const char *path, int input, const char *message)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf full = {0};

    fleet_strbuf_appendf(&full, "%s[%d]", path, input);
    fleet_errors_add(errors, full.text, "%s", message);
}

static void check_devices(const cJSON *strategy, int64_t devices, const char *path,
                          struct fleet_errors *errors)
{
    const cJSON *input;
    int number = 0, divided;

    cJSON_ArrayForEach(input, strategy)
    {
        int64_t parts = parts_of(input, &divided);
        FLEET_AUTO_STRBUF struct fleet_strbuf message = {0};

        if (divided > 1)
            add(errors, path, number, "one dimension may be divided, not several");
        else if (devices > 0 && devices % parts != 0) {
            fleet_strbuf_appendf(&message,
                                 "%" PRId64 " parts do not divide the %" PRId64
                                 " devices of a pipeline stage",
                                 parts, devices);
            add(errors, path, number, message.text);
        }
        number++;
    }
}

/* The input with most dimensions must be the one that is divided most. */
static void check_greatest(const cJSON *strategy, const char *path, struct fleet_errors *errors)
{
    const cJSON *input;
    int64_t of_greatest = 1;
    int dims = -1, number = 0, divided;

    cJSON_ArrayForEach(input, strategy)
    {
        int64_t parts = parts_of(input, &divided);
        if (cJSON_GetArraySize(input) > dims ||
            (cJSON_GetArraySize(input) == dims && parts > of_greatest)) {
            dims = cJSON_GetArraySize(input);
            of_greatest = parts;
        }
    }
    cJSON_ArrayForEach(input, strategy)
    {
        if (parts_of(input, &divided) > of_greatest)
            add(errors, path, number,
                "is divided more than the input with most dimensions, which must be divided most");
        number++;
    }
}

void dataset_check(const cJSON *strategy, int64_t devices, const char *path,
                   struct fleet_errors *errors)
{
    if (!cJSON_IsArray(strategy))
        return;
    check_devices(strategy, devices, path, errors);
    check_greatest(strategy, path, errors);
}

static void check_input(const cJSON *numbers, const struct dataset_input *input, const char *path,
                        struct fleet_errors *errors)
{
    const cJSON *item;
    int dim = 0;

    if (cJSON_GetArraySize(numbers) != input->dims) {
        fleet_errors_add(errors, path, "%d numbers, but input %s has %d dimensions",
                         cJSON_GetArraySize(numbers), input->name, input->dims);
        return;
    }
    cJSON_ArrayForEach(item, numbers)
    {
        FLEET_AUTO_STRBUF struct fleet_strbuf full = {0};
        int64_t size = input->shape[dim];

        if (size % number_of(item) != 0) {
            fleet_strbuf_appendf(&full, "%s[%d]", path, dim);
            fleet_errors_add(errors, full.text,
                             "%" PRId64 " does not divide the %" PRId64 " of input %s",
                             number_of(item), size, input->name);
        }
        dim++;
    }
}

void dataset_check_inputs(const cJSON *strategy, const struct dataset_input *inputs, int count,
                          const char *path, struct fleet_errors *errors)
{
    const cJSON *numbers;
    int i = 0;

    if (!cJSON_IsArray(strategy))
        return;
    if (cJSON_GetArraySize(strategy) != count) {
        fleet_errors_add(errors, path, "%d lists, but the network has %d inputs",
                         cJSON_GetArraySize(strategy), count);
        return;
    }
    cJSON_ArrayForEach(numbers, strategy)
    {
        FLEET_AUTO_STRBUF struct fleet_strbuf full = {0};

        fleet_strbuf_appendf(&full, "%s[%d]", path, i);
        check_input(numbers, &inputs[i], full.text, errors);
        i++;
    }
}

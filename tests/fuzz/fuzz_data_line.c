/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Any line of a data set: an error, or an instance that passes the check of foreign bytes, whose
 * dense slot is complete, whose sparse slots are not empty, and that keeps its size when a slot is
 * replaced by itself. Any bytes as an instance of another worker: an error, or readable parts.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "distributed/data/instance.h"
#include "libfleet/base/assert.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct fleet_slot slots[] = {
    {"dense", FLEET_SLOT_FLOAT, 2}, {"ids", FLEET_SLOT_INT64, 0}, {"floats", FLEET_SLOT_FLOAT, 0}};

static void read_all(const struct data_format *format, const struct instance *instance)
{
    volatile uint8_t sum = 0;
    uint32_t count;

    for (int s = 0; s < format->slot_count; s++) {
        const uint8_t *values = instance_slot(format, instance, s, &count);
        for (size_t i = 0; i < count * slot_value_size(&format->slots[s]); i++)
            sum = (uint8_t)(sum + values[i]);
    }
    (void)instance_content(instance, &count);
    (void)xxh64(instance_id(instance, &count), count);
}

static void fuzz_line(const struct data_format *format, const uint8_t *data, size_t size)
{
    struct instance *instance, *same;
    uint32_t count;

    if (instance_parse(format, (const char *)data, size, &instance, NULL) < 0)
        return;
    fleet_assert(instance_check(format, instance, NULL) == 0);
    read_all(format, instance);
    (void)instance_slot(format, instance, 0, &count);
    fleet_assert(count == 2);
    for (int s = 1; s < 3; s++) {
        (void)instance_slot(format, instance, s, &count);
        fleet_assert(count > 0);
        same = instance_with_slot(format, instance, s, instance);
        fleet_assert(same && same->size == instance->size);
        fleet_assert(memcmp(same->bytes, instance->bytes, same->size) == 0);
        free(same);
    }
    free(instance);
}

static void fuzz_foreign(const struct data_format *format, const uint8_t *data, size_t size)
{
    struct instance *instance = malloc(sizeof(*instance) + size);

    instance->size = (uint32_t)size;
    memcpy(instance->bytes, data, size);
    if (instance_check(format, instance, NULL) == 0)
        read_all(format, instance);
    free(instance);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct data_format format = {.slots = slots, .slot_count = 3};

    if (size < 1)
        return 0;
    format.parse_ins_id = data[0] & 1;
    format.parse_content = data[0] & 2;
    if (data[0] & 4)
        fuzz_foreign(&format, data + 1, size - 1);
    else
        fuzz_line(&format, data + 1, size - 1);
    return 0;
}

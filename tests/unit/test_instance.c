/* SPDX-License-Identifier: Apache-2.0 */

/* What lines of a data set become, and the hash that brings equal ids together. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "distributed/data/instance.h"

/* Values of the reference implementation (xxHash 0.8) for bytes 7 i + 3. */
static void test_instance__xxh64_is_that_of_the_specification(void **state)
{
    static const struct {
        size_t size;
        uint64_t hash;
    } known[] = {{0, 0xef46db3751d8e999},  {1, 0x1f25c8d0bc1f4bb6},  {3, 0x31d2363f52e564c9},
                 {4, 0x9bb64b7d66ee9fda},  {7, 0x9a7b149959ce60d8},  {8, 0xdab99d95c6f90092},
                 {12, 0xd52e407833af5133}, {31, 0xa2aa5f33cc4a6119}, {32, 0x23c3c17ef790fd97},
                 {33, 0x50a7cfc7ba588784}, {63, 0x5e3e54b431c7493c}, {64, 0x0eb64b3ef6eeb01f},
                 {100, 0xa61f8d4c170fe531}};
    uint8_t data[100];

    (void)state;
    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (uint8_t)(7 * i + 3);
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        assert_true(xxh64(data, known[i].size) == known[i].hash);
}

/* Bytes of another worker that are cut off, or that have more slots, are refused. */
static void test_instance__foreign_bytes_are_checked(void **state)
{
    struct fleet_slot slots[] = {{"a", FLEET_SLOT_INT64, 0}, {"b", FLEET_SLOT_FLOAT, 2}};
    struct data_format format = {.slots = slots, .slot_count = 2, .parse_ins_id = true};
    const char *line = "1 me 2 5 6 2 0.5 0";
    struct instance *instance;
    struct fleet_error err;
    uint32_t whole;

    (void)state;
    assert_int_equal(instance_parse(&format, line, strlen(line), &instance, &err), 0);
    assert_int_equal(instance_check(&format, instance, &err), 0);
    whole = instance->size;
    for (instance->size = 0; instance->size < whole; instance->size++)
        assert_int_equal(instance_check(&format, instance, &err), -EBADMSG);
    format.slot_count = 1;
    assert_int_equal(instance_check(&format, instance, &err), -EBADMSG);
    free(instance);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_instance__xxh64_is_that_of_the_specification),
        cmocka_unit_test(test_instance__foreign_bytes_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */

/* Headers that are written read back; headers that lie are refused with the reason. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/checkpoint/safetensors.h"

/* A file of `json` and `data_size` zero bytes. */
static int decode(const char *json, size_t data_size, struct safetensors_file *out,
                  struct fleet_error *err)
{
    uint8_t bytes[4096] = {0};
    size_t length = strlen(json);

    bytes[0] = (uint8_t)length;
    bytes[1] = (uint8_t)(length >> 8);
    memcpy(bytes + 8, json, length);
    return safetensors_header_decode(bytes, 8 + length, 8 + length + data_size, out, err);
}

static void test_safetensors__what_is_written_reads_back(void **state)
{
    const struct safetensors_metadata metadata[] = {{(char *)"format", (char *)"pt"}};
    const struct safetensors_tensor tensors[] = {
        {.name = (char *)"z \"quoted\"", .type = SAFETENSORS_F32, .ndim = 2, .shape = {2, 3}},
        {.name = (char *)"a", .type = SAFETENSORS_U8, .ndim = 1, .shape = {5}},
        {.name = (char *)"empty", .type = SAFETENSORS_F32, .ndim = 2, .shape = {0, 7}},
        {.name = (char *)"scalar", .type = SAFETENSORS_I64, .ndim = 0},
    };
    struct fleet_strbuf text = {0};
    uint64_t size = safetensors_header_encode(tensors, 4, metadata, 1, &text);
    struct safetensors_file file;
    struct fleet_error err;

    (void)state;
    assert_int_equal(text.length % 64, 0);
    assert_int_equal(size, text.length + 24 + 5 + 8);
    if (safetensors_header_decode(text.text, text.length, size, &file, &err) != 0)
        fail_msg("%s", err.text);
    assert_int_equal(file.count, 4);
    assert_string_equal(file.tensors[0].name, "a");
    assert_int_equal(file.tensors[0].offset, text.length + 24);
    assert_int_equal(safetensors_find(&file, "z \"quoted\"")->bytes, 24);
    assert_int_equal(safetensors_find(&file, "z \"quoted\"")->shape[1], 3);
    assert_int_equal(safetensors_find(&file, "scalar")->ndim, 0);
    assert_int_equal(safetensors_elements(safetensors_find(&file, "scalar")), 1);
    assert_int_equal(safetensors_elements(safetensors_find(&file, "empty")), 0);
    assert_null(safetensors_find(&file, "b"));
    assert_string_equal(safetensors_metadata(&file, "format"), "pt");
    assert_null(safetensors_metadata(&file, "other"));
    safetensors_release(&file);
    fleet_strbuf_release(&text);
}

static void test_safetensors__headers_that_lie_are_refused(void **state)
{
    static const struct {
        const char *json, *reason;
        size_t data_size;
    } cases[] = {
        {"[]", "not an object", 0},
        {"{\"a\":{\"dtype\":\"F33\",\"shape\":[1],\"data_offsets\":[0,4]}}", "dtype F33", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", "its shape makes 8",
         4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,8]}}", "not inside", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", "not inside", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-4,0]}}", "not inside", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", "hole", 8},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", "end at byte", 8},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
         "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
         "neighbour", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", "dimension 0", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[0.5],\"data_offsets\":[0,4]}}", "dimension 0", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4503599627370496,4503599627370496],"
         "\"data_offsets\":[0,4]}}",
         "dimension 1", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}",
         "more than 8", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", "shape is not a list", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", "data_offsets", 4},
        {"{\"a\":7}", "not an object", 0},
        {"{\"__metadata__\":{\"a\":1}}", "not a string", 0},
        {"{\"a\":", "not JSON", 0},
    };
    struct safetensors_file file;
    struct fleet_error err;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int rc = decode(cases[i].json, cases[i].data_size, &file, &err);
        if (rc != -EINVAL || !strstr(err.text, cases[i].reason))
            fail_msg("%s: expected -EINVAL \"%s\", got %d \"%s\"", cases[i].json, cases[i].reason,
                     rc, rc < 0 ? err.text : "");
    }
    assert_int_equal(
        safetensors_header_decode("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10, 10, &file, &err),
        -EINVAL);
    assert_int_equal(safetensors_header_decode("\0", 1, 1, &file, &err), -EINVAL);
}

static void test_safetensors__files_are_read_and_short_ones_refused(void **state)
{
    char path[] = "/tmp/fleetjob-safetensors-XXXXXX";
    const struct safetensors_tensor tensor = {
        .name = (char *)"x", .type = SAFETENSORS_F32, .ndim = 1, .shape = {3}};
    const float values[3] = {1.5f, -2.0f, 3.25f};
    struct fleet_strbuf text = {0};
    struct safetensors_file file;
    struct fleet_error err;
    float back[2];

    (void)state;
    assert_true(close(mkstemp(path)) == 0);
    assert_int_equal(safetensors_open(path, &file, &err), -EINVAL); /* empty */
    (void)safetensors_header_encode(&tensor, 1, NULL, 0, &text);
    fleet_strbuf_append_bytes(&text, values, sizeof(values));
    assert_int_equal(fleet_file_write(path, text.text, text.length - 1, NULL), 0);
    assert_int_equal(safetensors_open(path, &file, &err), -EINVAL); /* one byte short */
    assert_non_null(strstr(err.text, path));
    assert_int_equal(fleet_file_write(path, text.text, text.length, NULL), 0);
    assert_int_equal(safetensors_open(path, &file, &err), 0);
    assert_int_equal(safetensors_read_f32(&file.tensors[0], 1, 2, back, &err), 0);
    assert_true(back[0] == -2.0f && back[1] == 3.25f);
    assert_int_equal(truncate(path, (off_t)text.length - 4), 0); /* by another program, meanwhile */
    assert_int_equal(safetensors_read_f32(&file.tensors[0], 0, 2, back, &err), 0);
    assert_int_equal(safetensors_read_f32(&file.tensors[0], 1, 2, back, &err), -EIO);
    assert_non_null(strstr(err.text, path));
    assert_non_null(strstr(err.text, "truncated"));
    safetensors_release(&file);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(safetensors_open(path, &file, &err), -ENOENT);
    assert_int_equal(safetensors_open("/tmp", &file, &err), -EINVAL);
    fleet_strbuf_release(&text);
}

/* All 65536 halves, against the arithmetic of the format. */
static void test_safetensors__every_half_widens_exactly(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 65536; bits++) {
        const uint16_t half = (uint16_t)bits;
        const struct safetensors_tensor tensor = {.type = SAFETENSORS_F16,
                                                  .ndim = 1,
                                                  .shape = {1},
                                                  .data = (const uint8_t *)&half,
                                                  .bytes = 2};
        int exponent = (int)(bits >> 10 & 31), fraction = (int)(bits & 1023);
        double expected = exponent ? __builtin_ldexp(1024 + fraction, exponent - 25)
                                   : __builtin_ldexp(fraction, -24);
        float got;
        assert_int_equal(safetensors_read_f32(&tensor, 0, 1, &got, NULL), 0);
        if (exponent == 31 && fraction) {
            assert_true(got != got);
            continue;
        }
        if (exponent == 31)
            expected = __builtin_inf();
        if (bits & 0x8000)
            expected = -expected;
        if ((double)got != expected || !__builtin_signbit(got) != !(bits >> 15))
            fail_msg("half %04x: expected %g, got %g", bits, expected, (double)got);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_safetensors__what_is_written_reads_back),
        cmocka_unit_test(test_safetensors__headers_that_lie_are_refused),
        cmocka_unit_test(test_safetensors__files_are_read_and_short_ones_refused),
        cmocka_unit_test(test_safetensors__every_half_widens_exactly),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

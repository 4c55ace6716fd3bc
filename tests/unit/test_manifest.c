/* SPDX-License-Identifier: Apache-2.0 */

/* Manifests read back, folder names are a bijection, and nothing leaves its folder. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/base/error.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/checkpoint/manifest.h"

#define DIGEST "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

/* `body` (without its closing brace) sealed as manifest_encode() does. */
static int decode(const char *body, struct manifest *out, struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    uint8_t digest[FLEET_SHA256_SIZE];
    char hex[FLEET_SHA256_HEX_SIZE];

    fleet_sha256(body, strlen(body), digest);
    fleet_hex_encode(digest, sizeof(digest), hex);
    fleet_strbuf_appendf(&text, "%s,\"sha256\":\"%s\"}\n", body, hex);
    return manifest_decode(text.text, text.length, out, err);
}

static void test_manifest__reads_back_what_was_written(void **state)
{
    struct manifest_file files[] = {{.name = (char *)"model.safetensors", .bytes = 1234567890123},
                                    {.name = (char *)"b", .bytes = 0}};
    struct manifest from = {.step = 12,
                            .updates = 6,
                            .samples = 9007199254740000,
                            .generation = {3, 44},
                            .instruction_set = "avx512",
                            .created_wall_ms = 1700000000123,
                            .files = files,
                            .file_count = 2};
    struct manifest to;
    struct fleet_error err;
    char *text;

    (void)state;
    memcpy(files[0].sha256, DIGEST, sizeof(files[0].sha256));
    memcpy(files[1].sha256, DIGEST, sizeof(files[1].sha256));
    memcpy(from.config_digest, DIGEST, sizeof(from.config_digest));
    from.job = cJSON_CreateObject();
    cJSON_AddStringToObject(from.job, "uid", "0a1b");
    from.extra = cJSON_CreateObject();
    cJSON_AddNumberToObject(from.extra, "lossScale", 2);
    text = manifest_encode(&from);
    if (manifest_decode(text, strlen(text), &to, &err) != 0)
        fail_msg("%s: %s", text, err.text);
    assert_int_equal(to.step, 12);
    assert_string_equal(manifest_job_uid(&to), "0a1b");
    assert_int_equal(to.updates, 6);
    assert_int_equal(to.samples, 9007199254740000);
    assert_int_equal(fleet_generation_compare(to.generation, from.generation), 0);
    assert_string_equal(to.instruction_set, "avx512");
    assert_string_equal(to.config_digest, DIGEST);
    assert_int_equal(to.created_wall_ms, from.created_wall_ms);
    assert_int_equal(to.file_count, 2);
    assert_string_equal(to.files[0].name, "model.safetensors");
    assert_int_equal(to.files[0].bytes, 1234567890123);
    assert_true(cJSON_GetObjectItem(to.extra, "lossScale")->valuedouble == 2);
    manifest_release(&to);
    for (size_t i = 0; text[i]; i++) { /* any flipped bit is noticed */
        text[i] ^= 1;
        assert_int_equal(manifest_decode(text, strlen(text), &to, &err), -EINVAL);
        text[i] ^= 1;
    }
    free(text);
    cJSON_Delete(from.job);
    cJSON_Delete(from.extra);
}

#define HEAD                                                                         \
    "{\"format\":\"fleetjob.checkpoint.v1\",\"step\":1,\"updates\":1,\"samples\":1," \
    "\"generation\":{\"epoch\":1,\"counter\":1},"
#define FILE_OF(name) "\"files\":[{\"name\":\"" name "\",\"bytes\":1,\"sha256\":\"" DIGEST "\"}]"

static void test_manifest__refuses_what_is_not_sound(void **state)
{
    static const struct {
        const char *body, *reason;
    } cases[] = {
        {HEAD "\"files\":7", "files: must be a list"},
        {HEAD FILE_OF("../x"), "must be a plain file name"},
        {HEAD FILE_OF("/etc/passwd"), "must be a plain file name"},
        {HEAD FILE_OF(".."), "must be a plain file name"},
        {HEAD FILE_OF(""), "must be a plain file name"},
        {HEAD "\"files\":[{\"name\":\"a\",\"bytes\":-1,\"sha256\":\"" DIGEST "\"}]",
         "files[0].bytes: must be in [0, "},
        {HEAD "\"files\":[{\"name\":\"a\",\"bytes\":1,\"sha256\":\"abc\"}]",
         "files[0].sha256: must be a SHA-256 of 64 digits"},
        {HEAD "\"files\":[{\"name\":\"a\",\"sha256\":\"" DIGEST "\"}]", "files[0]"},
        {"{\"format\":\"other\",\"files\":[]", "format: \"other\""},
        {"{\"step\":1,\"files\":[]", "format"},
        {"{\"format\":\"fleetjob.checkpoint.v1\",\"step\":-1,\"files\":[]", "step"},
        {HEAD "\"extra\":[],\"files\":[]", "extra"},
        {HEAD "\"created\":\"yesterday\",\"files\":[]", "created"},
        {HEAD "\"configDigest\":\"12\",\"files\":[]", "configDigest"},
        {HEAD "\"instructionSet\":\"0123456789012345678901234567890123\",\"files\":[]",
         "instructionSet"},
    };
    struct manifest manifest;
    struct fleet_error err;

    (void)state;
    assert_int_equal(decode(HEAD FILE_OF("a.safetensors"), &manifest, &err), 0);
    manifest_release(&manifest);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int rc = decode(cases[i].body, &manifest, &err);
        if (rc != -EINVAL || !strstr(err.text, cases[i].reason))
            fail_msg("%s: expected -EINVAL \"%s\", got %d \"%s\"", cases[i].body, cases[i].reason,
                     rc, rc < 0 ? err.text : "");
    }
    assert_int_equal(manifest_decode("{}", 2, &manifest, &err), -EINVAL);
    assert_int_equal(manifest_decode("", 0, &manifest, &err), -EINVAL);
}

static void test_manifest_folder__names_and_numbers_are_a_bijection(void **state)
{
    static const char *const strange[] = {
        "step-1-g1.1",           "step-00000001-g1.1-1", "step-00000001-g1.1-02",
        "step-00000001-g1.1-2x", "step-00000001-g01.1",  "step-00000001-g1.1.tmp",
        "step--0000001-g1.1",    "step-00000001-g1.1-",  "step-00000001",
        "step-+0000001-g1.1",    "step-00000001-g1.-1",  ""};
    char name[MANIFEST_FOLDER_MAX];
    struct fleet_generation generation = {12, 345}, back;
    int64_t step;
    int copy;

    (void)state;
    for (int n = 1; n < 12; n++) {
        manifest_folder_format(1234567890123, generation, n, name);
        assert_true(manifest_folder_parse(name, &step, &back, &copy));
        assert_int_equal(step, 1234567890123);
        assert_int_equal(fleet_generation_compare(generation, back), 0);
        assert_int_equal(copy, n);
    }
    for (size_t i = 0; i < sizeof(strange) / sizeof(strange[0]); i++)
        if (manifest_folder_parse(strange[i], &step, &back, &copy))
            fail_msg("\"%s\" was read as step %lld", strange[i], (long long)step);
}

static void test_manifest_scan__no_path_is_no_checkpoint(void **state)
{
    struct manifest_list list;
    struct fleet_error err;

    (void)state;
    assert_int_equal(manifest_scan("/nowhere/at/all", NULL, &list, NULL, &err), 0);
    assert_int_equal(list.count, 0);
    manifest_list_release(&list);
    assert_int_equal(manifest_scan("/etc/passwd", NULL, &list, NULL, &err), -ENOTDIR);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_manifest__reads_back_what_was_written),
        cmocka_unit_test(test_manifest__refuses_what_is_not_sound),
        cmocka_unit_test(test_manifest_folder__names_and_numbers_are_a_bijection),
        cmocka_unit_test(test_manifest_scan__no_path_is_no_checkpoint),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Strategy and group files that MindSpore's own classes and functions wrote: each is read, and what
 * is written again is the same, bytes of a message and content of JSON.
 */
#include <string.h>

#include "libfleet/autoparallel/files/group_file.h"
#include "libfleet/autoparallel/files/strategy_file.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "tests/golden/readers.h"
#include "tests/golden/runner.h"

static char *read_bytes(const char *path, size_t *out_size)
{
    struct fleet_error err;
    char *bytes;

    if (fleet_file_read(path, STRATEGY_FILE_SIZE_MAX, &bytes, out_size, &err) < 0)
        golden_fail("%s", err.text);
    return bytes;
}

static void compare(const char *bytes, size_t size, const struct fleet_strbuf *again)
{
    if (again->length != size || memcmp(bytes, fleet_strbuf_text(again), size) != 0)
        golden_fail("written again it has other bytes (%zu, not %zu)", again->length, size);
}

static void compare_json(const char *bytes, size_t size, const struct fleet_strbuf *again)
{
    FLEET_AUTO_JSON cJSON *wanted = NULL;
    FLEET_AUTO_JSON cJSON *got = NULL;
    struct fleet_error err;

    if (fleet_json_parse(bytes, size, size, &wanted, &err) < 0 ||
        fleet_json_parse(again->text, again->length, again->length, &got, &err) < 0)
        golden_fail("%s", err.text);
    if (!fleet_json_equal(wanted, got))
        golden_fail("written again it says something else: %s", again->text);
}

static void check_strategy(void *context)
{
    const struct golden_file *file = context;
    FLEET_AUTO_STRBUF struct fleet_strbuf again = {0};
    struct strategy_file strategy;
    struct fleet_error err;
    size_t size;
    FLEET_AUTO_FREE char *bytes = read_bytes(file->path, &size);
    bool is_json = strategy_file_is_json(file->name);

    if (strategy_file_decode(bytes, size, is_json, &strategy, &err) < 0)
        golden_fail("%s", err.text);
    strategy_file_encode(&strategy, is_json, &again);
    if (is_json)
        compare_json(bytes, size, &again);
    else
        compare(bytes, size, &again);
    strategy_file_release(&strategy);
}

void golden_mindspore_strategy(const struct golden_file *file)
{
    golden_case(check_strategy, (void *)file, "read and written again");
}

static void check_group(void *context)
{
    const struct golden_file *file = context;
    FLEET_AUTO_STRBUF struct fleet_strbuf again = {0};
    struct group_file groups;
    struct fleet_error err;
    size_t size;
    FLEET_AUTO_FREE char *bytes = read_bytes(file->path, &size);

    if (group_file_decode(bytes, size, &groups, &err) < 0)
        golden_fail("%s", err.text);
    group_file_encode(&groups, &again);
    compare(bytes, size, &again);
    group_file_release(&groups);
}

void golden_mindspore_group(const struct golden_file *file)
{
    golden_case(check_group, (void *)file, "read and written again");
}

/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Any bytes as a strategy file (the first byte: 'j' JSON, 'g' a group file, any other a message):
 * refused, or what is written from it reads back and is written the same.
 */
#include <string.h>

#include "libfleet/autoparallel/files/group_file.h"
#include "libfleet/autoparallel/files/strategy_file.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/strbuf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_same(const struct fleet_strbuf *first, const struct fleet_strbuf *second)
{
    fleet_assert(first->length == second->length &&
                 memcmp(fleet_strbuf_text(first), fleet_strbuf_text(second), first->length) == 0);
}

static void check_strategy(const uint8_t *data, size_t size, bool is_json)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf first = {0}, second = {0};
    struct strategy_file file, again;

    if (strategy_file_decode(data, size, is_json, &file, NULL) < 0)
        return;
    strategy_file_encode(&file, false, &first);
    fleet_assert(
        strategy_file_decode(fleet_strbuf_text(&first), first.length, false, &again, NULL) == 0);
    strategy_file_encode(&again, false, &second);
    check_same(&first, &second);
    strategy_file_release(&file);
    strategy_file_release(&again);
}

static void check_group(const uint8_t *data, size_t size)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf first = {0}, second = {0};
    struct group_file file, again;

    if (group_file_decode(data, size, &file, NULL) < 0)
        return;
    group_file_encode(&file, &first);
    fleet_assert(group_file_decode(fleet_strbuf_text(&first), first.length, &again, NULL) == 0);
    group_file_encode(&again, &second);
    check_same(&first, &second);
    group_file_release(&file);
    group_file_release(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    if (data[0] == 'g')
        check_group(data + 1, size - 1);
    else
        check_strategy(data + 1, size - 1, data[0] == 'j');
    return 0;
}

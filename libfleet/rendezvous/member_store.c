/* SPDX-License-Identifier: Apache-2.0 */

/* The member's part of a generation's store: the values that it put, and the keys that it waits
 * for. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/base/memory.h"
#include "libfleet/rendezvous/member_internal.h"

#define STORE_ENTRIES_MAX 1024
#define STORE_BYTES_MAX   (8u << 20)

void member_store_forget(struct member *member)
{
    for (size_t i = 0; i < member->store_count; i++) {
        free(member->store[i].key);
        free(member->store[i].value);
    }
    free(member->store);
    member->store = NULL;
    member->store_count = member->store_bytes = 0;
}

static int add_to_store(struct member *member, const struct member_entry *entry,
                        struct fleet_error *err)
{
    size_t size = strlen(entry->key) + entry->value_size;

    if (!member->is_joined)
        return fleet_error(err, -EINVAL, "key %.64s: there is no generation", entry->key);
    if (entry->key[0] == '\0' || strlen(entry->key) > MESSAGE_KEY_MAX ||
        entry->value_size > MESSAGE_VALUE_MAX)
        return fleet_error(
            err, -EINVAL, "key %.64s: %zu bytes with a value of %zu, allowed are 1 to %d and %u",
            entry->key, strlen(entry->key), entry->value_size, MESSAGE_KEY_MAX, MESSAGE_VALUE_MAX);
    if (member->store_count >= STORE_ENTRIES_MAX || member->store_bytes + size > STORE_BYTES_MAX)
        return fleet_error(err, -ENOSPC, "key %.64s: this member has stored %zu entries already",
                           entry->key, member->store_count);
    member->store = fleet_grow(member->store, member->store_count, sizeof(*member->store));
    member->store[member->store_count] = *entry;
    member->store[member->store_count].key = fleet_dup_or_empty(entry->key);
    member->store_count++;
    member->store_bytes += size;
    return 0;
}

int member_put(struct member *member, const char *key, const void *value, size_t value_size,
               double now_ms, struct member_output *out, struct fleet_error *err)
{
    struct member_entry entry = {.key = (char *)key, .value_size = value_size};
    int rc;

    member_enter(member, now_ms);
    entry.value = malloc(value_size + 1); /* not NULL, even if empty */
    fleet_assert(entry.value != NULL);
    if (value_size > 0)
        memcpy(entry.value, value, value_size);
    rc = add_to_store(member, &entry, err);
    if (rc < 0) {
        free(entry.value);
        return rc;
    }
    member_report_store_entry(member, &member->store[member->store_count - 1], out);
    return 0;
}

int member_get(struct member *member, int local_rank, const char *key, double now_ms,
               struct member_output *out, struct fleet_error *err)
{
    struct member_entry entry = {.key = (char *)key, .local_rank = local_rank};
    int rc;

    member_enter(member, now_ms);
    rc = add_to_store(member, &entry, err);
    if (rc < 0)
        return rc;
    member_report_store_entry(member, &member->store[member->store_count - 1], out);
    return 0;
}

void member_store_value(struct member *member, const struct message_value *m,
                        struct member_output *out)
{
    if (fleet_generation_compare(m->generation, member->obeyed) != 0)
        return;
    for (size_t i = 0; i < member->store_count;) {
        struct member_entry *entry = &member->store[i];
        struct member_action *action;
        if (entry->value || strcmp(entry->key, m->key) != 0) {
            i++;
            continue;
        }
        member->store_bytes -= strlen(entry->key);
        action = member_append(out, MEMBER_VALUE);
        action->generation = member->obeyed;
        action->local_rank = entry->local_rank;
        action->key = entry->key;
        action->value = malloc(m->value_size + 1);
        fleet_assert(action->value != NULL);
        if (m->value_size > 0)
            memcpy(action->value, m->value, m->value_size);
        action->value_size = m->value_size;
        *entry = member->store[--member->store_count];
    }
}

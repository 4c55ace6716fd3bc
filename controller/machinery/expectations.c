/* SPDX-License-Identifier: Apache-2.0 */

/* A map of owners, each with a map of "kind name". An owner without entries is removed. */
#include "controller/machinery/expectations.h"

#include <math.h>
#include <stdlib.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/map.h"
#include "libfleet/base/strbuf.h"

struct owner {
    struct fleet_map expected; /* "C name" or "D name" → itself */
    double due_ms;             /* when the youngest entry, and so every entry, is overdue */
};

struct expectations {
    struct fleet_map owners; /* key → struct owner *, owned */
};

struct expectations *expectations_new(void)
{
    struct expectations *expectations = calloc(1, sizeof(*expectations));

    fleet_assert(expectations != NULL);
    return expectations;
}

static void owner_free(struct owner *owner)
{
    if (owner)
        fleet_map_release(&owner->expected);
    free(owner);
}

void expectations_free(struct expectations *expectations)
{
    const struct fleet_map_entry *entry;

    if (!expectations)
        return;
    for (size_t i = 0; (entry = fleet_map_next(&expectations->owners, &i));)
        owner_free(entry->value);
    fleet_map_release(&expectations->owners);
    free(expectations);
}

static char *expectation_key(enum expectation_kind kind, const char *name)
{
    struct fleet_strbuf key = {0};

    fleet_strbuf_appendf(&key, "%c %s", kind == EXPECT_CREATED ? 'C' : 'D', name);
    return fleet_strbuf_take(&key);
}

void expectations_note(struct expectations *expectations, const char *owner_key,
                       enum expectation_kind kind, const char *name, double now_ms)
{
    FLEET_AUTO_FREE char *key = expectation_key(kind, name);
    struct owner *owner = fleet_map_get(&expectations->owners, owner_key);

    if (!owner) {
        owner = calloc(1, sizeof(*owner));
        fleet_assert(owner != NULL);
        fleet_map_insert(&expectations->owners, owner_key, owner);
    }
    fleet_map_set(&owner->expected, key, owner);
    owner->due_ms = now_ms + EXPECTATIONS_TIMEOUT_MS;
}

bool expectations_meet(struct expectations *expectations, const char *owner_key,
                       enum expectation_kind kind, const char *name)
{
    FLEET_AUTO_FREE char *key = expectation_key(kind, name);
    struct owner *owner = fleet_map_get(&expectations->owners, owner_key);

    if (!owner || !fleet_map_remove(&owner->expected, key))
        return false;
    if (owner->expected.count == 0)
        expectations_forget(expectations, owner_key);
    return true;
}

bool expectations_are_met(struct expectations *expectations, const char *owner_key, double now_ms)
{
    const struct owner *owner = fleet_map_get(&expectations->owners, owner_key);

    if (!owner)
        return true;
    if (now_ms < owner->due_ms)
        return false;
    expectations_forget(expectations, owner_key);
    return true;
}

double expectations_due_ms(const struct expectations *expectations, const char *owner_key)
{
    const struct owner *owner = fleet_map_get(&expectations->owners, owner_key);

    return owner ? owner->due_ms : HUGE_VAL;
}

void expectations_forget(struct expectations *expectations, const char *owner_key)
{
    owner_free(fleet_map_remove(&expectations->owners, owner_key));
}

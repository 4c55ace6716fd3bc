/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_BASE_LIST_H
#define LIBFLEET_BASE_LIST_H

/*
 * A list whose entries are members of the listed structs, so that an entry can be removed without a
 * search. It is a ring: an empty head points to itself, and so does an entry that is in no list.
 */

#include <stdbool.h>
#include <stddef.h>

struct fleet_list {
    struct fleet_list *next, *previous;
};

/* Make a head empty, or an entry one that is in no list. */
static inline void fleet_list_init(struct fleet_list *head)
{
    head->next = head->previous = head;
}

static inline bool fleet_list_is_empty(const struct fleet_list *head)
{
    return head->next == head;
}

/* Put an entry that is in no list at the end. */
static inline void fleet_list_append(struct fleet_list *head, struct fleet_list *entry)
{
    entry->previous = head->previous;
    entry->next = head;
    head->previous->next = entry;
    head->previous = entry;
}

/* Take an entry out of the list that it is in; fine if it is in none. */
static inline void fleet_list_remove(struct fleet_list *entry)
{
    entry->previous->next = entry->next;
    entry->next->previous = entry->previous;
    fleet_list_init(entry);
}

/* The struct that `entry` is member `member` of. */
#define FLEET_LIST_OF(entry, type, member) \
    ((type *)(void *)((char *)(entry)-offsetof(type, member)))

#endif

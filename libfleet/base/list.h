/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_BASE_LIST_H
#define LIBFLEET_BASE_LIST_H

/*
 * A list whose entries lie inside what they list, so that one can be taken out where it stands. It
 * is a ring: a head points to itself when empty, and so does an entry that is in no list.
 */

#include <stdbool.h>
#include <stddef.h>

struct list {
    struct list *next, *previous;
};

/* Make a head empty, or an entry one that is in no list. */
static inline void list_init(struct list *head)
{
    head->next = head->previous = head;
}

static inline bool list_is_empty(const struct list *head)
{
    return head->next == head;
}

/* Put an entry that is in no list at the end. */
static inline void list_append(struct list *head, struct list *entry)
{
    entry->previous = head->previous;
    entry->next = head;
    head->previous->next = entry;
    head->previous = entry;
}

/* Take an entry out of whatever list it is in; fine if it is in none. */
static inline void list_remove(struct list *entry)
{
    entry->previous->next = entry->next;
    entry->next->previous = entry->previous;
    list_init(entry);
}

/* The struct that `entry` is member `member` of. */
#define LIST_OF(entry, type, member) ((type *)(void *)((char *)(entry)-offsetof(type, member)))

#endif

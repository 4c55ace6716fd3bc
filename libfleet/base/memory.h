/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_BASE_MEMORY_H
#define LIBFLEET_BASE_MEMORY_H

/*
 * Small pieces of memory without a failure path: each function aborts when memory runs out. The
 * caller frees what it gets.
 */

#include <stddef.h>

/* A copy of `text`; NULL for NULL. */
char *fleet_dup_text(const char *text);

/* The same, but "" for NULL. */
char *fleet_dup_or_empty(const char *text);

/* Replace *field, which is freed, by a copy of `text`, which may lie in *field; NULL for NULL. */
void fleet_set_text(char **field, const char *text);

/* The list of `count` items of `size` bytes, moved to where one more has room. That room is not
 * initialized. */
void *fleet_grow(void *items, size_t count, size_t size);

/* The same for lists that grow often: *capacity items have room, and it doubles when all are taken.
 * A list begins as NULL with a capacity of 0. */
void *fleet_reserve(void *items, size_t count, size_t *capacity, size_t size);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_BASE_ASSERT_H
#define LIBFLEET_BASE_ASSERT_H

#include <stdbool.h>
#include <stddef.h>

/*
 * A broken invariant of our own: prints expression, file and line and aborts, or ends the work of
 * fleet_assert_guard(), which gets the text. Always on, in release builds too. What a user, a peer
 * or the cluster can cause is an error, never an assertion.
 */
#define fleet_assert(expression) \
    ((expression) ? (void)0 : fleet_assert_failed(#expression, __FILE__, __LINE__))

/* Length of an array, not of a pointer. */
#define FLEET_COUNT(array) (sizeof(array) / sizeof((array)[0]))

/*
 * Run work(user) so that a broken invariant in it ends it and not the process: true if it returned;
 * false if an assertion failed, with its words in text[size]. The caller reports them, since it
 * knows the job; nothing is printed here. May be nested; each thread has its own.
 *
 * Only for pure work (docs/architecture.md): its data are left half changed, so the caller drops
 * them without reading them, and memory that the work allocated is lost. It holds no lock, opens no
 * file and calls nothing that does.
 */
bool fleet_assert_guard(void (*work)(void *user), void *user, char *text, size_t size);

/* What fleet_assert() calls: says where on stderr and aborts, or ends the guarded work. Any
 * thread. */
__attribute__((noreturn)) void fleet_assert_failed(const char *expression, const char *file,
                                                   int line);

#endif

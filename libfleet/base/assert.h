/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_BASE_ASSERT_H
#define LIBFLEET_BASE_ASSERT_H

/*
 * A broken invariant of our own: prints expression, file and line and aborts. Always on, in release
 * builds too. What a user, a peer or the cluster can cause is an error, never an assertion.
 */
#define fleet_assert(expression) \
    ((expression) ? (void)0 : fleet_assert_failed(#expression, __FILE__, __LINE__))

/* Length of an array, not of a pointer. */
#define FLEET_COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* What fleet_assert() calls: says where on stderr and aborts. Any thread. */
__attribute__((noreturn)) void fleet_assert_failed(const char *expression, const char *file,
                                                   int line);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_BASE_ERRORS_H
#define LIBFLEET_BASE_ERRORS_H

/*
 * All errors of one input, at once: a list of (field path, message).
 *
 * A check appends an error and goes on; the caller reads `count` at the end. A list is empty when
 * all zero. After FLEET_ERRORS_MAX entries only `count` grows. Control characters, which names and
 * values from outside may hold, are kept as escapes ("\\n", "\\x1b"): an error is one line. So are
 * invisible characters ("\\u200b").
 */

#include <stdbool.h>
#include <stddef.h>

#include "libfleet/base/strbuf.h"

struct fleet_error;

#define FLEET_ERRORS_MAX 100

struct fleet_errors {
    struct {
        char *path; /* "spec.worker.replicas"; never NULL, "" for the whole input */
        char *message;
        bool is_unknown; /* about an unknown field: it says nothing about other fields */
    } * items;           /* [min(count, FLEET_ERRORS_MAX)], in the order found */
    size_t count;        /* all that were found */
};

/* Free all entries; the list is empty afterwards and may be used again. */
void fleet_errors_release(struct fleet_errors *errors);

/* Append one; path and message are copied. The message says value, what is allowed and, where
 * known, what was meant. */
void fleet_errors_add(struct fleet_errors *errors, const char *path, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The same for a field that does not exist. */
void fleet_errors_add_unknown(struct fleet_errors *errors, const char *path, const char *format,
                              ...) __attribute__((format(printf, 3, 4)));

/* Replace the message of entry `index`. */
void fleet_errors_reword(struct fleet_errors *errors, size_t index, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Append the entries of `from`, except exact repetitions. */
void fleet_errors_merge(struct fleet_errors *errors, const struct fleet_errors *from);

/*
 * Is the value at `path` not known, because an error is about it, about a part of it or about a
 * block around it? Errors about unknown fields do not count. Checks across fields call this with
 * the errors of reading, so that one typo hides no other error and causes no second message.
 */
bool fleet_errors_touch(const struct fleet_errors *errors, const char *path);

/* Remove errors of exactly this path whose message begins with `front` ("": any message). If the
 * list has more errors than it can hold, it stays as it is. */
void fleet_errors_drop(struct fleet_errors *errors, const char *path, const char *front);

/* Append all of `from`, those beyond its limit by count. */
void fleet_errors_append(struct fleet_errors *errors, const struct fleet_errors *from);

/* One line each, "path: message\n" ("message\n" if the path is empty). */
void fleet_errors_print(const struct fleet_errors *errors, struct fleet_strbuf *out);

/* -EINVAL and *err = "path: message; path: message; …" if there are any, else 0. */
int fleet_errors_result(const struct fleet_errors *errors, struct fleet_error *err);

/*
 * The candidate closest to `word`, for "did you mean": the smallest edit distance (insert, delete,
 * replace, swap neighbours; case ignored, '-' and '_' and camelCase humps alike) if that is at most
 * a third of the word's length, at least 1; else NULL. Words over 64 bytes get NULL.
 */
const char *fleet_closest_word(const char *word, const char *const *candidates, size_t count);

/* Do both differ in case, '-' and '_' at most? Words over 64 bytes are like no other. */
bool fleet_same_word(const char *a, const char *b);

#endif

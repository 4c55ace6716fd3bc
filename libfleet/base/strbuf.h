/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_BASE_STRBUF_H
#define LIBFLEET_BASE_STRBUF_H

/*
 * A growing string.
 *
 * Invariants a caller may rely on:
 *  (1) `text` is never NULL after any append, and text[length] is always '\0'.
 *  (2) Out of memory aborts: a few kilobytes of text are not worth a failure path.
 *  (3) The buffer owns `text` until fleet_strbuf_take().
 *
 *     FLEET_AUTO_STRBUF struct fleet_strbuf line = {0};
 *     fleet_strbuf_appendf(&line, "step %d", step);
 */

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

struct fleet_strbuf {
    char *text;      /* NULL while nothing was ever appended */
    size_t length;   /* bytes, without the final '\0' */
    size_t capacity; /* bytes allocated */
};

/* Free the text; the buffer is empty afterwards and may be used again. */
void fleet_strbuf_release(struct fleet_strbuf *sb);

/* Empty it, keep the memory. */
void fleet_strbuf_clear(struct fleet_strbuf *sb);

/* Allocate room for `size` more bytes, so that appending them allocates nothing. */
void fleet_strbuf_reserve(struct fleet_strbuf *sb, size_t size);

/* Append a string, bytes (which may hold NUL), one character, or printf's output. What is appended
 * must not lie in the buffer itself. */
void fleet_strbuf_append(struct fleet_strbuf *sb, const char *text);
void fleet_strbuf_append_bytes(struct fleet_strbuf *sb, const void *bytes, size_t size);
void fleet_strbuf_append_char(struct fleet_strbuf *sb, char c);
void fleet_strbuf_appendf(struct fleet_strbuf *sb, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void fleet_strbuf_appendv(struct fleet_strbuf *sb, const char *format, va_list args);

/* Append an integer in decimal digits. */
void fleet_strbuf_append_int(struct fleet_strbuf *sb, int64_t value);

/* Append a number of bytes as readable text, in powers of 1000: "3.2 MB". */
void fleet_strbuf_append_size(struct fleet_strbuf *sb, double bytes);

/* Drop the first `size` bytes; all of them if `size` is greater than `length`. */
void fleet_strbuf_consume(struct fleet_strbuf *sb, size_t size);

/* The text as a heap string that the caller frees (never NULL); the buffer is empty afterwards. */
char *fleet_strbuf_take(struct fleet_strbuf *sb);

/* The text, "" while empty. Borrowed until the next call that changes the buffer. */
const char *fleet_strbuf_text(const struct fleet_strbuf *sb);

#define FLEET_AUTO_STRBUF __attribute__((cleanup(fleet_strbuf_release)))

#endif

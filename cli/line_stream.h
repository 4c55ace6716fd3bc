/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_LINE_STREAM_H
#define CLI_LINE_STREAM_H

/* The lines that a child process writes to a pipe, one call each. One thread, that of the loop. */

#include <stdbool.h>

struct line_stream;
struct uv_loop_s;

/* A line without its end. One of more than 16 KiB comes in pieces. */
typedef void (*line_stream_take)(void *user, bool is_error, const char *text);

/* Read `fd`, which belongs to the stream from now on. `is_error` is handed to `take`. */
struct line_stream *line_stream_new(struct uv_loop_s *loop, int fd, bool is_error,
                                    line_stream_take take, void *user);

/* The process has ended: take what the pipe holds now, and close. Output of a process that keeps
 * the pipe open is lost. *local becomes NULL, and NULL is fine. The loop frees the memory in its
 * next turn. */
void line_stream_drain(struct line_stream **local);

/* The same without reading; a line that has begun is taken. */
void line_stream_close(struct line_stream **local);

#endif

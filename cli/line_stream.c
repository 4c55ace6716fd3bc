/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/line_stream.h"

#include <stdlib.h>
#include <unistd.h>
#include <uv.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/strbuf.h"

#define LINE_SIZE_MAX 16384

struct line_stream {
    uv_pipe_t pipe; /* libuv's close callback frees the stream */
    bool is_error;
    line_stream_take take;
    void *user;
    struct fleet_strbuf line;
    char chunk[16384];
};

static void flush_line(struct line_stream *stream)
{
    stream->take(stream->user, stream->is_error, fleet_strbuf_text(&stream->line));
    fleet_strbuf_clear(&stream->line);
}

static void take_bytes(struct line_stream *stream, const char *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        if (bytes[i] == '\n' || stream->line.length >= LINE_SIZE_MAX)
            flush_line(stream);
        if (bytes[i] != '\n')
            fleet_strbuf_append_char(&stream->line, bytes[i]);
    }
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *out)
{
    struct line_stream *stream = handle->data;

    (void)suggested;
    *out = uv_buf_init(stream->chunk, sizeof(stream->chunk));
}

static void on_read(uv_stream_t *handle, ssize_t size, const uv_buf_t *buffer)
{
    struct line_stream *stream = handle->data;

    if (size > 0)
        take_bytes(stream, buffer->base, (size_t)size);
    else if (size < 0)
        (void)uv_read_stop(handle); /* the owner closes it */
}

struct line_stream *line_stream_new(struct uv_loop_s *loop, int fd, bool is_error,
                                    line_stream_take take, void *user)
{
    struct line_stream *stream = calloc(1, sizeof(*stream));

    fleet_assert(stream);
    stream->is_error = is_error;
    stream->take = take;
    stream->user = user;
    stream->pipe.data = stream;
    (void)uv_pipe_init(loop, &stream->pipe, 0);
    (void)uv_pipe_open(&stream->pipe, fd);
    (void)uv_read_start((uv_stream_t *)&stream->pipe, on_alloc, on_read);
    return stream;
}

static void free_stream(uv_handle_t *handle)
{
    struct line_stream *stream = handle->data;

    fleet_strbuf_release(&stream->line);
    free(stream);
}

void line_stream_close(struct line_stream **local)
{
    struct line_stream *stream = *local;

    if (!stream)
        return;
    if (stream->line.length > 0)
        flush_line(stream);
    *local = NULL;
    uv_close((uv_handle_t *)&stream->pipe, free_stream);
}

void line_stream_drain(struct line_stream **local)
{
    uv_os_fd_t fd;
    ssize_t size;

    if (!*local)
        return;
    if (uv_fileno((uv_handle_t *)&(*local)->pipe, &fd) == 0)
        while ((size = read(fd, (*local)->chunk, sizeof((*local)->chunk))) > 0)
            take_bytes(*local, (*local)->chunk, (size_t)size);
    line_stream_close(local);
}

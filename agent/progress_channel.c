/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/progress_channel.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/named_pipe.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"

#define CHUNK_SIZE 16384
#define CHUNKS_MAX 64 /* read in one call */

void progress_channel_init(struct progress_channel *channel)
{
    *channel = (struct progress_channel){.fd = -1};
}

int progress_channel_open(struct progress_channel *channel, const char *folder, int local_rank,
                          struct fleet_error *err)
{
    int fd;

    progress_channel_close(channel);
    fd = named_pipe_open(folder, "progress", local_rank, &channel->path, err);
    if (fd < 0)
        return fd;
    channel->fd = fd;
    return 0;
}

int progress_channel_writer(const struct progress_channel *channel, struct fleet_error *err)
{
    int fd = open(channel->path, O_WRONLY | O_CLOEXEC);

    return fd < 0 ? fleet_error(err, -errno, "open %s: %s", channel->path, strerror(errno)) : fd;
}

static void refuse(struct progress_channel *channel,
                   const struct progress_channel_handlers *handlers, const char *reason)
{
    if (channel->bad_lines++ == 0)
        handlers->bad(handlers->user, channel->lines, reason);
}

static void take_line(struct progress_channel *channel,
                      const struct progress_channel_handlers *handlers)
{
    struct progress_line line;
    struct fleet_error err;
    size_t size = channel->line.length;

    if (size > 0 && channel->line.text[size - 1] == '\r')
        size--;
    if (size > 0 || channel->is_too_long)
        channel->lines++;
    if (channel->is_too_long) {
        refuse(channel, handlers, "longer than a line may be (4096 bytes)");
    } else if (size > 0 && progress_line_parse(channel->line.text, size, &line, &err) < 0) {
        refuse(channel, handlers, err.text);
    } else if (size > 0) {
        handlers->report(handlers->user, &line);
        progress_line_release(&line);
    }
    channel->is_too_long = false;
    fleet_strbuf_clear(&channel->line);
}

static void take_bytes(struct progress_channel *channel, const char *bytes, size_t size,
                       const struct progress_channel_handlers *handlers)
{
    for (size_t i = 0; i < size; i++) {
        if (bytes[i] == '\n')
            take_line(channel, handlers);
        else if (channel->line.length + 1 < PROGRESS_LINE_SIZE_MAX)
            fleet_strbuf_append_char(&channel->line, bytes[i]);
        else
            channel->is_too_long = true;
    }
}

void progress_channel_read(struct progress_channel *channel,
                           const struct progress_channel_handlers *handlers)
{
    char chunk[CHUNK_SIZE];

    for (int turn = 0; channel->fd >= 0 && turn < CHUNKS_MAX; turn++) {
        ssize_t size = read(channel->fd, chunk, sizeof(chunk));
        if (size < 0 && errno == EINTR)
            continue;
        if (size <= 0)
            return;
        take_bytes(channel, chunk, (size_t)size, handlers);
    }
}

void progress_channel_close(struct progress_channel *channel)
{
    if (channel->fd >= 0)
        (void)close(channel->fd);
    if (channel->path)
        (void)unlink(channel->path);
    free(channel->path);
    fleet_strbuf_release(&channel->line);
    progress_channel_init(channel);
}

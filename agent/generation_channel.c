/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/generation_channel.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/named_pipe.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/base/strbuf.h"

void generation_channel_init(struct generation_channel *channel)
{
    *channel = (struct generation_channel){.fd = -1};
}

int generation_channel_open(struct generation_channel *channel, const char *folder, int local_rank,
                            struct fleet_error *err)
{
    int fd;

    generation_channel_close(channel);
    fd = named_pipe_open(folder, "generation", local_rank, &channel->path, err);
    if (fd < 0)
        return fd;
    channel->fd = fd;
    return 0;
}

static int say(const struct generation_channel *channel, const char *line, struct fleet_error *err)
{
    if (write(channel->fd, line, strlen(line)) >= 0) /* a pipe takes a line whole or not at all */
        return 0;
    return fleet_error(err, -errno, "write to %s: %s", channel->path, strerror(errno));
}

int generation_channel_end(struct generation_channel *channel, struct fleet_error *err)
{
    return say(channel, "end\n", err);
}

static bool has(char *const *list, const char *entry)
{
    for (; list && *list; list++)
        if (strcmp(*list, entry) == 0)
            return true;
    return false;
}

int generation_channel_begin(struct generation_channel *channel, int64_t number,
                             char *const *environment, char *const *base, struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    struct fleet_strbuf path = {0};
    char line[48];
    int rc;

    for (; *environment; environment++)
        if (!has(base, *environment))
            fleet_strbuf_append_bytes(&text, *environment, strlen(*environment) + 1);
    fleet_strbuf_appendf(&path, "%s.%" PRId64, channel->path, number);
    if (channel->file)
        (void)unlink(channel->file);
    free(channel->file);
    channel->file = fleet_strbuf_take(&path);
    rc = fleet_file_replace(channel->file, fleet_strbuf_text(&text), text.length,
                            FLEET_FILE_VOLATILE, err);
    (void)snprintf(line, sizeof(line), "begin %" PRId64 "\n", number);
    return rc < 0 ? rc : say(channel, line, err);
}

void generation_channel_close(struct generation_channel *channel)
{
    if (channel->fd >= 0)
        (void)close(channel->fd);
    if (channel->path)
        (void)unlink(channel->path);
    if (channel->file)
        (void)unlink(channel->file);
    free(channel->path);
    free(channel->file);
    generation_channel_init(channel);
}

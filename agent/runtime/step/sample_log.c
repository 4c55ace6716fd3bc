/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/step/sample_log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/runtime/data/sampler.h"
#include "agent/runtime/trainer.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/log.h"
#include "libfleet/base/strbuf.h"

void sample_log_open(struct sample_log *log)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf path = {0};
    const char *folder = getenv("FLEET_SAMPLE_LOG");

    *log = (struct sample_log){.fd = -1};
    if (!folder || !folder[0])
        return;
    fleet_strbuf_appendf(&path, "%s/%ld.jsonl", folder, (long)getpid());
    log->fd = open(fleet_strbuf_text(&path), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    log->is_open = log->fd >= 0;
    if (!log->is_open)
        fleet_log_warning("Could not open the log of samples",
                          FLEET_STR("path", fleet_strbuf_text(&path)),
                          FLEET_STR("reason", strerror(errno)));
}

void sample_log_close(struct sample_log *log)
{
    if (log->is_open)
        (void)close(log->fd);
    *log = (struct sample_log){.fd = -1};
}

static void write_line(const struct sample_log *log, const struct fleet_strbuf *line)
{
    if (write(log->fd, line->text, line->length) != (ssize_t)line->length)
        fleet_log_warning("A line of the log of samples is not complete",
                          FLEET_STR("reason", strerror(errno)));
}

static void append_generation(struct fleet_generation id, struct fleet_strbuf *line)
{
    fleet_strbuf_appendf(line, ", \"epoch\": %" PRId64 ", \"generation\": %" PRId64, id.epoch,
                         id.counter);
}

void sample_log_read(struct trainer *trainer, int64_t update, int64_t leaf, int64_t first)
{
    const struct trainer_generation *in = &trainer->generation;
    FLEET_AUTO_STRBUF struct fleet_strbuf line = {0};

    if (!trainer->samples.is_open)
        return;
    fleet_strbuf_appendf(&line,
                         "{\"read\": %" PRId64 ", \"leaf\": %" PRId64 ", \"first\": %" PRId64,
                         update, leaf, first);
    append_generation(in->id, &line);
    fleet_strbuf_appendf(&line, ", \"replica\": %d, \"cell\": %d, \"samples\": [",
                         in->place.replica, in->place.cell);
    for (int64_t i = 0; i < trainer->job.config.micro_batch_size; i++)
        fleet_strbuf_appendf(&line, "%s%" PRId64, i > 0 ? ", " : "",
                             sampler_index(&trainer->data.sampler, first + i));
    fleet_strbuf_append(&line, "]}\n");
    write_line(&trainer->samples, &line);
}

void sample_log_vote(struct trainer *trainer)
{
    trainer->samples.voted_in = trainer->generation.id;
}

void sample_log_commit(struct trainer *trainer, int64_t update)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf line = {0};

    if (!trainer->samples.is_open)
        return;
    fleet_strbuf_appendf(&line, "{\"commit\": %" PRId64, update);
    append_generation(trainer->samples.voted_in, &line);
    fleet_strbuf_append(&line, "}\n");
    write_line(&trainer->samples, &line);
}

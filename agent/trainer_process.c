/* SPDX-License-Identifier: Apache-2.0 */

#include "agent/trainer_process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/child.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "libfleet/base/line_writer.h"
#include "libfleet/base/log.h"

/* "NAME=number" of each descriptor that the child inherits. */
#define NUMBERS     3
#define NUMBER_SIZE 40

static void close_pipe(int fds[2])
{
    for (int i = 0; i < 2; i++)
        if (fds[i] >= 0)
            (void)close(fds[i]);
}

/* The environment with the descriptors' numbers in front: of duplicate names the first one is
 * found. */
static char **environment_with(char *const *environment, char (*numbers)[NUMBER_SIZE])
{
    size_t count = 0, used = 0;
    char **all;

    while (environment[count])
        count++;
    all = calloc(count + NUMBERS + 1, sizeof(*all));
    fleet_assert(all);
    for (size_t i = 0; i < NUMBERS; i++)
        if (numbers[i][0])
            all[used++] = numbers[i];
    memcpy(all + used, environment, count * sizeof(*all));
    return all;
}

static void set_number(char number[NUMBER_SIZE], const char *name, int fd)
{
    if (fd >= 0)
        (void)snprintf(number, NUMBER_SIZE, "%s=%d", name, fd);
}

/* `ours`: its stdout, stderr, and end of the link (-1 = none). A shell can only name descriptors of
 * one digit (>&N), so that for progress has a number of its own. */
static int start_child(const struct trainer_launch *launch, const int ours[3],
                       char (*numbers)[NUMBER_SIZE], pid_t *out_pid, struct fleet_error *err)
{
    FLEET_AUTO_FREE char **environment = environment_with(launch->environment, numbers);
    const struct fleet_child child = {.path = launch->path,
                                      .arguments = launch->arguments,
                                      .environment = environment,
                                      .fds = {{ours[0], STDOUT_FILENO},
                                              {ours[1], STDERR_FILENO},
                                              {ours[2], FLEET_CHILD_SAME},
                                              {launch->listener, FLEET_CHILD_SAME},
                                              {launch->progress, TRAINER_PROGRESS_FD}},
                                      .fd_count = 5,
                                      .dies_with_us = true};
    int rc = fleet_child_start(&child, out_pid);

    return rc < 0 ? fleet_error(err, rc, "start \"%s\": %s", launch->path, strerror(-rc)) : 0;
}

void trainer_process_init(struct trainer_process *process)
{
    *process = (struct trainer_process){.link = {.fd = -1}, .streams = {{.fd = -1}, {.fd = -1}}};
}

static void close_streams(struct trainer_process *process)
{
    link_release(&process->link);
    for (int i = 0; i < 2; i++) {
        if (process->streams[i].fd >= 0)
            (void)close(process->streams[i].fd);
        process->streams[i].fd = -1;
        fleet_strbuf_release(&process->streams[i].line);
    }
}

void trainer_process_release(struct trainer_process *process)
{
    close_streams(process);
    fleet_strbuf_release(&process->tail);
    trainer_process_init(process);
}

int trainer_process_start(struct trainer_process *process, const struct trainer_launch *launch,
                          struct fleet_error *err)
{
    int out[2] = {-1, -1}, error[2] = {-1, -1}, ends[2] = {-1, -1};
    char numbers[NUMBERS][NUMBER_SIZE] = {"", "", ""};
    int rc = 0;

    fleet_assert(process->pid == 0);
    fleet_assert(launch->progress < 0 || (!launch->has_link && launch->listener < 0));
    close_streams(process);
    fleet_strbuf_clear(&process->tail);
    if (pipe2(out, O_CLOEXEC) < 0 || pipe2(error, O_CLOEXEC) < 0)
        rc = fleet_error(err, -errno, "make a pipe: %s", strerror(errno));
    if (rc == 0 && launch->has_link)
        rc = link_pair(ends, err);
    set_number(numbers[0], LINK_FD_ENV, ends[1]);
    set_number(numbers[1], LINK_LISTEN_FD_ENV, launch->listener);
    set_number(numbers[2], TRAINER_PROGRESS_FD_ENV,
               launch->progress < 0 ? -1 : TRAINER_PROGRESS_FD);
    if (rc == 0)
        rc = start_child(launch, (const int[]){out[1], error[1], ends[1]}, numbers, &process->pid,
                         err);
    if (rc < 0) {
        close_pipe(out);
        close_pipe(error);
        close_pipe(ends);
        return rc;
    }
    (void)close(out[1]);
    (void)close(error[1]);
    process->streams[0].fd = out[0];
    process->streams[1].fd = error[0];
    for (int i = 0; i < 2; i++)
        (void)fcntl(process->streams[i].fd, F_SETFL, O_NONBLOCK);
    if (launch->has_link) {
        (void)close(ends[1]);
        link_init(&process->link, ends[0]);
    }
    return 0;
}

void trainer_process_signal(struct trainer_process *process, int signal_number)
{
    if (process->pid > 0)
        (void)kill(-process->pid, signal_number);
}

/* ---- output ---------------------------------------------------------------------------------- */

static void keep_line(struct fleet_strbuf *tail, const char *line, size_t size)
{
    fleet_strbuf_append_bytes(tail, line, size);
    fleet_strbuf_append_char(tail, '\n');
    if (tail->length > TRAINER_TAIL_SIZE_MAX) {
        size_t drop = tail->length - TRAINER_TAIL_SIZE_MAX;
        const char *newline = memchr(tail->text + drop, '\n', tail->length - drop);
        fleet_strbuf_consume(tail, newline ? (size_t)(newline - tail->text) + 1 : drop);
    }
}

static bool is_json_object(const char *text, size_t size)
{
    FLEET_AUTO_JSON cJSON *tree = NULL;

    return text[0] == '{' && fleet_json_parse(text, size, size, &tree, NULL) == 0 &&
           cJSON_IsObject(tree);
}

/* In the text form with the prefix; in the JSON form as a line of the log, unless it is one
 * already. */
static void format_line(const struct trainer_process *process, const char *stream, const char *text,
                        size_t size, struct fleet_strbuf *out)
{
    if (fleet_log_get_form() == FLEET_LOG_JSON && !is_json_object(text, size)) {
        const struct fleet_log_pair pairs[] = {
            FLEET_STR("stream", stream), FLEET_INT("rank", process->rank), {.key = NULL}};
        const struct fleet_log_pair no_rank[] = {pairs[0], {.key = NULL}};
        fleet_log_append(out, FLEET_LOG_INFO, text, process->rank < 0 ? no_rank : pairs);
        return;
    }
    if (fleet_log_get_form() == FLEET_LOG_TEXT)
        fleet_strbuf_append(out, process->prefix);
    fleet_strbuf_append_bytes(out, text, size);
    fleet_strbuf_append_char(out, '\n');
}

static void pass_line(struct trainer_process *process, struct trainer_stream *stream)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf out = {0};

    format_line(process, stream == &process->streams[0] ? "stdout" : "stderr",
                fleet_strbuf_text(&stream->line), stream->line.length, &out);
    if (stream->out)
        fleet_line_writer_put(stream->out, out.text, out.length);
    keep_line(&process->tail, fleet_strbuf_text(&stream->line), stream->line.length);
    fleet_strbuf_clear(&stream->line);
}

static void take_bytes(struct trainer_process *process, struct trainer_stream *stream,
                       const char *bytes, size_t size)
{
    while (size > 0) {
        const char *newline = memchr(bytes, '\n', size);
        size_t room = TRAINER_LINE_SIZE_MAX - stream->line.length;
        size_t part = newline ? (size_t)(newline - bytes) : size;
        bool is_whole = newline && part <= room;

        part = part < room ? part : room;
        fleet_strbuf_append_bytes(&stream->line, bytes, part);
        if (is_whole || stream->line.length >= TRAINER_LINE_SIZE_MAX)
            pass_line(process, stream);
        bytes += part + (is_whole ? 1 : 0);
        size -= part + (is_whole ? 1 : 0);
    }
}

bool trainer_process_read(struct trainer_process *process, struct trainer_stream *stream)
{
    char chunk[16384];

    for (int turn = 0; stream->fd >= 0 && turn < 16; turn++) {
        ssize_t size = read(stream->fd, chunk, sizeof(chunk));
        if (size > 0) {
            take_bytes(process, stream, chunk, (size_t)size);
        } else if (size < 0 && (errno == EAGAIN || errno == EINTR)) {
            return true;
        } else {
            (void)close(stream->fd);
            stream->fd = -1;
        }
    }
    if (stream->fd < 0 && stream->line.length > 0)
        pass_line(process, stream);
    return stream->fd >= 0;
}

void trainer_process_ended(struct trainer_process *process)
{
    trainer_process_signal(process, SIGKILL); /* processes that it has started and left behind */
    process->pid = 0;
    for (int i = 0; i < 2; i++) {
        struct trainer_stream *stream = &process->streams[i];
        (void)trainer_process_read(process, stream);
        if (stream->line.length > 0)
            pass_line(process, stream);
    }
    close_streams(process);
}

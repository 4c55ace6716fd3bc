/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/data/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "include/fleet/fleet_data.h"
#include "libfleet/base/child.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/strbuf.h"

#define READ_BYTES 65536
#define PAUSE_MS   20 /* at most, between two looks at a command that has closed its output */

struct reader {
    char *file;
    pid_t children[2]; /* download, pipe_command; 0: none */
    int fd;            /* the output of pipe_command; -1 = at its end */
    int errors;        /* stderr of both; -1 = at its end */
    size_t error_bytes;
    double deadline_ms;
    struct fleet_strbuf text; /* read and not yet given out, from `used` on */
    size_t used;
    long line;
};

/* Run `command` in a shell, with `file` as its $1. Takes the descriptors `in` and `out`. */
static int start(const char *command, const char *file, int in, int out, int errors, pid_t *pid,
                 struct fleet_error *err)
{
    const char *arguments[] = {"/bin/sh", "-c", command, "fleet", file, NULL};
    struct fleet_child child = {.path = arguments[0],
                                .arguments = (char *const *)(uintptr_t)arguments,
                                .fds = {{in, 0}, {out, 1}, {errors, 2}},
                                .fd_count = 3,
                                .dies_with_us = false};
    int rc = fleet_child_start(&child, pid);

    (void)close(in);
    (void)close(out);
    if (rc < 0) {
        *pid = 0;
        return fleet_error(err, rc, "start /bin/sh: %s", strerror(-rc));
    }
    return 0;
}

/* The descriptor that pipe_command reads: the file, or the output of the download. */
static int open_input(struct reader *reader, const struct reader_options *options, int errors,
                      struct fleet_error *err)
{
    int ends[2], nothing, rc, fd;

    if (!options->download) {
        fd = open(reader->file, O_RDONLY | O_CLOEXEC);
        return fd < 0 ? fleet_error(err, -errno, "%s", strerror(errno)) : fd;
    }
    nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (nothing < 0 || pipe2(ends, O_CLOEXEC) != 0) {
        rc = fleet_error(err, -errno, "%s", strerror(errno));
        if (nothing >= 0)
            (void)close(nothing);
        return rc;
    }
    rc =
        start(options->download, reader->file, nothing, ends[1], errors, &reader->children[0], err);
    if (rc < 0) {
        (void)close(ends[0]);
        return rc;
    }
    return ends[0];
}

/* Start the commands, whose stderr is `errors`. */
static int start_commands(struct reader *reader, const struct reader_options *options, int errors,
                          struct fleet_error *err)
{
    int in = open_input(reader, options, errors, err), ends[2];

    if (in < 0)
        return in;
    if (pipe2(ends, O_CLOEXEC) != 0) {
        int rc = fleet_error(err, -errno, "%s", strerror(errno));
        (void)close(in);
        return rc;
    }
    reader->fd = ends[0];
    return start(options->pipe_command, reader->file, in, ends[1], errors, &reader->children[1],
                 err);
}

int reader_open(const struct reader_options *options, const char *file, struct reader **out,
                struct fleet_error *err)
{
    struct reader *reader = calloc(1, sizeof(*reader));
    int ends[2], rc;

    if (!reader || !(reader->file = strdup(file))) {
        free(reader);
        return fleet_error(err, -ENOMEM, "%s: out of memory", file);
    }
    reader->fd = reader->errors = -1;
    reader->deadline_ms = fleet_monotonic_ms() + options->timeout_ms;
    if (pipe2(ends, O_CLOEXEC) != 0) {
        rc = fleet_error(err, -errno, "%s", strerror(errno));
    } else {
        reader->errors = ends[0];
        rc = start_commands(reader, options, ends[1], err);
        (void)close(ends[1]);
    }
    if (rc < 0) {
        reader_free(reader);
        return fleet_error_wrap(err, "%s", file);
    }
    *out = reader;
    return 0;
}

static void kill_children(struct reader *reader)
{
    for (int i = 0; i < 2; i++)
        if (reader->children[i] > 0)
            (void)kill(-reader->children[i], SIGKILL);
}

static int give_up(struct reader *reader, struct fleet_error *err)
{
    kill_children(reader);
    return fleet_error(err, -ETIMEDOUT, "%s: the commands did not end in time", reader->file);
}

/* What the commands write to stderr goes to ours, up to a limit. */
static int forward_errors(struct reader *reader, struct fleet_error *err)
{
    char buffer[READ_BYTES];
    ssize_t count = read(reader->errors, buffer, sizeof(buffer));

    if (count < 0 && errno == EINTR)
        return 0;
    if (count <= 0) {
        (void)close(reader->errors);
        reader->errors = -1;
        return 0;
    }
    reader->error_bytes += (size_t)count;
    if (reader->error_bytes > FLEET_DATA_STDERR_MAX) {
        kill_children(reader);
        return fleet_error(err, -EFBIG, "%s: the commands wrote more than %d bytes to stderr",
                           reader->file, FLEET_DATA_STDERR_MAX);
    }
    (void)!write(STDERR_FILENO, buffer, (size_t)count); /* only words for people */
    return 0;
}

static bool have_ended(const struct reader *reader)
{
    for (int i = 0; i < 2; i++) {
        siginfo_t info = {0};
        if (reader->children[i] > 0 &&
            waitid(P_PID, (id_t)reader->children[i], &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
            info.si_pid == 0)
            return false;
    }
    return true;
}

/* All output is read. A process that a command left behind may keep stderr open. */
static int await_children(struct reader *reader, struct fleet_error *err)
{
    for (int pause = 1;; pause = pause < PAUSE_MS / 2 ? 2 * pause : PAUSE_MS) {
        struct pollfd fd = {.fd = reader->errors, .events = POLLIN};
        if (reader->errors < 0 && have_ended(reader))
            return 0;
        if (poll(&fd, 1, pause) > 0) {
            int rc = forward_errors(reader, err);
            if (rc < 0)
                return rc;
        } else if (have_ended(reader)) {
            return 0;
        }
        if (fleet_monotonic_ms() >= reader->deadline_ms)
            return give_up(reader, err);
    }
}

/* All output is read: the commands must have succeeded. */
static int end_children(struct reader *reader, struct fleet_error *err)
{
    static const char *const names[] = {"download", "pipe_command"};
    int codes[2] = {0, 0}, rc = await_children(reader, err);

    if (rc < 0)
        return rc;
    kill_children(reader); /* what the commands left behind: they have their exit codes */
    for (int i = 0; i < 2; i++)
        if (reader->children[i] > 0) {
            codes[i] = fleet_child_exit_code(fleet_child_reap(reader->children[i]));
            reader->children[i] = 0;
        }
    for (int i = 0; i < 2; i++)
        if (codes[i] != 0)
            return fleet_error(err, -EIO, "%s: %s failed with exit code %d", reader->file, names[i],
                               codes[i]);
    return 0;
}

static int read_output(struct reader *reader, struct fleet_error *err)
{
    char buffer[READ_BYTES];
    ssize_t count = read(reader->fd, buffer, sizeof(buffer));

    if (count < 0)
        return errno == EINTR ? 1
                              : fleet_error(err, -errno, "%s: %s", reader->file, strerror(errno));
    if (count == 0) {
        (void)close(reader->fd);
        reader->fd = -1;
        return end_children(reader, err);
    }
    fleet_strbuf_consume(&reader->text, reader->used);
    reader->used = 0;
    fleet_strbuf_append_bytes(&reader->text, buffer, (size_t)count);
    return 1;
}

/* Read more: 1, 0 at the end, or an error. */
static int read_more(struct reader *reader, struct fleet_error *err)
{
    struct pollfd fds[2] = {{.fd = reader->fd, .events = POLLIN},
                            {.fd = reader->errors, .events = POLLIN}};
    double left = reader->deadline_ms - fleet_monotonic_ms();

    if (left <= 0)
        return give_up(reader, err);
    if (poll(fds, 2, left > 1e6 ? 1000000 : (int)left + 1) <= 0)
        return 1;
    if (fds[1].revents) {
        int rc = forward_errors(reader, err);
        if (rc < 0)
            return rc;
    }
    return fds[0].revents ? read_output(reader, err) : 1;
}

int reader_next(struct reader *reader, const char **line, size_t *length, struct fleet_error *err)
{
    size_t searched = reader->used;

    for (;;) {
        const char *text = fleet_strbuf_text(&reader->text);
        size_t left = reader->text.length - reader->used;
        const char *end = memchr(text + searched, '\n', reader->text.length - searched);
        int rc;
        if (end || (reader->fd < 0 && left > 0)) { /* the last line may have no end */
            *line = text + reader->used;
            *length = end ? (size_t)(end - *line) : left;
            reader->used += *length + (end != NULL);
            reader->line++;
            return 1;
        }
        if (left > FLEET_DATA_LINE_MAX)
            return fleet_error(err, -EBADMSG, "%s:%ld: the line is longer than %d bytes",
                               reader->file, reader->line + 1, FLEET_DATA_LINE_MAX);
        if (reader->fd < 0)
            return 0;
        rc = read_more(reader, err);
        if (rc < 0)
            return rc;
        searched = reader->used + left < reader->text.length ? reader->used + left : reader->used;
        if (rc == 0) /* the end */
            searched = reader->used;
    }
}

long reader_line(const struct reader *reader)
{
    return reader->line;
}

void reader_free(struct reader *reader)
{
    if (!reader)
        return;
    if (reader->fd >= 0)
        (void)close(reader->fd);
    if (reader->errors >= 0)
        (void)close(reader->errors);
    kill_children(reader);
    for (int i = 0; i < 2; i++)
        if (reader->children[i] > 0)
            (void)fleet_child_reap(reader->children[i]);
    fleet_strbuf_release(&reader->text);
    free(reader->file);
    free(reader);
}

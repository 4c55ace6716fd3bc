/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/kubectl.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/child.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"

#define SAID_MAX 2000 /* number of bytes of kubectl's error that are shown */

static volatile sig_atomic_t interrupted;

static void on_signal(int number)
{
    (void)number;
    interrupted = 1;
}

void kubectl_catch_signals(void)
{
    const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = on_signal}; /* no SA_RESTART: calls return EINTR */

    for (size_t i = 0; i < FLEET_COUNT(signals); i++)
        (void)sigaction(signals[i], &action, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
}

bool kubectl_is_interrupted(void)
{
    return interrupted != 0;
}

/* ---- a process ------------------------------------------------------------------------------- */

struct process {
    pid_t pid;
    int in, out, err; /* our ends; -1 = none */
};

static void close_end(int *fd)
{
    if (*fd >= 0)
        (void)close(*fd);
    *fd = -1;
}

static void close_ends(struct process *process)
{
    close_end(&process->in);
    close_end(&process->out);
    close_end(&process->err);
}

static void make_arguments(const struct kubectl *kubectl, const char *const *arguments,
                           const char *out[KUBECTL_ARGUMENTS_MAX])
{
    const char *const where[][2] = {{"--namespace", kubectl->namespace_},
                                    {"--context", kubectl->context},
                                    {"--kubeconfig", kubectl->kubeconfig}};
    size_t count = 0;

    out[count++] = "kubectl";
    for (size_t i = 0; i < FLEET_COUNT(where); i++)
        if (where[i][1]) {
            out[count++] = where[i][0];
            out[count++] = where[i][1];
        }
    while (*arguments) {
        fleet_assert(count + 1 < KUBECTL_ARGUMENTS_MAX);
        out[count++] = *arguments++;
    }
    out[count] = NULL;
}

/* `out_fd`: kubectl's standard output, -1: a pipe; `with_err`: a pipe for its standard error. */
static int start(const struct kubectl *kubectl, const char *const *arguments, int out_fd,
                 bool with_err, struct process *process, struct fleet_error *err)
{
    const char *all[KUBECTL_ARGUMENTS_MAX];
    struct fleet_child child = {.path = "kubectl", .arguments = (char *const *)all, .fd_count = 3};
    int in[2], out[2] = {-1, -1}, said[2] = {-1, -1}, rc;

    make_arguments(kubectl, arguments, all);
    if (pipe2(in, O_CLOEXEC) < 0 || (out_fd < 0 && pipe2(out, O_CLOEXEC) < 0) ||
        (with_err && pipe2(said, O_CLOEXEC) < 0))
        return fleet_error(err, -errno, "make a pipe: %s", strerror(errno));
    child.fds[0] = (struct fleet_child_fd){in[0], STDIN_FILENO};
    child.fds[1] = (struct fleet_child_fd){out_fd < 0 ? out[1] : out_fd, STDOUT_FILENO};
    child.fds[2] = (struct fleet_child_fd){said[1], STDERR_FILENO};
    rc = fleet_child_start(&child, &process->pid);
    close_end(&in[0]);
    close_end(&out[1]);
    close_end(&said[1]);
    process->in = in[1];
    process->out = out[0];
    process->err = said[0];
    if (rc == 0)
        return 0;
    close_ends(process);
    return rc == -ENOENT ? fleet_error(err, rc, "kubectl is not in the PATH")
                         : fleet_error(err, rc, "start kubectl: %s", strerror(-rc));
}

/* Wait for its exit code, or 128 + signal. An interrupt ends kubectl first, unless `is_patient`. */
static int finish(struct process *process, bool is_patient)
{
    int status = 0;

    close_ends(process);
    for (;;) {
        if (interrupted && !is_patient)
            (void)kill(process->pid, SIGTERM);
        if (waitpid(process->pid, &status, 0) == process->pid)
            break;
        if (errno != EINTR)
            return 126;
    }
    return fleet_child_exit_code(status);
}

/* ---- answers --------------------------------------------------------------------------------- */

static void read_some(struct pollfd *pollfd, struct fleet_strbuf *out)
{
    char chunk[16384];
    ssize_t got;

    if (!pollfd->revents)
        return;
    got = read(pollfd->fd, chunk, sizeof(chunk));
    if (got > 0 && out->length + (size_t)got <= KUBECTL_OUTPUT_MAX)
        fleet_strbuf_append_bytes(out, chunk, (size_t)got);
    else if (got == 0 || (got < 0 && errno != EINTR))
        pollfd->fd = -1;
}

static void converse(struct process *process, const char *input, bool is_patient,
                     struct fleet_strbuf *out, struct fleet_strbuf *said)
{
    struct pollfd fds[3] = {{process->out, POLLIN, 0}, {process->err, POLLIN, 0}, {-1, POLLOUT, 0}};
    size_t left = input ? strlen(input) : 0;

    if (left > 0)
        fds[2].fd = process->in;
    else
        close_end(&process->in);
    while ((fds[0].fd >= 0 || fds[1].fd >= 0) && (is_patient || !interrupted)) {
        if (poll(fds, 3, -1) < 0)
            continue;
        read_some(&fds[0], out);
        read_some(&fds[1], said);
        if (fds[2].fd >= 0 && fds[2].revents) {
            ssize_t put = write(process->in, input, left);
            input += put > 0 ? put : 0;
            left -= put > 0 ? (size_t)put : 0;
            if (left == 0 || (put < 0 && errno != EINTR)) {
                close_end(&process->in);
                fds[2].fd = -1;
            }
        }
    }
}

static int refuse(int code, const char *command, struct fleet_strbuf *said, struct fleet_error *err)
{
    const char *text = fleet_strbuf_text(said);
    size_t length = strlen(text);

    while (length > 0 && text[length - 1] == '\n')
        length--;
    return fleet_error(err, -EIO, "kubectl %s: exit code %d: %.*s", command, code,
                       (int)(length < SAID_MAX ? length : SAID_MAX), text);
}

static int run(const struct kubectl *kubectl, const char *const *arguments, const char *input,
               bool is_patient, struct fleet_strbuf *out, struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf said = {0};
    struct process process;
    int code, rc = start(kubectl, arguments, -1, true, &process, err);

    if (rc < 0)
        return rc;
    converse(&process, input, is_patient, out, &said);
    code = finish(&process, is_patient);
    if (interrupted && !is_patient)
        return fleet_error(err, -EINTR, "interrupted");
    return code == 0 ? 0 : refuse(code, arguments[0], &said, err);
}

int kubectl_json(const struct kubectl *kubectl, const char *const *arguments, const char *input,
                 cJSON **out, struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    int rc = run(kubectl, arguments, input, false, &text, err);

    if (rc < 0)
        return rc;
    rc = fleet_json_parse(fleet_strbuf_text(&text), text.length, KUBECTL_OUTPUT_MAX, out, err);
    return rc < 0 ? fleet_error_wrap(err, "kubectl %s: its answer", arguments[0]) : 0;
}

int kubectl_cleanup(const struct kubectl *kubectl, const char *const *arguments,
                    struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    return run(kubectl, arguments, NULL, true, &text, err);
}

/* ---- a stream -------------------------------------------------------------------------------- */

int kubectl_stream(const struct kubectl *kubectl, const char *const *arguments,
                   const struct kubectl_reader *reader, struct fleet_error *err)
{
    struct fleet_strbuf nothing = {0};
    struct process process;
    struct fleet_error why;
    int code, read_rc = 0;
    int rc = start(kubectl, arguments, reader->read ? -1 : reader->out_fd, false, &process, err);

    if (rc < 0)
        return rc;
    close_end(&process.in);
    if (reader->read)
        read_rc = reader->read(reader->context, process.out, &why);
    code = finish(&process, false);
    if (interrupted)
        return fleet_error(err, -EINTR, "interrupted");
    if (code != 0)
        return refuse(code, arguments[0], &nothing, err);
    return read_rc < 0 ? fleet_error(err, read_rc, "%s", why.text) : 0;
}

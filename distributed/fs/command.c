/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/fs/command.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libfleet/base/child.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/strbuf.h"

void command_result_release(struct command_result *result)
{
    free(result->output);
    *result = (struct command_result){0};
}

/* Copy the last line that is not empty. */
static void keep_error(const struct fleet_strbuf *text, char out[COMMAND_ERROR_SIZE])
{
    const char *all = fleet_strbuf_text(text), *end = all + strlen(all), *from;
    size_t length;

    while (end > all && (end[-1] == '\n' || end[-1] == ' '))
        end--;
    for (from = end; from > all && from[-1] != '\n'; from--)
        continue;
    length = (size_t)(end - from);
    if (length >= COMMAND_ERROR_SIZE)
        length = COMMAND_ERROR_SIZE - 1;
    memcpy(out, from, length);
    out[length] = '\0';
}

/* Read what is there: 1 more may come, 0 the end. */
static int drain(int fd, struct fleet_strbuf *into)
{
    char buffer[16384];
    ssize_t count = read(fd, buffer, sizeof(buffer));

    if (count > 0)
        fleet_strbuf_append_bytes(into, buffer, (size_t)count);
    return count > 0 || (count < 0 && errno == EINTR);
}

/* Read both pipes until they end. */
static int collect(int out_fd, int err_fd, double deadline_ms, size_t output_max,
                   struct fleet_strbuf *output, struct fleet_strbuf *error, struct fleet_error *err)
{
    struct pollfd fds[2] = {{.fd = out_fd, .events = POLLIN}, {.fd = err_fd, .events = POLLIN}};

    while (fds[0].fd >= 0 || fds[1].fd >= 0) {
        double left = deadline_ms - fleet_monotonic_ms();
        if (left <= 0)
            return fleet_error(err, -ETIMEDOUT, "it did not end within its time limit");
        if (poll(fds, 2, left > 1000 ? 1000 : (int)left + 1) < 0 && errno != EINTR)
            return fleet_error(err, -errno, "poll: %s", strerror(errno));
        if (fds[0].revents && !drain(out_fd, output))
            fds[0].fd = -1;
        if (fds[1].revents && !drain(err_fd, error))
            fds[1].fd = -1;
        if (output->length > output_max)
            return fleet_error(err, -EFBIG, "its output is longer than %zu bytes", output_max);
        if (error->length > 2UL * COMMAND_ERROR_SIZE) /* the end is enough */
            fleet_strbuf_consume(error, error->length - 2UL * COMMAND_ERROR_SIZE);
    }
    return 0;
}

int command_run(const char *const *arguments, int timeout_ms, size_t output_max,
                struct command_result *out, struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf output = {0}, error = {0};
    int outputs[2] = {-1, -1}, errors[2] = {-1, -1};
    struct fleet_child child = {.path = arguments[0],
                                .arguments = (char *const *)(uintptr_t)arguments};
    FLEET_AUTO_CLOSE int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    double deadline = fleet_monotonic_ms() + timeout_ms;
    pid_t pid = -1;
    int rc, status = 0;

    if (nothing < 0 || pipe2(outputs, O_CLOEXEC) != 0 || pipe2(errors, O_CLOEXEC) != 0) {
        rc = fleet_error(err, -errno, "%s: %s", arguments[0], strerror(errno));
    } else {
        child.fds[0] = (struct fleet_child_fd){nothing, 0};
        child.fds[1] = (struct fleet_child_fd){outputs[1], 1};
        child.fds[2] = (struct fleet_child_fd){errors[1], 2};
        child.fd_count = 3;
        rc = fleet_child_start(&child, &pid);
        if (rc < 0)
            (void)fleet_error(err, rc, "start %s: %s", arguments[0], strerror(-rc));
    }
    for (int i = 0; i < 2; i++) { /* our copies of the child's ends */
        int *fd = i == 0 ? &outputs[1] : &errors[1];
        if (*fd >= 0)
            (void)close(*fd);
    }
    if (rc == 0) {
        rc = collect(outputs[0], errors[0], deadline, output_max, &output, &error, err);
        if (rc < 0)
            (void)kill(-pid, SIGKILL);
        status = fleet_child_reap(pid);
        if (rc < 0)
            (void)fleet_error_wrap(err, "%s", arguments[0]);
    }
    if (outputs[0] >= 0)
        (void)close(outputs[0]);
    if (errors[0] >= 0)
        (void)close(errors[0]);
    if (rc < 0)
        return rc;
    *out =
        (struct command_result){.exit_code = fleet_child_exit_code(status), .bytes = output.length};
    keep_error(&error, out->error);
    out->output = fleet_strbuf_take(&output);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/controller_process.h"

#include <signal.h>
#include <unistd.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/child.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/file.h"
#include "libfleet/base/strbuf.h"

pid_t controller_process_start(const char *kubeconfig, int server_port, const char *const *options,
                               int log_fd)
{
    const char *arguments[15 + CONTROLLER_PROCESS_OPTIONS_MAX] = {
        "fleetjob-controller", "--kubeconfig", kubeconfig,
        "--namespace",         "team",         "--no-election",
        "--runtime-image",     "runtime:1",    "--hub-address",
        "127.0.0.1:1",         "--hub-port",   "0"};
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    struct fleet_child child = {.path = "build/bin/fleetjob-controller",
                                .arguments = (char *const *)arguments,
                                .fds = {{.fd = log_fd, .as = STDERR_FILENO}},
                                .fd_count = 1,
                                .dies_with_us = true};
    pid_t pid;

    for (int i = 0; options[i]; i++) {
        fleet_assert(i < CONTROLLER_PROCESS_OPTIONS_MAX);
        arguments[12 + i] = options[i];
    }
    fleet_strbuf_appendf(
        &text,
        "{\"clusters\":[{\"name\":\"c\",\"cluster\":{\"server\":\"http://127.0.0.1:%d\"}}],"
        "\"contexts\":[{\"name\":\"c\",\"context\":{\"cluster\":\"c\",\"user\":\"u\"}}],"
        "\"users\":[{\"name\":\"u\",\"user\":{}}],\"current-context\":\"c\"}",
        server_port);
    fleet_assert(fleet_file_write(kubeconfig, text.text, text.length, NULL) == 0);
    fleet_assert(fleet_child_start(&child, &pid) == 0);
    return pid;
}

void controller_process_kill(pid_t pid)
{
    (void)kill(pid, SIGKILL);
    (void)fleet_child_reap(pid);
}

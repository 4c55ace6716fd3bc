/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_INTEGRATION_PS_PROCESSES_H
#define TESTS_INTEGRATION_PS_PROCESSES_H

/*
 * Servers and workers of fleet_ps.h as processes. A worker tells the test of its progress by a byte
 * in a pipe and waits for one in another: so the test kills at a point that it knows.
 */

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/prctl.h>

#include "include/fleet/fleet_ps.h"
#include "tests/integration/library_processes.h"

#define SERVERS_MAX 3
#define TIMEOUT_MS  60000

static int server_count, worker_count;
static char server_list[32 * SERVERS_MAX], snapshots[64]; /* snapshots "": none */
static int snapshot_every, server_timeout_ms;
static pid_t server_pids[SERVERS_MAX];
static int told[2], allowed[2]; /* pipes: workers to the test, the test to workers */
static struct fleet_ps *ps;     /* in a worker */

/* A folder for one test. */
static inline const char *new_folder(void)
{
    static char path[64];

    (void)snprintf(path, sizeof(path), "/tmp/fleet-ps-XXXXXX");
    assert_non_null(mkdtemp(path));
    return path;
}

static inline void remove_folder(const char *path)
{
    char command[128];

    (void)snprintf(command, sizeof(command), "rm -rf '%s'", path);
    assert_int_equal(system(command), 0);
}

static inline struct fleet_role *role_of(enum fleet_role_kind kind, int id)
{
    const struct fleet_role_description description = {.kind = kind,
                                                       .current_id = id,
                                                       .worker_num = worker_count,
                                                       .server_endpoints = server_list};
    struct fleet_role *role;

    CHECK(fleet_role_user(&description, &role, &err) == 0);
    return role;
}

/* fork() whose child dies with the test. */
static inline pid_t fork_child(void)
{
    pid_t parent = getpid(), pid;

    (void)fflush(NULL);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(1);
        (void)setenv("FLEET_WORLD_SECRET", "a secret", 0);
    }
    return pid;
}

static inline void start_server(int index)
{
    const struct fleet_server_options options = {.snapshot_folder = snapshots[0] ? snapshots : NULL,
                                                 .snapshot_every = snapshot_every,
                                                 .timeout_ms = server_timeout_ms};
    struct fleet_server *server;

    server_pids[index] = fork_child();
    if (server_pids[index] != 0)
        return;
    rank = 100 + index;
    CHECK(fleet_server_init(role_of(FLEET_SERVER, index), &options, &server, &err) == 0);
    CHECK(fleet_server_run(server, &err) == 0);
    fleet_server_free(server);
    _exit(0);
}

static inline void start_servers(int servers, int workers)
{
    server_count = servers;
    worker_count = workers;
    server_timeout_ms = TIMEOUT_MS;
    server_list[0] = '\0';
    for (int i = 0; i < servers; i++)
        (void)snprintf(server_list + strlen(server_list), 32, "%s127.0.0.1:%d", i > 0 ? "," : "",
                       free_port());
    for (int i = 0; i < servers; i++)
        start_server(i);
}

static inline void end_well(pid_t pid)
{
    int status;

    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static inline void kill_hard(pid_t pid)
{
    int status;

    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static inline void servers_end_well(void)
{
    for (int i = 0; i < server_count; i++)
        end_well(server_pids[i]);
}

/* Without workers that stop. */
static inline void kill_servers(void)
{
    for (int i = 0; i < server_count; i++)
        kill_hard(server_pids[i]);
}

/* In this process: worker `id`, connected. */
static inline void be_worker(int id, enum fleet_ps_mode mode)
{
    struct fleet_role *role = role_of(FLEET_WORKER, id);
    struct fleet_ps_options options;

    rank = id;
    fleet_ps_options_init(&options);
    options.mode = mode;
    options.timeout_ms = TIMEOUT_MS;
    CHECK(fleet_worker_start(role, &options, &ps, &err) == 0);
    fleet_role_free(role);
}

/* Run `body` as worker `id` in a process of its own. */
static inline pid_t start_worker(int id, void (*body)(void))
{
    pid_t pid = fork_child();

    if (pid != 0)
        return pid;
    rank = id;
    body();
    _exit(0);
}

static inline void open_pipes(void)
{
    assert_int_equal(pipe2(told, O_CLOEXEC), 0);
    assert_int_equal(pipe2(allowed, O_CLOEXEC), 0);
}

static inline void close_pipes(void)
{
    for (int i = 0; i < 2; i++) {
        (void)close(told[i]);
        (void)close(allowed[i]);
    }
}

/* A worker: say that it is here, and wait for the test. */
static inline void tell_and_wait(void)
{
    char byte = 0;

    CHECK(write(told[1], &byte, 1) == 1);
    CHECK(read(allowed[0], &byte, 1) == 1);
}

/* The test: wait for `count` workers; let `count` go on. */
static inline void hear(int count)
{
    char byte;

    for (int i = 0; i < count; i++)
        assert_int_equal(read(told[0], &byte, 1), 1);
}

static inline void allow(int count)
{
    char byte = 0;

    for (int i = 0; i < count; i++)
        assert_int_equal(write(allowed[1], &byte, 1), 1);
}

static inline struct fleet_ps_table sparse_table(int id, int width)
{
    struct fleet_ps_table table;

    fleet_ps_table_defaults(&table);
    table.id = id;
    table.width = width;
    table.seed = 7;
    return table;
}

static inline struct fleet_ps_table dense_table(int id, int64_t length)
{
    struct fleet_ps_table table;

    fleet_ps_table_defaults(&table);
    table.id = id;
    table.length = length;
    table.seed = 7;
    return table;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */

/* A server's life. */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "distributed/ps/server_internal.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/digest.h"

#define ROWS_MAX       ((int64_t)1 << 28)
#define SNAPSHOT_EVERY 1000

/* ---- the beginning --------------------------------------------------------------------------- */

static int read_options(const struct fleet_server_options *options, struct fleet_server *s,
                        struct fleet_error *err)
{
    struct fleet_env env;

    if (options)
        s->options = *options;
    if (s->options.snapshot_every < 0 || s->options.rows_max < 0 || s->options.timeout_ms < 0)
        return fleet_error(
            err, -EINVAL, "snapshot_every is %d, rows_max %lld, timeout_ms %d; allowed: 0 or more",
            s->options.snapshot_every, (long long)s->options.rows_max, s->options.timeout_ms);
    if (s->options.snapshot_every == 0)
        s->options.snapshot_every = SNAPSHOT_EVERY;
    if (s->options.rows_max == 0)
        s->options.rows_max = ROWS_MAX;
    if (s->options.timeout_ms == 0) {
        int rc = fleet_env_read(&env, err);
        if (rc < 0)
            return rc;
        s->options.timeout_ms = env.timeout_ms;
    }
    if (s->options.snapshot_folder) {
        s->snapshot_folder = strdup(s->options.snapshot_folder);
        if (!s->snapshot_folder)
            return fleet_error(err, -ENOMEM, "out of memory");
    }
    return 0;
}

/* What the server begins with: its snapshot, else the saved state. */
static int load(struct fleet_server *s, struct fleet_error *err)
{
    struct ps_file_worker *worker = calloc((size_t)s->workers, sizeof(*worker));
    struct ps_file file;
    int rc = 0;

    if (!worker)
        return fleet_error(err, -ENOMEM, "out of memory");
    file = ps_server_file(s, worker);
    if (s->snapshot_folder)
        rc = ps_file_restore(s->snapshot_folder, &file, s->options.rows_max, err);
    for (int i = 0; rc == 1 && i < s->workers; i++) {
        s->worker[i].process = worker[i].process;
        s->worker[i].sequence = worker[i].sequence;
    }
    s->step = file.step;
    s->updates = file.updates;
    if (rc == 0 && s->options.load_folder)
        rc = ps_file_load(s->options.load_folder, &file, s->options.rows_max, err);
    free(worker);
    return rc < 0 ? rc : 0;
}

/* The address may be that of a Service in front of this process, which no interface here has. Then
 * listen on all of them. */
static int listen_at(const char *endpoint, int index, struct fleet_error *err)
{
    const char *port = strrchr(endpoint, ':') + 1;
    FLEET_AUTO_STRBUF struct fleet_strbuf any = {0};
    int rc = endpoint_listen(endpoint, index, err);

    if (rc != -EADDRNOTAVAIL)
        return rc;
    fleet_strbuf_appendf(&any, "%s:%s", endpoint[0] == '[' ? "[::]" : "0.0.0.0", port);
    return endpoint_listen(any.text, index, err);
}

static int begin(const struct fleet_role *role, struct fleet_server *s, struct fleet_error *err)
{
    const char *const *servers = fleet_role_server_endpoints(role, &s->servers);
    int rc;

    if (s->servers < 1 || s->servers > FLEET_PS_SERVERS_MAX)
        return fleet_error(err, -EINVAL, "the role has %d servers, allowed: 1 to %d", s->servers,
                           FLEET_PS_SERVERS_MAX);
    if (s->workers < 1 || s->workers > FLEET_PS_WORKERS_MAX)
        return fleet_error(err, -EINVAL, "the role has %d workers, allowed: 1 to %d", s->workers,
                           FLEET_PS_WORKERS_MAX);
    s->connections_max = 2 * s->workers + 64;
    s->connections = calloc((size_t)s->connections_max, sizeof(struct ps_connection *));
    s->worker = calloc((size_t)s->workers, sizeof(*s->worker));
    if (!s->connections || !s->worker)
        return fleet_error(err, -ENOMEM, "out of memory");
    rc = ps_key_init(&s->key, servers, s->servers, err);
    if (rc == 0)
        rc = load(s, err);
    if (rc == 0)
        s->listener = rc = listen_at(servers[s->index], s->index, err);
    return rc < 0 ? rc : 0;
}

int fleet_server_init(const struct fleet_role *role, const struct fleet_server_options *options,
                      struct fleet_server **out, struct fleet_error *err)
{
    struct fleet_server *s;
    int rc;

    if (!role || !fleet_role_is_server(role))
        return fleet_error(err, -EINVAL, "fleet_server_init: the role is no server");
    s = calloc(1, sizeof(*s));
    if (!s)
        return fleet_error(err, -ENOMEM, "fleet_server_init: out of memory");
    s->index = fleet_role_server_index(role);
    s->workers = fleet_role_worker_num(role);
    s->listener = s->mode = -1;
    do
        fleet_random_bytes(&s->process, sizeof(s->process));
    while (s->process == 0);
    rc = read_options(options, s, err);
    if (rc == 0)
        rc = begin(role, s, err);
    if (rc < 0) {
        fleet_server_free(s);
        return fleet_error_wrap(err, "fleet_server_init");
    }
    *out = s;
    return 0;
}

void fleet_server_free(struct fleet_server *server)
{
    if (!server)
        return;
    for (int i = 0; i < server->connection_count; i++)
        ps_connection_free(server->connections[i]);
    for (int i = 0; server->worker && i < server->workers; i++)
        ps_step_drop(&server->worker[i]);
    for (int i = 0; i < FLEET_PS_TABLES_MAX; i++)
        ps_table_free(server->tables[i]);
    if (server->listener >= 0)
        (void)close(server->listener);
    free(server->connections);
    free(server->worker);
    free(server->snapshot_folder);
    ps_key_release(&server->key);
    free(server);
}

/* ---- the loop -------------------------------------------------------------------------------- */

/* Forget connections that have ended. */
static void sweep(struct fleet_server *s)
{
    int kept = 0;

    for (int i = 0; i < s->connection_count; i++) {
        struct ps_connection *c = s->connections[i];
        if (!c->is_broken) {
            s->connections[kept++] = c;
            continue;
        }
        if (c->worker >= 0 && s->worker[c->worker].connection == c)
            s->worker[c->worker].connection = NULL;
        ps_connection_free(c);
    }
    s->connection_count = kept;
}

/* Have all workers stopped, and are all answers written? */
static bool is_over(const struct fleet_server *s)
{
    for (int i = 0; i < s->workers; i++)
        if (!s->worker[i].has_stopped)
            return false;
    for (int i = 0; i < s->connection_count; i++)
        if (s->connections[i]->out.length > 0)
            return false;
    return true;
}

/* Milliseconds until something must be done; -ETIMEDOUT: there was no worker for too long. */
static int next_wait(struct fleet_server *s, struct fleet_error *err)
{
    double now = fleet_monotonic_ms(), next = ps_step_timeouts(s, now);
    bool has_worker = false;

    for (int i = 0; i < s->workers; i++)
        has_worker = has_worker || s->worker[i].connection;
    if (has_worker)
        s->quiet_since = 0;
    else if (s->quiet_since == 0)
        s->quiet_since = now;
    if (s->quiet_since != 0) {
        double end = s->quiet_since + s->options.timeout_ms;
        if (now >= end)
            return fleet_error(err, -ETIMEDOUT,
                               "fleet_server_run: server %d had no worker for %d ms", s->index,
                               s->options.timeout_ms);
        next = next == 0 || end < next ? end : next;
    }
    if (next == 0 || next - now > INT_MAX - 1)
        return INT_MAX;
    return (int)(next - now) + 1;
}

static int turn(struct fleet_server *s, struct pollfd *fds, int wait_ms, struct fleet_error *err)
{
    int count = s->connection_count;

    fds[0] = (struct pollfd){.fd = s->listener, .events = POLLIN};
    for (int i = 0; i < count; i++) {
        const struct ps_connection *c = s->connections[i];
        fds[i + 1] = (struct pollfd){.fd = c->wire.fd};
        fds[i + 1].events = (short)((c->is_parked ? 0 : POLLIN) | (c->out.length ? POLLOUT : 0));
    }
    if (poll(fds, (nfds_t)count + 1, wait_ms) < 0)
        return errno == EINTR
                   ? 0
                   : fleet_error(err, -errno, "fleet_server_run: poll: %s", strerror(errno));
    for (int i = 0; i < count; i++) {
        struct ps_connection *c = s->connections[i];
        if (fds[i + 1].revents & POLLOUT)
            ps_connection_write(c);
        if (fds[i + 1].revents & (POLLERR | POLLNVAL))
            c->is_broken = true;
        else if (fds[i + 1].revents & (POLLIN | POLLHUP))
            c->is_parked ? (void)(c->is_broken = true) : ps_connection_read(s, c);
    }
    if (fds[0].revents & POLLIN)
        ps_connection_accept(s);
    sweep(s);
    return 0;
}

int fleet_server_run(struct fleet_server *server, struct fleet_error *err)
{
    struct pollfd *fds;
    int rc = 0;

    if (!server)
        return fleet_error(err, -EINVAL, "fleet_server_run: server is NULL");
    fds = calloc((size_t)server->connections_max + 1, sizeof(*fds));
    if (!fds)
        return fleet_error(err, -ENOMEM, "fleet_server_run: out of memory");
    server->last_snapshot = server->step > 0 ? server->step : server->updates;
    while (rc >= 0 && !is_over(server)) {
        rc = next_wait(server, err);
        if (rc >= 0)
            rc = turn(server, fds, rc, err);
    }
    free(fds);
    return rc < 0 ? rc : 0;
}

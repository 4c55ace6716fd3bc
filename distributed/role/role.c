/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/role/role.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ENDPOINTS_MAX 65536

/* ---- making ---------------------------------------------------------------------------------- */

/* Cut a list; an empty one has no endpoints. */
static int endpoints_read(const char *name, const char *text, struct endpoints *out,
                          struct fleet_error *err)
{
    char *rest, *one;
    int count = 1;

    if (!text || !text[0])
        return 0;
    for (const char *at = text; (at = strchr(at, ',')) != NULL; at++)
        count++;
    if (count > ENDPOINTS_MAX)
        return fleet_error(err, -EINVAL, "%s: %d endpoints, allowed: %d", name, count,
                           ENDPOINTS_MAX);
    out->text = rest = strdup(text);
    out->list = calloc((size_t)count, sizeof(*out->list));
    if (!out->text || !out->list)
        return fleet_error(err, -ENOMEM, "out of memory");
    while ((one = strsep(&rest, ",")) != NULL) {
        const char *colon = strrchr(one, ':');
        if (!colon || colon == one || colon[1] == '\0')
            return fleet_error(err, -EINVAL, "%s: endpoint %d is \"%.60s\", needed: host:port",
                               name, out->count, one);
        out->list[out->count++] = one;
    }
    return 0;
}

static int check(const struct fleet_role *role, const char *id_name, const char *workers_name,
                 const char *servers_name, struct fleet_error *err)
{
    int count = role->kind == FLEET_SERVER ? role->servers.count : role->worker_num;

    if (role->worker_num < 1)
        return fleet_error(err, -EINVAL, "%s: required", workers_name);
    if (role->workers.count > 0 && role->workers.count != role->worker_num)
        return fleet_error(err, -EINVAL, "%s: has %d endpoints for %d workers", workers_name,
                           role->workers.count, role->worker_num);
    if (!role->is_collective && role->servers.count == 0)
        return fleet_error(err, -EINVAL, "%s: required", servers_name);
    if (role->index < 0 || role->index >= count)
        return fleet_error(err, -EINVAL, "%s is %d, allowed: 0 to %d", id_name, role->index,
                           count - 1);
    return 0;
}

int role_build(const struct fleet_role_description *description, const char *id_name,
               const char *workers_name, const char *servers_name, struct fleet_role **out,
               struct fleet_error *err)
{
    struct fleet_role *role = calloc(1, sizeof(*role));
    int rc;

    if (!role)
        return fleet_error(err, -ENOMEM, "out of memory");
    role->is_collective = description->is_collective;
    role->kind = description->is_collective ? FLEET_WORKER : description->kind;
    role->index = description->current_id;
    rc = endpoints_read(workers_name, description->worker_endpoints, &role->workers, err);
    if (rc == 0)
        rc = endpoints_read(servers_name, description->server_endpoints, &role->servers, err);
    role->worker_num = description->worker_num ? description->worker_num : role->workers.count;
    if (rc == 0)
        rc = check(role, id_name, workers_name, servers_name, err);
    if (rc < 0) {
        fleet_role_free(role);
        return rc;
    }
    *out = role;
    return 0;
}

int fleet_role_user(const struct fleet_role_description *description, struct fleet_role **out,
                    struct fleet_error *err)
{
    int rc;

    if (!description || (!description->is_collective && (description->kind < FLEET_WORKER ||
                                                         description->kind > FLEET_COORDINATOR)))
        return fleet_error(err, -EINVAL, "fleet_role_user: kind: required in a job with servers");
    rc = role_build(description, "current_id", "worker_endpoints or worker_num", "server_endpoints",
                    out, err);
    return rc < 0 ? fleet_error_wrap(err, "fleet_role_user") : 0;
}

void fleet_role_free(struct fleet_role *role)
{
    if (!role)
        return;
    free(role->workers.text);
    free(role->workers.list);
    free(role->servers.text);
    free(role->servers.list);
    free(role);
}

/* ---- questions ------------------------------------------------------------------------------- */

bool fleet_role_is_collective(const struct fleet_role *role)
{
    return role && role->is_collective;
}

bool fleet_role_is_local(const struct fleet_role *role)
{
    return role && role->is_local;
}

bool fleet_role_is_worker(const struct fleet_role *role)
{
    return role && role->kind == FLEET_WORKER;
}

bool fleet_role_is_first_worker(const struct fleet_role *role)
{
    return role && role->kind == FLEET_WORKER && role->index == 0;
}

bool fleet_role_is_server(const struct fleet_role *role)
{
    return role && role->kind == FLEET_SERVER;
}

int fleet_role_worker_index(const struct fleet_role *role)
{
    return role && role->kind == FLEET_WORKER ? role->index : -1;
}

int fleet_role_server_index(const struct fleet_role *role)
{
    return role && role->kind == FLEET_SERVER ? role->index : -1;
}

int fleet_role_worker_num(const struct fleet_role *role)
{
    return role ? role->worker_num : 0;
}

int fleet_role_server_num(const struct fleet_role *role)
{
    return role ? role->servers.count : 0;
}

const char *const *fleet_role_worker_endpoints(const struct fleet_role *role, int *count)
{
    if (count)
        *count = role ? role->workers.count : 0;
    return role ? role->workers.list : NULL;
}

const char *const *fleet_role_server_endpoints(const struct fleet_role *role, int *count)
{
    if (count)
        *count = role ? role->servers.count : 0;
    return role ? role->servers.list : NULL;
}

static size_t host_length(const char *endpoint)
{
    return (size_t)(strrchr(endpoint, ':') - endpoint);
}

static int compare_hosts(const void *a, const void *b)
{
    const char *x = *(const char *const *)a, *y = *(const char *const *)b;
    size_t left = host_length(x), right = host_length(y);
    int order = strncmp(x, y, left < right ? left : right);

    return order ? order : (left > right) - (left < right);
}

int fleet_role_node_num(const struct fleet_role *role)
{
    size_t count = role ? (size_t)role->workers.count : 0;
    const char **sorted = calloc(count + 1, sizeof(*sorted));
    int nodes = 1;

    if (!sorted || count == 0) {
        free(sorted);
        return 1;
    }
    memcpy(sorted, role->workers.list, count * sizeof(*sorted));
    qsort(sorted, count, sizeof(*sorted), compare_hosts);
    for (size_t i = 1; i < count; i++)
        nodes += compare_hosts(&sorted[i - 1], &sorted[i]) != 0;
    free(sorted);
    return nodes;
}

/* ---- helpers --------------------------------------------------------------------------------- */

int fleet_util_file_shard(const struct fleet_role *role, int files, int *first, int *count,
                          struct fleet_error *err)
{
    int block, more, index = fleet_role_worker_index(role);

    if (!first || !count)
        return fleet_error(err, -EINVAL, "fleet_util_file_shard: first or count is NULL");
    if (index < 0)
        return fleet_error(err, -EINVAL, "fleet_util_file_shard: this process is not a worker");
    if (files < 0)
        return fleet_error(err, -EINVAL, "fleet_util_file_shard: files is %d, allowed: 0 or more",
                           files);
    block = files / role->worker_num;
    more = files % role->worker_num;
    *first = index * block + (index < more ? index : more);
    *count = block + (index < more);
    return 0;
}

void fleet_util_print_on_rank(const struct fleet_role *role, const char *message, int rank)
{
    if (!role || !message || fleet_role_worker_index(role) != rank)
        return;
    (void)printf("%s\n", message);
    (void)fflush(stdout);
}

/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Which pods the servers of a parameter server need: one for each index, from the start of the job
 * to its end. Their names do not change, so there is never a second process with the same tables
 * (6), and a controller with a stale cache can create none.
 *
 *   the container fails        the kubelet starts it again in the same pod; server_restarts.c says
 *                              how often
 *   the pod fails (eviction)   its object is deleted
 *   there is no pod            one is made, which loads the server's newest snapshot if its volume
 *                              outlives pods
 *   the server ends with 0     all workers have stopped; the pod stays (servers_ended.c)
 *
 * Each loss is an Event. The status counts pods and restarts, so a new leader reports none twice.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "controller/fleetjob/policy.h"
#include "libfleet/api/wellknown.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/memory.h"

static const struct observed_pod *find(const struct pass *pass, int index)
{
    for (size_t i = 0; i < pass->in->server_count; i++)
        if (pass->in->servers[i].index == index)
            return &pass->in->servers[i];
    return NULL;
}

/* How a container has ended: "exit code 137, OOMKilled". */
static void describe_end(const struct observed_pod *pod, struct fleet_strbuf *out)
{
    if (pod->exit_code >= 0)
        fleet_strbuf_appendf(out, "exit code %d", pod->exit_code);
    if (pod->reason[0])
        fleet_strbuf_appendf(out, "%s%s", out->length > 0 ? ", " : "", pod->reason);
    if (out->length == 0)
        fleet_strbuf_append(out, "no exit code");
}

/* The kubelet has started the container again since the last status. */
static void note_restarts(struct pass *pass, const struct observed_pod *pod, const char *key)
{
    struct fleet_int_map *restarts = &pass->status->servers.restarts;
    FLEET_AUTO_STRBUF struct fleet_strbuf end = {0};

    if (pod->restarts > fleet_int_map_get(restarts, key, 0)) {
        describe_end(pod, &end);
        pass_event(pass, true, WELLKNOWN_EVENT_SERVER_LOST,
                   "Server %d ended with %s: its container starts again, restart %d of %lld",
                   pod->index, end.text, pod->restarts,
                   (long long)pass->spec->run_policy.restart.max_restarts);
    }
    if (pod->restarts != fleet_int_map_get(restarts, key, 0))
        fleet_int_map_set(restarts, key, pod->restarts);
}

/* Its node evicted it, for example: the object stays until it is deleted. */
static void replace_failed(struct pass *pass, const struct observed_pod *pod)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf end = {0};

    if (pod->is_deleting)
        return;
    describe_end(pod, &end);
    pass_event(pass, true, WELLKNOWN_EVENT_SERVER_LOST, "The pod of server %d failed: %s%s%s",
               pod->index, end.text, pod->message[0] ? ": " : "", pod->message);
    pass_delete(pass, pod, "Failed");
}

/* The API server has refused the pod that the status counts. */
static bool is_refused(const struct pass *pass, int index)
{
    for (size_t i = 0; i < pass->in->refused_count; i++)
        if (pass->in->refused[i].attempt < 0 && pass->in->refused[i].index == index)
            return true;
    return false;
}

/* True: it is the first pod of this server. */
static bool make(struct pass *pass, int index, const char *key)
{
    struct fleetjob_servers *servers = &pass->status->servers;
    int64_t made = fleet_int_map_get(&servers->pods, key, 0);

    if (made > 0 && is_refused(pass, index)) {
        pass_create_server(pass, index);
        return false;
    }
    fleet_int_map_set(&servers->pods, key, made + 1);
    if (fleet_int_map_get(&servers->restarts, key, 0) > 0)
        fleet_int_map_set(&servers->restarts, key, 0);
    pass_create_server(pass, index);
    if (made > 0)
        pass_event(pass, true, WELLKNOWN_EVENT_SERVER_LOST,
                   "Server %d has lost its pod: pod number %lld of this server", index,
                   (long long)made + 1);
    return made == 0;
}

static void forget(struct fleet_int_map *map)
{
    for (size_t i = 0; i < map->count; i++)
        free(map->items[i].key);
    free(map->items);
    *map = (struct fleet_int_map){0};
}

void servers_count(struct pass *pass)
{
    struct fleetjob_servers *servers = &pass->status->servers;
    const char *address = pass->in->server_address;

    if (!pass->spec->has_server)
        return;
    pass->status->has_servers = true;
    servers->desired = pass->spec->server.replicas;
    servers->ready = 0;
    for (size_t i = 0; i < pass->in->server_count; i++) {
        const struct observed_pod *pod = &pass->in->servers[i];
        servers->ready += pod->phase == OBSERVED_RUNNING && pod->is_ready && !pod->is_deleting;
    }
    if (address && address[0] && !servers->address)
        fleet_set_text(&servers->address, address);
    if (pass->spec->run_policy.suspend && pass->in->server_count == 0) {
        forget(&servers->pods); /* a resume makes all pods again */
        forget(&servers->restarts);
        servers->ended_generation = 0;
    }
}

void servers_delete(struct pass *pass, const char *reason, bool only_living)
{
    for (size_t i = 0; i < pass->in->server_count; i++)
        if (!only_living || pass_is_living(&pass->in->servers[i]))
            pass_delete(pass, &pass->in->servers[i], reason);
}

bool servers_are_living(const struct pass *pass)
{
    for (size_t i = 0; i < pass->in->server_count; i++)
        if (pass_is_living(&pass->in->servers[i]))
            return true;
    return false;
}

static void delete_surplus(struct pass *pass, int wanted)
{
    for (size_t i = 0; i < pass->in->server_count; i++)
        if (pass->in->servers[i].index >= wanted)
            pass_delete(pass, &pass->in->servers[i], "ScaleDown");
}

void servers_apply(struct pass *pass)
{
    int wanted = pass->spec->has_server ? (int)pass->spec->server.replicas : 0, first = 0;

    if (pass->out->look_count > 0)
        return;
    delete_surplus(pass, wanted);
    for (int index = 0; index < wanted; index++) {
        const struct observed_pod *pod = find(pass, index);
        char key[16];
        (void)snprintf(key, sizeof(key), "%d", index);
        if (pod && pod->phase == OBSERVED_FAILED)
            replace_failed(pass, pod);
        else if (pod)
            note_restarts(pass, pod, key);
        else if (!pass->in->is_blocked)
            first += make(pass, index, key);
    }
    if (first > 0)
        pass_event(pass, false, WELLKNOWN_EVENT_CREATED_PODS, "Created %d server%s", first,
                   first == 1 ? "" : "s");
}

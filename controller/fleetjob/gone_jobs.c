/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/fleetjob/gone_jobs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "controller/fleetjob/projection.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/json.h"
#include "libfleet/base/map.h"
#include "libfleet/kube/meta.h"
#include "libfleet/kube/rest.h"

struct asked {
    struct gone_jobs *jobs;
    struct kube_rest_call *call; /* NULL = none */
    char *uid, *name;
    size_t namespace_index; /* that is asked about */
    bool is_gone;
    double again_ms; /* otherwise: when to ask again */
};

struct gone_jobs {
    struct kube_io *io;
    const char *const *namespaces; /* [count] */
    size_t count;
    struct fleet_map by_uid; /* → struct asked */
};

struct gone_jobs *gone_jobs_new(struct kube_io *io, const char *const *namespaces, size_t count)
{
    struct gone_jobs *jobs = calloc(1, sizeof(*jobs));

    fleet_assert(jobs);
    *jobs = (struct gone_jobs){.io = io, .namespaces = namespaces, .count = count};
    return jobs;
}

void gone_jobs_free(struct gone_jobs *jobs)
{
    const struct fleet_map_entry *entry;

    if (!jobs)
        return;
    for (size_t i = 0; (entry = fleet_map_next(&jobs->by_uid, &i));) {
        struct asked *asked = entry->value;
        kube_rest_cancel(&asked->call);
        free(asked->uid);
        free(asked->name);
        free(asked);
    }
    fleet_map_release(&jobs->by_uid);
    free(jobs);
}

static bool has_uid(const cJSON *list, const char *uid)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, fleet_json_at(list, "items"))
    {
        const char *other = "";
        (void)fleet_json_opt_string(item, "metadata.uid", &other, NULL);
        if (strcmp(other, uid) == 0)
            return true;
    }
    return false;
}

static void list(struct asked *asked);

static void on_listed(void *user, const cJSON *object, const struct fleet_error *err)
{
    struct asked *asked = user;

    asked->call = NULL;
    if (err || has_uid(object, asked->uid))
        return; /* unknown, or it exists: ask again at again_ms */
    if (++asked->namespace_index < asked->jobs->count)
        list(asked);
    else
        asked->is_gone = true;
}

static void list(struct asked *asked)
{
    const struct gone_jobs *jobs = asked->jobs;
    char selector[sizeof("metadata.name=") + KUBE_LABEL_MAX];
    struct kube_rest_request request = {
        .verb = KUBE_LIST,
        .resource = &projection_fleetjobs,
        .namespace_ = jobs->count > 0 ? jobs->namespaces[asked->namespace_index] : NULL,
        .field_selector = selector};

    (void)snprintf(selector, sizeof(selector), "metadata.name=%s", asked->name);
    asked->call = kube_rest_start(jobs->io, &request, on_listed, asked);
}

static struct asked *add(struct gone_jobs *jobs, const char *uid, const char *name)
{
    struct asked *asked = calloc(1, sizeof(*asked));

    fleet_assert(asked);
    *asked = (struct asked){.jobs = jobs, .uid = strdup(uid), .name = strdup(name), .again_ms = -1};
    fleet_assert(asked->uid && asked->name);
    (void)fleet_map_set(&jobs->by_uid, uid, asked);
    return asked;
}

bool gone_jobs_ask(struct gone_jobs *jobs, const char *uid, const char *name)
{
    struct asked *asked = fleet_map_get(&jobs->by_uid, uid);
    double now_ms = kube_now_ms(jobs->io);

    if (asked && (asked->is_gone || asked->call || now_ms < asked->again_ms))
        return asked->is_gone;
    if (!kube_name_is_label(name) || (!asked && jobs->by_uid.count >= GONE_JOBS_MAX))
        return false;
    if (!asked)
        asked = add(jobs, uid, name);
    asked->again_ms = now_ms + GONE_JOBS_AGAIN_MS;
    asked->namespace_index = 0;
    list(asked);
    return false;
}

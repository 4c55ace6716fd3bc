/* SPDX-License-Identifier: Apache-2.0 */

/* The world and its groups. */
#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/runtime/comm/comm.h"
#include "agent/runtime/comm/tcp_address.h"
#include "distributed/distributed.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/digest.h"
#include "libfleet/base/variable.h"

#define DEFAULT_TIMEOUT_MS 1800000
#define WORLD_MAX          4096
#define BACKLOG            128

/* The first of the list is the world. */
static struct fleet_group *groups;
static int last_id;
static int listener = -1;

static pthread_mutex_t abort_lock = PTHREAD_MUTEX_INITIALIZER;
static struct comm *abortable; /* under the lock: that of the world */

int fleet_env_read(struct fleet_env *out, struct fleet_error *err)
{
    struct fleet_env env;
    int rc = argument_check(out, "fleet_env_read", "out", err);

    if (rc == 0)
        rc = fleet_variable_number("PADDLE_TRAINERS_NUM", 1, WORLD_MAX, 1, &env.world, err);
    if (rc == 0)
        rc = fleet_variable_number("PADDLE_TRAINER_ID", 0, env.world - 1, 0, &env.rank, err);
    if (rc == 0)
        rc = fleet_variable_number("FLEET_GENERATION", 0, INT_MAX, 0, &env.generation, err);
    if (rc == 0)
        rc = fleet_variable_number("PADDLE_PG_TIMEOUT", 1, INT_MAX, DEFAULT_TIMEOUT_MS,
                                   &env.timeout_ms, err);
    if (rc == 0)
        *out = env;
    return rc;
}

/* ---- connecting ------------------------------------------------------------------------------ */

/* Cut `text` at its commas into addresses[world]. */
static int split_endpoints(char *text, int world, const char **addresses, struct fleet_error *err)
{
    int count = 0;
    char *rest = text, *one;

    while ((one = strsep(&rest, ",")) != NULL) {
        if (count < world)
            addresses[count] = one;
        count++;
    }
    if (count != world)
        return fleet_error(err, -EINVAL,
                           "PADDLE_TRAINER_ENDPOINTS: has %d endpoints, PADDLE_TRAINERS_NUM is %d",
                           count, world);
    return 0;
}

int endpoint_listen(const char *endpoint, int rank, struct fleet_error *err)
{
    struct sockaddr_storage address;
    socklen_t size;
    FLEET_AUTO_CLOSE int fd = -1;
    int one = 1, result;
    int rc = tcp_address_parse(endpoint, rank, &address, &size, err);

    if (rc < 0)
        return rc;
    fd = socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) != 0 ||
        bind(fd, (struct sockaddr *)&address, size) != 0 || listen(fd, BACKLOG) != 0)
        return fleet_error(err, -errno, "listen on %s: %s", endpoint, strerror(errno));
    result = fd;
    fd = -1;
    return result;
}

void world_key(const char *text, int generation, uint8_t out[32])
{
    const char *secret = getenv("FLEET_WORLD_SECRET"), *uid = getenv("FLEET_JOB_UID");
    struct fleet_sha256 *sha = fleet_sha256_new();

    if (!secret)
        secret = "";
    if (!uid)
        uid = "";
    fleet_sha256_update(sha, secret, strlen(secret) + 1);
    fleet_sha256_update(sha, uid, strlen(uid) + 1);
    fleet_sha256_update(sha, &generation, sizeof(generation));
    fleet_sha256_update(sha, text, strlen(text) + 1);
    fleet_sha256_finish(sha, out);
}

int world_encryption(bool *out, struct fleet_error *err)
{
    const char *value = getenv("FLEET_DATA_ENCRYPTION"), *secret = getenv("FLEET_WORLD_SECRET");
    bool encrypts = value && strcmp(value, "AES-GCM") == 0;

    if (value && value[0] && !encrypts && strcmp(value, "None") != 0)
        return fleet_error(err, -EINVAL,
                           "FLEET_DATA_ENCRYPTION: is \"%.40s\", allowed: AES-GCM, None", value);
    if (encrypts && (!secret || !secret[0]))
        return fleet_error(err, -EINVAL,
                           "FLEET_DATA_ENCRYPTION: AES-GCM needs FLEET_WORLD_SECRET, the same on "
                           "all ranks: the keys are made of it");
    *out = encrypts;
    return 0;
}

static int connect_world(const struct fleet_env *env, int stop, struct comm **out,
                         struct fleet_error *err)
{
    const char *endpoints = getenv("PADDLE_TRAINER_ENDPOINTS");
    struct comm_tcp_options options = {
        .rank = env->rank, .world = env->world, .stop = stop, .neighbours = COMM_NEIGHBOURS_DIRECT};
    const char **addresses;
    char *text;
    int rc;

    if (!endpoints || !endpoints[0])
        return fleet_error(err, -EINVAL, "PADDLE_TRAINER_ENDPOINTS: required for %d ranks",
                           env->world);
    text = strdup(endpoints);
    addresses = calloc((size_t)env->world, sizeof(*addresses));
    rc = !text || !addresses ? fleet_error(err, -ENOMEM, "out of memory")
                             : split_endpoints(text, env->world, addresses, err);
    if (rc == 0)
        rc = world_encryption(&options.encrypts, err);
    if (rc == 0) {
        listener = endpoint_listen(addresses[env->rank], env->rank, err);
        rc = listener < 0 ? listener : 0;
    }
    if (rc == 0) {
        options.addresses = addresses;
        options.listener = listener;
        world_key(endpoints, env->generation, options.key);
        rc = comm_tcp_new(&options, fleet_monotonic_ms() + env->timeout_ms, out, err);
    }
    free(addresses);
    free(text);
    return rc;
}

static void close_listener(void)
{
    if (listener >= 0)
        (void)close(listener);
    listener = -1;
}

/* Takes `comm`, also on failure. Group 0 is the first that is made. */
static int add_group(struct comm *comm, const int *ranks, int count, int timeout_ms,
                     struct fleet_group **out, struct fleet_error *err)
{
    struct fleet_group *group = calloc(1, sizeof(*group)), **end = &groups;
    int *own = calloc((size_t)count, sizeof(*own));

    if (!group || !own) {
        free(group);
        free(own);
        comm_free(comm);
        return fleet_error(err, -ENOMEM, "out of memory");
    }
    for (int i = 0; i < count; i++)
        own[i] = ranks ? ranks[i] : i;
    *group = (struct fleet_group){.id = groups ? ++last_id : 0,
                                  .comm = comm,
                                  .ranks = own,
                                  .count = count,
                                  .timeout_ms = timeout_ms};
    while (*end)
        end = &(*end)->next;
    *end = group;
    *out = group;
    return 0;
}

static void set_abortable(struct comm *comm)
{
    (void)pthread_mutex_lock(&abort_lock);
    abortable = comm;
    (void)pthread_mutex_unlock(&abort_lock);
}

void world_abort(void)
{
    (void)pthread_mutex_lock(&abort_lock);
    if (abortable)
        comm_abort(abortable);
    (void)pthread_mutex_unlock(&abort_lock);
}

int world_connect(int stop, struct fleet_error *err)
{
    struct fleet_env env;
    struct comm *comm = NULL;
    struct fleet_group *world;
    int rc;

    if (groups)
        return 0;
    rc = fleet_env_read(&env, err);
    if (rc == 0 && env.world > 1)
        rc = connect_world(&env, stop, &comm, err);
    else if (rc == 0)
        comm = comm_local_new();
    if (rc == 0)
        rc = add_group(comm, NULL, env.world, env.timeout_ms, &world, err);
    if (rc < 0) {
        close_listener();
        return fleet_error_wrap(err, "fleet_env_init");
    }
    last_id = 0;
    set_abortable(comm);
    return 0;
}

int fleet_env_init(struct fleet_error *err)
{
    return world_connect(-1, err);
}

static void free_group(struct fleet_group *group)
{
    if (group->task)
        task_give_up(group->task);
    comm_free(group->comm);
    free(group->ranks);
    free(group);
}

void fleet_env_release(void)
{
    set_abortable(NULL);
    while (groups) { /* the world last */
        struct fleet_group **at = &groups;
        struct fleet_group *group;
        while ((*at)->next)
            at = &(*at)->next;
        group = *at;
        *at = NULL;
        if (group->task && group->comm)
            comm_abort(group->comm);
        free_group(group);
    }
    close_listener();
}

bool fleet_is_available(void)
{
    return true;
}

bool fleet_is_initialized(void)
{
    return groups != NULL;
}

int fleet_rank(const struct fleet_group *group)
{
    struct fleet_env env;

    if (!group && !groups)
        return fleet_env_read(&env, NULL) == 0 ? env.rank : -1;
    if (!group)
        group = groups;
    return group->comm ? group->comm->rank : -1;
}

int fleet_world_size(const struct fleet_group *group)
{
    struct fleet_env env;

    if (!group && !groups)
        return fleet_env_read(&env, NULL) == 0 ? env.world : -1;
    if (!group)
        group = groups;
    return group->comm ? group->count : -1;
}

/* ---- groups ---------------------------------------------------------------------------------- */

static int compare_ranks(const void *a, const void *b)
{
    int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

int fleet_group_new(const int *ranks, int count, int timeout_ms, struct fleet_group **out,
                    struct fleet_error *err)
{
    const char *what = "fleet_group_new";
    struct fleet_group *world;
    struct comm *comm = NULL;
    int rc = group_ready(what, NULL, &world, err), *sorted;

    if (rc == 0)
        rc = argument_check(out, what, "out", err);
    if (rc < 0)
        return rc;
    if (!ranks)
        count = world->count;
    if (count < 1 || count > world->count)
        return fleet_error(err, -EINVAL, "%s: %d ranks of a world of %d", what, count,
                           world->count);
    if (timeout_ms < 0)
        return fleet_error(err, -EINVAL, "%s: timeout_ms is %d, allowed: 0 or more", what,
                           timeout_ms);
    sorted = calloc((size_t)count, sizeof(*sorted));
    if (!sorted)
        return fleet_error(err, -ENOMEM, "%s: out of memory", what);
    for (int i = 0; i < count; i++)
        sorted[i] = ranks ? ranks[i] : i;
    qsort(sorted, (size_t)count, sizeof(*sorted), compare_ranks);
    rc = comm_group(world->comm, sorted, count, group_deadline(world), &comm, err);
    if (rc < 0)
        rc = fleet_error_wrap(err, "%s", what);
    else
        rc = add_group(comm, sorted, count, timeout_ms ? timeout_ms : world->timeout_ms, out, err);
    free(sorted);
    return rc;
}

struct fleet_group *fleet_group_by_id(int id)
{
    struct fleet_group *group = groups;

    while (group && group->id != id)
        group = group->next;
    return group;
}

int fleet_group_id(const struct fleet_group *group)
{
    return group ? group->id : 0;
}

void fleet_group_free(struct fleet_group *group)
{
    struct fleet_group **at = &groups;

    if (!group || group == groups) {
        fleet_env_release();
        return;
    }
    while (*at && *at != group)
        at = &(*at)->next;
    if (!*at)
        return;
    *at = group->next;
    if (group->task && group->comm)
        comm_abort(group->comm);
    free_group(group);
}

const char *fleet_group_backend(const struct fleet_group *group)
{
    if (!group)
        group = groups;
    return group && group->comm ? "GLOO" : NULL;
}

int group_ready(const char *what, struct fleet_group *group, struct fleet_group **out,
                struct fleet_error *err)
{
    if (!groups)
        return fleet_error(err, FLEET_NOT_INITIALIZED, "%s: call fleet_env_init() first", what);
    if (!group)
        group = groups;
    if (generation_check(what, err) < 0)
        return -ECANCELED;
    if (!group->comm)
        return fleet_error(err, FLEET_NOT_MEMBER, "%s: rank %d is not a member of group %d", what,
                           groups->comm->rank, group->id);
    if (group->task)
        return fleet_error(err, -EBUSY, "%s: group %d has a task in flight: wait for it first",
                           what, group->id);
    *out = group;
    return 0;
}

int group_place(const char *what, const struct fleet_group *group, int rank, int *out,
                struct fleet_error *err)
{
    for (int i = 0; i < group->count; i++)
        if (group->ranks[i] == rank) {
            *out = i;
            return 0;
        }
    return fleet_error(err, -EINVAL, "%s: rank %d is not a member of group %d", what, rank,
                       group->id);
}

double group_deadline(const struct fleet_group *group)
{
    return fleet_monotonic_ms() + group->timeout_ms;
}

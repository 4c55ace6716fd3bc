/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Tasks are handed out by one counter. A loop is announced by a new `round` under the lock; helpers
 * that wake take tasks until none is left and sign off; the caller works too and then waits for the
 * last to sign off, so that no helper still holds the loop's context when run() returns.
 */
#include "agent/runtime/backend/cpu/thread_pool.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/runtime/backend/backend.h"
#include "agent/runtime/backend/cpu/backend_cpu.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"

struct helper {
    struct thread_pool *pool;
    pthread_t thread;
    int number; /* 1 … threads-1 */
};

struct thread_pool {
    int threads;
    int started; /* helpers that exist */
    struct helper *helpers;

    pthread_mutex_t lock; /* guards all below but `next` */
    pthread_cond_t work;  /* a new round, or stopping */
    pthread_cond_t idle;  /* `busy` became 0 */
    uint64_t round;
    int busy; /* helpers that have not signed off from this round */
    bool stopping;

    thread_pool_task task;
    void *context;
    int64_t count;
    _Atomic int64_t next;
};

static void take_tasks(struct thread_pool *pool, int thread)
{
    int64_t i;

    while ((i = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed)) < pool->count)
        pool->task(pool->context, i, thread);
}

static void *helper_main(void *argument)
{
    struct helper *helper = argument;
    struct thread_pool *pool = helper->pool;
    uint64_t seen = 0;

    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (pool->round == seen && !pool->stopping)
            pthread_cond_wait(&pool->work, &pool->lock);
        if (pool->stopping)
            break;
        seen = pool->round;
        pthread_mutex_unlock(&pool->lock);
        take_tasks(pool, helper->number);
        pthread_mutex_lock(&pool->lock);
        if (--pool->busy == 0)
            pthread_cond_signal(&pool->idle);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

static int start_helpers(struct thread_pool *pool, struct fleet_error *err)
{
    for (int i = 1; i < pool->threads; i++) {
        struct helper *helper = &pool->helpers[i - 1];
        int code;

        *helper = (struct helper){.pool = pool, .number = i};
        code = pthread_create(&helper->thread, NULL, helper_main, helper);
        if (code != 0)
            return fleet_error(err, -EAGAIN, "start thread %d of %d: %s", i + 1, pool->threads,
                               strerror(code));
        pool->started++;
    }
    return 0;
}

int thread_pool_new(int threads, struct thread_pool **out, struct fleet_error *err)
{
    struct thread_pool *pool;

    if (threads < 1 || threads > THREAD_POOL_THREADS_MAX)
        return fleet_error(err, -EINVAL, "thread pool: %d threads, must be 1 to %d", threads,
                           THREAD_POOL_THREADS_MAX);
    pool = calloc(1, sizeof(*pool));
    fleet_assert(pool);
    pool->threads = threads;
    pool->helpers = calloc((size_t)threads, sizeof(*pool->helpers));
    fleet_assert(pool->helpers);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    pthread_cond_init(&pool->idle, NULL);
    if (start_helpers(pool, err) < 0) {
        int code = err ? err->code : -EAGAIN;
        thread_pool_free(pool);
        return code;
    }
    *out = pool;
    return 0;
}

void thread_pool_free(struct thread_pool *pool)
{
    if (!pool)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->stopping = true;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < pool->started; i++)
        pthread_join(pool->helpers[i].thread, NULL);
    pthread_cond_destroy(&pool->idle);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->lock);
    free(pool->helpers);
    free(pool);
}

void thread_pool_run(struct thread_pool *pool, int64_t count, thread_pool_task task, void *context)
{
    if (pool->threads == 1 || count <= 1) {
        for (int64_t i = 0; i < count; i++)
            task(context, i, 0);
        return;
    }
    pthread_mutex_lock(&pool->lock);
    fleet_assert(pool->busy == 0);
    pool->task = task;
    pool->context = context;
    pool->count = count;
    atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
    pool->busy = pool->started;
    pool->round++;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);

    take_tasks(pool, 0);

    pthread_mutex_lock(&pool->lock);
    while (pool->busy > 0)
        pthread_cond_wait(&pool->idle, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}

/* ---- how many threads we may use ------------------------------------------------------------- */

int thread_pool_quota_parse(const char *quota, const char *period)
{
    char *rest = NULL;
    long long q, p;

    q = strtoll(quota, &rest, 10);
    if (rest == quota || q <= 0) /* "max" (v2), "-1" (v1) */
        return 0;
    p = strtoll(period ? period : rest, NULL, 10);
    if (p <= 0 || q / p >= THREAD_POOL_THREADS_MAX)
        return 0;
    return (int)((q + p - 1) / p);
}

/* First line of `directory`/`name`; false if it cannot be read. */
static bool read_line(const char *directory, const char *name, char line[64])
{
    char path[4600];
    FLEET_AUTO_FCLOSE FILE *file = NULL;

    (void)snprintf(path, sizeof(path), "%s/%s", directory, name);
    file = fopen(path, "re");
    return file && fgets(line, 64, file);
}

/* The tightest of `limit` and what the files of one cgroup directory say. */
static int directory_quota(const char *directory, int limit)
{
    char quota[64], period[64];
    int found = 0;

    if (read_line(directory, "cpu.max", quota))
        found = thread_pool_quota_parse(quota, NULL);
    else if (read_line(directory, "cpu.cfs_quota_us", quota) &&
             read_line(directory, "cpu.cfs_period_us", period))
        found = thread_pool_quota_parse(quota, period);
    return found > 0 && (limit == 0 || found < limit) ? found : limit;
}

/* Walk from `root``path` up to `root`: a parent's quota binds its children. */
static int path_quota(const char *root, const char *path, int limit)
{
    char directory[4400];
    size_t root_length = strlen(root);

    (void)snprintf(directory, sizeof(directory), "%s%s", root, path);
    for (;;) {
        char *slash;
        limit = directory_quota(directory, limit);
        slash = strrchr(directory, '/');
        if (!slash || (size_t)(slash - directory) < root_length)
            return limit;
        *slash = '\0';
    }
}

/* Our cgroups are the lines number:controllers:path of /proc/self/cgroup. In a container the path
 * may not exist below the mount; then the mount itself is our cgroup. */
static int cgroup_quota(void)
{
    FLEET_AUTO_FCLOSE FILE *file = fopen("/proc/self/cgroup", "re");
    char line[4096];
    int limit = 0;

    while (file && fgets(line, sizeof(line), file)) {
        char *controllers = strchr(line, ':'),
             *path = controllers ? strchr(controllers + 1, ':') : 0;
        if (!path)
            continue;
        *path++ = '\0';
        path[strcspn(path, "\n")] = '\0';
        if (controllers[1] == '\0')
            limit = path_quota("/sys/fs/cgroup", path, limit);
        else if (strstr(controllers, "cpu"))
            limit = path_quota("/sys/fs/cgroup/cpu", path, limit);
    }
    limit = directory_quota("/sys/fs/cgroup", limit);
    return directory_quota("/sys/fs/cgroup/cpu", limit);
}

int backend_cpu_thread_count(void)
{
    cpu_set_t set;
    long count = sysconf(_SC_NPROCESSORS_ONLN);
    int quota = cgroup_quota();

    if (sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) < count)
        count = CPU_COUNT(&set);
    if (quota > 0 && quota < count)
        count = quota;
    if (count > THREAD_POOL_THREADS_MAX)
        count = THREAD_POOL_THREADS_MAX;
    return count < 1 ? 1 : (int)count;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/rpc/pool.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "include/fleet/fleet_rpc.h"

struct rpc_pool {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct rpc_job *first, **last;
    int waiting; /* jobs in the list */
    int idle, threads;
    pthread_t thread[FLEET_RPC_THREADS_MAX];
    bool must_stop;
};

static struct rpc_job *take(struct rpc_pool *pool)
{
    struct rpc_job *job = pool->first;

    pool->first = job->next;
    if (!pool->first)
        pool->last = &pool->first;
    pool->waiting--;
    return job;
}

static void *work(void *data)
{
    struct rpc_pool *pool = data;
    sigset_t all;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_BLOCK, &all, NULL);
    (void)pthread_mutex_lock(&pool->lock);
    while (pool->first || !pool->must_stop) {
        struct rpc_job *job;
        if (!pool->first) {
            pool->idle++;
            (void)pthread_cond_wait(&pool->changed, &pool->lock);
            pool->idle--;
            continue;
        }
        job = take(pool);
        (void)pthread_mutex_unlock(&pool->lock);
        job->run(job);
        (void)pthread_mutex_lock(&pool->lock);
    }
    (void)pthread_mutex_unlock(&pool->lock);
    return NULL;
}

int rpc_pool_new(struct rpc_pool **out, struct fleet_error *err)
{
    struct rpc_pool *pool = calloc(1, sizeof(*pool));

    if (!pool)
        return fleet_error(err, -ENOMEM, "out of memory");
    pool->last = &pool->first;
    (void)pthread_mutex_init(&pool->lock, NULL);
    (void)pthread_cond_init(&pool->changed, NULL);
    *out = pool;
    return 0;
}

void rpc_pool_add(struct rpc_pool *pool, struct rpc_job *job)
{
    struct rpc_job *here = NULL;

    job->next = NULL;
    (void)pthread_mutex_lock(&pool->lock);
    *pool->last = job;
    pool->last = &job->next;
    pool->waiting++;
    if (pool->waiting > pool->idle && pool->threads < FLEET_RPC_THREADS_MAX &&
        pthread_create(&pool->thread[pool->threads], NULL, work, pool) == 0)
        pool->threads++;
    if (pool->threads == 0)
        here = take(pool);
    (void)pthread_cond_signal(&pool->changed);
    (void)pthread_mutex_unlock(&pool->lock);
    if (here)
        here->run(here);
}

void rpc_pool_free(struct rpc_pool *pool)
{
    if (!pool)
        return;
    (void)pthread_mutex_lock(&pool->lock);
    pool->must_stop = true;
    (void)pthread_cond_broadcast(&pool->changed);
    (void)pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < pool->threads; i++)
        (void)pthread_join(pool->thread[i], NULL);
    (void)pthread_cond_destroy(&pool->changed);
    (void)pthread_mutex_destroy(&pool->lock);
    free(pool);
}

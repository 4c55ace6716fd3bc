/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_BACKEND_CPU_THREAD_POOL_H
#define AGENT_RUNTIME_BACKEND_CPU_THREAD_POOL_H

/*
 * A few threads that run the tasks of one loop together.
 *
 * The caller cuts the work into tasks by its shape alone; any thread may run any task. So a task
 * must write only what no other task of the loop writes, and the result does not depend on the
 * number of threads. Waiting threads sleep: other processes share our cores.
 *
 * One loop at a time: thread_pool_run() is called by one thread, and a task never calls it.
 */

#include <stdint.h>

struct fleet_error;
struct thread_pool;

#define THREAD_POOL_THREADS_MAX 1024

/* `thread` is 0 … threads-1, the same for all tasks that one thread runs; 0 is the caller. */
typedef void (*thread_pool_task)(void *context, int64_t task, int thread);

/* A pool of `threads` (1 … THREAD_POOL_THREADS_MAX), the calling thread counted.
 * -EAGAIN if the system gives no more threads. */
int thread_pool_new(int threads, struct thread_pool **out, struct fleet_error *err);
void thread_pool_free(struct thread_pool *pool); /* NULL is fine */

/* Run task(context, 0 … count-1, thread) and return when all have finished. */
void thread_pool_run(struct thread_pool *pool, int64_t count, thread_pool_task task, void *context);

/*
 * What a cgroup's files allow, in processors rounded up; 0 = no limit. `quota`, `period` are the
 * texts of cgroup v2's cpu.max (quota = "max 100000" or "150000 100000", period NULL) or of v1's
 * cpu.cfs_quota_us and cpu.cfs_period_us.
 */
int thread_pool_quota_parse(const char *quota, const char *period);

#endif

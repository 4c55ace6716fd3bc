/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_BACKEND_CPU_THREAD_POOL_H
#define AGENT_RUNTIME_BACKEND_CPU_THREAD_POOL_H

/*
 * A few threads that run the tasks of one loop together.
 *
 * The caller cuts the work into tasks by its shape only, and any thread may run any task. A task
 * writes only memory that no other task of the loop writes. So the result does not depend on the
 * number of threads. Waiting threads sleep, because other processes share our cores.
 *
 * One loop at a time: thread_pool_run() is called by one thread, and a task never calls it.
 */

#include <stdint.h>

struct fleet_error;
struct thread_pool;

#define THREAD_POOL_THREADS_MAX 1024

/* `thread` is 0 … threads-1, the same for all tasks that one thread runs; 0 is the caller. */
typedef void (*thread_pool_task)(void *context, int64_t task, int thread);

/* A pool of `threads` (1 … THREAD_POOL_THREADS_MAX) threads, including the calling one. -EAGAIN if
 * the system cannot create so many. */
int thread_pool_new(int threads, struct thread_pool **out, struct fleet_error *err);
void thread_pool_free(struct thread_pool *pool); /* NULL is fine */

/* Run task(context, 0 … count-1, thread) and return when all have finished. */
void thread_pool_run(struct thread_pool *pool, int64_t count, thread_pool_task task, void *context);

/*
 * The CPU limit of a cgroup, in processors, rounded up; 0 = no limit. `quota` and `period` are the
 * texts of cgroup v2's cpu.max (quota = "max 100000" or "150000 100000", period NULL) or of v1's
 * cpu.cfs_quota_us and cpu.cfs_period_us.
 */
int thread_pool_quota_parse(const char *quota, const char *period);

#endif

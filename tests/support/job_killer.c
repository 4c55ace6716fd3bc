/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/job_killer.h"

#include <signal.h>
#include <stdint.h>
#include <stdlib.h>

#include "libfleet/base/json.h"

#define PROCESSES_MAX 16
#define STRIKE_TRIES  5

bool job_killer_is_over(const struct job_killer *killer, const struct job_run *run)
{
    int64_t newest = 0;

    if (killer->sent == 0)
        return true;
    if (run->restart_count < killer->restarts || run->step_count == 0)
        return false;
    (void)fleet_json_opt_int(run->last_restart, "generation", &newest, NULL);
    return run->steps[run->step_count - 1].generation >= newest;
}

static int choose(struct job_killer *killer, int limit)
{
    return (killer->seed ? rand_r(&killer->seed) : killer->sent) % limit;
}

void job_killer_watch(void *context, struct job_run *run, const cJSON *event)
{
    struct job_killer *killer = context;
    int count, before = killer->sent;
    pid_t pids[PROCESSES_MAX];

    (void)event;
    if (killer->next_at == 0)
        killer->next_at = killer->every;
    if (killer->rounds == 0 || run->step_count < killer->next_at ||
        !job_killer_is_over(killer, run))
        return;
    count = killer->agents ? job_run_agents(run->pid, pids, PROCESSES_MAX)
                           : job_run_trainers(run->pid, pids, PROCESSES_MAX);
    for (int i = 0; i < killer->victims && count > 0; i++) {
        int victim = killer->first ? 0 : choose(killer, count);
        killer->sent += kill(pids[victim], SIGKILL) == 0;
        pids[victim] = pids[--count];
    }
    if (killer->sent == before)
        return;
    killer->rounds--;
    killer->restarts = run->restart_count + 1;
    killer->next_at = run->step_count + killer->every;
    if (killer->spread > 0)
        killer->next_at += choose(killer, killer->spread + 1);
}

void job_strike_watch(void *context, struct job_run *run, const cJSON *event)
{
    struct job_strike *strike = context;
    pid_t pids[PROCESSES_MAX];
    int count;

    (void)event;
    if (strike->sent || run->step_count != strike->at)
        return;
    count = job_run_trainers(run->pid, pids, PROCESSES_MAX);
    strike->sent = count > 0 && kill(pids[strike->at % count], SIGKILL) == 0;
}

bool job_strike_until_hit(job_strike_of strike, const void *context, int steps)
{
    bool is_hit = false;

    for (int i = 0; i < STRIKE_TRIES && !is_hit; i++, steps *= 2)
        is_hit = strike(context, steps);
    return is_hit;
}

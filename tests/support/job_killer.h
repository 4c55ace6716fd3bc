/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SUPPORT_JOB_KILLER_H
#define TESTS_SUPPORT_JOB_KILLER_H

/*
 * Kills processes of a job, again and again, each time after the job has recovered from the last
 * time. A reader may be late, so a number of steps that it has read says nothing about recovery.
 *
 * The job keeps its state through all kills in two cases:
 *  (1) It has more workers than `victims` times `rounds`: one worker is never killed.
 *  (2) Its minReplicas is the number of its workers, and more of them than `victims`. Then a step
 *      after a restart proves that each worker has the state again.
 * In any other case the test sets job_run_may_lose_state.
 *
 *     struct job_killer killer = {.every = 12, .rounds = 3, .victims = 1};
 *     job_run(arguments, limit_s, job_killer_watch, &killer, &run);
 */

#include <stdbool.h>

#include <cjson/cJSON.h>

#include "tests/support/job_run.h"

struct job_killer {
    int every;         /* steps between the start, or a kill, and the next one, at least */
    int spread;        /* up to so many more steps, by chance */
    int rounds;        /* how often it kills; counted down */
    int victims;       /* processes at once */
    bool agents;       /* kill agents, not trainers */
    bool first;        /* always the first process found, which is rank 0's at the start */
    unsigned int seed; /* which process, and `spread`; 0 = each of them in turn */

    /* set by the killer */
    int sent;              /* processes that it has killed */
    int next_at, restarts; /* the next one comes after so many steps, and restarts */
};

/* Has the job made a step in the newest generation after the last kill? */
bool job_killer_is_over(const struct job_killer *killer, const struct job_run *run);

/* A job_run_watch; `context` is the killer. */
void job_killer_watch(void *context, struct job_run *run, const cJSON *event);

/* One kill of one trainer, whether the job recovers or not. A job may be over before. */
struct job_strike {
    int at; /* when this step has been read */
    bool sent;
};

/* A job_run_watch; `context` is the strike. */
void job_strike_watch(void *context, struct job_run *run, const cJSON *event);

/*
 * Run a job of `steps` steps and strike it. `strike` returns whether the job was hit while it ran.
 * The reader may be so late that the job is over first. Then a job of twice the steps is run, five
 * times at most. Returns whether one of them was hit.
 */
typedef bool (*job_strike_of)(const void *context, int steps);
bool job_strike_until_hit(job_strike_of strike, const void *context, int steps);

#endif

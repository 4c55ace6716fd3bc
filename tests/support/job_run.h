/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SUPPORT_JOB_RUN_H
#define TESTS_SUPPORT_JOB_RUN_H

/*
 * Runs `fleetjob run --json` as a user does, and reads its output.
 *
 * The programs are those of $FLEET_BIN (tests/run.sh sets it), so the same tests run on the
 * sanitizer builds. Processes are found by parent through /proc, so a test can kill any of them.
 */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <cjson/cJSON.h>

#define JOB_RUN_STEPS_MAX 20000

struct job_step {
    int64_t step, generation, tokens;
    double loss;
    double grad_norm, learning_rate; /* NaN where the batch made no update */
};

/* Set by a test that kills all workers that hold the newest state. Otherwise the event "stateLost"
 * is a problem of the run. */
extern bool job_run_may_lose_state;

struct job_run {
    pid_t pid;     /* of fleetjob while it runs */
    int exit_code; /* 128 + signal if ended by one */
    struct job_step *steps;
    int step_count, restart_count, checkpoint_count, evaluation_count;
    cJSON *plan, *end, *last_restart; /* events, owned; NULL if there was none */
    char state[32];                   /* of the end event, "" without one */
    char sha256[65];
    double loss;
    char *errors;      /* all of standard error */
    char problem[256]; /* what contradicts the contract of --json ("" = nothing): not JSON, a step
                          twice or out of order, an event after the end */
};

/* Called for each event while the job runs; may kill processes. NULL: nothing. */
typedef void (*job_run_watch)(void *context, struct job_run *run, const cJSON *event);

/*
 * Run fleetjob with `arguments` (NULL at the end; "run" and "--json" are put in front) and wait.
 * *out must be released. Never longer than `limit_s` seconds: then it is killed and `problem` says
 * so.
 */
void job_run(const char *const *arguments, double limit_s, job_run_watch watch, void *context,
             struct job_run *out);
void job_run_release(struct job_run *run);

/* Run any of our programs and wait: exit code; standard output and error into heap texts (either
 * may be NULL). */
int job_run_command(const char *program, const char *const *arguments, char **out_text,
                    char **out_errors);

/* Processes whose parent is `parent` and whose program is called `name`; returns how many. */
int job_run_children(pid_t parent, const char *name, pid_t *out, int capacity);

/* Trainers (grandchildren) of the fleetjob process `pid`, and its agents. */
int job_run_trainers(pid_t pid, pid_t *out, int capacity);
int job_run_agents(pid_t pid, pid_t *out, int capacity);

/* How many processes of `pids` still run after waiting up to `wait_s` for them to end. */
int job_run_left(const pid_t *pids, int count, double wait_s);

/* A fresh folder below $TMPDIR or /tmp; heap text. job_run_remove() deletes it with all in it. */
char *job_run_folder(void);
void job_run_remove(const char *folder);

#endif

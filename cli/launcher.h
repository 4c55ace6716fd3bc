/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_LAUNCHER_H
#define CLI_LAUNCHER_H

/*
 * Pods on one machine: each is a fleetjob-agent process with the environment of a pod.
 *
 * Invariants
 *  (1) A pod's processes form a session of their own, so signals of the terminal do not reach them.
 *      When its agent ends, the launcher kills the rest of the session.
 *  (2) An agent dies with this process, even if that is killed; its trainers die with the agent.
 *  (3) A pod that has ended stays in the list, with its exit status, until it is deleted.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct fleet_error;
struct launcher;
struct uv_loop_s;

struct launcher_pod {
    char *name;   /* <job>-worker-<index>-<attempt> */
    char uid[40]; /* unpredictable */
    int index, attempt;
    pid_t pid; /* of the agent; 0 = has ended */
    bool is_deleting;
    int exit_code; /* once ended: 128 + signal if one ended it */
    char *message; /* why it could not be started, "" = it was */
    int64_t started_wall_ms, finished_wall_ms;
};

struct launcher_config {
    struct uv_loop_s *loop;
    const char *agent_path;
    const char *folder; /* for what pods need; ca.pem, token and job.json lie there */
    const char *job_name, *job_uid;
    int processes;            /* trainers of each pod */
    int threads;              /* compute threads of each trainer, >= 1 */
    double grace_ms;          /* from asking a pod to end to killing it */
    char *const *command;     /* of an own trainer, NULL-terminated, or NULL */
    char *const *environment; /* of the job's container, "NAME=value", NULL-terminated, or NULL */
    bool is_verbose;          /* agents log decisions, too */

    /* A pod has ended, or could not be started. */
    void (*ended)(void *user, const struct launcher_pod *pod);
    /* A line of a pod's output. */
    void (*line)(void *user, const struct launcher_pod *pod, bool is_error, const char *text);
    void *user;
};

/* Everything in `config` but the loop is copied. `hub_port` is where the hub listens on loopback.
 * -errno if SIGCHLD cannot be watched. */
int launcher_new(const struct launcher_config *config, int hub_port, struct launcher **out,
                 struct fleet_error *err);

/* Kills what still runs and waits for its end. Afterwards the loop must run once more before it is
 * closed. NULL is fine. */
void launcher_free(struct launcher *launcher);

/* Start a pod. One that cannot be started is in the list as ended with exit code 127. */
void launcher_create(struct launcher *launcher, int index, int attempt);

/* Delete a pod: one that runs is asked to end (SIGTERM) and killed later, or killed at once; then
 * it leaves the list. */
void launcher_delete(struct launcher *launcher, const char *name, bool at_once);

/* SIGKILL to all that runs. */
void launcher_kill_all(struct launcher *launcher);

/* The pods, borrowed until the next call or turn of the loop. */
size_t launcher_count(const struct launcher *launcher);
const struct launcher_pod *launcher_at(const struct launcher *launcher, size_t i);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_SETTINGS_H
#define AGENT_SETTINGS_H

/*
 * The settings of an agent: from the environment of its pod in a cluster, from `fleetjob run` on
 * one machine. All of it comes through environment variables; the command line holds the trainer's
 * command, if it is not the built-in one.
 *
 *   FLEET_JOB_NAME, FLEET_JOB_UID       the job
 *   FLEET_POD_NAME, FLEET_POD_UID       the pod; the UID is the member's identity
 *   FLEET_INDEX, FLEET_ATTEMPT          of the pod, from 0; default: as the pod's name says
 *                                       (worker_name.h)
 *   FLEET_PROCESSES                     trainers in this pod, default 1
 *   FLEET_ADDRESS                       where peers reach this pod's trainers, default 127.0.0.1
 *   FLEET_HUB                           "host:port" of the hub, "[host]:port" with colons in it
 *   FLEET_HUB_FILE                      a file that says it instead, default none
 *   FLEET_CA_FILE, FLEET_TOKEN_FILE     files with the hub's CA and the job's token
 *   FLEET_JOB_FILE                      the job for the trainer (link.h)
 *   FLEET_LOG_FORMAT                    text or json, of agent and trainers; absent = text
 *   FLEET_THREADS                       compute threads of each trainer; absent = its own choice
 *   FLEET_GRACE_SECONDS                 from SIGTERM to SIGKILL, default 30
 *   FLEET_TERMINATION_FILE              where the last report goes, default none
 *   FLEET_ENVIRONMENT_FILE              a file with more of these, a line NAME=value each, default
 *                                       none. A variable that is set wins over the file.
 *
 * The files about the hub may change while the agent runs: a new installation of the controller
 * writes them again.
 */

#include <stdbool.h>

struct fleet_error;

/* The address of the hub, and the secrets with which hub and agent identify each other. */
struct settings_hub {
    char *host;
    int port;
    bool may_move;        /* a file says where it is: another hub follows one that is lost */
    char *ca_pem, *token; /* contents of the files */
};

struct settings {
    char *job_name, *job_uid;
    char *pod_name, *pod_uid;
    int index, attempt;
    int processes;
    char *address;
    struct settings_hub hub;
    char *job_file; /* NULL = none (own trainers need none) */
    double grace_ms;
    char *termination_file; /* NULL = none */
    char **command;         /* of an own trainer, NULL-terminated, borrowed; NULL = built-in */
    char *trainer_path;     /* fleetjob-train beside this program */
};

/*
 * Read all of it, and set the variables that only the file has: call it before any thread starts.
 * `arguments` is what follows the options on the command line. -EINVAL names the variable, its
 * value and what is allowed; -errno for a file that cannot be read.
 */
int settings_read(char **arguments, struct settings *out, struct fleet_error *err);

/* Free what it holds and zero it. Fine on a zeroed one. */
void settings_release(struct settings *settings);

/* The present settings about the hub; errors as of settings_read(). */
int settings_read_hub(struct settings_hub *out, struct fleet_error *err);
void settings_release_hub(struct settings_hub *hub);

/* "host:port" or "[host]:port" into heap host and port; -EINVAL names `what`. */
int settings_split_address(const char *what, const char *text, char **out_host, int *out_port,
                           struct fleet_error *err);

#endif

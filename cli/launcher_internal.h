/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_LAUNCHER_INTERNAL_H
#define CLI_LAUNCHER_INTERNAL_H

/* What the files of launcher.h share, for them alone. */

#include <uv.h>

#include "cli/launcher.h"

struct line_stream;

struct pod {
    struct launcher_pod public; /* first: what launcher_at() shows */
    struct launcher *launcher;
    struct line_stream *streams[2];
    uv_timer_t *kill_timer; /* NULL = not being deleted */
};

struct launcher {
    struct launcher_config config;
    char *folder, *agent_path, *job_name, *job_uid;
    char **command, **environment;
    int hub_port;
    uv_signal_t *sigchld;
    struct pod **pods; /* [count] */
    size_t count;
};

/* ---- launcher_environment.c ------------------------------------------------------------------ */

struct variables {
    char **items; /* NULL-terminated */
    size_t count;
};

/*
 * As in a cluster: the variables of a pod, then those of the job's container that the pod does not
 * set, then our own environment, without FLEET_* variables that only a pod has.
 */
struct variables launcher_make_environment(const struct pod *pod);
void launcher_free_variables(struct variables *v);

/* argv of the agent: heap array, borrowed texts. */
char **launcher_make_arguments(const struct launcher *l);

#endif

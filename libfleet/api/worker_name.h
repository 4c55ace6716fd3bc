/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_API_WORKER_NAME_H
#define LIBFLEET_API_WORKER_NAME_H

/*
 * The name of a worker's pod: <job>-worker-<index>-<attempt>. Labels can be changed, names cannot,
 * so controller and agent read index and attempt from the name. A server keeps its name.
 */
#include <stdbool.h>

/* No job reaches this number of attempts: a greater number in a label or the status was written by
 * hand. */
#define WORKER_NAME_ATTEMPT_MAX 1000000000

/* The name, heap. */
char *worker_name_build(const char *job, int index, int attempt);

/* Index and attempt by a pod's name. False: the job `job` has no worker of that name. */
bool worker_name_parse(const char *pod, const char *job, int *out_index, int *out_attempt);

/* The name of a server's pod: <job>-server-<index>, heap; and the index by such a name. */
char *server_name_build(const char *job, int index);
bool server_name_parse(const char *pod, const char *job, int *out_index);

#endif

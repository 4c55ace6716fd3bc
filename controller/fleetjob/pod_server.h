/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_POD_SERVER_H
#define CONTROLLER_FLEETJOB_POD_SERVER_H

/*
 * The variables of a parameter server, for both sides. They are those of Paddle's launcher, as
 * `fleetjob launch --server_num` gives them (cli/launch_environment.c).
 *
 * All servers have one address, that of their Service, and server I has port 6174 + I. The port of
 * the Service leads to the port of that name, server-I, which only the pod of server I has. So the
 * address of a server stays when its pod is replaced, and no DNS is needed.
 */

#include "controller/fleetjob/pod_builder.h"

/* Add a worker's variables to `env`: its role, the servers and the secret. The agent adds the
 * others. Does nothing without spec.server. */
void pod_server_set_worker(const struct pod_builder_request *request, cJSON *env);

/* The port of that server, 6174 …, and its name, "server-I", heap. */
int pod_server_port(int index);
char *pod_server_port_name(int index);

/* Key of the job's Secret with FLEET_WORLD_SECRET. It is there if the job has spec.server. */
#define POD_SERVER_SECRET_KEY "world-secret"

#endif

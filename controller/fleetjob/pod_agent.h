/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_POD_AGENT_H
#define CONTROLLER_FLEETJOB_POD_AGENT_H

/*
 * The parts of a pod that the agent needs, laid over the user's pod, so that no template can
 * replace the agent. Parts of pod_builder_build(); `container` is the first of the pod's.
 */

#include <stdbool.h>

#include "controller/fleetjob/pod_builder.h"

/* Does the image of the first container, asked for as `asked`, have the agent itself? */
bool pod_agent_is_in_image(const struct pod_builder_request *request, const char *asked);

/* The agent becomes the command of the container, or takes the place of its ENTRYPOINT, with the
 * variables that it reads. */
void pod_agent_set_command(const struct pod_builder_request *request, cJSON *container,
                           bool is_in_image);

/* The job's Secret, and a memory volume for /dev/shm unless the user has one. */
void pod_agent_add_volumes(const struct pod_builder_request *request, cJSON *spec,
                           cJSON *container);

/* An init container copies the agent into another image than the runtime's. */
void pod_agent_bring(const struct pod_builder_request *request, cJSON *spec, cJSON *container);

/* The settings of the agents of all workers (agent/settings.h): a list as a container's env. Owned
 * by the caller. */
cJSON *pod_agent_common_variables(const struct fleetjob *job);

#endif

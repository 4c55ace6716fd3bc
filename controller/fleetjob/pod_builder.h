/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_POD_BUILDER_H
#define CONTROLLER_FLEETJOB_POD_BUILDER_H

/*
 * The pod of one worker: a pure function of the job, the worker and the installation's settings.
 *
 * The user's settings (worker.template, or image, resources and volumes) stay; on top of it come
 * the agent as the first container's command, its environment (agent/settings.h), the job's Secret,
 * a memory volume for /dev/shm, and the pod security that the "restricted" standard asks for, where
 * the user has not said otherwise.
 *
 * A worker of the built-in trainer requests the memory that its plan needs and
 * POD_BUILDER_CPU_REQUEST for each process, unless the user gives a request or a limit of that
 * resource: otherwise it would be of the class BestEffort, the first to be evicted.
 *
 * An own trainer without `command` keeps the ENTRYPOINT of its image and its `args`: the agent
 * takes its place when it is started (agent/entrypoint/entrypoint.h), and a postStart hook stops
 * the container if it does not.
 *
 * The agent comes with its trainer and libraries below POD_BUILDER_AGENT_FOLDER. The runtime's own
 * image has them there; into another image an init container copies them.
 */

#include <cjson/cJSON.h>

#include "controller/fleetjob/gang.h"
#include "libfleet/api/fleetjob.h"
#include "libfleet/api/wellknown.h"

#define POD_BUILDER_AGENT_FOLDER "/fleetjob"
#define POD_BUILDER_AGENT        POD_BUILDER_AGENT_FOLDER "/bin/fleetjob-agent"
#define POD_BUILDER_JOB_FOLDER   "/run/fleetjob" /* the Secret, see job_secret.h */
#define POD_BUILDER_USER         WELLKNOWN_WORKER_USER

/* For a last checkpoint, unless the template says otherwise. */
#define POD_BUILDER_GRACE_SECONDS    30
#define POD_BUILDER_TERMINATION_FILE "/dev/termination-log"

#define POD_BUILDER_CPU_REQUEST \
    100 /* thousandths of a processor: a share, not what training uses */

struct pod_builder_request {
    const struct fleetjob *job;
    int index, attempt;
    const char *runtime_image;  /* of the installation, … */
    const char *cuda_image;     /* … with CUDA's libraries; NULL or "": there is none */
    const char *pull_policy;    /* of both images; NULL or "" = Kubernetes' default */
    bool has_json_logs;         /* of agent and trainers, unless the container says otherwise */
    const char *hub_address;    /* host:port that agents dial */
    const char *secret;         /* name of the job's Secret, see job_secret.h */
    enum gang_scheduler gang;   /* whose group of pods it belongs to */
    const char *server_address; /* of the Service of the servers; NULL or "" = not known */
    bool encrypts;              /* servers encrypt (runPolicy.dataEncryption) */
    int64_t worker_bytes;       /* that the plan says a worker needs; 0 = not known */
    const char *avoid_node;     /* node to avoid; NULL or "" = none */
};

/* Owned by the caller. The job must be valid, with name and UID. */
cJSON *pod_builder_build(const struct pod_builder_request *request);

/* The image of a container, with the installation's pull policy if it has none. For the files that
 * build pods. */
void pod_builder_set_image(const struct pod_builder_request *request, cJSON *container,
                           const char *image);

/* The digest that the pod has as an annotation: of all of it except the node to avoid. */
const char *pod_builder_hash(const cJSON *pod);

#define POD_BUILDER_SERVER_PORT 6174 /* of server 0; the others have the next ones */

/* The pod of a server: the user's template with the variables of the parameter server
 * (pod_server.c). The index is that of the server; the attempt is not read. Owned by the caller. */
cJSON *pod_builder_build_server(const struct pod_builder_request *request);

/* Name of the headless Service that gives pods names for people: <job>-workers. Heap. */
char *pod_builder_service_name(const char *job);

/* Name of the Service in front of the servers: <job>-servers. Heap. */
char *pod_builder_servers_name(const char *job);

#endif

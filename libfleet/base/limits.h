/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_BASE_LIMITS_H
#define LIBFLEET_BASE_LIMITS_H

/*
 * How large a job may be, and the messages that introduce its workers to each other. All code that
 * checks, stores or sends a number of workers or ranks takes its limit from here, so that a job
 * that `validate` accepts can be trained.
 *
 *   limit                    checked by                          used by
 *   FLEET_WORKERS_MAX        spec.worker (schema)                hub: members of a generation
 *   FLEET_SERVERS_MAX        spec.server (schema)                servers of parameters (fleet_ps.h)
 *   FLEET_PROCESSES_MAX      spec.worker.processesPerPod         hub, agent: trainers of a worker
 *   FLEET_WORLD_MAX          validation, --world-size            hub, agent, trainer: ranks
 *   FLEET_MESSAGE_MAX        hub and agent, each message         `assign` of FLEET_WORLD_MAX ranks
 *   FLEET_LINK_MESSAGE_MAX   agent and trainer, each message     `assign` of FLEET_WORLD_MAX ranks
 *   FLEET_HUB_PEER_BYTES     hub's server                        bytes that wait for a slow member,
 *   FLEET_HUB_JOB_BYTES      hub's server                        held for the members of a job,
 *   FLEET_HUB_NAMESPACE_BYTES  hub's server                      of a namespace,
 *   FLEET_HUB_BYTES          hub's server                        of all: the hub's part of the
 *                                                                controller's memory
 *
 * tests/unit/test_limits.c encodes the largest job in both protocols.
 */

#define FLEET_WORKERS_MAX   4096  /* pods of a job */
#define FLEET_SERVERS_MAX   256   /* pods with servers of parameters */
#define FLEET_PROCESSES_MAX 64    /* trainers of a pod */
#define FLEET_WORLD_MAX     65536 /* ranks of a job; fewer than workers times processes */

#define FLEET_ADDRESS_MAX 64 /* bytes of a worker's address, without the port */

/* Bytes of a message between hub and agent. An `assign` has one entry of at most 250 bytes for each
 * worker, and one port for each rank. */
#define FLEET_MESSAGE_MAX (2u << 20)

/* Bytes of a message between agent and trainer. An `assign` has one quoted "address:port" for each
 * rank. */
#define FLEET_LINK_MESSAGE_MAX (8 << 20)

/* Bytes that the hub's server holds: messages whose end has not arrived, and messages that a member
 * has not read yet. A text for many members is counted once. */
#define FLEET_HUB_PEER_BYTES      (16u << 20)
#define FLEET_HUB_JOB_BYTES       (32u << 20)
#define FLEET_HUB_NAMESPACE_BYTES (64u << 20)
#define FLEET_HUB_BYTES           (128u << 20) /* a quarter of the chart's limit */

#endif

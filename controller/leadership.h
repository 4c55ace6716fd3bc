/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_LEADERSHIP_H
#define CONTROLLER_LEADERSHIP_H

/*
 * The parts that run only while this replica leads: the server of the hubs with its certificate,
 * the upkeep of the installation's objects (installation.h), and the memory of jobs that are gone.
 */
#include <stdbool.h>
#include <uv.h>

#include "controller/command_line.h"
#include "controller/fleetjob/hub_host.h"
#include "controller/fleetjob/install_identity.h"
#include "controller/refusal_log.h"

struct fleet_error;
struct kube_io;
struct leadership;

struct leadership_options { /* borrowed for its life */
    uv_loop_t *loop;
    struct kube_io *io;
    const struct command_line *arguments;
    const struct install_identity *identity;
    const cJSON *service; /* the hub's, as it was read at the start; NULL without one */
    struct refusal_log *refusals;
    bool (*leads)(void *user);                                   /* still? */
    void (*on_moved)(void *user, const struct fleet_error *err); /* installation.h (2) */
    void (*on_trouble)(void *user, const char *what, const struct fleet_error *err);
    void *user;
};

/* -errno if the server cannot be opened: no certificate, or its port is in use. */
int leadership_new(const struct leadership_options *options, struct leadership **out,
                   struct fleet_error *err);

/* All users of the network must be gone. NULL is fine. */
void leadership_free(struct leadership *leadership);

/* Where hubs meet their members. */
struct hub_network leadership_network(const struct leadership *leadership);

/* For metrics. NULL for NULL. */
const struct hub_server *leadership_hub_server(const struct leadership *leadership);
const char *leadership_certificate_pem(const struct leadership *leadership);

#endif

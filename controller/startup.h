/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_STARTUP_H
#define CONTROLLER_STARTUP_H

/*
 * The facts that the controller reads from the cluster before it handles jobs: the address that
 * agents dial, and the identity of the installation. A read that fails is repeated every 2 s,
 * without end.
 *
 *   Service ──▶ address ──▶ identity Secret ──▶ on_ready
 */
#include <cjson/cJSON.h>

#include "controller/fleetjob/install_identity.h"

struct fleet_error;
struct kube_io;
struct startup;

struct startup_result { /* owned by on_ready from then on */
    char *hub_address;  /* "host:port" */
    cJSON *service;     /* the hub's; NULL if the address was given */
    struct install_identity identity;
};

struct startup_options { /* texts are borrowed for its life */
    struct kube_io *io;
    const char *namespace_;
    const char *hub_service; /* its cluster IP is the address; or NULL, … */
    const char *hub_address; /* … and this is it */
    int hub_port;
    const char *identity_secret;
    void (*on_ready)(void *user, struct startup_result *result); /* once */
    /* The Service can never have an address; instead of on_ready. */
    void (*on_failed)(void *user, const char *what, const struct fleet_error *err);
    void (*on_trouble)(void *user, const char *what, const struct fleet_error *err);
    void *user;
};

/* Begins at once. `options` are copied. */
struct startup *startup_new(const struct startup_options *options);

/* Cancels requests under way. NULL is fine. */
void startup_free(struct startup *startup);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_INSTALLATION_H
#define CONTROLLER_FLEETJOB_INSTALLATION_H

/*
 * What the leader keeps in order beside the jobs, every INSTALLATION_PERIOD_MS:
 *
 *   the hub's Service      deleted: made again with its labels, annotations and address, so that
 *                          agents find it; another port, or a selector: put right
 *   its EndpointSlice      applied: it names this replica
 *   the identity Secret    deleted: made again from what this process has in memory;
 *                          owned by something: freed, so that nothing takes it along
 *
 *  (1) Only the leader writes: each request is checked when it leaves (leader_io.h).
 *  (2) If the Service cannot get its address again, `on_moved` is called: what rests on the address
 *      must begin again.
 */

#include <stdbool.h>

#include <cjson/cJSON.h>

#include "controller/fleetjob/install_identity.h"

struct fleet_error;
struct installation;
struct kube_io;

#define INSTALLATION_PERIOD_MS 10000.0

struct installation_options { /* texts are borrowed for its life */
    struct kube_io *io;
    const char *namespace_;
    const char *service; /* of the hub; NULL: agents find it by other means */
    const char *address; /* of this replica; not used without a Service … */
    int port;            /* … and the hub's port, which is the Service's, too */
    const char *identity_secret;
    const struct install_identity *identity;
    bool (*may_write)(void *user);                               /* does this replica lead? */
    void (*on_moved)(void *user, const struct fleet_error *err); /* once; NULL = not called */
    void (*on_trouble)(void *user, const char *what, const struct fleet_error *err);
    void *user;
};

/* Begins at once. `service` is the hub's Service as it was read last, copied; NULL without one. */
struct installation *installation_new(const struct installation_options *options,
                                      const cJSON *service);

/* What is on its way is forgotten. NULL is fine. */
void installation_free(struct installation *installation);

#endif

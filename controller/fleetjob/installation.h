/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_INSTALLATION_H
#define CONTROLLER_FLEETJOB_INSTALLATION_H

/*
 * Objects of the installation that the leader checks and repairs every INSTALLATION_PERIOD_MS:
 *
 *   the hub's Service      If it was deleted, the leader makes it again with its labels,
 *                          annotations and address, so that agents find it. A wrong port or a
 *                          selector is corrected.
 *   its EndpointSlice      The leader applies it: it names this replica.
 *   the identity Secret    If it was deleted, the leader makes it again from memory. An owner
 *                          reference is removed, so that the Secret is not deleted with its owner.
 *
 *  (1) Only the leader writes: each request is checked when it leaves (leader_io.h).
 *  (2) If the Service cannot get its address again, `on_moved` is called: agents know only the old
 *      address, so what uses it must begin again.
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

/* Requests under way are dropped. NULL is fine. */
void installation_free(struct installation *installation);

#endif

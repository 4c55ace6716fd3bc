/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_INSTALL_IDENTITY_H
#define CONTROLLER_FLEETJOB_INSTALL_IDENTITY_H

/*
 * What makes an installation itself: the CA of its hubs and the key that job tokens derive from. Both
 * lie in one Secret of the controller's namespace. The first replica makes them; who finds the Secret
 * there reads it, so all replicas have the same. It is owned by the hub's Service and goes with it.
 */

#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "libfleet/kube/io.h"
#include "libfleet/rendezvous/tls_identity.h"

struct fleet_error;
struct install_identity_load;

#define INSTALL_IDENTITY_KEY_SIZE 32
#define INSTALL_IDENTITY_CA_DAYS  3650

struct install_identity {
    struct tls_identity ca;
    uint8_t key[INSTALL_IDENTITY_KEY_SIZE];
};

/* Free what it holds and zero it. Fine on a zeroed one. */
void install_identity_release(struct install_identity *identity);

/*
 * Create it, or read the one that is there. `done` runs once, with what was found (it takes it over)
 * or with why not. `owner` is an ownerReference, borrowed for the call; NULL: nobody, it stays. One
 * that belongs to another owner is about to vanish with an installation before this one, and not
 * taken: try again.
 */
typedef void install_identity_done(void *user, struct install_identity *identity,
                                   const struct fleet_error *err);
struct install_identity_load *install_identity_start(struct kube_io *io, const char *namespace_,
                                                     const char *name, const cJSON *owner,
                                                     install_identity_done *done, void *user);

/* Forget *load, if there is one. */
void install_identity_cancel(struct install_identity_load **load);

#endif

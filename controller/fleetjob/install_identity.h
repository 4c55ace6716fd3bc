/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_INSTALL_IDENTITY_H
#define CONTROLLER_FLEETJOB_INSTALL_IDENTITY_H

/*
 * The identity of an installation: the CA of its hubs, and the key from which tokens of jobs are
 * derived. One Secret in the controller's namespace has both. The first replica makes it, later
 * ones read it, so all have the same. It has no owner: it stays when the chart is uninstalled, and
 * the next installation of that name goes on with it, so that running jobs need no other CA. The
 * leader makes it again if it is deleted (installation.h).
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
 * Create the identity, or read the existing one. `done` runs once: with the identity, which it then
 * owns, or with an error.
 */
typedef void install_identity_done(void *user, struct install_identity *identity,
                                   const struct fleet_error *err);
struct install_identity_load *install_identity_start(struct kube_io *io, const char *namespace_,
                                                     const char *name, install_identity_done *done,
                                                     void *user);

/* The Secret that holds it. Owned by the caller. */
cJSON *install_identity_build(const char *namespace_, const char *name,
                              const struct install_identity *identity);

/* Forget *load, if there is one. */
void install_identity_cancel(struct install_identity_load **load);

#endif

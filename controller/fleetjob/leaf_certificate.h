/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_LEAF_CERTIFICATE_H
#define CONTROLLER_FLEETJOB_LEAF_CERTIFICATE_H

/*
 * A server's certificate, signed by the installation's CA: that of the hub while this replica
 * leads, and that of /metrics where it needs a token. It is signed for LEAF_CERTIFICATE_DAYS, and
 * signed again after two thirds of that, or if the clock was set back before its beginning. The
 * clock is read every ten minutes.
 *
 * The CA is not renewed by itself: all running jobs trust it. In its last year a warning says so
 * each day (docs/install.md).
 */

#include <stdbool.h>

#include "libfleet/rendezvous/tls_identity.h"

struct fleet_error;
struct leaf_certificate;
struct kube_io;

#define LEAF_CERTIFICATE_DAYS 365

struct leaf_certificate_options {
    struct kube_io *io;
    const char *name;              /* the DNS name that clients verify; borrowed for its life */
    const struct tls_identity *ca; /* borrowed for its life */
    bool warns_of_ca;              /* in the last year of the CA; one of several does */
    /* New connections use this one from now on. */
    int (*renew)(void *user, const struct tls_identity *leaf, struct fleet_error *err);
    void (*on_trouble)(void *user, const char *what, const struct fleet_error *err);
    void *user;
};

/* Signs the first one. -EINVAL: the CA cannot be read, or `name` is no DNS name. */
int leaf_certificate_new(const struct leaf_certificate_options *options,
                         struct leaf_certificate **out_certificate, struct fleet_error *err);
void leaf_certificate_free(struct leaf_certificate *certificate); /* NULL is fine */

/* The newest. Borrowed until the loop turns. */
const struct tls_identity *leaf_certificate_get(const struct leaf_certificate *certificate);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_HUB_CERTIFICATE_H
#define CONTROLLER_FLEETJOB_HUB_CERTIFICATE_H

/*
 * The certificate of the hub while this replica leads: signed for HUB_CERTIFICATE_DAYS, and signed anew after two
 * thirds of that, or if the clock was set back before its beginning. The clock is looked at every minute.
 *
 * Metric: fleetjob_ca_certificate_expiry_timestamp_seconds. The CA is not renewed by itself: all running jobs trust it. In its last year a warning says so each day (docs/install.md).
 */

#include "libfleet/rendezvous/tls_identity.h"

struct fleet_error;
struct hub_certificate;
struct kube_io;
struct metrics;

#define HUB_CERTIFICATE_DAYS 365

struct hub_certificate_options {
    struct kube_io *io;
    struct metrics *metrics;
    const struct tls_identity *ca; /* borrowed for its life */
    /* New connections are to have this one from now on. */
    int (*renew)(void *user, const struct tls_identity *leaf, struct fleet_error *err);
    void (*on_trouble)(void *user, const char *what, const struct fleet_error *err);
    void *user;
};

/* Signs the first one. -EINVAL: the CA cannot be read. */
int hub_certificate_new(const struct hub_certificate_options *options,
                        struct hub_certificate **out_certificate, struct fleet_error *err);
void hub_certificate_free(struct hub_certificate *certificate); /* NULL is fine */

/* The newest. Borrowed until the loop turns. */
const struct tls_identity *hub_certificate_get(const struct hub_certificate *certificate);

#endif

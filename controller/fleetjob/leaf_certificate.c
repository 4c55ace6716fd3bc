/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/fleetjob/leaf_certificate.h"

#include <errno.h>
#include <stdlib.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/kube/io.h"

#define CHECK_MS      60000.0 /* if the clock was wrong at first, agents wait at most this long */
#define DAY_MS        ((int64_t)86400 * 1000)
#define CA_WARNING_MS (365 * DAY_MS)

struct leaf_certificate {
    struct leaf_certificate_options options;
    struct tls_identity leaf;
    int64_t from_wall_ms, until_wall_ms; /* of the leaf */
    int64_t ca_until_wall_ms;
    int64_t warned_wall_ms; /* when the CA ends; 0 = never */
    struct kube_call *timer;
};

/* A new certificate replaces the old one only if it is valid. */
static int sign(struct leaf_certificate *c, struct fleet_error *err)
{
    struct tls_identity leaf = {0};
    int64_t from, until;
    int rc = tls_identity_sign_at(c->options.ca, c->options.name, LEAF_CERTIFICATE_DAYS,
                                  kube_wall_ms(c->options.io), &leaf, err);

    if (rc == 0)
        rc = tls_identity_validity(leaf.certificate_pem, &from, &until, err);
    if (rc == 0 && c->leaf.certificate_pem)
        rc = c->options.renew(c->options.user, &leaf, err);
    if (rc < 0) {
        tls_identity_release(&leaf);
        return rc;
    }
    tls_identity_release(&c->leaf);
    c->leaf = leaf;
    c->from_wall_ms = from;
    c->until_wall_ms = until;
    return 0;
}

static bool is_due(const struct leaf_certificate *c, int64_t now)
{
    return now < c->from_wall_ms ||
           now - c->from_wall_ms >= (c->until_wall_ms - c->from_wall_ms) / 3 * 2;
}

static void warn_of_ca(struct leaf_certificate *c, int64_t now)
{
    struct fleet_error err;

    if (!c->options.warns_of_ca || now < c->ca_until_wall_ms - CA_WARNING_MS ||
        now < c->warned_wall_ms + DAY_MS)
        return;
    c->warned_wall_ms = now;
    (void)fleet_error(&err, -EKEYEXPIRED,
                      "%lld days are left; docs/install.md says how to make another one",
                      (long long)((c->ca_until_wall_ms - now) / DAY_MS));
    c->options.on_trouble(c->options.user, "The installation's CA expires", &err);
}

static void check(void *user)
{
    struct leaf_certificate *c = user;
    int64_t now = kube_wall_ms(c->options.io);
    struct fleet_error err;

    c->timer = kube_after(c->options.io, CHECK_MS, check, c);
    if (is_due(c, now) && sign(c, &err) < 0)
        c->options.on_trouble(c->options.user, "Certificate was not renewed", &err);
    warn_of_ca(c, now);
}

int leaf_certificate_new(const struct leaf_certificate_options *options,
                         struct leaf_certificate **out_certificate, struct fleet_error *err)
{
    struct leaf_certificate *c = calloc(1, sizeof(*c));
    int64_t from;
    int rc;

    fleet_assert(c);
    c->options = *options;
    if ((rc = tls_identity_validity(options->ca->certificate_pem, &from, &c->ca_until_wall_ms,
                                    err)) < 0 ||
        (rc = sign(c, err)) < 0) {
        leaf_certificate_free(c);
        return rc;
    }
    c->timer = kube_after(options->io, CHECK_MS, check, c);
    *out_certificate = c;
    return 0;
}

void leaf_certificate_free(struct leaf_certificate *c)
{
    if (!c)
        return;
    kube_cancel(c->options.io, &c->timer);
    tls_identity_release(&c->leaf);
    free(c);
}

const struct tls_identity *leaf_certificate_get(const struct leaf_certificate *c)
{
    return &c->leaf;
}

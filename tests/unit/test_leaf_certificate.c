/* SPDX-License-Identifier: Apache-2.0 */

/* A certificate of the installation's CA under a clock that is moved by months and years. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "controller/fleetjob/leaf_certificate.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "libfleet/kube/io.h"
#include "tests/fake/apiserver.h"
#include "tests/fake/apiserver_io.h"

#define DAY_MS ((int64_t)86400 * 1000)

/* A kube_io whose wall clock the test sets; the rest is fake_io's. */
struct world {
    struct fake_apiserver *server;
    struct fake_io *io;
    struct tls_identity ca;
    struct leaf_certificate *certificate;
    struct kube_io clocked;
    struct kube_io_ops ops;
    int64_t wall_ms;
    int renewals, warnings;
};

static struct world *world; /* the ops have no place for it */

static double now_ms(struct kube_io *io)
{
    (void)io;
    return fake_io_now_ms(world->io);
}

static int64_t wall_ms(struct kube_io *io)
{
    (void)io;
    return world->wall_ms;
}

static struct kube_call *after(struct kube_io *io, double delay_ms, void (*on_time)(void *user),
                               void *user)
{
    (void)io;
    return kube_after(fake_io_kube(world->io), delay_ms, on_time, user);
}

static void cancel(struct kube_io *io, struct kube_call *call)
{
    (void)io;
    kube_cancel(fake_io_kube(world->io), &call);
}

static int renew(void *user, const struct tls_identity *leaf, struct fleet_error *err)
{
    (void)err;
    assert_non_null(leaf->key_pem);
    ((struct world *)user)->renewals++;
    return 0;
}

static void on_trouble(void *user, const char *what, const struct fleet_error *err)
{
    (void)what;
    (void)err;
    ((struct world *)user)->warnings++;
}

static void start(struct world *w)
{
    struct leaf_certificate_options options = {.renew = renew, .on_trouble = on_trouble, .user = w};
    struct fleet_error err;

    *w = (struct world){.server = fake_apiserver_new(), .wall_ms = fleet_wall_ms()};
    world = w;
    w->io = fake_io_new(w->server, 1);
    w->ops = (struct kube_io_ops){
        .now_ms = now_ms, .wall_ms = wall_ms, .after = after, .cancel = cancel};
    w->clocked.ops = &w->ops;
    assert_int_equal(tls_identity_make_ca("CA", 3650, &w->ca, NULL), 0);
    options.io = &w->clocked;
    options.name = "fleetjob-hub";
    options.warns_of_ca = true;
    options.ca = &w->ca;
    assert_int_equal(leaf_certificate_new(&options, &w->certificate, &err), 0);
}

static void stop(struct world *w)
{
    leaf_certificate_free(w->certificate);
    tls_identity_release(&w->ca);
    fake_io_free(w->io);
    fake_apiserver_free(w->server);
}

static void move(struct world *w, int days)
{
    w->wall_ms += days * DAY_MS;
    fake_io_run(w->io, 1200000);
}

static void expect_valid(const struct world *w)
{
    int64_t from, until;

    assert_int_equal(tls_identity_validity(leaf_certificate_get(w->certificate)->certificate_pem,
                                           &from, &until, NULL),
                     0);
    assert_true(from <= w->wall_ms && w->wall_ms < until);
}

static void test_leaf_certificate__it_is_renewed_after_two_thirds(void **state)
{
    struct world w;

    (void)state;
    start(&w);
    move(&w, 240);
    assert_int_equal(w.renewals, 0);
    move(&w, 5);
    assert_int_equal(w.renewals, 1);
    expect_valid(&w);
    move(&w, 240);
    assert_int_equal(w.renewals, 1);
    stop(&w);
}

static void test_leaf_certificate__a_clock_that_is_moved_by_a_year_is_followed(void **state)
{
    struct world w;

    (void)state;
    start(&w);
    move(&w, 366);
    assert_int_equal(w.renewals, 1);
    expect_valid(&w);
    move(&w, -366);
    assert_int_equal(w.renewals, 2);
    expect_valid(&w);
    stop(&w);
}

/* It does not outlive its CA. The end of the CA is reported in time. */
static void test_leaf_certificate__the_end_of_the_ca_is_reported(void **state)
{
    struct world w;
    int64_t from, ca_until, until;

    (void)state;
    start(&w);
    assert_int_equal(w.warnings, 0);
    move(&w, 3650 - 100);
    assert_int_equal(w.warnings, 1);
    move(&w, 2);
    assert_int_equal(w.warnings, 2);
    assert_int_equal(tls_identity_validity(w.ca.certificate_pem, &from, &ca_until, NULL), 0);
    assert_int_equal(tls_identity_validity(leaf_certificate_get(w.certificate)->certificate_pem,
                                           &from, &until, NULL),
                     0);
    assert_true(until <= ca_until);
    stop(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_leaf_certificate__it_is_renewed_after_two_thirds),
        cmocka_unit_test(test_leaf_certificate__a_clock_that_is_moved_by_a_year_is_followed),
        cmocka_unit_test(test_leaf_certificate__the_end_of_the_ca_is_reported),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

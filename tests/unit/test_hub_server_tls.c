/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The hub's server and its peers' identity (tests/support/hub_server_world.h): certificates, the
 * name in them, tokens, paths and protocols.
 */
#include <dlfcn.h>
#include <errno.h>

#include "tests/support/hub_server_stranger.h"
#include "tests/support/hub_server_world.h"

/* The next answer to an upgrade cannot be written: libwebsockets calls this SSL_write(). */
static atomic_bool next_answer_fails;

int SSL_write(SSL *ssl, const void *data, int size)
{
    static int (*of_openssl)(SSL *, const void *, int);

    if (!of_openssl) /* NOLINTNEXTLINE: POSIX wants this cast */
        *(void **)&of_openssl = dlsym(RTLD_NEXT, "SSL_write");
    if (size > 12 && memcmp(data, "HTTP/1.1 101", 12) == 0 &&
        atomic_exchange(&next_answer_fails, false)) {
        errno = EPIPE;
        return -1;
    }
    return of_openssl(ssl, data, size);
}

/* libwebsockets reports the end of such a connection, but never reported its begin. */
static void test_hub_server__survives_a_peer_that_goes_while_it_is_answered(void **state)
{
    struct world *world = world_new(1, NULL);
    struct hub_server_stats stats;

    (void)state;
    add_agent(world, NULL, NULL, NULL);
    run_until(world, has_joined(world, 1));
    for (int i = 0; i < 3; i++) {
        struct stranger stranger = {.speaks_tls = true};
        atomic_store(&next_answer_fails, true);
        meet(world, &stranger);
        part(world, &stranger);
        assert_string_equal(stranger.status, "");
        assert_false(atomic_load(&next_answer_fails));
    }
    assert_true(world->agents[0].is_connected);
    assert_int_equal(world->agents[0].aborts, 0);
    hub_server_stats(world->server, &stats);
    assert_int_equal(stats.connections, 1);
    world_free(world);
}

/* Another CA, another key, another port; and a running generation that does not notice. */
static void test_hub_server__members_find_the_hub_of_another_installation(void **state)
{
    struct world *world = world_new(2, NULL);
    struct hub_server_config config;
    struct fleet_error err;
    char token[FLEET_SHA256_HEX_SIZE];

    (void)state;
    add_agent(world, NULL, NULL, NULL);
    add_agent(world, NULL, NULL, NULL);
    run_until(world, has_joined(world, 1));
    hub_server_free(world->server);
    run_until(world, !world->agents[0].is_connected && !world->agents[1].is_connected);
    run_for(world, 50); /* until all of the server has closed */
    world->install_key = "the key of another installation";
    make_identity(world);
    config = server_config(world);
    assert_int_equal(hub_server_new(&config, &world->server, &err), 0);
    host_job(world, "job", 2, world->recorded, &world->job);
    tell_token(world->install_key, "job", token);
    world->moved = (struct member_client_hub){.address = "127.0.0.1",
                                              .port = hub_server_port(world->server),
                                              .ca_pem = "half a file",
                                              .token = token};
    run_until(world, strcmp(world->agents[0].detail, "the CA is not a certificate in PEM") == 0);
    world->moved.ca_pem = world->ca.certificate_pem;
    run_until(world, world->agents[0].is_connected && world->agents[1].is_connected);
    run_until(world, hub_phase(hub_server_hub(world->job)) == HUB_RUNNING);
    assert_int_equal(world->agents[0].aborts + world->agents[1].aborts, 0);
    world_free(world);
}

static void test_hub_server__refuses_strangers_and_leaves_others_alone(void **state)
{
    static const struct {
        struct stranger stranger;
        const char *status, *job, *reason;
    } cases[] = {
        {{.token = "0123"}, "401", "job", "wrong token"},
        {{.token_job = "other"}, "401", "job", "wrong token"},
        {{.path = "/rendezvous/other", .token_job = "other"},
         "404",
         "other",
         "the job is not hosted here"},
        {{.path = "/rendezvous/other"}, "401", "other", "wrong token"},
        {{.path = "/elsewhere"}, "400", "", "it asked for another path or subprotocol"},
        {{.protocol = "chat"}, "400", "job", "it asked for another path or subprotocol"},
    };
    struct world *world = world_new(1, NULL);

    (void)state;
    add_agent(world, NULL, NULL, NULL);
    run_until(world, has_joined(world, 1));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct stranger stranger = cases[i].stranger;
        stranger.speaks_tls = true;
        meet(world, &stranger);
        part(world, &stranger);
        assert_string_equal(stranger.status, cases[i].status);
        assert_string_equal(world->refused_job, cases[i].job);
        assert_string_equal(world->refused_reason, cases[i].reason);
    }
    assert_true(world->agents[0].is_connected);
    assert_int_equal(world->agents[0].aborts, 0);
    world_free(world);
}

static void test_hub_server__a_renewed_certificate_is_for_new_connections(void **state)
{
    struct world *world = world_new(2, NULL);
    struct tls_identity ca = {0}, leaf = {0};
    struct agent *before;
    struct fleet_error err;

    (void)state;
    add_agent(world, NULL, NULL, NULL);
    add_agent(world, NULL, NULL, NULL);
    run_until(world, has_joined(world, 1));
    assert_int_equal(tls_identity_make_ca("next CA", 1, &ca, NULL), 0);
    assert_int_equal(tls_identity_sign(&ca, TLS_IDENTITY_HUB_NAME, 1, &leaf, NULL), 0);
    assert_int_equal(
        hub_server_renew(world->server, world->leaf.certificate_pem, leaf.key_pem, &err), -EINVAL);
    assert_int_equal(hub_server_renew(world->server, leaf.certificate_pem, leaf.key_pem, &err), 0);
    before = add_agent(world, NULL, NULL, NULL);
    run_until(world, before->detail[0]);
    assert_false(before->is_connected);
    if (!strstr(before->detail, "the hub's certificate: "))
        fail_msg("%s", before->detail);
    run_for(world, 1200);
    assert_true(world->agents[0].is_connected && world->agents[1].is_connected);
    assert_int_equal(world->agents[0].aborts + world->agents[1].aborts, 0);
    world->moved = (struct member_client_hub){0};
    tls_identity_release(&world->ca);
    world->ca = ca;
    assert_non_null(add_agent(world, NULL, NULL, NULL));
    run_until(world, world->agents[3].is_connected);
    tls_identity_release(&leaf);
    world_free(world);
}

static void test_hub_server__a_client_trusts_its_ca_and_the_fixed_name_only(void **state)
{
    struct world *world = world_new(1, NULL);
    struct tls_identity other = {0};
    struct agent *wrong_ca, *wrong_name, *wrong_token;

    (void)state;
    assert_int_equal(tls_identity_make_ca("test CA", 1, &other, NULL), 0);
    wrong_ca = add_agent(world, other.certificate_pem, NULL, NULL);
    wrong_name = add_agent(world, NULL, "another-hub", NULL);
    wrong_token = add_agent(world, NULL, NULL, "00");
    run_until(world, wrong_ca->detail[0] && wrong_name->detail[0] && wrong_token->detail[0]);
    assert_false(wrong_ca->is_connected);
    assert_false(wrong_name->is_connected);
    assert_false(wrong_token->is_connected);
    if (!strstr(wrong_ca->detail, "the hub's certificate: "))
        fail_msg("wrong CA: %s", wrong_ca->detail);
    if (!strstr(wrong_name->detail, "hostname"))
        fail_msg("wrong name: %s", wrong_name->detail);
    if (!strstr(wrong_token->detail, "unauthorized"))
        fail_msg("wrong token: %s", wrong_token->detail);
    assert_int_equal(world->events[HUB_EVENT_JOINED], 0);
    tls_identity_release(&other);
    world_free(world);
}

static void test_hub_server__says_why_it_cannot_start(void **state)
{
    struct world *world = world_new(1, NULL);
    struct hub_server_config config = server_config(world);
    struct hub_server *server = NULL;
    struct fleet_error err;
    char expected[200];

    (void)state;
    config.port = hub_server_port(world->server);
    assert_int_equal(hub_server_new(&config, &server, &err), -EADDRINUSE);
    (void)snprintf(expected, sizeof(expected),
                   "start the hub's server: listen on 127.0.0.1 port %d: Address already in use",
                   config.port);
    assert_string_equal(err.text, expected);
    config.port = 0;
    config.key_pem = world->ca.key_pem;
    assert_int_equal(hub_server_new(&config, &server, &err), -EINVAL);
    assert_non_null(strstr(err.text, "key does not belong to the certificate"));
    config.certificate_pem = "nonsense";
    assert_int_equal(hub_server_new(&config, &server, &err), -EINVAL);
    assert_non_null(strstr(err.text, "certificate is not PEM"));
    config = server_config(world);
    config.address = "nowhere";
    assert_int_equal(hub_server_new(&config, &server, &err), -EINVAL);
    assert_null(server);
    world_free(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hub_server__survives_a_peer_that_goes_while_it_is_answered),
        cmocka_unit_test(test_hub_server__members_find_the_hub_of_another_installation),
        cmocka_unit_test(test_hub_server__refuses_strangers_and_leaves_others_alone),
        cmocka_unit_test(test_hub_server__a_renewed_certificate_is_for_new_connections),
        cmocka_unit_test(test_hub_server__a_client_trusts_its_ca_and_the_fixed_name_only),
        cmocka_unit_test(test_hub_server__says_why_it_cannot_start),
    };
    return cmocka_run_group_tests_name("hub_server_tls", tests, NULL, NULL);
}

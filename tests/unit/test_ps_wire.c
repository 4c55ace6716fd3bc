/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Bytes between worker and server of fleet_ps.h. Both ends are in this process, and the test
 * carries the bytes between them, so it sees what a listener on the network would see.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "distributed/ps/wire.h"
#include "distributed/rpc/secure.h"

static const char secret_words[] = "the gradients of a user";

/* Two ends, and the network between them. */
struct network {
    struct ps_wire worker, server;
    int worker_side, server_side;
    SSL_CTX *contexts[2];
    char seen[65536]; /* all bytes that were carried */
    size_t seen_size;
};

static void open_end(struct ps_wire *wire, int *side)
{
    int fds[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    *wire = (struct ps_wire){.fd = fds[0]};
    *side = fds[1];
}

static void open_network(struct network *n)
{
    memset(n, 0, sizeof(*n));
    open_end(&n->worker, &n->worker_side);
    open_end(&n->server, &n->server_side);
}

static void encrypt_end(struct network *n, bool is_server, const uint8_t key[RPC_KEY_SIZE])
{
    struct ps_wire *wire = is_server ? &n->server : &n->worker;

    assert_int_equal(rpc_secure_new(key, &n->contexts[is_server], NULL), 0);
    assert_int_equal(ps_wire_encrypt(wire, n->contexts[is_server], is_server, NULL), 0);
}

static void close_network(struct network *n)
{
    ps_wire_close(&n->worker);
    ps_wire_close(&n->server);
    ps_wire_close(&n->server);
    (void)close(n->worker_side);
    (void)close(n->server_side);
    SSL_CTX_free(n->contexts[0]);
    SSL_CTX_free(n->contexts[1]);
}

static void carry(struct network *n, int from, int to)
{
    ssize_t got;

    while ((got = recv(from, n->seen + n->seen_size, sizeof(n->seen) - n->seen_size,
                       MSG_DONTWAIT)) > 0) {
        assert_int_equal(send(to, n->seen + n->seen_size, (size_t)got, MSG_NOSIGNAL), got);
        n->seen_size += (size_t)got;
    }
}

static void carry_all(struct network *n)
{
    carry(n, n->worker_side, n->server_side);
    carry(n, n->server_side, n->worker_side);
}

/* Send the words from the worker to the server. 0, or the error of one of the two. */
static ssize_t send_words(struct network *n, char out[sizeof(secret_words)])
{
    struct iovec parts[2] = {{(char *)(uintptr_t)secret_words, 0},
                             {(char *)(uintptr_t)secret_words, sizeof(secret_words)}};
    ssize_t sent = -EAGAIN, got = -EAGAIN;
    short wants;

    for (int turn = 0; turn < 20 && got == -EAGAIN; turn++) {
        if (sent == -EAGAIN)
            sent = ps_wire_write(&n->worker, parts, 2, &wants);
        carry_all(n);
        got = ps_wire_read(&n->server, out, sizeof(secret_words), &wants);
        carry_all(n);
        if (sent < 0 && sent != -EAGAIN)
            return sent;
    }
    if (got > 0)
        assert_int_equal(got, sizeof(secret_words));
    return got < 0 ? got : 0;
}

static bool has_seen_words(const struct network *n)
{
    return memmem(n->seen, n->seen_size, secret_words, sizeof(secret_words)) != NULL;
}

static const uint8_t key[RPC_KEY_SIZE] = {1, 2, 3}, other_key[RPC_KEY_SIZE] = {1, 2, 4};

static void test_ps_wire__nobody_else_reads_what_is_encrypted(void **state)
{
    char out[sizeof(secret_words)];

    (void)state;
    for (int encrypts = 0; encrypts <= 1; encrypts++) {
        struct network n;
        open_network(&n);
        if (encrypts) {
            encrypt_end(&n, false, key);
            encrypt_end(&n, true, key);
        }
        assert_int_equal(send_words(&n, out), 0);
        assert_string_equal(out, secret_words);
        assert_int_equal(has_seen_words(&n), !encrypts);
        close_network(&n);
    }
}

static void test_ps_wire__another_key_is_refused(void **state)
{
    char out[sizeof(secret_words)];
    struct network n;

    (void)state;
    open_network(&n);
    encrypt_end(&n, false, key);
    encrypt_end(&n, true, other_key);
    assert_int_equal(send_words(&n, out), -EACCES);
    assert_false(has_seen_words(&n));
    close_network(&n);
}

/* A side that is lost while the keys are agreed on may come back: this is no refusal. */
static void test_ps_wire__a_lost_side_is_no_refusal(void **state)
{
    char out[sizeof(secret_words)];
    struct network n;
    short wants;

    (void)state;
    open_network(&n);
    encrypt_end(&n, true, key);
    assert_int_equal(ps_wire_read(&n.server, out, sizeof(out), &wants), -EAGAIN);
    assert_int_equal(shutdown(n.server_side, SHUT_RDWR), 0);
    assert_int_equal(ps_wire_read(&n.server, out, sizeof(out), &wants), 0);
    close_network(&n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ps_wire__nobody_else_reads_what_is_encrypted),
        cmocka_unit_test(test_ps_wire__another_key_is_refused),
        cmocka_unit_test(test_ps_wire__a_lost_side_is_no_refusal),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

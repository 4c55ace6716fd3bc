/* SPDX-License-Identifier: Apache-2.0 */

/*
 * At the door: strangers, silence, other keys, absent and late ranks.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent/runtime/comm/comm.h"
#include "agent/runtime/comm/tcp_hello.h"
#include "libfleet/base/error.h"
#include "tests/unit/comm_ranks.h"

/* The ranks are connected, and only they. */
static int meet(struct comm_rank *self, struct fleet_error *err)
{
    int mine = self->rank, all[COMM_RANKS_MAX];
    int rc = comm_all_gather(self->comm, &mine, sizeof(mine), all, comm_ranks_patience(), err);

    for (int r = 0; r < self->comm->world && rc == 0; r++)
        if (all[r] != r)
            rc = fleet_error(err, -EBADMSG, "rank %d says that it is rank %d", r, all[r]);
    return rc;
}

static int raw_connection(const char *address)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    to.sin_port = htons((uint16_t)atoi(strrchr(address, ':') + 1));
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    return fd;
}

static void test_comm__garbage_and_silence_at_the_door_disturb_no_rank(void **state)
{
    struct comm_ranks c;
    int fds[300];
    char noise[200];

    (void)state;
    comm_ranks_init(&c, 4);
    for (size_t i = 0; i < sizeof(noise); i++)
        noise[i] = (char)(i * 37 + 11);
    for (int i = 0; i < 300; i++) { /* silent, short, long; some hang up at once */
        fds[i] = raw_connection(c.addresses[i % 3]);
        (void)!send(fds[i], noise, (size_t)(i % 4) * 60, MSG_NOSIGNAL);
        if (i % 5 == 0) {
            (void)close(fds[i]);
            fds[i] = -1;
        }
    }
    comm_ranks_run(&c, meet);
    for (int i = 0; i < 300; i++)
        if (fds[i] >= 0)
            (void)close(fds[i]);
    comm_ranks_release(&c);
}

static void test_comm__a_rank_with_another_key_stays_outside(void **state)
{
    struct comm_ranks c, stranger;
    struct comm *comm = NULL;
    struct fleet_error err = {.text = ""};

    (void)state;
    comm_ranks_init(&c, 3);
    stranger = c; /* same addresses, another key: rank 2 of an older generation */
    stranger.key[0] ^= 1;
    assert_int_equal(comm_ranks_connect(&stranger, 2, comm_ranks_soon(300), &comm, &err),
                     -ETIMEDOUT);
    comm_ranks_start(&c, meet);
    assert_int_equal(comm_ranks_connect(&stranger, 2, comm_ranks_soon(1), &comm, &err), -ETIMEDOUT);
    comm_ranks_join(&c);
    for (int r = 0; r < 3; r++)
        if (c.ranks[r].rc != 0)
            fail_msg("%s", c.ranks[r].text);
    comm_ranks_release(&c);
}

/* Rank 0 of two: answer a hello as it must, take the proof, and confirm nothing. */
static void answer_and_close(int listener, const uint8_t key[COMM_KEY_SIZE])
{
    uint8_t hello[TCP_HELLO_SIZE], answer[TCP_NONCE_SIZE + FLEET_SHA256_SIZE] = {1};
    uint8_t proof[FLEET_SHA256_SIZE];
    struct pollfd ready = {.fd = listener, .events = POLLIN};
    int fd;

    assert_int_equal(poll(&ready, 1, -1), 1);
    fd = accept(listener, NULL, NULL);
    assert_true(fd >= 0);
    assert_int_equal(recv(fd, hello, sizeof(hello), MSG_WAITALL), sizeof(hello));
    tcp_hello_prove(key, hello, answer, 'A', answer + TCP_NONCE_SIZE);
    assert_int_equal(send(fd, answer, sizeof(answer), MSG_NOSIGNAL), sizeof(answer));
    assert_int_equal(recv(fd, proof, sizeof(proof), MSG_WAITALL), sizeof(proof));
    assert_true(tcp_hello_check(key, hello, answer, 'D', proof));
    (void)close(fd);
}

/* As by a rank that had no processor until the connection was too old for it. */
static void test_comm__a_connection_that_is_closed_after_the_proof_is_dialled_again(void **state)
{
    struct comm_ranks c;

    (void)state;
    comm_ranks_init(&c, 2);
    c.body = meet;
    assert_int_equal(pthread_create(&c.ranks[1].thread, NULL, comm_ranks_main, &c.ranks[1]), 0);
    for (int i = 0; i < 3; i++)
        answer_and_close(c.listeners[0], c.key);
    assert_int_equal(pthread_create(&c.ranks[0].thread, NULL, comm_ranks_main, &c.ranks[0]), 0);
    comm_ranks_join(&c);
    for (int r = 0; r < 2; r++)
        if (c.ranks[r].rc != 0)
            fail_msg("%s", c.ranks[r].text);
    comm_ranks_release(&c);
}

static void *old_then_new(void *argument)
{
    struct comm_rank *self = argument;
    struct fleet_error err = {.text = ""};

    /* It is still joining the last generation … */
    (void)comm_ranks_connect((struct comm_ranks *)self->all->argument, 0, comm_ranks_soon(200),
                             &self->comm, NULL);
    self->rc = comm_ranks_connect(self->all, 0, comm_ranks_patience(), &self->comm, &err);
    snprintf(self->text, sizeof(self->text), "%s", err.text);
    return NULL;
}

static void test_comm__a_peer_that_is_late_from_the_last_generation_is_waited_for(void **state)
{
    struct comm_ranks c, old;
    struct fleet_error err = {.text = ""};

    (void)state;
    comm_ranks_init(&c, 2);
    old = c;
    old.key[5] ^= 0xff;
    c.argument = &old;
    assert_int_equal(pthread_create(&c.ranks[0].thread, NULL, old_then_new, &c.ranks[0]), 0);
    if (comm_ranks_connect(&c, 1, comm_ranks_patience(), &c.ranks[1].comm, &err) != 0)
        fail_msg("%s", err.text);
    pthread_join(c.ranks[0].thread, NULL);
    if (c.ranks[0].rc != 0)
        fail_msg("%s", c.ranks[0].text);
    comm_ranks_run(&c, meet);
    comm_ranks_release(&c);
}

static void test_comm__an_absent_rank_is_named_at_the_deadline(void **state)
{
    struct comm_ranks c;
    struct comm *comm = NULL;
    struct fleet_error err = {.text = ""};

    (void)state;
    comm_ranks_init(&c, 3);
    assert_int_equal(comm_ranks_connect(&c, 0, comm_ranks_soon(100), &comm, &err), -ETIMEDOUT);
    assert_int_equal(c.ranks[0].failed_rank, 1);
    assert_non_null(strstr(err.text, c.addresses[1]));
    (void)close(c.listeners[0]); /* now the port has no listener */
    c.listeners[0] = -1;
    assert_int_equal(comm_ranks_connect(&c, 2, comm_ranks_soon(1000), &comm, &err), -ETIMEDOUT);
    assert_int_equal(c.ranks[2].failed_rank, 0);
    assert_non_null(strstr(err.text, "refused"));
    c.addresses[0] = "no port";
    assert_int_equal(comm_ranks_connect(&c, 2, comm_ranks_soon(100), &comm, &err), -EINVAL);
    assert_non_null(strstr(err.text, "no port"));
    comm_ranks_release(&c);
}

static void test_comm__connecting_can_be_cancelled(void **state)
{
    struct comm_ranks c;
    struct comm *comm = NULL;
    struct fleet_error err = {.text = ""};
    int stop = eventfd(1, EFD_CLOEXEC);
    struct comm_tcp_options options;

    (void)state;
    comm_ranks_init(&c, 2);
    options = (struct comm_tcp_options){
        .rank = 0, .world = 2, .addresses = c.addresses, .listener = c.listeners[0], .stop = stop};
    assert_int_equal(comm_tcp_new(&options, INFINITY, &comm, &err), -ECANCELED);
    (void)close(stop);
    comm_ranks_release(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm__garbage_and_silence_at_the_door_disturb_no_rank),
        cmocka_unit_test(test_comm__a_rank_with_another_key_stays_outside),
        cmocka_unit_test(test_comm__a_connection_that_is_closed_after_the_proof_is_dialled_again),
        cmocka_unit_test(test_comm__a_peer_that_is_late_from_the_last_generation_is_waited_for),
        cmocka_unit_test(test_comm__an_absent_rank_is_named_at_the_deadline),
        cmocka_unit_test(test_comm__connecting_can_be_cancelled),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

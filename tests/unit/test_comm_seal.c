/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Encrypted connections and several connections a pair. A listener between the ranks sees all bytes
 * of a connection, and changes one of them where a test wants it.
 */
#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>

#include "agent/runtime/comm/seal.h"
#include "libfleet/plan/runtime_connections.h"
#include "tests/unit/comm_ranks.h"

/* ---- the listener in the middle -------------------------------------------------------------- */

#define SEEN_MAX (1 << 20)

/* Rank 1 dials it in place of rank 0. */
struct middle {
    int listener, target; /* its own socket; the port of rank 0 */
    pthread_t thread;
    size_t change_at; /* number of the byte from rank 1 that is changed; 0: none */
    size_t count;     /* bytes from rank 1 so far */
    uint8_t seen[SEEN_MAX];
};

static int dial(int port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    to.sin_port = htons((uint16_t)port);
    return fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0 ? fd : -1;
}

static void look_at(struct middle *m, uint8_t *bytes, size_t size)
{
    if (m->change_at >= m->count && m->change_at - m->count < size && m->change_at > 0)
        bytes[m->change_at - m->count] ^= 4;
    if (m->count < SEEN_MAX)
        memcpy(m->seen + m->count, bytes, size < SEEN_MAX - m->count ? size : SEEN_MAX - m->count);
    m->count += size;
}

/* false: the connection has ended. */
static bool pass(struct middle *m, int from, int to, bool is_looked_at)
{
    uint8_t bytes[4096];
    ssize_t size = recv(from, bytes, sizeof(bytes), 0);

    if (size <= 0)
        return false;
    if (is_looked_at)
        look_at(m, bytes, (size_t)size);
    for (ssize_t at = 0, sent; at < size; at += sent)
        if ((sent = send(to, bytes + at, (size_t)(size - at), MSG_NOSIGNAL)) <= 0)
            return false;
    return true;
}

static void *serve(void *argument)
{
    struct middle *m = argument;
    struct pollfd door = {.fd = m->listener, .events = POLLIN};
    struct pollfd ends[2] = {{.events = POLLIN}, {.events = POLLIN}};
    bool goes_on = poll(&door, 1, -1) == 1;

    ends[0].fd = accept(m->listener, NULL, NULL);
    ends[1].fd = dial(m->target);
    while (goes_on && poll(ends, 2, -1) > 0)
        for (int i = 0; i < 2 && goes_on; i++)
            if (ends[i].revents)
                goes_on = pass(m, ends[i].fd, ends[1 - i].fd, i == 0);
    (void)close(ends[0].fd);
    (void)close(ends[1].fd);
    return NULL;
}

static void middle_open(struct middle *m, struct comm_ranks *c, bool encrypts, size_t change_at)
{
    int port;

    comm_ranks_init(c, 2);
    c->encrypts = encrypts;
    memset(m, 0, sizeof(*m));
    m->change_at = change_at;
    m->target = atoi(strrchr(c->addresses[0], ':') + 1);
    assert_int_equal(comm_tcp_listen("127.0.0.1", &m->listener, &port, NULL), 0);
    snprintf(c->texts[0], sizeof(c->texts[0]), "127.0.0.1:%d", port);
    assert_int_equal(pthread_create(&m->thread, NULL, serve, m), 0);
}

static void middle_close(struct middle *m, struct comm_ranks *c)
{
    comm_ranks_release(c);
    assert_int_equal(pthread_join(m->thread, NULL), 0);
    (void)close(m->listener);
}

/* ---- what is seen ---------------------------------------------------------------------------- */

#define TEXT  "these are the weights of a model"
#define TEXTS 3000 /* more than one record */

static int send_texts(struct comm_rank *self, struct fleet_error *err)
{
    size_t size = sizeof(TEXT) * TEXTS;
    char *mine = malloc(size), *all = malloc(2 * size);
    int rc;

    for (size_t i = 0; i < TEXTS; i++)
        memcpy(mine + i * sizeof(TEXT), TEXT, sizeof(TEXT));
    rc = comm_all_gather(self->comm, mine, size, all, comm_ranks_patience(), err);
    for (int r = 0; r < 2 && rc == 0; r++)
        if (memcmp(all + (size_t)r * size, mine, size) != 0)
            rc = comm_ranks_wrong(err, "gather", r, 0);
    free(mine);
    free(all);
    return rc;
}

static bool sees_text(bool encrypts)
{
    static struct middle m;
    struct comm_ranks c;
    bool sees;

    middle_open(&m, &c, encrypts, 0);
    comm_ranks_run(&c, send_texts);
    middle_close(&m, &c);
    assert_true(m.count > sizeof(TEXT) * TEXTS);
    sees = memmem(m.seen, m.count, TEXT, sizeof(TEXT)) != NULL;
    return sees || memmem(m.seen, m.count, "FJLM", 4) || memmem(m.seen, m.count, "MJLF", 4);
}

static void test_seal__a_listener_sees_no_plain_text(void **state)
{
    (void)state;
    assert_true(sees_text(false)); /* the listener looks in the right place */
    assert_false(sees_text(true));
}

static void test_seal__a_changed_bit_is_an_error_that_names_the_peer(void **state)
{
    /* rank 1 has sent 80 bytes of handshake before; a length, text, a tag, a late record */
    static const size_t places[] = {83, 86, 400, 40000};
    static struct middle m;

    (void)state;
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        struct comm_ranks c;
        middle_open(&m, &c, true, places[i]);
        comm_ranks_start(&c, send_texts);
        comm_ranks_join(&c);
        assert_int_equal(c.ranks[0].rc, -ECONNRESET);
        if (!strstr(c.ranks[0].text, "rank 1: what came was changed"))
            fail_msg("byte %zu: %s", places[i], c.ranks[0].text);
        middle_close(&m, &c);
    }
}

/* ---- records --------------------------------------------------------------------------------- */

/* Take the bytes of one record out of a socket. */
static size_t take(int fd, uint8_t *record, size_t size)
{
    ssize_t got = recv(fd, record, size, 0);

    assert_true(got > 0);
    return (size_t)got;
}

/* Which of the records 0 and 1 the receiver gets first and second. */
static ssize_t receive_in_order(int first, int second)
{
    static const uint8_t a[SEAL_KEY_SIZE] = {1}, d[SEAL_KEY_SIZE] = {2};
    struct seal *from = seal_new(a, d), *to = seal_new(d, a);
    uint8_t records[2][256], text[16] = {0};
    size_t sizes[2];
    int way[2], copy[2];
    ssize_t rc;

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, way), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, copy), 0);
    for (int i = 0; i < 2; i++) {
        const struct iovec part = {.iov_base = (void *)(i == 0 ? "first" : "other"), .iov_len = 5};
        assert_int_equal(seal_send(from, way[0], &part, 1), 5);
        sizes[i] = take(way[1], records[i], sizeof(records[i]));
        assert_int_equal(sizes[i], 4 + 5 + SEAL_TAG_SIZE);
    }
    assert_true(send(copy[0], records[first], sizes[first], 0) > 0);
    assert_true(send(copy[0], records[second], sizes[second], 0) > 0);
    rc = seal_receive(to, copy[1], &(struct iovec){.iov_base = text, .iov_len = 10}, 1);
    if (rc == 5) /* the second one failed */
        rc = seal_receive(to, copy[1], &(struct iovec){.iov_base = text, .iov_len = 5}, 1);
    else if (rc == 10)
        assert_memory_equal(text, "firstother", 10);
    seal_free(from);
    seal_free(to);
    for (int i = 0; i < 2; i++) {
        (void)close(way[i]);
        (void)close(copy[i]);
    }
    return rc;
}

static void test_seal__records_must_come_once_and_in_order(void **state)
{
    (void)state;
    assert_int_equal(receive_in_order(0, 1), 10);
    assert_int_equal(receive_in_order(0, 0), -EBADMSG); /* repeated */
    assert_int_equal(receive_in_order(1, 0), -EBADMSG); /* the first one left out */
}

/* ---- who may connect ------------------------------------------------------------------------- */

static void test_seal__ranks_that_encrypt_refuse_one_that_does_not(void **state)
{
    struct comm_ranks c, plain;
    struct comm *comm = NULL;
    struct fleet_error err = {.text = ""};

    (void)state;
    comm_ranks_init(&c, 2);
    c.encrypts = true;
    plain = c;
    plain.encrypts = false;
    comm_ranks_start(&c, send_texts);
    assert_int_equal(comm_ranks_connect(&plain, 1, comm_ranks_soon(200), &comm, &err), -ETIMEDOUT);
    comm_ranks_join(&c);
    for (int r = 0; r < 2; r++)
        if (c.ranks[r].rc != 0)
            fail_msg("%s", c.ranks[r].text);
    comm_ranks_release(&c);
}

/* ---- several connections --------------------------------------------------------------------- */

static int exchange_many(struct comm_rank *self, struct fleet_error *err)
{
    static const size_t sizes[] = {1, (64 << 10) - 1, 64 << 10, (64 << 10) + 1, 1000003};
    int world = self->comm->world, own = self->rank, rc = 0;

    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]) && rc == 0; s++) {
        uint8_t *mine = malloc(sizes[s]), *all = malloc(sizes[s] * (size_t)world);
        for (size_t i = 0; i < sizes[s]; i++)
            mine[i] = comm_ranks_byte(own, 0, i);
        rc = comm_all_gather(self->comm, mine, sizes[s], all, comm_ranks_patience(), err);
        for (int r = 0; r < world && rc == 0; r++)
            for (size_t i = 0; i < sizes[s] && rc == 0; i++)
                if (all[(size_t)r * sizes[s] + i] != comm_ranks_byte(r, 0, i))
                    rc = comm_ranks_wrong(err, "gather", r, i);
        free(mine);
        free(all);
    }
    return rc;
}

static void test_comm__large_messages_use_all_channels(void **state)
{
    (void)state;
    for (int channels = 1; channels <= COMM_CHANNELS_MAX; channels += 7)
        for (int encrypts = 0; encrypts < 2; encrypts++) {
            struct comm_ranks c;
            comm_ranks_init(&c, 3);
            c.channels = channels;
            c.encrypts = encrypts;
            comm_ranks_run(&c, exchange_many);
            comm_ranks_release(&c);
        }
}

/* A group has as many connections as its world, and other keys. */
static int exchange_in_group(struct comm_rank *self, struct fleet_error *err)
{
    static const int ranks[] = {2, 0};
    struct comm_rank member = *self;
    int rc = comm_group(self->comm, ranks, 2, comm_ranks_patience(), &member.comm, err);

    if (rc < 0 || !member.comm)
        return rc;
    member.rank = member.comm->rank;
    rc = exchange_many(&member, err);
    comm_free(member.comm);
    return rc;
}

static void test_comm__groups_have_channels_too(void **state)
{
    struct comm_ranks c;

    (void)state;
    comm_ranks_init(&c, 3);
    c.channels = 2;
    c.encrypts = true;
    comm_ranks_run(&c, exchange_in_group);
    comm_ranks_release(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_seal__a_listener_sees_no_plain_text),
        cmocka_unit_test(test_seal__a_changed_bit_is_an_error_that_names_the_peer),
        cmocka_unit_test(test_seal__records_must_come_once_and_in_order),
        cmocka_unit_test(test_seal__ranks_that_encrypt_refuse_one_that_does_not),
        cmocka_unit_test(test_comm__large_messages_use_all_channels),
        cmocka_unit_test(test_comm__groups_have_channels_too),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

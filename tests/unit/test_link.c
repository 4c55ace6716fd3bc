/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The agent's and the trainer's protocol: every message survives a round trip, limits and rules of
 * link.h are refused with the reason, and the stream hands out whole messages for all cuts.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent/link.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"

/* Messages of an agent. */
static void fill_from_agent(struct link_message *m)
{
    switch (m->kind) {
    case LINK_ASSIGN:
        m->assign.rank = 1;
        m->assign.world = 2;
        m->assign.level = 3;
        m->assign.addresses = calloc(2, sizeof(char *));
        m->assign.address_count = 2;
        m->assign.addresses[0] = strdup("127.0.0.1:4000");
        m->assign.addresses[1] = strdup("[::1]:4001");
        memset(m->assign.key, 0xA5, sizeof(m->assign.key));
        strcpy(m->assign.digest, "00ff");
        m->assign.lineage.count = 2;
        m->assign.lineage.entries[0] =
            (struct fleet_lineage_entry){.generation = {1, 1}, .first_step = 1};
        m->assign.lineage.entries[1] =
            (struct fleet_lineage_entry){.generation = {3, 14}, .first_step = 812};
        m->assign.fault_at_ms = 1234.5;
        break;
    case LINK_ABORT:
        strcpy(m->abort.cause, "MemberLost: \"gpt-worker-3\"");
        break;
    case LINK_LEAVE:
        m->leave.grace_ms = 30000;
        break;
    default:
        break;
    }
}

static void fill_progress(struct link_message *m)
{
    m->progress.count = 2;
    m->progress.steps[0] = (struct link_step){.step = 5, .loss = NAN, .tokens = 2048};
    m->progress.steps[1] = (struct link_step){.step = 6,
                                              .loss = 2.25,
                                              .has_update = true,
                                              .gradient_norm = 0.1,
                                              .learning_rate = 1e-3,
                                              .tokens = 2048,
                                              .tokens_per_second = 91000.5,
                                              .times = {.data_s = 0.001,
                                                        .forward_s = 0.25,
                                                        .backward_s = 0.5,
                                                        .exchange_s = 0.125,
                                                        .optimizer_s = 1e-6,
                                                        .hidden_s = 0.0625}};
}

/* Messages of a trainer. */
static void fill_from_trainer(struct link_message *m)
{
    switch (m->kind) {
    case LINK_HELLO:
        m->hello.port = 40001;
        m->hello.level = 4;
        m->hello.pid = 77;
        break;
    case LINK_READY:
        m->ready.phase = FLEET_PHASE_RESTORED;
        m->ready.at_ms = 99.125;
        m->ready.step = 811;
        m->ready.part = (struct fleet_part){{6, 4, true}, 5, 1, 3, 11, 12, 0};
        break;
    case LINK_PROGRESS:
        fill_progress(m);
        break;
    case LINK_PEER_LOST:
        m->peer_lost.rank = 3;
        m->peer_lost.at_ms = 5.5;
        strcpy(m->peer_lost.text, "connection reset");
        break;
    case LINK_CHECKPOINT_DONE:
        m->checkpoint_done.step = 100;
        strcpy(m->checkpoint_done.path, "/tmp/checkpoints/step-100");
        break;
    case LINK_CHECKPOINT_FAILED:
        m->checkpoint_failed.step = 100;
        strcpy(m->checkpoint_failed.text, "No space left on device");
        break;
    case LINK_EVALUATION:
        m->evaluation.step = 100;
        m->evaluation.loss = 2.31;
        break;
    case LINK_WARNING:
        strcpy(m->warning.text, "disk full\nkeeping the older one");
        break;
    case LINK_FAILED:
        strcpy(m->failed.text, "data.path: no such file");
        strcpy(m->failed.cause, "CheckpointFailed");
        m->failed.permanent = true;
        break;
    case LINK_FINISHED:
        m->finished.steps = 300;
        m->finished.loss = 2.42;
        memset(m->finished.weights_sha256, 'a', 64);
        break;
    default:
        break;
    }
}

static struct link_message sample(enum link_kind kind)
{
    struct link_message m = {.kind = kind, .generation = {.epoch = 3, .counter = 14}};

    fill_from_agent(&m);
    fill_from_trainer(&m);
    return m;
}

static void test_link__every_message_survives_a_round_trip(void **state)
{
    (void)state;
    for (int kind = 0; kind < LINK_KIND_COUNT; kind++) {
        struct link_message before = sample((enum link_kind)kind), after;
        struct fleet_strbuf first = {0}, second = {0};
        struct fleet_error err;

        link_message_encode(&before, &first);
        assert_int_equal(first.text[first.length - 1], '\n');
        if (link_message_decode(first.text, first.length - 1, &after, &err) < 0)
            fail_msg("%s: %s", first.text, err.text);
        link_message_encode(&after, &second);
        assert_string_equal(first.text, second.text);
        assert_int_equal(after.kind, kind);
        link_message_release(&before);
        link_message_release(&after);
        fleet_strbuf_release(&first);
        fleet_strbuf_release(&second);
    }
}

static void test_link__values_arrive_as_they_were_sent(void **state)
{
    struct link_message m = sample(LINK_ASSIGN), got;
    struct fleet_strbuf line = {0};

    (void)state;
    link_message_encode(&m, &line);
    assert_int_equal(link_message_decode(line.text, line.length, &got, NULL), 0);
    assert_int_equal(got.generation.epoch, 3);
    assert_int_equal(got.generation.counter, 14);
    assert_string_equal(got.assign.addresses[1], "[::1]:4001");
    assert_memory_equal(got.assign.key, m.assign.key, LINK_KEY_SIZE);
    assert_int_equal(got.assign.lineage.entries[1].first_step, 812);
    link_message_release(&got);
    link_message_release(&m);

    m = sample(LINK_PROGRESS);
    fleet_strbuf_clear(&line);
    link_message_encode(&m, &line);
    assert_int_equal(link_message_decode(line.text, line.length, &got, NULL), 0);
    assert_true(isnan(got.progress.steps[0].loss));
    assert_false(got.progress.steps[0].has_update);
    assert_true(got.progress.steps[1].has_update);
    assert_true(got.progress.steps[1].gradient_norm == 0.1);
    fleet_strbuf_release(&line);
}

static void test_link__refuses_what_breaks_a_rule(void **state)
{
    static const struct {
        const char *line, *error;
    } cases[] = {
        {"{}", "decode \"message\" of the link: message: required, but absent"},
        {"[1]", NULL},
        {"{\"message\":\"dance\"}", "unknown message \"dance\" on the link"},
        {"{\"message\":\"abort\",\"epoch\":1,\"cause\":\"x\"}", NULL},
        {"{\"message\":\"abort\",\"epoch\":-1,\"counter\":1,\"cause\":\"x\"}", NULL},
        {"{\"message\":\"hello\",\"port\":65536,\"level\":1,\"pid\":1}",
         "decode \"hello\" of the link: port: must be in [0, 65535], not 65536"},
        {"{\"message\":\"ready\",\"epoch\":1,\"counter\":1,\"phase\":\"dancing\",\"atMs\":1,"
         "\"step\":0}",
         NULL},
        {"{\"message\":\"progress\",\"epoch\":1,\"counter\":1,\"steps\":[]}", NULL},
        {"{\"message\":\"progress\",\"epoch\":1,\"counter\":1,\"steps\":["
         "{\"step\":1,\"loss\":1,\"tokens\":1,\"tokensPerSecond\":1},"
         "{\"step\":3,\"loss\":1,\"tokens\":1,\"tokensPerSecond\":1}]}",
         "decode \"progress\" of the link: steps[1] is step 3 after step 1"},
        {"{\"message\":\"assign\",\"epoch\":1,\"counter\":1,\"rank\":2,\"world\":2,\"level\":0,"
         "\"digest\":\"\",\"keepsState\":true,\"faultAtMs\":0,\"key\":"
         "\"0000000000000000000000000000000000000000000000000000000000000000\","
         "\"addresses\":[\"a:1\",\"b:1\"],\"lineage\":[]}",
         "decode \"assign\" of the link: rank 2 does not exist in a world of 2"},
        {"{\"message\":\"assign\",\"epoch\":1,\"counter\":1,\"rank\":1,\"world\":2,\"level\":0,"
         "\"digest\":\"\",\"keepsState\":true,\"faultAtMs\":0,\"key\":"
         "\"0000000000000000000000000000000000000000000000000000000000000000\","
         "\"addresses\":[\"a:1\"],\"lineage\":[]}",
         "decode \"assign\" of the link: addresses: 1 of them in a world of 2"},
        {"{\"message\":\"assign\",\"epoch\":1,\"counter\":1,\"rank\":0,\"world\":1,\"level\":0,"
         "\"digest\":\"\",\"keepsState\":true,\"faultAtMs\":0,\"key\":\"00\",\"addresses\":[7],"
         "\"lineage\":[]}",
         "decode \"assign\" of the link: key: must be 64 hexadecimal digits; addresses[0]: must be "
         "a string, not 7; quote it"},
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(cases); i++) {
        struct link_message m;
        struct fleet_error err = {0};
        int rc = link_message_decode(cases[i].line, strlen(cases[i].line), &m, &err);

        if (rc != -EINVAL || err.code != -EINVAL)
            fail_msg("%s: expected %d, got %d (%d)", cases[i].line, -EINVAL, rc, err.code);
        if (cases[i].error && strcmp(err.text, cases[i].error) != 0)
            fail_msg("%s:\nexpected %s\ngot      %s", cases[i].line, cases[i].error, err.text);
    }
}

static void test_link__cuts_long_texts_at_a_character(void **state)
{
    char text[3 * LINK_TEXT_SIZE], line[4 * LINK_TEXT_SIZE];
    struct link_message m;

    (void)state;
    for (size_t i = 0; i + 2 < sizeof(text); i += 2)
        memcpy(text + i, "\xC3\xA4", 3);
    (void)snprintf(line, sizeof(line),
                   "{\"message\":\"warning\",\"epoch\":3,\"counter\":14,\"isNote\":false,"
                   "\"text\":\"%s\"}",
                   text);
    assert_int_equal(link_message_decode(line, strlen(line), &m, NULL), 0);
    assert_int_equal(strlen(m.warning.text), LINK_TEXT_SIZE - 2);
    assert_int_equal(m.warning.text[LINK_TEXT_SIZE - 3], '\xA4');
}

/* ---- the stream ------------------------------------------------------------------------------ */

struct pair {
    struct link agent, trainer;
};

static void open_pair(struct pair *p)
{
    int fds[2];

    assert_int_equal(link_pair(fds, NULL), 0);
    link_init(&p->agent, fds[0]);
    link_init(&p->trainer, fds[1]);
}

static void close_pair(struct pair *p)
{
    link_release(&p->agent);
    link_release(&p->trainer);
}

static void test_link__hands_out_messages_for_all_cuts(void **state)
{
    struct link_message m = sample(LINK_PROGRESS), got;
    struct fleet_strbuf text = {0};
    struct pair p;
    int received = 0;

    (void)state;
    open_pair(&p);
    for (int i = 0; i < 50; i++)
        link_message_encode(&m, &text);
    for (size_t at = 0, size; at < text.length; at += size) {
        size = 1 + at * 7 % 97;
        size = size < text.length - at ? size : text.length - at;
        assert_int_equal(send(p.trainer.fd, text.text + at, size, 0), size);
        while (link_receive(&p.agent, &got, NULL) == 0)
            received++;
    }
    assert_int_equal(received, 50);
    assert_int_equal(link_receive(&p.agent, &got, NULL), -EAGAIN);
    fleet_strbuf_release(&text);
    close_pair(&p);
}

static void test_link__queues_what_the_socket_does_not_take(void **state)
{
    struct link_message m = sample(LINK_PROGRESS), got;
    struct pair p;
    int sent = 0, received = 0;

    (void)state;
    open_pair(&p);
    while (link_send(&p.trainer, &m, NULL) == 0)
        sent++;
    assert_true(
        link_wants_write(&p.trainer)); /* stopped at the limit of the queue, not at EAGAIN */
    assert_true(p.trainer.out.length <= LINK_QUEUE_SIZE_MAX);
    for (int turns = 0; turns < 100000 && received < sent; turns++) {
        assert_int_equal(link_flush(&p.trainer, NULL), 0);
        while (link_receive(&p.agent, &got, NULL) == 0)
            received++;
    }
    assert_int_equal(received, sent);
    assert_false(link_wants_write(&p.trainer));
    close_pair(&p);
}

static void test_link__tells_when_the_other_side_is_gone(void **state)
{
    struct link_message m = sample(LINK_FINISHED), got;
    struct pair p;

    (void)state;
    open_pair(&p);
    assert_int_equal(link_send(&p.trainer, &m, NULL), 0);
    link_release(&p.trainer);
    assert_int_equal(link_receive(&p.agent, &got, NULL), 0); /* its last message first */
    assert_int_equal(got.finished.steps, 300);
    assert_int_equal(link_receive(&p.agent, &got, NULL), -EPIPE);
    assert_int_equal(link_send(&p.agent, &m, NULL), -EPIPE);
    close_pair(&p);
}

static void test_link__refuses_a_line_without_end(void **state)
{
    static char junk[1 << 16];
    struct link_message got;
    struct pair p;
    int rc = -EAGAIN;

    (void)state;
    open_pair(&p);
    memset(junk, 'x', sizeof(junk));
    for (size_t sent = 0; sent < 2 * (size_t)LINK_MESSAGE_SIZE_MAX && rc == -EAGAIN;
         sent += sizeof(junk)) {
        assert_true(send(p.trainer.fd, junk, sizeof(junk), 0) > 0);
        rc = link_receive(&p.agent, &got, NULL);
    }
    assert_int_equal(rc, -EFBIG);
    close_pair(&p);
}

static void test_link__is_found_through_the_environment(void **state)
{
    struct link link;
    char number[16];
    int fds[2];

    (void)state;
    (void)unsetenv(LINK_FD_ENV);
    assert_int_equal(link_init_from_environment(&link, NULL), -ENOENT);
    (void)setenv(LINK_FD_ENV, "912", 1);
    assert_int_equal(link_init_from_environment(&link, NULL), -EINVAL);
    assert_int_equal(link_pair(fds, NULL), 0);
    (void)snprintf(number, sizeof(number), "%d", fds[1]);
    (void)setenv(LINK_FD_ENV, number, 1);
    assert_int_equal(link_init_from_environment(&link, NULL), 0);
    assert_int_equal(link.fd, fds[1]);
    assert_null(getenv(LINK_FD_ENV));
    link_release(&link);
    close(fds[0]);
}

static void test_link__finds_the_listening_socket(void **state)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM, 0), found = -1, port = 0;
    socklen_t size = sizeof(address);
    char number[16];

    (void)state;
    assert_int_equal(link_listener_from_environment(&found, &port, NULL), -ENOENT);
    (void)snprintf(number, sizeof(number), "%d", fd);
    (void)setenv(LINK_LISTEN_FD_ENV, number, 1);
    assert_int_equal(link_listener_from_environment(&found, &port, NULL), -EINVAL);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(listen(fd, 1), 0);
    (void)setenv(LINK_LISTEN_FD_ENV, number, 1);
    assert_int_equal(link_listener_from_environment(&found, &port, NULL), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &size), 0);
    assert_int_equal(found, fd);
    assert_int_equal(port, ntohs(address.sin_port));
    assert_null(getenv(LINK_LISTEN_FD_ENV));
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_link__every_message_survives_a_round_trip),
        cmocka_unit_test(test_link__values_arrive_as_they_were_sent),
        cmocka_unit_test(test_link__refuses_what_breaks_a_rule),
        cmocka_unit_test(test_link__cuts_long_texts_at_a_character),
        cmocka_unit_test(test_link__hands_out_messages_for_all_cuts),
        cmocka_unit_test(test_link__queues_what_the_socket_does_not_take),
        cmocka_unit_test(test_link__tells_when_the_other_side_is_gone),
        cmocka_unit_test(test_link__refuses_a_line_without_end),
        cmocka_unit_test(test_link__is_found_through_the_environment),
        cmocka_unit_test(test_link__finds_the_listening_socket),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

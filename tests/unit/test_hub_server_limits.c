/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The limits of the hub's server (tests/support/hub_server_world.h): connections, handshakes,
 * floods, shares of jobs and namespaces, members that do not read.
 */
#include "tests/support/client_hello.h"
#include "tests/support/hub_server_stranger.h"
#include "tests/support/hub_server_world.h"

static void test_hub_server__closes_connections_that_say_nothing(void **state)
{
    struct hub_server_config change = {.hello_timeout_ms = 1000, .handshake_timeout_ms = 1000};
    struct world *world = world_new(1, &change);
    struct stranger upgraded = {.speaks_tls = true}, dumb = {.speaks_tls = false};

    (void)state;
    meet(world, &upgraded);
    part(world, &upgraded);
    assert_string_equal(upgraded.reason, "it said nothing");
    assert_true(upgraded.lasted_ms >= 900);
    meet(world, &dumb); /* not even TLS */
    part(world, &dumb);
    if (dumb.lasted_ms < 500)
        fail_msg("a connection without TLS lasted %.0f ms", dumb.lasted_ms);

    add_agent(world, NULL, NULL, NULL); /* an agent that says hello may stay */
    run_until(world, has_joined(world, 1));
    run_for(world, 1500);
    assert_true(world->agents[0].is_connected);
    world_free(world);
}

static void test_hub_server__accepts_no_more_connections_than_allowed(void **state)
{
    struct hub_server_config change = {.connections_max = 2};
    struct world *world = world_new(3, &change);

    (void)state;
    for (int i = 0; i < 3; i++)
        add_agent(world, NULL, NULL, NULL);
    run_until(world, world->events[HUB_EVENT_JOINED] == 2);
    run_for(world, 300);
    assert_int_equal(world->events[HUB_EVENT_JOINED], 2);
    close_agent(&world->agents[world->agents[0].is_connected ? 0 : 1]);
    run_until(world, world->events[HUB_EVENT_JOINED] == 3); /* the third had to wait */
    world_free(world);
}

/* ---- floods ---------------------------------------------------------------------------------- */

/* Opens a connection from 127.0.0.<source> and leaves it in the middle of its handshake. */
static int open_half(const struct world *world, int source, const void *hello, size_t size)
{
    struct sockaddr_in from = {.sin_family = AF_INET,
                               .sin_addr = {htonl(0x7f000000u + (uint32_t)source)}};
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)hub_server_port(world->server)),
                             .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    (void)setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &(int){1}, sizeof(int));
    assert_int_equal(bind(fd, (struct sockaddr *)&from, sizeof(from)), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    (void)send(fd, hello, size, MSG_NOSIGNAL);
    return fd;
}

static struct hub_server_stats stats(const struct world *world)
{
    struct hub_server_stats out;

    hub_server_stats(world->server, &out);
    return out;
}

static void test_hub_server__a_flood_leaves_room_for_members(void **state)
{
    enum {
        HALF = 120,
        SOURCES = 6,
        OPEN_MAX_ = 40,
        SOURCE_MAX = 10
    };
    struct hub_server_config change = {.handshakes_max = OPEN_MAX_,
                                       .source_handshakes_max = SOURCE_MAX,
                                       .handshake_timeout_ms = PATIENCE_MS};
    struct world *world = world_new(2, &change);
    unsigned char hello[4096];
    size_t size = client_hello(hello, sizeof(hello));
    int fds[HALF];

    (void)state;
    for (int i = 0; i < HALF; i++) {
        fds[i] = open_half(world, 2 + i % SOURCES, hello, size);
        turn(world);
        assert_true(stats(world).handshakes <= OPEN_MAX_);
    }
    run_until(world, stats(world).accepted == HALF);
    assert_true(stats(world).handshakes <= OPEN_MAX_);
    assert_true(stats(world).refused[HUB_REFUSED_SOURCE] +
                    stats(world).refused[HUB_REFUSED_HANDSHAKES] >=
                HALF - OPEN_MAX_);
    add_agent(world, NULL, NULL, NULL);
    add_agent(world, NULL, NULL, NULL);
    run_until(world, has_joined(world, 1)); /* no half-open connection has ended by itself */
    assert_int_equal(stats(world).connections, 2);
    assert_int_equal(stats(world).refused[HUB_REFUSED_HANDSHAKE_TIME], 0);
    for (int i = 0; i < HALF; i++)
        close(fds[i]);
    run_until(world, stats(world).handshakes == 0);
    world_free(world);
}

static void test_hub_server__a_handshake_has_its_time(void **state)
{
    struct hub_server_config change = {.handshake_timeout_ms = 300};
    struct world *world = world_new(1, &change);
    unsigned char hello[4096];
    size_t size = client_hello(hello, sizeof(hello));
    int half, silent;

    (void)state;
    half = open_half(world, 2, hello, size);
    silent = open_half(world, 3, hello, 0);
    run_until(world, stats(world).handshakes == 2);
    run_until(world, stats(world).refused[HUB_REFUSED_HANDSHAKE_TIME] == 2);
    assert_int_equal(stats(world).handshakes, 0);
    assert_string_equal(world->refused_reason, "the handshake was not complete in time");
    close(half);
    close(silent);
    world_free(world);
}

static size_t resident_bytes(void)
{
    FILE *file = fopen("/proc/self/statm", "r");
    unsigned long all = 0, resident = 0;

    assert_non_null(file);
    assert_int_equal(fscanf(file, "%lu %lu", &all, &resident), 2);
    fclose(file);
    return resident * (size_t)sysconf(_SC_PAGESIZE);
}

/* Memory of a sanitizer says nothing about memory of the server. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define IS_SANITIZED true
#else
#define IS_SANITIZED false
#endif

static void test_hub_server__gives_memory_back_after_a_flood(void **state)
{
    enum {
        HALF = 900,
        ROUNDS = 3
    };
    struct hub_server_config change = {
        .handshakes_max = HALF, .source_handshakes_max = HALF, .handshake_timeout_ms = PATIENCE_MS};
    struct world *world = world_new(1, &change);
    unsigned char hello[4096];
    size_t size = client_hello(hello, sizeof(hello)), before, peak = 0;
    int fds[HALF];

    (void)state;
    add_agent(world, NULL, NULL, NULL);
    run_until(world, has_joined(world, 1));
    before = resident_bytes();
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < HALF; i++) {
            fds[i] = open_half(world, 2 + i % 9, hello, size);
            if (i % 10 == 0)
                turn(world);
        }
        run_until(world, stats(world).accepted == (uint64_t)HALF * (uint64_t)(round + 1) + 1);
        run_for(world, 50);
        if (resident_bytes() > peak)
            peak = resident_bytes();
        for (int i = 0; i < HALF; i++)
            close(fds[i]);
        run_until(world, stats(world).handshakes == 0);
    }
    print_message("resident: %zu KiB before, %zu at most\n", before >> 10, peak >> 10);
    if (!IS_SANITIZED) {
        assert_true(peak < before + (size_t)HALF * 100 * 1024);
        run_until(world, resident_bytes() < 2 * before);
    }
    print_message("resident: %zu KiB after\n", resident_bytes() >> 10);
    assert_true(world->agents[0].is_connected);
    world_free(world);
}

static void test_hub_server__a_job_and_a_namespace_have_shares(void **state)
{
    struct hub_server_config change = {.connections_max = 8, .namespace_connections_max = 2};
    struct world *world = world_new(1, &change);
    struct hub_server_job *other;
    struct stranger third = {.speaks_tls = true, .path = "/rendezvous/mine", .token_job = "mine"};

    (void)state;
    world->namespace_ = "team";
    hub_server_remove(world->job);
    host_job(world, "job", 1, (struct fleet_generation){0}, &world->job);
    host_job(world, "mine", 1, (struct fleet_generation){0}, &other);
    add_agent(world, NULL, NULL, NULL);
    add_agent(world, NULL, NULL, NULL);
    run_until(world, stats(world).connections == 2);
    meet(world, &third);
    part(world, &third);
    assert_string_equal(third.status, "429");
    assert_string_equal(world->refused_reason,
                        "the namespace has as many connections as it may have");
    assert_int_equal(stats(world).refused[HUB_REFUSED_NAMESPACE_SHARE], 1);
    world->namespace_ = "others";
    hub_server_remove(other);
    host_job(world, "mine", 1, (struct fleet_generation){0}, &other);
    third = (struct stranger){.speaks_tls = true,
                              .path = "/rendezvous/mine",
                              .token_job = "mine",
                              .opcode = 1,
                              .text = "{}"};
    meet(world, &third);
    part(world, &third);
    assert_string_equal(third.status, "101"); /* another namespace has its own share */
    world_free(world);
}

/* A peer with the right token that never stops talking is closed; the job's member is not
 * disturbed. */
static void test_hub_server__a_client_that_sends_too_much_is_closed(void **state)
{
    struct world *world = world_new(1, NULL);
    static const int port = 7000;
    struct message hello = {.type = MESSAGE_HELLO,
                            .hello = {.job_uid = "job",
                                      .pod_uid = "talker",
                                      .address = "127.0.0.1",
                                      .ports = &port,
                                      .processes = 1,
                                      .index = 5,
                                      .devices = "cpu",
                                      .version = "test"}};
    struct message_text *text = message_encode(&hello);
    struct stranger talker = {.speaks_tls = true,
                              .opcode = 1,
                              .text = text->text,
                              .fragments = 20000, /* 3600 may come at once */
                              .fragment_size = 100,
                              .fill = ' '};

    (void)state;
    add_agent(world, NULL, NULL, NULL);
    run_until(world, has_joined(world, 1));
    meet(world, &talker);
    part(world, &talker);
    assert_string_equal(world->refused_reason, "the job's members say too much");
    assert_true(stats(world).refused[HUB_REFUSED_JOB_SHARE] >=
                1); /* a member that says something just then dials again */
    run_until(world, world->agents[0].is_connected);
    assert_int_equal(world->agents[0].aborts, 0);
    message_text_release(text);
    world_free(world);
}

/* ---- peers that do not read ------------------------------------------------------------------ */

#define MIB ((size_t)1 << 20)

/* The first `count` connections that there ever were are sent one text of `size` bytes. */
static void send_text(struct hub_server_job *job, const int *connections, int count, size_t size)
{
    struct message_text *text = calloc(1, sizeof(*text) + size + 1);
    struct hub_output out = {.items = calloc((size_t)count, sizeof(*out.items)),
                             .count = (size_t)count,
                             .capacity = (size_t)count};

    assert_non_null(text);
    assert_non_null(out.items);
    text->size = size;
    memset(text->text, 'x', size);
    for (int i = 0; i < count;
         i++) /* numbers as hub_session.c gives them, in slots one after the other */
        out.items[i] =
            (struct hub_action){.type = HUB_SEND,
                                .connection = (uint64_t)(connections[i] + 1) << 16 | connections[i],
                                .text = message_text_use(text)};
    hub_server_apply(job, &out);
}

static void send_one(struct hub_server_job *job, int connection, size_t size)
{
    send_text(job, &connection, 1, size);
}

/* Comes to a hosted job, and reads nothing. */
static void meet_deaf(struct world *world, struct stranger *s, const char *path, const char *job)
{
    size_t before = stats(world).connections;

    *s = (struct stranger){.speaks_tls = true, .path = path, .token_job = job, .is_deaf = true};
    meet(world, s);
    run_until(world, stats(world).connections == before + 1);
}

static void part_deaf(struct world *world, struct stranger *s)
{
    s->is_deaf = false;
    part(world, s);
}

static void test_hub_server__what_waits_for_a_slow_member_counts_for_its_job(void **state)
{
    struct hub_server_config change = {.job_bytes_max = 8 * MIB};
    struct world *world = world_new(1, &change);
    static const int both[] = {0, 1};
    struct stranger slow, slower;

    (void)state;
    meet_deaf(world, &slow, "/rendezvous/job", "job");
    meet_deaf(world, &slower, "/rendezvous/job", "job");
    send_text(world->job, both, 2, 5 * MIB); /* once in memory */
    assert_in_range(stats(world).held_bytes, 5 * MIB, 5 * MIB + 1000);
    send_one(world->job, 1, MIB);
    assert_in_range(stats(world).held_bytes, 6 * MIB, 6 * MIB + 1000);
    assert_int_equal(world->refused, 0);
    send_one(world->job, 0, 2 * MIB + MIB / 2); /* now the first holds most */
    assert_int_equal(world->refused, 1);
    assert_int_equal(stats(world).refused[HUB_REFUSED_JOB_SHARE], 1);
    assert_string_equal(world->refused_reason,
                        "too much is held for the job's members, most of it for this one");
    assert_in_range(stats(world).held_bytes, 6 * MIB, 6 * MIB + 1000); /* the other stays */
    part_deaf(world, &slow);
    assert_string_equal(slow.reason, world->refused_reason);
    hub_server_remove(world->job);
    part_deaf(world, &slower);
    run_until(world, stats(world).connections == 0);
    assert_int_equal(stats(world).held_bytes, 0);
    host_job(world, "job", 1, (struct fleet_generation){0}, &world->job);
    world_free(world);
}

/* Three jobs, the first two of them in one namespace, each with a peer that reads nothing. */
static struct world *meet_three(struct hub_server_job *jobs[3], struct stranger strangers[3])
{
    static const char *const uids[] = {"a", "b", "c"}, *const paths[] = {"/rendezvous/a",
                                                                         "/rendezvous/b",
                                                                         "/rendezvous/c"};
    struct hub_server_config change = {
        .job_bytes_max = 12 * MIB, .namespace_bytes_max = 14 * MIB, .bytes_max = 20 * MIB};
    struct world *world = world_new(1, &change);

    for (int i = 0; i < 3; i++) {
        world->namespace_ = i < 2 ? "team" : "others";
        host_job(world, uids[i], 1, (struct fleet_generation){0}, &jobs[i]);
        meet_deaf(world, &strangers[i], paths[i], uids[i]);
    }
    return world;
}

static void part_three(struct world *world, struct stranger strangers[3])
{
    for (int i = 0; i < 3; i++)
        strangers[i].is_deaf = false;
    hub_server_free(world->server); /* which ends those that are still there */
    for (int i = 0; i < 3; i++)
        part(world, &strangers[i]);
    world->server = NULL;
    world_free(world);
}

static void test_hub_server__what_waits_counts_for_the_namespace(void **state)
{
    struct hub_server_job *jobs[3];
    struct stranger strangers[3];
    struct world *world = meet_three(jobs, strangers);

    (void)state;
    send_one(jobs[0], 0, 8 * MIB);
    send_one(jobs[2], 2, 9 * MIB);
    assert_int_equal(world->refused, 0);
    send_one(jobs[1], 1, 7 * MIB); /* 15 of 14 MiB, and the first has most of them */
    assert_int_equal(stats(world).refused[HUB_REFUSED_NAMESPACE_SHARE], 1);
    assert_string_equal(world->refused_job, "a");
    assert_int_equal(world->refused, 1);
    assert_in_range(stats(world).held_bytes, 16 * MIB, 16 * MIB + 1000);
    part_three(world, strangers);
}

/* The namespace that holds most pays, not the one that gets a message last. */
static void test_hub_server__what_waits_counts_in_all(void **state)
{
    struct hub_server_job *jobs[3];
    struct stranger strangers[3];
    struct world *world = meet_three(jobs, strangers);

    (void)state;
    send_one(jobs[0], 0, 5 * MIB);
    send_one(jobs[1], 1, 6 * MIB);
    send_one(jobs[2], 2, 8 * MIB);
    assert_int_equal(world->refused, 0);
    send_one(jobs[2], 2, 2 * MIB); /* 21 of 20 MiB: team has 11 of them */
    assert_int_equal(stats(world).refused[HUB_REFUSED_MEMORY], 1);
    assert_string_equal(world->refused_job, "b");
    assert_int_equal(world->refused, 1);
    assert_in_range(stats(world).held_bytes, 15 * MIB, 15 * MIB + 1000);
    part_three(world, strangers);
}

/* A member that takes nothing any more is closed before its queue is larger than it may be, and its
 * hub knows. */
static void test_hub_server__a_member_that_does_not_read_is_lost(void **state)
{
    struct world *world = world_new(1, NULL);
    struct stranger slow;

    (void)state;
    meet_deaf(world, &slow, "/rendezvous/job", "job");
    for (int i = 0; i < 40 && world->refused == 0; i++) {
        send_one(world->job, 0, MIB);
        run_for(world, 5); /* the kernel takes some of it */
    }
    assert_int_equal(stats(world).refused[HUB_REFUSED_SLOW], 1);
    assert_string_equal(world->refused_reason, "the member does not read what it is sent");
    assert_int_equal(stats(world).held_bytes, 0);
    part_deaf(world, &slow);
    world_free(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hub_server__closes_connections_that_say_nothing),
        cmocka_unit_test(test_hub_server__accepts_no_more_connections_than_allowed),
        cmocka_unit_test(test_hub_server__a_flood_leaves_room_for_members),
        cmocka_unit_test(test_hub_server__a_handshake_has_its_time),
        cmocka_unit_test(test_hub_server__gives_memory_back_after_a_flood),
        cmocka_unit_test(test_hub_server__a_job_and_a_namespace_have_shares),
        cmocka_unit_test(test_hub_server__a_client_that_sends_too_much_is_closed),
        cmocka_unit_test(test_hub_server__what_waits_for_a_slow_member_counts_for_its_job),
        cmocka_unit_test(test_hub_server__what_waits_counts_for_the_namespace),
        cmocka_unit_test(test_hub_server__what_waits_counts_in_all),
        cmocka_unit_test(test_hub_server__a_member_that_does_not_read_is_lost),
    };
    return cmocka_run_group_tests_name("hub_server_limits", tests, NULL, NULL);
}

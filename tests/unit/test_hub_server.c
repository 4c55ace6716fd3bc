/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Members, jobs and messages over the hub's server (tests/support/hub_server_world.h). TLS and
 * tokens are in test_hub_server_tls.c, limits in test_hub_server_limits.c.
 */
#include "tests/support/hub_server_stranger.h"
#include "tests/support/hub_server_world.h"

static void test_hub_server__members_form_lose_one_and_go_on(void **state)
{
    struct world *world = world_new(3, NULL);
    struct member_output out = {0};

    (void)state;
    for (int i = 0; i < 3; i++)
        add_agent(world, NULL, NULL, NULL);
    run_until(world, has_joined(world, 1));
    for (int i = 0; i < 3; i++) {
        assert_int_equal(world->agents[i].generation.counter, 1);
        assert_int_equal(world->agents[i].place, i); /* a first generation is ordered by index */
    }
    assert_int_equal(world->recorded.counter, 1);
    run_until(world, world->events[HUB_EVENT_STEP] == 1);

    close_agent(&world->agents[1]);
    run_until(world, world->events[HUB_EVENT_RESTART] == 1);
    assert_string_equal(world->restart.cause, "MemberLost");
    assert_int_equal(world->restart.member, 1);
    assert_int_equal(world->restart.lost_steps, 0);
    assert_true(world->restart.timeline.resume_ms >= 500); /* the grace for a broken connection */
    assert_int_equal(world->agents[2].aborts, 1);
    assert_int_equal(world->agents[2].generation.counter, 2);
    assert_int_equal(world->agents[2].place, 1); /* the highest fills the hole */

    for (int i = 0; i < 3; i += 2) {
        struct agent *agent = &world->agents[i];
        member_trainer_finished(member_client_member(agent->client), 0, 2, 1.25,
                                i == 0 ? "abc" : "", fleet_monotonic_ms(), &out);
        member_client_apply(agent->client, &out);
    }
    run_until(world, world->agents[0].is_done && world->agents[2].is_done);
    assert_int_equal(world->events[HUB_EVENT_FINISHED], 1);
    world_free(world);
}

static void test_hub_server__the_store_carries_bytes_between_members(void **state)
{
    struct world *world = world_new(2, NULL);
    struct member_output out = {0};
    struct agent *a, *b;

    (void)state;
    a = add_agent(world, NULL, NULL, NULL);
    b = add_agent(world, NULL, NULL, NULL);
    run_until(world, has_joined(world, 1));
    assert_int_equal(
        member_get(member_client_member(b->client), 0, "id", fleet_monotonic_ms(), &out, NULL), 0);
    member_client_apply(b->client, &out);
    run_for(world, 50);
    assert_false(b->has_value);
    assert_int_equal(member_put(member_client_member(a->client), "id", "unique", 6,
                                fleet_monotonic_ms(), &out, NULL),
                     0);
    member_client_apply(a->client, &out);
    run_until(world, b->has_value);
    assert_string_equal(b->value, "unique");
    world_free(world);
}

/* As many frames as it takes, with what the members say meanwhile between them. */
static void test_hub_server__a_message_of_many_frames_arrives_whole(void **state)
{
    struct world *world = world_new(2, NULL);
    FLEET_AUTO_FREE char *value = malloc(LARGE);
    struct member_output out = {0};
    struct agent *a, *b;

    (void)state;
    assert_non_null(value);
    memset(value, 'x', LARGE);
    a = add_agent(world, NULL, NULL, NULL);
    b = add_agent(world, NULL, NULL, NULL);
    run_until(world, has_joined(world, 1));
    for (int round = 0; round < 2; round++) { /* whole, and then ready for the next */
        char key[16];
        snprintf(key, sizeof(key), "%d", round);
        b->has_value = false;
        assert_int_equal(member_put(member_client_member(a->client), key, value,
                                    LARGE - (size_t)round, fleet_monotonic_ms(), &out, NULL),
                         0);
        member_client_apply(a->client, &out);
        assert_int_equal(
            member_get(member_client_member(b->client), 0, key, fleet_monotonic_ms(), &out, NULL),
            0);
        member_client_apply(b->client, &out);
        run_until(world, b->has_value);
        assert_int_equal(b->value_size, LARGE - (size_t)round);
    }
    world_free(world);
}

static void test_hub_server__a_server_that_comes_back_disturbs_nothing(void **state)
{
    /* A port that the system does not give to a program that asks for any port: it must be free
     * when the server returns. */
    struct hub_server_config config, change = {.port = 10000 + (int)(getpid() % 15000)};
    struct world *world = world_new(2, &change);
    struct fleet_error err;

    (void)state;
    config = server_config(world);
    add_agent(world, NULL, NULL, NULL);
    add_agent(world, NULL, NULL, NULL);
    run_until(world, has_joined(world, 1));
    config.port = hub_server_port(world->server);
    hub_server_free(world->server);
    run_until(world, !world->agents[0].is_connected && !world->agents[1].is_connected);
    run_for(world, 50);
    world->server = NULL; /* the socket of the one before closes within some turns of the loop */
    run_until(world, hub_server_new(&config, &world->server, &err) != -EADDRINUSE);
    if (!world->server)
        fail_msg("%s", err.text);
    host_job(world, "job", 2, world->recorded, &world->job);
    run_until(world, world->agents[0].is_connected && world->agents[1].is_connected);
    run_until(world, hub_phase(hub_server_hub(world->job)) == HUB_RUNNING);
    run_for(world, 1200);
    assert_int_equal(world->agents[0].aborts + world->agents[1].aborts, 0);
    assert_int_equal(hub_generation(hub_server_hub(world->job)).counter, 1);
    world_free(world);
}

static void test_hub_server__a_client_that_comes_back_resumes_its_session(void **state)
{
    struct world *world = world_new(1, NULL);
    struct agent *agent = add_agent(world, NULL, NULL, NULL);

    (void)state;
    for (int i = 0; i < 3; i++) {
        run_until(world, agent->is_connected);
        assert_string_equal(agent->detail, i == 0 ? "connected" : "connected, resumed");
        run_until(world, world->events[HUB_EVENT_JOINED] == i + 1);
        hub_server_remove(world->job);
        run_until(world, !agent->is_connected);
        host_job(world, "job", 1, (struct fleet_generation){0}, &world->job);
    }
    world_free(world);
}

static void test_hub_server__closes_connections_that_talk_nonsense(void **state)
{
    static const struct {
        struct stranger stranger;
        const char *reason;
    } cases[] = {
        {{.opcode = 1, .text = "hello?"},
         "decode message: line 1, column 1: not JSON: no value starts like this"},
        {{.opcode = 1, .text = "{\"type\":\"dance\"}"},
         "decode message: type: \"dance\" is no message of fleetjob.rendezvous.v1"},
        {{.opcode = 1, .text = "{\"type\":\"left\"}"}, "the first message must be hello"},
        {{.opcode = 2, .text = "{}"}, "messages are text, this one is binary"},
        {{.opcode = 1, .fragments = 40, .fragment_size = 65536, .fill = ' '},
         "the message is larger than 2097152 bytes"},
        {{.opcode = 1, .fragments = 1, .fragment_size = 3 << 20, .fill = ' '},
         "the message is larger than 2097152 bytes"},
    };
    struct world *world = world_new(1, NULL);

    (void)state;
    add_agent(world, NULL, NULL, NULL);
    run_until(world, has_joined(world, 1));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct stranger stranger = cases[i].stranger;
        stranger.speaks_tls = true;
        world->refused_reason[0] = '\0';
        meet(world, &stranger);
        part(world, &stranger);
        assert_string_equal(world->refused_reason, cases[i].reason);
        if (stranger.fragments == 0) { /* else its own sending may break before it reads */
            assert_string_equal(stranger.reason, cases[i].reason);
            assert_int_equal(stranger.close_code, 1008);
        }
    }
    assert_true(world->agents[0].is_connected);
    assert_int_equal(world->agents[0].aborts, 0);
    world_free(world);
}

/* From another CA here, so that one can tell which of the two certificates a connection has met. */
static bool say_gone(void *user, const char *job_uid, const char *job_name)
{
    (void)user;
    return strcmp(job_uid, "job") == 0 && strcmp(job_name, "gpt") == 0;
}

/* Only with the right token, and only for a job that is not hosted. */
static void test_hub_server__a_member_hears_that_its_job_is_gone(void **state)
{
    struct hub_server_config change = {.is_gone = say_gone};
    struct world *world = world_new(1, &change);
    struct agent *agent, *stranger;

    (void)state;
    agent = add_agent(world, NULL, NULL, NULL);
    run_until(world, agent->is_connected);
    hub_server_remove(world->job);
    world->job = NULL;
    stranger = add_agent(world, NULL, NULL, "00");
    run_until(world, strstr(agent->detail, "the job is gone") != NULL);
    run_until(world, stranger->detail[0]);
    assert_null(strstr(stranger->detail, "gone"));
    world_free(world);
}

static void test_hub_server__serves_many_jobs_and_stops_serving_one(void **state)
{
    struct world *world = world_new(1, NULL);
    struct hub_server_job *other, *again = NULL;
    struct hub_start start = {.job_uid = "job"};
    struct hub_policy policy = {.min = 1, .max = 1, .desired = 1};
    struct hub *hub = hub_new(&start, &policy, fleet_monotonic_ms());
    struct hub_server_handlers handlers = {0};
    struct fleet_error err;

    (void)state;
    host_job(world, "other", 1, (struct fleet_generation){0}, &other);
    assert_int_equal(hub_server_add(world->server, "job", hub, &handlers, &again, &err), -EEXIST);
    assert_string_equal(err.text, "job job is hosted already");
    hub_free(hub);
    add_agent(world, NULL, NULL, NULL);
    run_until(world, has_joined(world, 1));
    hub_server_remove(other);
    run_for(world, 50);
    assert_true(world->agents[0].is_connected);
    hub_server_remove(world->job);
    run_until(world, !world->agents[0].is_connected);
    assert_string_equal(world->agents[0].detail,
                        "the hub closed it: the job is not hosted here any more");
    world_free(world);
}

/* Its members' messages and its timer find a hub that says nothing; another job's member trains
 * on. */
static void test_hub_server__a_hub_that_breaks_disturbs_no_other(void **state)
{
    struct world *world = world_new(1, NULL);
    struct stranger first = {
        .speaks_tls = true, .path = "/rendezvous/other", .token_job = "other", .opcode = 1};
    struct message heartbeat = {.type = MESSAGE_HEARTBEAT, .heartbeat = {.status = {.step = -1}}};
    struct message_text *text = message_encode(&heartbeat);
    struct hub_output out = {0};
    struct hub_server_job *other;

    (void)state;
    first.text = text->text;
    host_job(world, "other", 1, (struct fleet_generation){0}, &other);
    add_agent(world, NULL, NULL, NULL);
    run_until(world, has_joined(world, 1));
    /* Each call begins with the assertion that time has not gone back: the next one fails. */
    hub_tick(hub_server_hub(other), fleet_monotonic_ms() + 1e9, &out);
    hub_output_release(&out);
    meet(world, &first);
    run_until(world, world->events[HUB_EVENT_DEFECT] == 1);
    assert_non_null(hub_defect(hub_server_hub(other)));
    run_for(world, 100);
    assert_int_equal(world->events[HUB_EVENT_DEFECT], 1);
    hub_server_remove(other);
    part(world, &first);
    assert_string_equal(first.reason, "the job is not hosted here any more");
    host_job(world, "other", 1, (struct fleet_generation){0}, &other);
    first = (struct stranger){.speaks_tls = true,
                              .path = "/rendezvous/other",
                              .token_job = "other",
                              .opcode = 1,
                              .text = text->text};
    meet(world, &first);
    part(world, &first);
    assert_string_equal(first.reason, "the first message must be hello"); /* it works */
    assert_true(world->agents[0].is_connected);
    assert_int_equal(world->agents[0].aborts, 0);
    message_text_release(text);
    world_free(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hub_server__members_form_lose_one_and_go_on),
        cmocka_unit_test(test_hub_server__the_store_carries_bytes_between_members),
        cmocka_unit_test(test_hub_server__a_message_of_many_frames_arrives_whole),
        cmocka_unit_test(test_hub_server__a_server_that_comes_back_disturbs_nothing),
        cmocka_unit_test(test_hub_server__a_client_that_comes_back_resumes_its_session),
        cmocka_unit_test(test_hub_server__closes_connections_that_talk_nonsense),
        cmocka_unit_test(test_hub_server__a_member_hears_that_its_job_is_gone),
        cmocka_unit_test(test_hub_server__serves_many_jobs_and_stops_serving_one),
        cmocka_unit_test(test_hub_server__a_hub_that_breaks_disturbs_no_other),
    };
    return cmocka_run_group_tests_name("hub_server", tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The largest job that the limits allow (libfleet/base/limits.h), in both protocols: what
 * `validate` accepts fits into the messages to its workers.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "agent/link.h"
#include "libfleet/api/fleetjob.h"
#include "libfleet/base/error.h"
#include "libfleet/base/limits.h"
#include "libfleet/rendezvous/message.h"
#include "libfleet/strategy/topology.h"

/* The longest texts there are: each entry is as large as it can be. */
static void encode_assign(size_t members, int processes)
{
    static const char uid[] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    struct message_member *list = calloc(members, sizeof(*list));
    int *ports = calloc((size_t)processes, sizeof(*ports));
    struct fleet_lineage_entry lineage = {{INT64_C(4503599627370495), INT64_C(4503599627370495)},
                                          1};
    struct message message = {.type = MESSAGE_ASSIGN}, read;
    struct message_text *text;
    struct fleet_error err;

    assert_true(list && ports);
    assert_int_equal(strlen(uid), FLEET_ADDRESS_MAX);
    for (int i = 0; i < processes; i++)
        ports[i] = 65535;
    for (size_t i = 0; i < members; i++)
        list[i] = (struct message_member){.pod_uid = uid,
                                          .index = 1000000,
                                          .address = uid,
                                          .ports = ports,
                                          .processes = processes,
                                          .step = INT64_C(9007199254740991)};
    message.assign = (struct message_assign){.generation = lineage.generation,
                                             .members = list,
                                             .member_count = members,
                                             .world = (int)members * processes,
                                             .plan_digest = uid,
                                             .lineage = &lineage,
                                             .lineage_count = 1,
                                             .step = -1};
    text = message_encode(&message);
    assert_in_range(text->size, 1, MESSAGE_SIZE_MAX);
    if (message_decode(text->text, text->size, &read, &err) < 0)
        fail_msg("%zu members of %d: %s", members, processes, err.text);
    assert_int_equal(read.assign.world, FLEET_WORLD_MAX);
    message_release(&read);
    message_text_release(text);
    free(list);
    free(ports);
}

static void test_limits__the_hub_can_tell_of_the_largest_job(void **state)
{
    (void)state;
    encode_assign(FLEET_WORKERS_MAX, FLEET_WORLD_MAX / FLEET_WORKERS_MAX);
    encode_assign(FLEET_WORLD_MAX / FLEET_PROCESSES_MAX, FLEET_PROCESSES_MAX);
}

static void test_limits__the_agent_can_tell_of_the_largest_job(void **state)
{
    struct link_message message = {.kind = LINK_ASSIGN, .generation = {1, 1}}, read;
    struct fleet_strbuf line = {0};
    struct fleet_error err;
    char address[LINK_ADDRESS_SIZE];

    (void)state;
    (void)snprintf(address, sizeof(address), "%0*d:65535", FLEET_ADDRESS_MAX, 1);
    message.assign.rank = FLEET_WORLD_MAX - 1;
    message.assign.world = FLEET_WORLD_MAX;
    message.assign.address_count = FLEET_WORLD_MAX;
    message.assign.addresses = calloc(FLEET_WORLD_MAX, sizeof(char *));
    assert_non_null(message.assign.addresses);
    for (int i = 0; i < FLEET_WORLD_MAX; i++)
        message.assign.addresses[i] = strdup(address);
    link_message_encode(&message, &line);
    assert_in_range(line.length, 1, LINK_MESSAGE_SIZE_MAX);
    if (link_message_decode(line.text, line.length - 1, &read, &err) < 0)
        fail_msg("%s", err.text);
    assert_string_equal(read.assign.addresses[FLEET_WORLD_MAX - 1], address);
    link_message_release(&read);
    link_message_release(&message);
    fleet_strbuf_release(&line);
}

static void test_limits__are_the_same_everywhere(void **state)
{
    (void)state;
    assert_int_equal(FLEETJOB_REPLICAS_MAX, MESSAGE_MEMBERS_MAX);
    assert_int_equal(TOPOLOGY_WORLD_MAX, LINK_WORLD_MAX);
    assert_true(FLEET_WORLD_MAX <= FLEET_WORKERS_MAX * FLEET_PROCESSES_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_limits__the_hub_can_tell_of_the_largest_job),
        cmocka_unit_test(test_limits__the_agent_can_tell_of_the_largest_job),
        cmocka_unit_test(test_limits__are_the_same_everywhere),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

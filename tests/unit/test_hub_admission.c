/* SPDX-License-Identifier: Apache-2.0 */

/* Open handshakes and shares by the numbers: which connection may begin, which one is closed for
 * it, what a flood leaves. */
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include <cmocka.h>

#include "libfleet/rendezvous/hub_admission.h"
#include "libfleet/rendezvous/hub_share.h"

#define SEED 7

static const struct hub_admission_limits limits = {.handshakes_max = 8,
                                                   .source_handshakes_max = 4,
                                                   .source_rate = 100,
                                                   .source_burst = 1000,
                                                   .crowd_rate = 1000,
                                                   .crowd_burst = 1000,
                                                   .crowd_source_max = 3,
                                                   .grace_ms = 1000,
                                                   .timeout_ms = 5000};

static struct sockaddr_storage ipv4(uint32_t number)
{
    struct sockaddr_storage out = {0};

    *(struct sockaddr_in *)(void *)&out =
        (struct sockaddr_in){.sin_family = AF_INET, .sin_addr = {htonl(0x0a000000 + number)}};
    return out;
}

static struct sockaddr_storage ipv6(uint8_t network, uint8_t host)
{
    struct sockaddr_storage out = {0};
    struct sockaddr_in6 *address = (struct sockaddr_in6 *)(void *)&out;

    address->sin6_family = AF_INET6;
    address->sin6_addr.s6_addr[0] = 0xfd;
    address->sin6_addr.s6_addr[7] = network;
    address->sin6_addr.s6_addr[15] = host;
    return out;
}

/* Begin one; the handshakes that it replaces are ended. *out_why is HUB_REFUSALS if it may begin at
 * once. */
static struct hub_handshake *begin(struct hub_admission *admission, struct sockaddr_storage source,
                                   double now_ms, enum hub_refusal *out_why)
{
    struct hub_handshake *victim;
    struct hub_handshake *begun = hub_admission_begin(admission, &source, now_ms, &victim, out_why);

    if (begun && !victim)
        *out_why = HUB_REFUSALS;
    if (victim)
        hub_admission_end(admission, victim);
    return begun;
}

static void test_hub_admission__one_source_has_its_part_of_the_table(void **state)
{
    struct hub_admission *admission = hub_admission_new(&limits, SEED);
    enum hub_refusal why;

    (void)state;
    for (int i = 0; i < 4; i++)
        assert_non_null(begin(admission, ipv4(1), i, &why));
    assert_null(begin(admission, ipv4(1), 10, &why)); /* all are young */
    assert_int_equal(why, HUB_REFUSED_SOURCE);
    assert_non_null(begin(admission, ipv4(2), 10, &why));
    assert_int_equal(why, HUB_REFUSALS);
    assert_non_null(begin(admission, ipv4(1), 1000, &why)); /* the oldest has had its time */
    assert_int_equal(why, HUB_REFUSED_SOURCE);
    assert_int_equal(hub_admission_count(admission), 5);
    hub_admission_free(admission);
}

static void test_hub_admission__a_crowd_makes_room_for_others(void **state)
{
    struct hub_admission *admission = hub_admission_new(&limits, SEED);
    struct hub_handshake *first;
    enum hub_refusal why;

    (void)state;
    for (uint32_t i = 0; i < 8; i++)
        assert_non_null(begin(admission, ipv4(1 + i / 4), i, &why));
    first = hub_admission_oldest(admission);
    assert_int_equal((int)first->begun_ms, 0);
    assert_non_null(begin(admission, ipv4(9), 20, &why)); /* from the largest, though it is young */
    assert_int_equal(why, HUB_REFUSED_HANDSHAKES);
    assert_int_equal(hub_admission_count(admission), 8);
    assert_int_equal((int)hub_admission_oldest(admission)->begun_ms, 1);
    hub_admission_free(admission);
}

static void test_hub_admission__many_small_sources_do_not_push_each_other_out(void **state)
{
    struct hub_admission *admission = hub_admission_new(&limits, SEED);
    enum hub_refusal why;

    (void)state;
    for (uint32_t i = 0; i < 8; i++)
        assert_non_null(begin(admission, ipv4(100 + i), i, &why));
    assert_null(begin(admission, ipv4(200), 20, &why));
    assert_int_equal(why, HUB_REFUSED_HANDSHAKES);
    assert_non_null(begin(admission, ipv4(200), 1500, &why));
    assert_int_equal(hub_admission_count(admission), 8);
    hub_admission_free(admission);
}

static void test_hub_admission__a_source_of_ipv6_is_a_network(void **state)
{
    struct hub_admission *admission = hub_admission_new(&limits, SEED);
    enum hub_refusal why;

    (void)state;
    for (uint8_t i = 0; i < 4; i++)
        assert_non_null(begin(admission, ipv6(1, i), 0, &why));
    assert_null(begin(admission, ipv6(1, 77), 0, &why));
    assert_int_equal(why, HUB_REFUSED_SOURCE);
    assert_non_null(begin(admission, ipv6(2, 1), 0, &why));
    hub_admission_free(admission);
}

static void test_hub_admission__limits_the_rate_of_a_source(void **state)
{
    struct hub_admission_limits few = limits;
    struct hub_admission *admission;
    struct hub_handshake *begun;
    enum hub_refusal why;
    int taken = 0;

    (void)state;
    few.source_burst = 10;
    admission = hub_admission_new(&few, SEED);
    for (int i = 0; i < 100; i++) /* each is over at once: none is open */
        if ((begun = begin(admission, ipv4(1), 0, &why))) {
            taken++;
            hub_admission_end(admission, begun);
        }
    assert_int_equal(taken, 10);
    assert_int_equal(why, HUB_REFUSED_SOURCE_RATE);
    for (int i = 0; i < 100; i++) /* 100 a second: 5 more in 50 ms */
        if ((begun = begin(admission, ipv4(1), 50, &why))) {
            taken++;
            hub_admission_end(admission, begun);
        }
    assert_int_equal(taken, 15);
    assert_non_null(begin(admission, ipv4(2), 50, &why));
    hub_admission_free(admission);
}

static void test_hub_admission__in_a_crowd_rare_sources_come_first(void **state)
{
    struct hub_admission_limits few = limits;
    struct hub_admission *admission;
    struct hub_handshake *begun;
    enum hub_refusal why;

    (void)state;
    few.crowd_burst = 20;
    few.crowd_rate = 1;
    admission = hub_admission_new(&few, SEED);
    for (int i = 0; i < 100; i++)
        if ((begun = begin(admission, ipv4(1), 0, &why)))
            hub_admission_end(admission, begun);
        else
            assert_true(i >= 20);
    assert_int_equal(why, HUB_REFUSED_SOURCE_RATE);
    for (int i = 0; i < 3; i++) { /* another one may, a few times */
        begun = begin(admission, ipv4(2), 0, &why);
        assert_non_null(begun);
        hub_admission_end(admission, begun);
    }
    assert_null(begin(admission, ipv4(2), 0, &why));
    assert_null(begin(admission, ipv4(1), 1000, &why)); /* still known */
    assert_non_null(begin(admission, ipv4(1), 60000, &why));
    hub_admission_free(admission);
}

static void test_hub_admission__overdue_ones_are_found_by_age(void **state)
{
    struct hub_admission *admission = hub_admission_new(&limits, SEED);
    struct hub_handshake *first, *second;
    enum hub_refusal why;

    (void)state;
    first = begin(admission, ipv4(1), 0, &why);
    second = begin(admission, ipv4(2), 100, &why);
    assert_null(hub_admission_overdue(admission, 4999));
    assert_ptr_equal(hub_admission_overdue(admission, 5000), first);
    hub_admission_end(admission, first);
    assert_null(hub_admission_overdue(admission, 5000));
    assert_ptr_equal(hub_admission_overdue(admission, 5100), second);
    hub_admission_free(admission);
}

static void test_hub_refusal__names_are_distinct_words(void **state)
{
    (void)state;
    for (int i = 0; i < HUB_REFUSALS; i++) {
        const char *name = hub_refusal_name((enum hub_refusal)i);
        assert_int_equal(strspn(name, "abcdefghijklmnopqrstuvwxyz_"), strlen(name));
        for (int j = 0; j < i; j++)
            assert_string_not_equal(name, hub_refusal_name((enum hub_refusal)j));
    }
}

static void test_hub_share__is_used_up_and_refills(void **state)
{
    struct hub_share share = {.rate = 100, .burst = 10};

    (void)state;
    for (int i = 0; i < 10; i++)
        assert_true(hub_share_spend(&share, 0));
    assert_false(hub_share_spend(&share, 0));
    assert_true(hub_share_spend(&share, 10)); /* 100 a second */
    assert_false(hub_share_spend(&share, 10));
    for (int i = 0; i < 10; i++) /* a long rest does not save more than the burst */
        assert_true(hub_share_spend(&share, 1e6));
    assert_false(hub_share_spend(&share, 1e6));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hub_admission__one_source_has_its_part_of_the_table),
        cmocka_unit_test(test_hub_admission__a_crowd_makes_room_for_others),
        cmocka_unit_test(test_hub_admission__many_small_sources_do_not_push_each_other_out),
        cmocka_unit_test(test_hub_admission__a_source_of_ipv6_is_a_network),
        cmocka_unit_test(test_hub_admission__limits_the_rate_of_a_source),
        cmocka_unit_test(test_hub_admission__in_a_crowd_rare_sources_come_first),
        cmocka_unit_test(test_hub_admission__overdue_ones_are_found_by_age),
        cmocka_unit_test(test_hub_refusal__names_are_distinct_words),
        cmocka_unit_test(test_hub_share__is_used_up_and_refills),
    };
    return cmocka_run_group_tests_name("hub_admission", tests, NULL, NULL);
}

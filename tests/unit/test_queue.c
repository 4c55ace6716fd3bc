/* SPDX-License-Identifier: Apache-2.0 */

/* The second queue: the order of items, what waits for what, and failures. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "agent/runtime/executor/queue.h"
#include "libfleet/base/error.h"

#define ITEMS 100

/* What items leave: their numbers, in the order in which they ran. */
static struct {
    int ran[ITEMS];
    int count;
    int fails; /* the item that does, or -1 */
    pthread_mutex_t gate;
} notes = {.gate = PTHREAD_MUTEX_INITIALIZER};

static int note(void *context, struct fleet_error *err)
{
    int number = *(int *)context;

    notes.ran[notes.count++] = number;
    if (number == notes.fails)
        return fleet_error(err, -ECONNRESET, "item %d broke", number);
    return 0;
}

static int pass_gate(void *context, struct fleet_error *err)
{
    pthread_mutex_lock(&notes.gate);
    pthread_mutex_unlock(&notes.gate);
    return note(context, err);
}

static void begin(struct queue **queue, int numbers[ITEMS])
{
    notes.count = 0;
    notes.fails = -1;
    for (int i = 0; i < ITEMS; i++)
        numbers[i] = i;
    assert_int_equal(queue_new(ITEMS, queue, NULL), 0);
}

static void test_queue__runs_items_in_their_order(void **state)
{
    struct queue_times times;
    struct queue *queue;
    int numbers[ITEMS];

    (void)state;
    begin(&queue, numbers);
    for (int i = 0; i < ITEMS; i++)
        (void)queue_put(queue, note, &numbers[i]);
    assert_int_equal(queue_finish(queue, NULL), 0);
    assert_int_equal(notes.count, ITEMS);
    for (int i = 0; i < ITEMS; i++)
        assert_int_equal(notes.ran[i], i);
    queue_times(queue, &times);
    assert_true(times.busy_s >= 0 && times.waited_s >= 0);
    queue_free(queue);
}

/* The gate is shut while the main thread waits for the item in front of it. */
static void test_queue__waits_for_no_more_than_it_is_asked_to(void **state)
{
    struct queue *queue;
    int numbers[ITEMS];
    uint64_t first;

    (void)state;
    begin(&queue, numbers);
    pthread_mutex_lock(&notes.gate);
    first = queue_put(queue, note, &numbers[0]);
    (void)queue_put(queue, pass_gate, &numbers[1]);
    assert_int_equal(queue_wait(queue, first, NULL), 0);
    assert_int_equal(notes.ran[0], 0);
    pthread_mutex_unlock(&notes.gate);
    assert_int_equal(queue_finish(queue, NULL), 0);
    assert_int_equal(notes.count, 2);
    queue_free(queue);
}

static void test_queue__runs_nothing_behind_a_failure(void **state)
{
    struct fleet_error err;
    struct queue *queue;
    int numbers[ITEMS];
    uint64_t last = 0;

    (void)state;
    begin(&queue, numbers);
    notes.fails = 3;
    for (int i = 0; i < 6; i++)
        last = queue_put(queue, note, &numbers[i]);
    assert_int_equal(queue_wait(queue, last, &err), -ECONNRESET);
    assert_string_equal(err.text, "item 3 broke");
    assert_int_equal(notes.count, 4);
    assert_int_equal(queue_finish(queue, &err), -ECONNRESET);
    (void)queue_put(queue, note, &numbers[7]); /* as new */
    assert_int_equal(queue_finish(queue, NULL), 0);
    assert_int_equal(notes.count, 5);
    queue_free(queue);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_queue__runs_items_in_their_order),
        cmocka_unit_test(test_queue__waits_for_no_more_than_it_is_asked_to),
        cmocka_unit_test(test_queue__runs_nothing_behind_a_failure),
    };
    return cmocka_run_group_tests_name("queue", tests, NULL, NULL);
}

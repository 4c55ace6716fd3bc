/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A job whose strategy a search finds, while the search runs beside the loop: the job waits and
 * says so, the others go on. The fixture is that of test_reconciler.c.
 */
#include "tests/support/held_background.h"
#include "tests/unit/reconciler_fixture.h"

/* Two micro-batches: more than two workers share tensors. */
#define JOB(name, context)                                                                         \
    "{\"apiVersion\":\"fleetjob.dev/v1alpha1\",\"kind\":\"FleetJob\",\"metadata\":{\"name\":"      \
    "\"" name "\"},\"spec\":{\"worker\":{\"replicas\":2}," context                                 \
    "\"training\":{\"model\":{\"name\":\"gpt\",\"layers\":2,\"heads\":4,\"width\":32,\"context\":" \
    "16},\"data\":{\"tokenizer\":\"synthetic-markov\",\"symbols\":16},\"optimizer\":{\"name\":"    \
    "\"adamw\",\"learningRate\":0.001},\"globalBatchSize\":8,\"microBatchSize\":4,\"steps\":9}}}"
#define AUTO "\"autoParallel\":{\"parallel_mode\":\"auto_parallel\",\"gradients_mean\":true},"

#define GPT   JOBS "/gpt"
#define FOUR  "{\"spec\":{\"worker\":{\"replicas\":4}}}"
#define WHILE "a search finds the strategy for %d ranks"

struct scene {
    struct world w;
    struct held_background held;
};

static void begin(struct scene *s)
{
    start(&s->w, 1);
    reconciler_free(s->w.reconciler);
    metrics_free(s->w.metrics);
    s->w.metrics = metrics_new();
    s->held = (struct held_background){.head = {.run = held_background_run}};
    s->w.background = &s->held.head;
    start_controller(&s->w);
    assert_int_equal(fake_apiserver_do(s->w.server, "POST", JOBS, JOB("gpt", AUTO)), 201);
    fake_io_run(s->w.io, 2000);
    assert_int_equal(s->held.count, 1);
}

static void finish(struct scene *s)
{
    held_background_finish(&s->held);
    fake_io_run(s->w.io, 2000);
}

static void expect_searching(const struct world *w, int ranks)
{
    char text[64];

    (void)snprintf(text, sizeof(text), WHILE, ranks);
    assert_string_equal(text_at(w, GPT, "status.waiting"), text);
}

static void test_reconciler_search__holds_up_only_its_own_job(void **state)
{
    struct scene s;

    (void)state;
    begin(&s);
    expect_searching(&s.w, 2);
    assert_string_equal(text_at(&s.w, GPT, "status.state"), "Pending");
    assert_string_equal(text_at(&s.w, GPT, "status.reason"), "SearchingStrategy");
    assert_int_equal(fake_apiserver_count(s.w.server, PODS), 0);
    assert_int_equal(fake_apiserver_count(s.w.server, SECRETS), 0);
    assert_int_equal(fake_apiserver_do(s.w.server, "POST", JOBS, JOB("other", "")), 201);
    fake_io_run(s.w.io, 2000);
    expect_pods(&s.w, 2, "other-worker-0-0", "other-worker-1-0");
    finish(&s);
    expect_pods(&s.w, 4, "gpt-worker-0-0", "gpt-worker-1-0", "other-worker-0-0",
                "other-worker-1-0");
    assert_string_equal(text_at(&s.w, GPT, "status.waiting"), "");
    assert_string_equal(condition(&s.w, "Accepted"), "True");
    assert_int_equal(number_at(&s.w, GPT, "status.plan.search.running.data"), 2);
    assert_non_null(note_of(&s.w, "StrategyChosen"));
    fake_io_run(s.w.io, 60000);
    assert_int_equal(s.held.count, 1); /* the status knows it */
    stop(&s.w);
}

/* Two workers run; a search for four of them takes its time. */
static void test_reconciler_search__leaves_the_workers_alone(void **state)
{
    struct scene s;

    (void)state;
    begin(&s);
    finish(&s);
    assert_int_equal(fake_apiserver_do(s.w.server, "PATCH", GPT, FOUR), 200);
    fake_io_run(s.w.io, 2000);
    expect_searching(&s.w, 4);
    expect_pods(&s.w, 2, "gpt-worker-0-0", "gpt-worker-1-0");
    assert_string_equal(condition(&s.w, "Accepted"), "True");
    assert_int_equal(number_at(&s.w, GPT, "status.plan.search.running.workers"), 2);
    assert_int_equal(number_at(&s.w, GPT, "status.observedGeneration"), 1);
    finish(&s);
    assert_int_equal(number_at(&s.w, GPT, "status.observedGeneration"), 2);
    assert_int_equal(number_at(&s.w, GPT, "status.plan.search.running.workers"), 4);
    assert_int_equal(fake_apiserver_count(s.w.server, PODS), 4); /* after both had left */
    assert_int_equal(s.held.count, 2);
    stop(&s.w);
}

/* The result for two workers comes when four are wanted. */
static void test_reconciler_search__is_for_the_spec_as_it_is(void **state)
{
    struct scene s;

    (void)state;
    begin(&s);
    assert_int_equal(fake_apiserver_do(s.w.server, "PATCH", GPT, FOUR), 200);
    fake_io_run(s.w.io, 2000);
    expect_searching(&s.w, 4);
    finish(&s);
    assert_int_equal(fake_apiserver_count(s.w.server, PODS), 0);
    assert_int_equal(s.held.count, 2);
    finish(&s);
    assert_int_equal(fake_apiserver_count(s.w.server, PODS), 4);
    assert_int_equal(number_at(&s.w, GPT, "status.plan.search.running.model"), 2);
    stop(&s.w);
}

static void test_reconciler_search__of_a_job_that_is_gone_does_nothing(void **state)
{
    struct scene s;

    (void)state;
    begin(&s);
    assert_int_equal(fake_apiserver_do(s.w.server, "DELETE", GPT, NULL), 200);
    fake_io_run(s.w.io, 2000);
    finish(&s);
    assert_int_equal(fake_apiserver_count(s.w.server, PODS), 0);
    assert_int_equal(s.held.count, 1);
    stop(&s.w);
}

/* A search that runs outlives its controller; the next one begins again. */
static void test_reconciler_search__begins_again_with_another_leader(void **state)
{
    struct held_background before;
    struct scene s;

    (void)state;
    begin(&s);
    before = s.held;
    s.held.arg = NULL;
    restart_controller(&s.w);
    fake_io_run(s.w.io, 2000);
    assert_int_equal(s.held.count, 2);
    held_background_finish(&before);
    assert_int_equal(fake_apiserver_count(s.w.server, PODS), 0);
    finish(&s);
    assert_int_equal(fake_apiserver_count(s.w.server, PODS), 2);
    stop(&s.w);
}

/* Without another thread it has a turn of the loop of its own. */
static void test_reconciler_search__needs_no_thread(void **state)
{
    struct world w;

    (void)state;
    start(&w, 1);
    assert_int_equal(fake_apiserver_do(w.server, "POST", JOBS, JOB("gpt", AUTO)), 201);
    fake_io_run(w.io, 2000);
    expect_pods(&w, 2, "gpt-worker-0-0", "gpt-worker-1-0");
    stop(&w);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reconciler_search__holds_up_only_its_own_job),
        cmocka_unit_test(test_reconciler_search__leaves_the_workers_alone),
        cmocka_unit_test(test_reconciler_search__is_for_the_spec_as_it_is),
        cmocka_unit_test(test_reconciler_search__of_a_job_that_is_gone_does_nothing),
        cmocka_unit_test(test_reconciler_search__begins_again_with_another_leader),
        cmocka_unit_test(test_reconciler_search__needs_no_thread),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */

/* The queue of searches: one at a time, in which order, and what becomes of those that nobody waits
 * for any more. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "controller/fleetjob/job_search.h"
#include "controller/fleetjob/projection.h"
#include "libfleet/base/strbuf.h"
#include "tests/support/held_background.h"

struct world {
    struct held_background held;
    struct job_search *search;
    struct fleet_strbuf found; /* "a1 b2 ": keys and generations */
    int with_division;
};

static void on_found(void *user, const char *key, struct observe_plan *plan)
{
    struct world *w = user;

    fleet_strbuf_appendf(&w->found, "%s%d ", key, (int)plan->generation);
    w->with_division += plan->has_found && plan->search && plan->errors.count == 0;
    observe_plan_release(plan);
}

static void start(struct world *w, struct background *background)
{
    *w = (struct world){.held = {.head = {.run = held_background_run}}};
    w->search = job_search_new(&(struct job_search_options){
        .background = background ? background : &w->held.head, .on_found = on_found, .user = w});
}

static void stop(struct world *w)
{
    job_search_free(w->search);
    fleet_strbuf_release(&w->found);
}

static void want(struct world *w, const char *key, int generation, bool trains)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    struct projection_job job = {.generation = generation};

    fleet_strbuf_appendf(
        &text,
        "{\"apiVersion\":\"fleetjob.dev/v1alpha1\",\"kind\":\"FleetJob\","
        "\"metadata\":{\"name\":\"gpt\",\"uid\":\"u\",\"generation\":%d},\"spec\":{"
        "\"worker\":{\"replicas\":4},"
        "\"autoParallel\":{\"parallel_mode\":\"auto_parallel\",\"gradients_mean\":true},"
        "\"training\":{\"model\":{\"name\":\"gpt\",\"layers\":2,\"heads\":4,\"width\":32,"
        "\"context\":16},\"data\":{\"tokenizer\":\"synthetic-markov\",\"symbols\":16},"
        "\"optimizer\":{\"name\":\"adamw\",\"learningRate\":0.001},\"globalBatchSize\":8,"
        "\"microBatchSize\":4,\"steps\":9}}}",
        generation);
    job.text = text.text;
    job.size = text.length;
    job_search_want(w->search, key, &job, false, trains);
}

static void finish_all(struct world *w)
{
    while (w->held.arg)
        held_background_finish(&w->held);
}

static void test_job_search__runs_one_and_those_that_train_first(void **state)
{
    struct world w;

    (void)state;
    start(&w, NULL);
    want(&w, "a", 1, false);
    want(&w, "b", 1, false);
    want(&w, "c", 1, true);
    want(&w, "d", 1, false);
    want(&w, "e", 1, true);
    assert_int_equal(w.held.count, 1);
    finish_all(&w);
    assert_string_equal(w.found.text, "a1 c1 e1 b1 d1 ");
    assert_int_equal(w.with_division, 5);
    want(&w, "f", 1, false);
    finish_all(&w);
    assert_string_equal(w.found.text, "a1 c1 e1 b1 d1 f1 ");
    stop(&w);
}

static void test_job_search__is_for_the_newest_generation(void **state)
{
    struct world w;

    (void)state;
    start(&w, NULL);
    want(&w, "a", 1, false);
    want(&w, "b", 1, false);
    want(&w, "a", 1, false); /* runs already */
    want(&w, "b", 1, false); /* waits already */
    want(&w, "a", 2, false); /* the one that runs is for nobody */
    want(&w, "b", 2, false);
    want(&w, "a", 3, false);
    finish_all(&w);
    assert_string_equal(w.found.text, "b2 a3 ");
    assert_int_equal(w.held.count, 3);
    stop(&w);
}

static void test_job_search__forgets_jobs_that_are_gone(void **state)
{
    struct world w;

    (void)state;
    start(&w, NULL);
    want(&w, "a", 1, false);
    want(&w, "b", 1, false);
    want(&w, "c", 1, false);
    job_search_forget(w.search, "a");
    job_search_forget(w.search, "b");
    job_search_forget(w.search, "x");
    want(&w, "a", 1, false); /* a new job of this name */
    finish_all(&w);
    assert_string_equal(w.found.text, "c1 a1 ");
    stop(&w);
}

/* The loop ends, and a search still runs. */
static void test_job_search__may_be_freed_while_one_runs(void **state)
{
    struct world w;

    (void)state;
    start(&w, NULL);
    want(&w, "a", 1, false);
    want(&w, "b", 1, false);
    stop(&w);
    held_background_finish(&w.held);
    assert_null(w.held.arg);
    assert_null(w.found.text);
}

static void test_job_search__runs_beside_a_loop(void **state)
{
    struct background *background;
    struct world w;
    uv_loop_t loop;

    (void)state;
    assert_int_equal(uv_loop_init(&loop), 0);
    background = background_new(&loop);
    start(&w, background);
    want(&w, "a", 1, false);
    want(&w, "b", 1, false);
    want(&w, "b", 2, false);
    assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
    assert_string_equal(w.found.text, "a1 b2 ");
    assert_int_equal(w.with_division, 2);
    want(&w, "c", 1, false);
    job_search_free(w.search); /* it runs, and frees what it has */
    assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
    assert_string_equal(w.found.text, "a1 b2 ");
    fleet_strbuf_release(&w.found);
    assert_int_equal(uv_loop_close(&loop), 0);
    free(background);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_job_search__runs_one_and_those_that_train_first),
        cmocka_unit_test(test_job_search__is_for_the_newest_generation),
        cmocka_unit_test(test_job_search__forgets_jobs_that_are_gone),
        cmocka_unit_test(test_job_search__may_be_freed_while_one_runs),
        cmocka_unit_test(test_job_search__runs_beside_a_loop),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

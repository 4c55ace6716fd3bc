/* SPDX-License-Identifier: Apache-2.0 */

/*
 * autoParallel.search: full: the job gets the division that the search finds, and a field that says
 * something else about it is refused, with both names.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/api/divisions.h"
#include "libfleet/api/fleetjob.h"
#include "libfleet/api/judge.h"
#include "libfleet/autoparallel/search/full_search.h"
#include "libfleet/autoparallel/search/links_default.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/strbuf.h"

#define FULL "parallel_mode: auto_parallel, gradients_mean: true, search: full"
#define BIG  "{name: gpt, layers: 12, heads: 12, width: 768, context: 128}"
#define WIDE "{name: gpt, layers: 1, heads: 1, width: 1024, context: 16}"
#define TINY "{name: gpt, layers: 2, heads: 4, width: 64, context: 64}"

struct parts {
    const char *worker, *context, *spec, *training, *model;
};

static void put(const struct parts *p, struct fleet_strbuf *out)
{
    fleet_strbuf_appendf(
        out,
        "apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\nmetadata: {name: full, uid: u}\nspec:\n"
        "  worker: {%s}\n  autoParallel: {%s}\n%s"
        "  training:\n    model: %s\n    data: {tokenizer: synthetic-markov, symbols: 16}\n"
        "    optimizer: {name: adamw, learningRate: 1.0e-3}\n"
        "    globalBatchSize: 16\n    microBatchSize: 4\n    steps: 20\n%s",
        p->worker, p->context, p->spec ? p->spec : "", p->model ? p->model : TINY,
        p->training ? p->training : "");
}

/* Each error, then each warning, as "path: message\n". */
static void judge(const struct parts *p, struct fleetjob *job, struct fleet_strbuf *errors,
                  struct fleet_strbuf *warnings)
{
    struct judge_options options = {.in_cluster = true};
    struct fleet_errors found = {0}, odd = {0};
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    struct plan plan;

    put(p, &text);
    (void)fleetjob_read(text.text, text.length, job, &found);
    if (judge_job(job, &options, &plan, &found, &odd))
        plan_release(&plan);
    fleet_errors_print(&found, errors);
    fleet_errors_print(&odd, warnings);
    fleet_errors_release(&found);
    fleet_errors_release(&odd);
}

static void expect_error(const struct parts *p, const char *wanted)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf errors = {0}, warnings = {0};
    struct fleetjob job;

    judge(p, &job, &errors, &warnings);
    if (!strstr(fleet_strbuf_text(&errors), wanted))
        fail_msg("\"%s\" lacks \"%s\"", fleet_strbuf_text(&errors), wanted);
    fleetjob_release(&job);
}

/* What full_search() says of the same job. */
static void find(const struct fleetjob *job, double memory, struct full_choice *out)
{
    struct links links = links_default((int)job->spec.worker.processes_per_pod);
    struct training_config training = job->spec.training; /* shallow */
    struct strategy given;
    struct full_request request = {.training = &training,
                                   .strategy = &given,
                                   .policy = job->spec.strategy_policy,
                                   .options = &job->spec.strategy_options,
                                   .has_buddies = job->spec.run_policy.elastic.replicas > 0,
                                   .devices = (int)job->spec.worker.replicas,
                                   .memory = memory,
                                   .links = &links};
    struct fleet_errors errors = {0};
    struct full_result result;

    training.micro_batch_size = 4;
    strategy_init(&given);
    assert_int_equal(full_search(&request, &result, &errors), 0);
    assert_true(result.has_runnable);
    *out = result.runnable.choice;
    strategy_release(&given);
}

static void expect_best(const struct parts *p, double memory)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf errors = {0}, warnings = {0}, found = {0}, wanted = {0};
    struct full_choice best, chosen;
    struct fleetjob job;

    judge(p, &job, &errors, &warnings);
    assert_string_equal(fleet_strbuf_text(&errors), "");
    chosen = divisions_of(&job);
    find(&job, memory, &best);
    full_describe(&chosen, &found);
    full_describe(&best, &wanted);
    assert_string_equal(found.text, wanted.text);
    fleetjob_release(&job);
}

static void test_context_full__runs_the_best_that_fits(void **state)
{
    (void)state;
    expect_best(&(struct parts){.worker = "replicas: 4", .context = FULL}, 1e15);
    expect_best(&(struct parts){.worker = "replicas: 8", .context = FULL, .model = BIG}, 1e15);
    expect_best(&(struct parts){.worker = "replicas: 8, resources: {limits: {memory: 1200Mi}}",
                                .context = FULL,
                                .model = BIG},
                1200.0 * 1024 * 1024 - 2 * 12 * 1024 * 1024);
}

/* A model of one layer and one head is divided by sharding alone, and on two ranks each is the
 * buddy of the other. So 210 MiB are enough only for a job that has no buddies. */
static void test_context_full__plans_with_the_buddies_of_the_job(void **state)
{
    struct parts parts = {.worker = "replicas: 2, resources: {limits: {memory: 210Mi}}",
                          .context = FULL,
                          .model = WIDE};

    (void)state;
    expect_error(&parts, "spec.autoParallel.search: none of ");
    parts.spec = "  runPolicy: {elastic: {replicas: 0}}\n";
    expect_best(&parts, (210.0 - 2 * 12) * 1024 * 1024);
}

static void test_context_full__says_when_the_micro_batch_is_another(void **state)
{
    struct parts parts = {.worker = "replicas: 4", .context = FULL};
    FLEET_AUTO_STRBUF struct fleet_strbuf errors = {0}, warnings = {0}, wanted = {0};
    struct fleetjob job;

    (void)state;
    judge(&parts, &job, &errors, &warnings);
    if (job.spec.training.micro_batch_size != 4)
        fleet_strbuf_appendf(&wanted,
                             "spec.training.microBatchSize: is 4, but spec.autoParallel.search: "
                             "full found that %d is faster, and trains with it\n",
                             (int)job.spec.training.micro_batch_size);
    assert_string_equal(fleet_strbuf_text(&warnings), fleet_strbuf_text(&wanted));
    fleetjob_release(&job);
}

static void test_context_full__contradicts_with_both_names(void **state)
{
    static const struct {
        struct parts parts;
        const char *wanted;
    } rows[] = {
        {{.context = FULL ", search_mode: dynamic_programming"},
         "spec.autoParallel.search_mode: spec.autoParallel.search: full decides this itself; give "
         "one of the two"},
        {{.context = FULL ", pipeline_stages: 2"},
         "spec.autoParallel.pipeline_stages: spec.autoParallel.search: full decides this itself"},
        {{.context = FULL ", enable_parallel_optimizer: true"},
         "spec.autoParallel.enable_parallel_optimizer: spec.autoParallel.search: full decides"},
        {{.context = FULL, .spec = "  strategy: {hybrid_configs: {mp_degree: 2}}\n"},
         "spec.autoParallel.search: full decides hybrid_configs.mp_degree itself, but "
         "spec.strategy.hybrid_configs.mp_degree is given; give one of the two"},
        {{.context = FULL, .spec = "  strategy: {sharding: true}\n"},
         "spec.autoParallel.search: full decides sharding itself, but spec.strategy.sharding is"},
        {{.context = FULL,
          .training = "    operatorStrategies: [{operator: h.0.attn, in: [[2, 1, "
                      "1]]}]\n"},
         "spec.training.operatorStrategies: spec.autoParallel.search: full finds strategies"},
        {{.context = FULL ", strategy_ckpt_load_file: /a"},
         "spec.autoParallel.strategy_ckpt_load_file: spec.autoParallel.search: full finds"},
        {{.context = "parallel_mode: semi_auto_parallel, search: full"},
         "spec.autoParallel.search: full needs parallel_mode: auto_parallel"},
        {{.context = "search: full"},
         "spec.autoParallel.search: full needs parallel_mode: auto_parallel"},
        {{.context = "parallel_mode: auto_parallel, search: ful"},
         "spec.autoParallel.search: must be one of full, not \"ful\"; did you mean \"full\"?"},
        {{.context = "parallel_mode: auto_parallel, links: {devicesPerNode: 0}"},
         "spec.autoParallel.links.devicesPerNode: "},
        {{.worker = "replicas: 4, resources: {limits: {memory: 30Mi}}", .context = FULL},
         "spec.autoParallel.search: none of "},
        {{.worker = "replicas: 512", .context = FULL},
         "spec.autoParallel.search: full is for at most 256 ranks and 128 layers, not 512 and 2"},
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(rows); i++) {
        struct parts parts = rows[i].parts;

        parts.worker = parts.worker ? parts.worker : "replicas: 4";
        expect_error(&parts, rows[i].wanted);
    }
}

#define LINKS                                                                                 \
    "links: {devicesPerNode: 8, memoryPerDevice: %s, compute: {matrixFlops: 1.0e12, "         \
    "attentionFlops: 1.0e12, convolutionFlops: 1.0e12, bytesPerSecond: 1.0e11}, insideNode: " \
    "{latencySeconds: 1.0e-6, bytesPerSecond: 1.0e11}, betweenNodes: {latencySeconds: "       \
    "1.0e-6, bytesPerSecond: 1.0e11}}"

/* The job's own rates decide, and their memory is a limit. */
static void test_context_full__takes_the_rates_of_the_job(void **state)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf context = {0}, small = {0}, errors = {0}, warnings = {0};
    struct fleetjob job;

    (void)state;
    fleet_strbuf_appendf(&context, FULL ", " LINKS, "1.0e12");
    judge(&(struct parts){.worker = "replicas: 4", .context = context.text}, &job, &errors,
          &warnings);
    assert_string_equal(fleet_strbuf_text(&errors), "");
    fleetjob_release(&job);
    fleet_strbuf_appendf(&small, FULL ", " LINKS, "1.0e3");
    expect_error(&(struct parts){.worker = "replicas: 4", .context = small.text},
                 "fits into 1.0 kB on each of 4 ranks: each needs at least ");
    expect_error(&(struct parts){.worker = "replicas: 4",
                                 .context = "parallel_mode: auto_parallel, links: {}"},
                 "spec.autoParallel.links");
}

/* A worker that is lost must not be missed by a fixed number of replicas. */
static void test_context_full__leaves_the_replicas_to_the_workers(void **state)
{
    struct parts parts = {.worker = "replicas: 2, minReplicas: 1, maxReplicas: 4", .context = FULL};
    FLEET_AUTO_STRBUF struct fleet_strbuf errors = {0}, warnings = {0};
    struct fleetjob job;

    (void)state;
    judge(&parts, &job, &errors, &warnings);
    assert_string_equal(fleet_strbuf_text(&errors), "");
    assert_false(job.spec.strategy.hybrid_configs.has_dp_degree);
    assert_non_null(strstr(fleet_strbuf_text(&warnings), "spec.training.checkpoint: is missing"));
    fleetjob_release(&job);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_context_full__runs_the_best_that_fits),
        cmocka_unit_test(test_context_full__plans_with_the_buddies_of_the_job),
        cmocka_unit_test(test_context_full__says_when_the_micro_batch_is_another),
        cmocka_unit_test(test_context_full__contradicts_with_both_names),
        cmocka_unit_test(test_context_full__takes_the_rates_of_the_job),
        cmocka_unit_test(test_context_full__leaves_the_replicas_to_the_workers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

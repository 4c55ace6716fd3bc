/* SPDX-License-Identifier: Apache-2.0 */

/*
 * No knob in silence: a job that sets a field to another value than its default
 *
 *   (a) gets another program, grid of ranks or rule of the loss scale than without it, or
 *   (b) is refused with the path of a field that it wrote, or
 *   (c) is reported: the field is in its plan or among its warnings, with a reason.
 *
 * All knobs, alone and with the switch that they belong to, every model, one worker and two. A knob
 * that is never (a) nor (b) is in a table here, with the reason why results do not need it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"
#include "libfleet/program/passes/pass.h"
#include "libfleet/strategy/knobs.h"
#include "libfleet/strategy/select.h"
#include "libfleet/strategy/units.h"
#include "tests/support/every_knob.h"
#include "tests/support/knob_outcome.h"

#define WORLDS 2

/* ---- every knob ------------------------------------------------------------------------------ */

struct tally {
    char path[128];
    bool acts, is_refused, is_told;
};

#define TALLIES_MAX 1024
#define BASES_MAX   1024

/* What a job is without the knob; many knobs stand beside the same. */
struct base {
    char *text;
    struct outcome outcome;
};

struct walk {
    struct tally tallies[TALLIES_MAX];
    size_t count;
    struct base bases[BASES_MAX];
    size_t base_count;
    struct fleet_strbuf silent;
    int silent_count;
};

static struct tally *tally_of(struct walk *walk, const char *path)
{
    for (size_t i = 0; i < walk->count; i++)
        if (strcmp(walk->tallies[i].path, path) == 0)
            return &walk->tallies[i];
    fleet_assert(walk->count < TALLIES_MAX);
    (void)snprintf(walk->tallies[walk->count].path, sizeof(walk->tallies[0].path), "%s", path);
    return &walk->tallies[walk->count++];
}

static void note_silence(struct walk *walk, const struct knob_job *job, const struct outcome *o)
{
    FLEET_AUTO_FREE char *text = cJSON_PrintUnformatted(job->strategy);

    walk->silent_count++;
    fleet_strbuf_appendf(&walk->silent, "%s on %d worker(s)%s: %s", knob_model(job->model),
                         job->workers, job->is_paddle ? ", Paddle" : "", text);
    if (o->errors.count > 0)
        fleet_strbuf_appendf(&walk->silent, " is refused by %s: %s", o->errors.items[0].path,
                             o->errors.items[0].message);
    fleet_strbuf_append_char(&walk->silent, '\n');
}

/* What becomes of the job without the knob. */
static const struct outcome *base_of(struct walk *walk, const struct knob_job *wanted)
{
    FLEET_AUTO_JSON cJSON *job = knob_job_make(wanted);
    FLEET_AUTO_FREE char *text = cJSON_PrintUnformatted(job);
    struct base *base;

    for (size_t i = 0; i < walk->base_count; i++)
        if (strcmp(walk->bases[i].text, text) == 0)
            return &walk->bases[i].outcome;
    fleet_assert(walk->base_count < BASES_MAX);
    base = &walk->bases[walk->base_count++];
    base->text = strdup(text);
    fleet_assert(base->text);
    outcome_of(job, wanted->workers, &base->outcome);
    return &base->outcome;
}

static void look(struct walk *walk, const struct every_knob *knob, struct knob_job job)
{
    struct tally *tally = tally_of(walk, knob->path);
    FLEET_AUTO_JSON cJSON *json = NULL;
    const struct outcome *without;
    bool acts, refused, told;
    struct outcome with;

    job.optimizer = knob->optimizer;
    job.strategy = knob->base;
    without = base_of(walk, &job);
    job.strategy = knob->strategy;
    json = knob_job_make(&job);
    outcome_of(json, job.workers, &with);
    refused = outcome_is_refused(&with, knob);
    told = outcome_is_told(&with, knob);
    acts = outcome_differs(&with, without);
    tally->acts |= acts;
    tally->is_refused |= refused;
    tally->is_told |= told;
    if (!acts && !refused && !told && without->errors.count == 0)
        note_silence(walk, &job, &with);
    if (acts && job.workers > 1 && outcome_is_idle(&with, knob)) { /* one exchanges nothing */
        fleet_strbuf_appendf(&walk->silent, "%s is said to have no effect: ", knob->path);
        note_silence(walk, &job, &with);
    }
    outcome_release(&with);
}

static void visit(void *context, const struct every_knob *knob)
{
    for (int workers = 1; workers <= WORLDS; workers++) {
        for (int model = 0; model < KNOB_MODELS; model++)
            look(context, knob, (struct knob_job){.model = model, .workers = workers});
        look(context, knob, (struct knob_job){.workers = workers, .is_paddle = true});
    }
}

/*
 * Knobs that are only reported, with the reason why results do not need them; numbers are
 * sections of the specification of the strategy.
 */
static const struct {
    const char *path; /* and all below it */
    const char *because;
} told_only[] = {
    {"a_sync", "20: a collective job ignores the parameter server"},
    {"a_sync_configs", "20: a collective job ignores the parameter server"},
    {"trainer_desc_configs", "20: a collective job ignores the parameter server"},
    {"downpour_table_param", "20: a collective job ignores the parameter server"},
    {"fs_client_param", "20: a collective job ignores the parameter server"},
    {"sync_nccl_allreduce", "19: when an exchange is waited for, not what it sums"},
    {"nccl_comm_num", "19, oracle: the number of communicators does not change the sum"},
    {"use_hierarchical_allreduce", "19, oracle: the hierarchy does not change the sum"},
    {"hierarchical_allreduce_inter_nranks", "19, oracle: the hierarchy does not change the sum"},
    {"fuse_grad_size_in_TFLOPS", "19, oracle: the size of buckets does not change the sum"},
    {"fuse_grad_size_in_num", "19, oracle: the size of buckets does not change the sum"},
    {"cudnn_exhaustive_search", "19: a hint to kernels"},
    {"conv_workspace_size_limit", "19: a hint to kernels"},
    {"cudnn_batchnorm_spatial_persistent", "19: a hint to kernels"},
    {"find_unused_parameters", "data parallelism: a static program has the answer"},
    {"without_graph_optimization", "4.2: which executor runs, not what it computes"},
    {"calc_comm_same_stream", "19: where operators are queued; its effect is time"},
    {"gradient_scale_configs.scale_strategy", "19: the factor is the trainer's, not the program's"},
    {"fuse_grad_merge", "9: where the sum lies, not what it is"},
    {"heter_ccl_mode", "19: which network carries the exchange"},
    {"split_data", "it belongs to Paddle's own automatic parallelism"},
    {"sharding_configs.pp_allreduce_in_optimize", "16.5: when an exchange runs, not what it sums"},
    {"sharding_configs.optimize_cast", "16.2: when a copy is made, not what it holds"},
    {"sharding_configs.enable_tuning", "it belongs to Paddle's own automatic parallelism"},
    {"sharding_configs.use_calc_stream", "19: where operators are queued"},
    {"recompute_configs.enable_tuning", "8.5: recomputation changes no bit"},
    {"recompute_configs.refined_ops_patterns", "8.5: recomputation changes no bit"},
    {"amp_configs.use_fp16_guard", "7.2 (8): no part of a model is marked"},
    {"build_strategy", "19: fused kernels and memory, not arithmetic"},
    {"execution_strategy", "19: no counterpart"},
    {"pipeline_configs.micro_batch", "18.1: the batch's sizes say the number, too"},
    {"pipeline_configs.micro_batch_size", "18.1: the batch's sizes say it, too"},
    {"pipeline_configs.accumulate_steps", "18.1: the batch's sizes say the number, too"},
    {"pipeline_configs.p2p_cache_shape", "18.4: shapes are known before the first message"},
    {"pipeline_configs.enable_partial_send_recv", "18.4: how a message travels"},
    {"gradient_scale_configs.scale_gradient", "5: equal in exact arithmetic before and after"},
};

static bool is_justified(const char *path)
{
    for (size_t i = 0; i < FLEET_COUNT(told_only); i++) {
        size_t length = strlen(told_only[i].path);

        if (strncmp(path, told_only[i].path, length) == 0 &&
            (path[length] == '\0' || path[length] == '.'))
            return true;
    }
    return false;
}

/* LIST_KNOBS=1 prints which of (a), (b), (c) each knob ever is. */
static void check_tallies(struct walk *walk)
{
    for (size_t i = 0; i < walk->count; i++) {
        const struct tally *tally = &walk->tallies[i];

        if (getenv("LIST_KNOBS"))
            printf("%s%s%s %s\n", tally->acts ? "a" : "-", tally->is_refused ? "b" : "-",
                   tally->is_told ? "c" : "-", tally->path);
        if (!tally->acts && !tally->is_refused && !is_justified(tally->path)) {
            walk->silent_count++;
            fleet_strbuf_appendf(&walk->silent, "%s never acts and is never refused\n",
                                 tally->path);
        }
    }
}

static void walk_free(struct walk *walk)
{
    for (size_t i = 0; i < walk->base_count; i++) {
        free(walk->bases[i].text);
        outcome_release(&walk->bases[i].outcome);
    }
    fleet_strbuf_release(&walk->silent);
    free(walk);
}

static void test_no_silence__each_knob_acts_or_is_refused_or_is_reported(void **state)
{
    struct walk *walk = calloc(1, sizeof(*walk));

    (void)state;
    fleet_assert(walk);
    every_knob_visit(visit, walk);
    check_tallies(walk);
    if (walk->silent_count > 0) {
        (void)fputs(walk->silent.text, stderr);
        fail_msg("%d times in silence", walk->silent_count);
    }
    walk_free(walk);
}

/* A setting with two names is reported under the one that the job uses. */
static void test_no_silence__a_knob_is_reported_by_its_written_name(void **state)
{
    FLEET_AUTO_JSON cJSON *strategy = cJSON_Parse(
        "{\"sharding\":true,\"sharding_configs\":{\"sharding_degree\":1,\"dp_degree\":2}}");
    struct knob_job wanted = {
        .workers = 2, .optimizer = "adamw", .strategy = strategy, .is_paddle = true};
    FLEET_AUTO_JSON cJSON *job = knob_job_make(&wanted);
    struct outcome o;

    (void)state;
    outcome_of(job, wanted.workers, &o);
    assert_int_equal(o.errors.count, 0);
    assert_non_null(strstr(fleet_strbuf_text(&o.told), "sharding_configs.sharding_degree: "));
    assert_null(strstr(fleet_strbuf_text(&o.told), "sharding_group_size"));
    outcome_release(&o);
}

/* ---- one program for any number of workers --------------------------------------------------- */

/* The units that the passes see. With one worker there is no exchange, so the units that change the
 * exchange are not in `applied`. Their passes read the strategy, which still has them. */
static void append_chain(struct fleet_strbuf *out, const struct select_result *result)
{
    static const enum unit exchanges[] = {UNIT_FP16_ALLREDUCE, UNIT_LOCALSGD,
                                          UNIT_ADAPTIVE_LOCALSGD, UNIT_DGC};

    for (size_t i = 0; i < result->applied.count; i++) {
        bool is_exchange = strcmp(result->applied.items[i], "sharding") == 0;
        for (size_t j = 0; j < FLEET_COUNT(exchanges); j++)
            is_exchange |= strcmp(result->applied.items[i], unit_name(exchanges[j])) == 0;
        if (pass_exists(result->applied.items[i]) && !is_exchange)
            fleet_strbuf_appendf(out, "%s ", result->applied.items[i]);
    }
    for (size_t j = 0; j < FLEET_COUNT(exchanges); j++)
        if (unit_is_on(&result->final, exchanges[j]))
            fleet_strbuf_appendf(out, "%s ", unit_name(exchanges[j]));
}

/* Sharding and stages, which one worker does not have, may leave out another knob; a trainer plans
 * each generation with its own number of workers, and begins with the plan of the first. */
static bool can_run(const struct select_result *result)
{
    if (select_is_applied(result, UNIT_SHARDING) || select_is_applied(result, UNIT_PIPELINE))
        return false;
    for (size_t i = 0; i < result->applied.count; i++)
        if (!pass_exists(result->applied.items[i]))
            return false;
    return true;
}

/* A trainer starts before it knows how many there are: what it plans must be what the job
 * planned. */
static void compare_chains(const struct strategy *s, enum strategy_policy policy,
                           const char *optimizer, int world)
{
    struct select_options options = {.policy = policy, .world_size = world, .optimizer = optimizer};
    struct select_options least = {
        .policy = policy, .world_size = 1, .any_world = true, .optimizer = optimizer};
    FLEET_AUTO_STRBUF struct fleet_strbuf here = {0}, there = {0};
    struct select_result at_world, at_one;
    struct fleet_errors errors = {0};

    if (strategy_select(s, &options, "", &at_world, &errors) == 0) {
        assert_int_equal(strategy_select(s, &least, "", &at_one, &errors), 0);
        append_chain(&here, &at_world);
        append_chain(&there, &at_one);
        if (can_run(&at_world))
            assert_string_equal(fleet_strbuf_text(&here), fleet_strbuf_text(&there));
        select_result_release(&at_world);
        select_result_release(&at_one);
    }
    fleet_errors_release(&errors);
}

/* Stage 2 moves the sums of gradients, though groups of one rank divide no states. */
static void test_no_silence__stage_2_acts_in_groups_of_one_rank(void **state)
{
    static const char stage_2[] = "{\"sharding\":true,\"sharding_configs\":{\"sharding_degree\":1,"
                                  "\"dp_degree\":2,\"stage\":2}}";
    FLEET_AUTO_JSON cJSON *strategy = cJSON_Parse(stage_2);
    struct every_knob knob = {.path = "sharding", .strategy = strategy};
    FLEET_AUTO_JSON cJSON *job =
        knob_job_make(&(struct knob_job){.workers = 2, .optimizer = "adamw", .strategy = strategy});
    struct outcome outcome;

    (void)state;
    outcome_of(job, 2, &outcome);
    assert_int_equal(outcome.errors.count, 0);
    assert_false(outcome_is_idle(&outcome, &knob));
    knob.path = "sharding_configs.stage";
    assert_true(outcome_is_told(&outcome, &knob));
    assert_false(outcome_is_idle(&outcome, &knob));
    outcome_release(&outcome);
}

static void test_no_silence__trainers_plan_what_the_job_planned(void **state)
{
    static const char *const optimizers[] = {"sgd", "momentum", "adam", "adamw"};

    (void)state;
    for (unsigned int bits = 0; bits < 1U << UNITS; bits++) {
        STRATEGY_AUTO struct strategy s = {0};

        strategy_init(&s);
        for (int i = 0; i < UNITS; i++)
            if (bits & UNIT_BIT(i))
                unit_set(&s, (enum unit)i, true);
        knob_append_string(&s.recompute_configs.checkpoints, "x");
        s.recompute_configs.has_checkpoints = s.has_recompute_configs = KNOB_BY_NAME;
        s.gradient_merge_configs.k_steps = 2;
        s.gradient_merge_configs.has_k_steps = s.has_gradient_merge_configs = KNOB_BY_NAME;
        for (int world = 2; world <= 4; world++)
            for (size_t i = 0; i < FLEET_COUNT(optimizers); i++) {
                compare_chains(&s, STRATEGY_FULL, optimizers[i], world);
                compare_chains(&s, STRATEGY_PADDLE, optimizers[i], world);
            }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_silence__each_knob_acts_or_is_refused_or_is_reported),
        cmocka_unit_test(test_no_silence__a_knob_is_reported_by_its_written_name),
        cmocka_unit_test(test_no_silence__stage_2_acts_in_groups_of_one_rank),
        cmocka_unit_test(test_no_silence__trainers_plan_what_the_job_planned),
    };
    return cmocka_run_group_tests_name("no_silence", tests, NULL, NULL);
}

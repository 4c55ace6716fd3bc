/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The full search against brute force on small spaces: every combination is listed by loops of this
 * file's own, planned as a whole (no borrowed program), timed and sorted. Rates, links, models,
 * numbers of devices and memory are drawn from seeds.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/autoparallel/search/full_search.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"
#include "libfleet/base/random.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/training/training.h"
#include "tests/support/seeds.h"

/* ---- jobs ------------------------------------------------------------------------------------ */

static void read_training(const char *text, struct training_config *out)
{
    FLEET_AUTO_JSON cJSON *json = cJSON_Parse(text);
    struct fleet_errors errors = {0};

    if (training_config_decode(json, "spec.training", out, &errors) < 0)
        fail_msg("%s: %s", errors.items[0].path, errors.items[0].message);
}

static void model(const char *name, int layers, int heads, int batch, const char *precision,
                  struct training_config *out)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    fleet_strbuf_appendf(&text,
                         "{\"model\":{\"name\":\"%s\",\"layers\":%d,\"heads\":%d,\"width\":%d,"
                         "\"context\":8,\"vocabulary\":256},"
                         "\"data\":{\"tokenizer\":\"synthetic-markov\"},"
                         "\"optimizer\":{\"name\":\"adamw\",\"learningRate\":0.001},"
                         "\"globalBatchSize\":%d,\"microBatchSize\":1,\"steps\":1,"
                         "\"precision\":\"%s\"}",
                         name, layers, heads, 128 * heads, batch, precision);
    read_training(text.text, out);
}

static void gpt(int layers, int heads, int batch, const char *precision,
                struct training_config *out)
{
    model("gpt", layers, heads, batch, precision, out);
}

static void mlp(int batch, struct training_config *out)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    fleet_strbuf_appendf(&text,
                         "{\"model\":{\"name\":\"mlp\",\"sizes\":[16,32,8]},"
                         "\"data\":{\"tokenizer\":\"cifar10\",\"path\":\"x\"},"
                         "\"optimizer\":{\"name\":\"sgd\",\"learningRate\":0.1},"
                         "\"globalBatchSize\":%d,\"microBatchSize\":%d,\"steps\":1}",
                         batch, batch % 3 == 0 ? 3 : 1);
    read_training(text.text, out);
}

static double draw(struct fleet_random_key key, uint64_t *counter, double low, double high)
{
    double u = (double)(fleet_random_u64(key, (*counter)++) >> 11) / 9007199254740992.0;

    return low * pow(high / low, u);
}

static void draw_groups(struct fleet_random_key key, uint64_t *counter, struct links_link *link)
{
    for (int ranks = 2; ranks <= 8; ranks *= 2)
        link->groups.items[link->groups.count++] =
            (struct links_group){.ranks = ranks,
                                 .sum_seconds = draw(key, counter, 1e-7, 1e-3),
                                 .sum_bytes = draw(key, counter, 1e7, 1e11),
                                 .gather_seconds = draw(key, counter, 1e-7, 1e-3),
                                 .gather_bytes = draw(key, counter, 1e7, 1e11)};
}

static struct links draw_links(struct fleet_random_key key, uint64_t *counter)
{
    struct links links = {
        .devices_per_node = 1 << (int)draw(key, counter, 1, 4.99),
        .compute.bytes = draw(key, counter, 1e9, 1e11),
        .inside = {draw(key, counter, 1e-7, 1e-4), draw(key, counter, 1e8, 1e11)},
        .between = {draw(key, counter, 1e-7, 1e-3), draw(key, counter, 1e7, 1e10)}};

    for (int i = 0; i < LINKS_OTHER; i++)
        links.compute.flops[i] = draw(key, counter, 1e9, 1e12);
    for (int i = 0; i < LINKS_CLASSES; i++)
        links.compute.start[i] = i % 2 ? draw(key, counter, 1e-7, 1e-4) : 0;
    links.compute.more[0] = draw(key, counter, 1e9, 1e11);
    links.processors_per_node = (int64_t)draw(key, counter, 1, 4.99) - 1;
    if (fleet_random_u64(key, (*counter)++) % 2)
        draw_groups(key, counter, &links.inside);
    return links;
}

/* ---- brute force ----------------------------------------------------------------------------- */

#define PLANS_MAX 8192

struct planned {
    double seconds, bytes;
    bool can_run; /* which the built-in runtime can run */
};

struct brute {
    const struct full_request *request;
    struct planned plans[PLANS_MAX];
    int count;
};

static void plan_one(struct brute *brute, const struct full_choice *choice)
{
    STRATEGY_AUTO struct strategy strategy;
    struct training_config training = *brute->request->training;
    int world =
        choice->data * choice->sharding * choice->pipeline * choice->sequence * choice->model;
    struct plan_request request;
    struct step_profile profile;
    struct step_time time;
    struct fleet_errors errors = {0};
    struct plan plan;

    training.micro_batch_size = choice->micro_batch;
    full_strategy(brute->request->strategy, choice, &strategy);
    request = plan_request_of(&training, &strategy, STRATEGY_FULL, NULL, world);
    request.has_buddies = brute->request->has_buddies;
    request.only_explain = request.is_draft = true;
    if (plan_build(&request, &plan, &errors) < 0) {
        fleet_errors_release(&errors);
        return;
    }
    /* recompute that repeats nothing is the same combination again */
    if (!choice->recompute || !select_has_note(&plan.selection.without_effect, "recompute")) {
        assert_in_range(brute->count, 0, PLANS_MAX - 1);
        step_profile_build(&plan.program, brute->request->links, &profile);
        step_time_of(&plan, &profile, brute->request->links, &time);
        step_profile_release(&profile);
        brute->plans[brute->count++] = (struct planned){time.total, (double)plan_bytes_total(&plan),
                                                        plan.cannot_run.count == 0};
    }
    plan_release(&plan);
}

static bool is_in_space(const struct full_request *request, const struct full_choice *c)
{
    const struct training_config *t = request->training;
    bool has_layers = t->model.name != TRAINING_MODEL_MLP; /* gpt or llama */
    int64_t layers = has_layers ? t->model.layers : 2;
    bool is_power = (c->micro_batch & (c->micro_batch - 1)) == 0;

    return (c->pipeline == 1 ? !c->all_forward : c->pipeline <= layers) &&
           (c->model == 1 ||
            (has_layers && t->model.heads % c->model == 0 && t->model.hidden % c->model == 0)) &&
           (c->sequence == 1 || (has_layers && t->model.heads / c->model % c->sequence == 0 &&
                                 t->model.context * c->micro_batch % c->sequence == 0)) &&
           (c->sharding == 1) == (c->stage == 0) && t->global_batch_size % c->micro_batch == 0 &&
           (is_power || c->micro_batch == t->micro_batch_size) &&
           t->global_batch_size / c->micro_batch >= (int64_t)c->data * c->sharding * c->pipeline;
}

/* Everything beside the degrees. */
static void search_degrees(struct brute *brute, struct full_choice c)
{
    int batch = (int)brute->request->training->global_batch_size;

    for (int rest = 0; rest < 16 * batch; rest++) {
        c.stage = rest % 4;
        c.recompute = rest / 4 % 2;
        c.all_forward = rest / 8 % 2;
        c.micro_batch = 1 + rest / 16;
        if (is_in_space(brute->request, &c))
            plan_one(brute, &c);
    }
}

static void search_by_force(struct brute *brute)
{
    int devices = brute->request->devices;
    struct full_choice c = {0};

    for (c.data = 1; c.data <= devices; c.data++)
        for (c.sharding = 1; c.sharding <= devices; c.sharding++)
            for (c.pipeline = 1; c.pipeline <= devices; c.pipeline++)
                for (c.sequence = 1; c.sequence <= devices; c.sequence++)
                    for (c.model = 1; c.model <= devices; c.model++)
                        if (c.data * c.sharding * c.pipeline * c.sequence * c.model == devices)
                            search_degrees(brute, c);
}

static int compare_planned(const void *a, const void *b)
{
    const struct planned *x = a, *y = b;

    return (x->seconds > y->seconds) - (x->seconds < y->seconds);
}

/* The search within `memory` has the fastest of those that fit. */
static void compare(const struct brute *brute, double memory)
{
    struct full_request request = *brute->request;
    struct fleet_errors errors = {0};
    struct full_result result;
    double runnable = INFINITY;
    int fitting = 0;

    request.memory = memory;
    assert_int_equal(full_search(&request, &result, &errors), 0);
    for (int i = 0; i < brute->count; i++) {
        if (brute->plans[i].bytes > memory)
            continue;
        if (fitting < FULL_RIVALS_MAX) {
            assert_true(fitting < result.count);
            assert_true(fabs(result.rivals[fitting].time.total - brute->plans[i].seconds) <=
                        1e-12 * brute->plans[i].seconds);
            assert_true(result.rivals[fitting].bytes <= memory);
        }
        if (brute->plans[i].can_run)
            runnable = fmin(runnable, brute->plans[i].seconds);
        fitting++;
    }
    assert_true(result.has_runnable == !isinf(runnable));
    assert_true(!result.has_runnable ||
                fabs(result.runnable.time.total - runnable) <= 1e-12 * runnable);
    assert_int_equal(result.count, fitting < FULL_RIVALS_MAX ? fitting : FULL_RIVALS_MAX);
    assert_true(result.looked_at <= result.combinations && result.combinations == brute->count);
    assert_true(fitting > 0 || result.least_bytes > memory);
}

/* Without a limit, and with limits that are just what some combination needs, or just less. */
static void compare_all(const struct full_request *request, struct fleet_random_key key)
{
    struct brute *brute = calloc(1, sizeof(*brute));
    struct fleet_errors errors = {0};
    struct full_result result;

    assert_non_null(brute);
    brute->request = request;
    search_by_force(brute);
    qsort(brute->plans, (size_t)brute->count, sizeof(*brute->plans), compare_planned);
    if (brute->count == 0) {
        assert_int_equal(full_search(request, &result, &errors), -EINVAL);
        fleet_errors_release(&errors);
    } else {
        compare(brute, 1e18);
    }
    for (int i = 0; i < 12 && brute->count > 0; i++) {
        int some = (int)(fleet_random_u64(key, 1000 + (uint64_t)i) % (uint64_t)brute->count);

        compare(brute, brute->plans[some].bytes - i % 2);
    }
    free(brute);
}

static void test_full_search__equals_brute_force(void **state)
{
    unsigned long count = seeds_count(60);

    (void)state;
    for (unsigned long seed = 0; seed < count; seed++) {
        struct fleet_random_key key = fleet_random_key(seed, "full search", 0);
        uint64_t counter = 0;
        struct links links = draw_links(key, &counter);
        struct training_config training;
        struct full_request request = {.training = &training,
                                       .policy = STRATEGY_FULL,
                                       .has_buddies = seed / 4 % 2,
                                       .devices = (int)draw(key, &counter, 1, 8.99),
                                       .memory = 1e18,
                                       .links = &links};

        if (seed % 4 == 3)
            mlp((int)draw(key, &counter, 1, 12.99), &training);
        else
            model(seed % 4 == 2 ? "llama" : "gpt", (int)draw(key, &counter, 1, 5.99),
                  (int)draw(key, &counter, 1, 4.99), (int)draw(key, &counter, 1, 12.99),
                  seed % 2 ? "bf16" : "fp32", &training);
        compare_all(&request, key);
        training_config_release(&training);
    }
}

/* ---- the rest -------------------------------------------------------------------------------- */

static const struct links usual = {.devices_per_node = 4,
                                   .memory = 1e9,
                                   .compute = {{1e10, 1e10, 1e10}, 1e10},
                                   .inside = {1e-6, 1e10},
                                   .between = {1e-4, 1e8}};

/* A strategy that says recompute: true is not searched without it. */
static void test_full_search__keeps_what_the_job_says(void **state)
{
    STRATEGY_AUTO struct strategy strategy;
    struct fleet_errors errors = {0};
    struct training_config training;
    struct full_request request = {.training = &training,
                                   .strategy = &strategy,
                                   .policy = STRATEGY_FULL,
                                   .devices = 4,
                                   .memory = 1e9,
                                   .links = &usual};
    struct full_result result;

    (void)state;
    gpt(4, 4, 8, "fp32", &training);
    strategy_init(&strategy);
    strategy.recompute = true;
    strategy.has_recompute = KNOB_BY_NAME;
    assert_int_equal(full_search(&request, &result, &errors), 0);
    assert_int_equal(result.count, FULL_RIVALS_MAX);
    for (int i = 0; i < result.count; i++)
        assert_true(result.rivals[i].choice.recompute);
    training_config_release(&training);
}

static struct full_request on_four_devices(const struct training_config *training,
                                           const struct links *links)
{
    return (struct full_request){.training = training,
                                 .policy = STRATEGY_FULL,
                                 .devices = 4,
                                 .memory = 1e12,
                                 .links = links};
}

/* Its running statistics belong to whole models, so what is found has one stage and can run. */
static void test_full_search__has_no_stages_where_the_model_cannot_be_cut(void **state)
{
    struct fleet_errors errors = {0};
    struct training_config training;
    struct full_request request = on_four_devices(&training, &usual);
    struct full_result result;

    (void)state;
    read_training("{\"model\":{\"preset\":\"resnet18\"},"
                  "\"data\":{\"tokenizer\":\"cifar10\",\"path\":\"x\"},"
                  "\"optimizer\":{\"name\":\"sgd\",\"learningRate\":0.1},"
                  "\"globalBatchSize\":8,\"microBatchSize\":1,\"steps\":1}",
                  &training);
    assert_int_equal(full_search(&request, &result, &errors), 0);
    assert_true(result.count > 0 && result.has_runnable);
    for (int i = 0; i < result.count; i++)
        assert_int_equal(result.rivals[i].choice.pipeline, 1);
    training_config_release(&training);
}

/* Each setting of the strategy is there because the choice divides something by it. */
static void test_full_search__a_strategy_has_only_what_its_choice_divides(void **state)
{
    static const struct {
        struct full_choice choice;
        bool sharding, pipeline, tensor_parallel, sequence;
    } rows[] = {
        {{.data = 4, .model = 1, .pipeline = 1, .sharding = 1, .sequence = 1}, .sharding = false},
        {{.data = 2, .model = 1, .pipeline = 1, .sharding = 2, .stage = 1, .sequence = 1},
         .sharding = true},
        {{.data = 2, .model = 1, .pipeline = 2, .sharding = 1, .sequence = 1}, .pipeline = true},
        {{.data = 2, .model = 2, .pipeline = 1, .sharding = 1, .sequence = 1},
         .tensor_parallel = true},
        {{.data = 2, .model = 1, .pipeline = 1, .sharding = 1, .sequence = 2}, .sequence = true},
        {{.data = 1, .model = 2, .pipeline = 2, .sharding = 2, .stage = 2, .sequence = 4},
         .sharding = true,
         .pipeline = true,
         .tensor_parallel = true,
         .sequence = true},
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(rows); i++) {
        STRATEGY_AUTO struct strategy strategy;
        full_strategy(NULL, &rows[i].choice, &strategy);
        assert_int_equal(strategy.has_sharding != 0, rows[i].sharding);
        assert_int_equal(strategy.has_sharding_configs != 0, rows[i].sharding);
        assert_int_equal(strategy.has_pipeline != 0, rows[i].pipeline);
        assert_int_equal(strategy.has_pipeline_configs != 0, rows[i].pipeline);
        assert_int_equal(strategy.has_tensor_parallel != 0, rows[i].tensor_parallel);
        assert_int_equal(strategy.sharding, rows[i].sharding);
        assert_int_equal(strategy.pipeline, rows[i].pipeline);
        assert_int_equal(strategy.tensor_parallel, rows[i].tensor_parallel);
        assert_int_equal(strategy.hybrid_configs.has_sep_degree != 0, rows[i].sequence);
        assert_int_equal(strategy.hybrid_configs.sep_degree, rows[i].choice.sequence);
        assert_int_equal(strategy.hybrid_configs.dp_degree, rows[i].choice.data);
        assert_int_equal(strategy.hybrid_configs.mp_degree, rows[i].choice.model);
        assert_int_equal(strategy.hybrid_configs.pp_degree, rows[i].choice.pipeline);
        assert_int_equal(strategy.hybrid_configs.sharding_degree, rows[i].choice.sharding);
    }
}

/* One long sample on four devices whose sums are slow: ranks share its tokens, not its tensors. */
static void test_full_search__divides_long_sequences(void **state)
{
    struct links slow_sums = usual;
    struct fleet_errors errors = {0};
    struct training_config training;
    struct full_request request = on_four_devices(&training, &slow_sums);
    struct full_result result;

    (void)state;
    read_training("{\"model\":{\"name\":\"gpt\",\"layers\":1,\"heads\":4,\"width\":32,"
                  "\"context\":2048,\"vocabulary\":256},"
                  "\"data\":{\"tokenizer\":\"synthetic-markov\"},"
                  "\"optimizer\":{\"name\":\"adamw\",\"learningRate\":0.001},"
                  "\"globalBatchSize\":1,\"microBatchSize\":1,\"steps\":1}",
                  &training);
    slow_sums.inside.groups.items[0] = (struct links_group){.ranks = 4,
                                                            .sum_seconds = 1e-6,
                                                            .sum_bytes = 1e6,
                                                            .gather_seconds = 1e-6,
                                                            .gather_bytes = 1e10};
    slow_sums.inside.groups.count = 1;
    assert_int_equal(full_search(&request, &result, &errors), 0);
    assert_int_equal(result.rivals[0].choice.sequence, 4);
    assert_false(result.rivals[0].cannot_run);
    training_config_release(&training);
}

static void test_full_search__says_the_least_memory_if_nothing_fits(void **state)
{
    struct fleet_errors errors = {0};
    struct training_config training;
    struct full_request request = {.training = &training,
                                   .policy = STRATEGY_FULL,
                                   .devices = 2,
                                   .memory = 1000,
                                   .links = &usual};
    struct full_result result;

    (void)state;
    gpt(2, 2, 4, "fp32", &training);
    assert_int_equal(full_search(&request, &result, &errors), 0);
    assert_int_equal(result.count, 0);
    assert_true(result.least_bytes > 1000);
    training_config_release(&training);
}

static void test_full_search__names_the_part_that_a_rival_loses_for(void **state)
{
    struct full_rival best = {.time.seconds = {[STEP_COMPUTE] = 5, [STEP_EXCHANGE] = 2}};
    struct full_rival rival = {
        .time.seconds = {[STEP_COMPUTE] = 4, [STEP_BUBBLE] = 3, [STEP_EXCHANGE] = 3}};

    (void)state;
    assert_int_equal(full_reason(&best, &rival), STEP_BUBBLE);
    assert_string_equal(step_part_name(STEP_BUBBLE), "bubble");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_full_search__equals_brute_force),
        cmocka_unit_test(test_full_search__keeps_what_the_job_says),
        cmocka_unit_test(test_full_search__has_no_stages_where_the_model_cannot_be_cut),
        cmocka_unit_test(test_full_search__a_strategy_has_only_what_its_choice_divides),
        cmocka_unit_test(test_full_search__divides_long_sequences),
        cmocka_unit_test(test_full_search__says_the_least_memory_if_nothing_fits),
        cmocka_unit_test(test_full_search__names_the_part_that_a_rival_loses_for),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

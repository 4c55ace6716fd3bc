/* SPDX-License-Identifier: Apache-2.0 */

/* The search for the division of single operators, against all combinations. */
#include <math.h>

#include "libfleet/autoparallel/search/links_default.h"
#include "libfleet/autoparallel/search/operator_search.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/random.h"
#include "libfleet/strategy/strategy_options.h"
#include "tests/unit/passes_fixture.h"

#define MACHINES 3
#define JOB(model, width, batch)                                                               \
    "{\"model\":{" model ",\"heads\":4,\"width\":" width ",\"context\":16,\"vocabulary\":96}," \
    "\"data\":{\"path\":\"t\"},\"globalBatchSize\":" batch                                     \
    ",\"microBatchSize\":1,\"steps\":8," ADAMW "}"
#define GPT_OF(layers)   "\"name\":\"gpt\",\"layers\":" layers
#define LLAMA_OF(layers) "\"name\":\"llama\",\"tieEmbeddings\":false,\"layers\":" layers

static void read_training(const char *text, const char *operators, struct training_config *out)
{
    FLEET_AUTO_JSON cJSON *json = cJSON_Parse(text);
    struct fleet_errors errors = {0};

    assert_non_null(json);
    if (operators)
        cJSON_AddItemToObject(json, "operatorStrategies", cJSON_Parse(operators));
    assert_int_equal(training_config_read(json, "spec.training", out, &errors), 0);
    assert_int_equal(errors.count, 0);
}

/* Latency and bandwidth decide what is worth a gather: machines of several kinds. */
static struct links machine(int kind)
{
    struct links links = links_default(8);

    if (kind == 1)
        links.inside.latency = 1e-7;
    if (kind == 2) {
        links.inside.latency = 1e-7;
        links.inside.bytes = 4e12;
    }
    return links;
}

static struct full_request request_of(const struct training_config *training,
                                      const struct links *links, int devices)
{
    return (struct full_request){.training = training,
                                 .policy = STRATEGY_FULL,
                                 .devices = devices,
                                 .memory = INFINITY,
                                 .links = links};
}

static struct full_choice grid_of(int model)
{
    return (struct full_choice){
        .data = 1, .sharding = 1, .pipeline = 1, .sequence = 1, .model = model, .micro_batch = 1};
}

/* ---- all combinations ------------------------------------------------------------------------ */

/* M stands for the ranks that share tensors. */
static const char *const in_layers[][4] = {
    {"h.L.attn.c_attn", "[1,1,1],[1,1]", "[1,1,1],[1,M]", "[1,1,M],[M,1]"},
    {"h.L.attn", "[1,1,1]", "[1,1,M]"},
    {"h.L.attn.c_proj", "[1,1,1],[1,1]", "[1,1,1],[1,M]", "[1,1,M],[M,1]"},
    {"h.L.mlp.c_fc", "[1,1,1],[1,1]", "[1,1,1],[1,M]"},
    {"h.L.mlp.c_proj", "[1,1,1],[1,1]", "[1,1,1],[1,M]", "[1,1,M],[M,1]"},
    {"embedding", "[1,1],[1,1]", "[1,1],[M,1]"},
};
#define OPERATORS ((int)FLEET_COUNT(in_layers))
#define LAYERS_OP 5 /* of them in layers */

static int ways_of(int op)
{
    return in_layers[op][3] ? 3 : 2;
}

static void append_entry(int op, int layer, int way, int ranks, struct fleet_strbuf *out)
{
    fleet_strbuf_append(out, out->length ? ",{\"operator\":\"" : "[{\"operator\":\"");
    for (const char *at = in_layers[op][0]; *at; at++)
        if (*at == 'L')
            fleet_strbuf_appendf(out, "%d", layer);
        else
            fleet_strbuf_append_char(out, *at);
    fleet_strbuf_append(out, "\",\"in\":[");
    for (const char *at = in_layers[op][1 + way]; *at; at++)
        if (*at == 'M')
            fleet_strbuf_appendf(out, "%d", ranks);
        else
            fleet_strbuf_append_char(out, *at);
    fleet_strbuf_append(out, "]}");
}

/* Seconds of a job on `model` ranks whose operators are divided so. */
static double seconds_of(const char *text, const char *operators, const struct links *links,
                         int model, struct plan *plan)
{
    STRATEGY_AUTO struct strategy strategy = {0};
    struct strategy_options options;
    struct fleet_errors errors = {0};
    struct training_config training;
    struct step_time time = {.total = INFINITY};
    struct plan_request request;

    read_training(text, operators, &training);
    strategy_init(&strategy);
    strategy_options_init(&options);
    options.operator_divisions = operators != NULL;
    strategy.hybrid_configs.mp_degree = model;
    strategy.hybrid_configs.has_mp_degree = strategy.has_hybrid_configs = KNOB_BY_NAME;
    strategy.tensor_parallel = model > 1;
    strategy.has_tensor_parallel = model > 1 ? KNOB_BY_NAME : 0;
    request = plan_request_of(&training, &strategy, STRATEGY_FULL, &options, model);
    request.has_buddies = false;
    assert_int_equal(step_time_predict(&request, links, &time, &errors), 0);
    if (plan)
        assert_int_equal(plan_build(&request, plan, &errors), 0);
    fleet_errors_release(&errors);
    training_config_release(&training);
    return time.total;
}

static double least_of_all(const char *text, const struct links *links, int model)
{
    int ways[OPERATORS] = {0};
    double least = seconds_of(text, NULL, links, model, NULL);

    for (;;) {
        FLEET_AUTO_STRBUF struct fleet_strbuf entries = {0};
        int op = 0;

        for (int i = 0; i < OPERATORS; i++)
            append_entry(i, 0, ways[i], model, &entries);
        fleet_strbuf_append(&entries, "]");
        least = fmin(least, seconds_of(text, entries.text, links, model, NULL));
        for (op = 0; op < OPERATORS && ++ways[op] == ways_of(op); op++)
            ways[op] = 0;
        if (op == OPERATORS)
            return least;
    }
}

static void assert_near(double a, double b)
{
    if (!(fabs(a - b) <= 1e-6 * fabs(b)))
        fail_msg("%.12g s, not %.12g s", a, b);
}

static void search(const char *text, const char *given, const struct links *links, int model,
                   struct operator_search_result *out)
{
    struct fleet_errors errors = {0};
    struct training_config training;
    struct full_choice grid = grid_of(model);
    struct full_request request;

    read_training(text, given, &training);
    request = request_of(&training, links, model);
    assert_int_equal(operator_search(&request, &grid, out, &errors), 0);
    training_config_release(&training);
}

static const char *const small[] = {JOB(GPT_OF("1"), "64", "1"), JOB(GPT_OF("1"), "16", "1"),
                                    JOB(GPT_OF("1"), "256", "1")};

static void test_operator_search__equals_exhaustive_search(void **state)
{
    int mixed = 0, count = 0;

    (void)state;
    for (size_t job = 0; job < FLEET_COUNT(small); job++)
        for (int kind = 0; kind < MACHINES; kind++) {
            struct links links = machine(kind);
            int model = kind == 0 ? 4 : 2;
            struct operator_search_result found;

            search(small[job], NULL, &links, model, &found);
            assert_near(found.best.rival.time.total, least_of_all(small[job], &links, model));
            mixed += found.best.entries != NULL;
            count++;
            operator_search_release(&found);
        }
    assert_in_range(mixed, 1, count - 1); /* machines decide it */
}

/* Ways of the operators of two layers, drawn at random: none is faster. */
static void test_operator_search__finds_ways_for_all_layers(void **state)
{
    static const char text[] = JOB(GPT_OF("2"), "16", "1");
    struct fleet_random_key key = fleet_random_key(1, "ways", 0);

    (void)state;
    for (int kind = 0; kind < MACHINES; kind++) {
        struct links links = machine(kind);
        struct operator_search_result found;

        search(text, NULL, &links, 2, &found);
        for (uint64_t draw = 0; draw < 200; draw++) {
            FLEET_AUTO_STRBUF struct fleet_strbuf entries = {0};

            for (int i = 0; i < OPERATORS; i++)
                for (int layer = 0; layer < (i < LAYERS_OP ? 2 : 1); layer++)
                    append_entry(i, layer,
                                 (int)(fleet_random_uniform(key, draw * 16 + 2 * (uint64_t)i +
                                                                     (uint64_t)layer) *
                                       ways_of(i)),
                                 2, &entries);
            fleet_strbuf_append(&entries, "]");
            assert_true(found.best.rival.time.total * (1 - 1e-6) <=
                        seconds_of(text, entries.text, &links, 2, NULL));
        }
        operator_search_release(&found);
    }
}

/* ---- what is sent ---------------------------------------------------------------------------- */

static void test_operator_search__predicts_what_the_plan_of_the_job_sends(void **state)
{
    static const char *const jobs[] = {JOB(GPT_OF("2"), "16", "1"), JOB(LLAMA_OF("2"), "16", "1")};

    (void)state;
    for (size_t job = 0; job < FLEET_COUNT(jobs); job++) {
        struct links links = machine(0);
        struct operator_search_result found;
        FLEET_AUTO_FREE char *entries = NULL;
        struct plan plan;
        double seconds;

        search(jobs[job], NULL, &links, 2, &found);
        assert_non_null(found.best.entries);
        entries = cJSON_PrintUnformatted(found.best.entries);
        seconds = seconds_of(jobs[job], entries, &links, 2, &plan);
        assert_true(seconds == found.best.rival.time.total);
        assert_true(plan.sent_bytes == found.best.rival.sent_bytes);
        assert_true((double)plan_bytes_total(&plan) == found.best.rival.bytes);
        assert_true(found.best.rival.time.total < found.one_way.time.total);
        plan_release(&plan);
        operator_search_release(&found);
    }
}

/* ---- what is given, what is refused ---------------------------------------------------------- */

static void test_operator_search__keeps_what_is_given(void **state)
{
    static const char given[] = "[{\"operator\":\"h.*.mlp.c_fc\",\"in\":[[1,1,1],[1,2]]},"
                                "{\"operator\":\"embedding\",\"in\":[[1,1],[2,1]]}]";
    struct links links = machine(0);
    struct operator_search_result found, bound;
    const cJSON *entry;

    (void)state;
    search(small[1], NULL, &links, 2, &found);
    search(small[1], given, &links, 2, &bound);
    cJSON_ArrayForEach(entry, bound.best.entries)
    {
        const char *name = cJSON_GetStringValue(cJSON_GetObjectItem(entry, "operator"));

        assert_string_not_equal(name, "h.*.mlp.c_fc");
        assert_string_not_equal(name, "embedding");
    }
    assert_true(found.best.rival.time.total < bound.best.rival.time.total);
    operator_search_release(&found);
    operator_search_release(&bound);
}

static void expect_error(const char *text, const char *operators, double memory, const char *wanted)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf said = {0};
    struct fleet_errors errors = {0};
    struct operator_search_result found;
    struct training_config training;
    struct full_choice grid = grid_of(2);
    struct links links = machine(0);
    struct full_request request;

    read_training(text, operators, &training);
    request = request_of(&training, &links, 2);
    request.memory = memory;
    assert_int_equal(operator_search(&request, &grid, &found, &errors), -EINVAL);
    fleet_errors_print(&errors, &said);
    if (!strstr(fleet_strbuf_text(&said), wanted))
        fail_msg("\"%s\", not \"%s\"", fleet_strbuf_text(&said), wanted);
    fleet_errors_release(&errors);
    training_config_release(&training);
}

static void test_operator_search__refuses_what_it_cannot_search(void **state)
{
    (void)state;
    expect_error(small[0], NULL, 1000, "no division of 2 devices by samples and tensors");
    expect_error(small[0], "[{\"operator\":\"h.0.attn\",\"in\":[[1,1,1]]}]", INFINITY,
                 "\"h.0.attn\" names operators of single layers");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_operator_search__equals_exhaustive_search),
        cmocka_unit_test(test_operator_search__finds_ways_for_all_layers),
        cmocka_unit_test(test_operator_search__predicts_what_the_plan_of_the_job_sends),
        cmocka_unit_test(test_operator_search__keeps_what_is_given),
        cmocka_unit_test(test_operator_search__refuses_what_it_cannot_search),
    };
    return cmocka_run_group_tests_name("operator_search", tests, NULL, NULL);
}

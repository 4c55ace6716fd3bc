/* SPDX-License-Identifier: Apache-2.0 */

/* The searches of auto_parallel over the grids that the built-in trainer runs. */
#include <math.h>

#include "libfleet/autoparallel/search/cost_graph.h"
#include "libfleet/autoparallel/search/grid_search.h"
#include "libfleet/base/error.h"
#include "libfleet/plan/program_traffic.h"
#include "libfleet/strategy/strategy_options.h"
#include "tests/unit/passes_fixture.h"

#define DATA "\"data\":{\"path\":\"t\"},"
#define TEXT_JOB(batch)                                                                        \
    "{\"model\":{\"name\":\"gpt\",\"layers\":2,\"heads\":4,\"width\":32,\"context\":16}," DATA \
    "\"globalBatchSize\":" batch ",\"microBatchSize\":1,\"steps\":8," ADAMW "}"
#define IMAGE_JOB(batch)                                                             \
    "{\"model\":{\"name\":\"mlp\",\"sizes\":[3072,64,10]},\"data\":{\"path\":\"t\"," \
    "\"tokenizer\":\"cifar10\"},\"globalBatchSize\":" batch                          \
    ",\"microBatchSize\":1,\"steps\":8," ADAMW "}"

static void read_training(const char *text, struct training_config *out)
{
    FLEET_AUTO_JSON cJSON *json = cJSON_Parse(text);
    struct fleet_errors errors = {0};

    assert_non_null(json);
    assert_int_equal(training_config_read(json, "spec.training", out, &errors), 0);
    assert_int_equal(errors.count, 0);
}

/* "data×model" or the error. */
static void search(const char *text, int devices, int stages, int model, enum grid_search_kind kind,
                   struct fleet_strbuf *out)
{
    struct training_config training;
    struct fleet_error err;
    struct grid grid;

    read_training(text, &training);
    if (grid_search(&(struct grid_request){&training, devices, stages, model, false, kind}, &grid,
                    &err) < 0)
        fleet_strbuf_append(out, err.text);
    else
        fleet_strbuf_appendf(out, "%dx%d", grid.data, grid.model);
    training_config_release(&training);
}

static void expect(const char *text, int devices, int stages, int model, enum grid_search_kind kind,
                   const char *wanted)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf found = {0};

    search(text, devices, stages, model, kind, &found);
    if (!strstr(fleet_strbuf_text(&found), wanted))
        fail_msg("%d devices: %s, not %s", devices, fleet_strbuf_text(&found), wanted);
}

static void test_grid_search__divides_samples_as_long_as_there_are_some(void **state)
{
    (void)state;
    for (int kind = GRID_SEARCH_RECURSIVE; kind <= GRID_SEARCH_DYNAMIC; kind++) {
        expect(TEXT_JOB("8"), 1, 1, 0, kind, "1x1");
        expect(TEXT_JOB("8"), 4, 1, 0, kind, "4x1");
        expect(TEXT_JOB("2"), 4, 1, 0, kind, "2x2");
        expect(TEXT_JOB("1"), 4, 1, 0, kind, "1x4");
        expect(TEXT_JOB("4"), 4, 2, 0, kind, "2x2"); /* a replica needs a micro-batch a stage */
        expect(TEXT_JOB("8"), 4, 1, 2, kind, "2x2"); /* given */
        expect(TEXT_JOB("1"), 8, 1, 0, kind, "no grid for 8 devices of a stage: ");
        expect(IMAGE_JOB("8"), 4, 1, 0, kind, "4x1");
        expect(IMAGE_JOB("2"), 4, 1, 0, kind, "no grid for 4 devices of a stage: ");
    }
}

static void test_grid_search__halves_powers_of_two_only(void **state)
{
    (void)state;
    expect(TEXT_JOB("6"), 6, 1, 0, GRID_SEARCH_DYNAMIC, "6x1");
    expect(TEXT_JOB("6"), 6, 1, 0, GRID_SEARCH_RECURSIVE,
           "recursive_programming needs a power of two");
}

/* Against every grid, one by one. */
static void test_grid_search__finds_the_least_score(void **state)
{
    static const char *const jobs[] = {TEXT_JOB("1"), TEXT_JOB("2"), TEXT_JOB("4"), TEXT_JOB("8"),
                                       IMAGE_JOB("8")};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(jobs); i++) {
        struct training_config training;
        struct grid_request request = {
            .training = &training, .devices = 4, .stages = 1, .kind = GRID_SEARCH_DYNAMIC};
        double least = INFINITY, score, found;
        struct fleet_error err;
        struct grid grid;

        read_training(jobs[i], &training);
        for (int model = 1; model <= 4; model *= 2)
            if (grid_score(&request, &(struct grid){4 / model, model}, &score, &err) == 0)
                least = fmin(least, score);
        assert_int_equal(grid_search(&request, &grid, &err), 0);
        assert_int_equal(grid_score(&request, &grid, &found, &err), 0);
        assert_true(found == least);
        training_config_release(&training);
    }
}

/* ---- operators that are divided in different ways -------------------------------------------- */

#define WAYS_JOB(operators)                                                                    \
    "{\"model\":{\"name\":\"gpt\",\"layers\":3,\"heads\":4,\"width\":64,\"context\":256,"      \
    "\"vocabulary\":64},\"data\":{\"path\":\"t\"},\"globalBatchSize\":1,\"microBatchSize\":1," \
    "\"steps\":8," operators ADAMW "}"
#define WAY(name, in) "\"operatorStrategies\":[{\"operator\":\"" name "\",\"in\":" in "}],"

/* Bytes that a rank of two sends in the forward part, and the score of the grid. */
static double forward_bytes(const char *text, double *out_score)
{
    STRATEGY_AUTO struct strategy strategy = {0};
    struct strategy_options options;
    struct training_config training;
    struct fleet_errors errors = {0};
    struct plan_request request;
    struct plan plan;
    struct fleet_error err;
    double bytes = 0;

    read_training(text, &training);
    strategy_init(&strategy);
    strategy_options_init(&options);
    options.operator_divisions = true;
    strategy.hybrid_configs.mp_degree = 2;
    strategy.hybrid_configs.has_mp_degree = strategy.has_hybrid_configs = KNOB_BY_NAME;
    request = plan_request_of(&training, &strategy, STRATEGY_FULL, &options, 2);
    assert_int_equal(plan_build(&request, &plan, &errors), 0);
    for (int i = 0; i < plan.program.op_count; i++)
        bytes += plan.program.ops[i].backward ? 0 : program_traffic_in_cell(&plan, i);
    plan_release(&plan);
    assert_int_equal(
        grid_score(&(struct grid_request){&training, 2, 1, 0, true, GRID_SEARCH_DYNAMIC},
                   &(struct grid){1, 2}, out_score, &err),
        0);
    training_config_release(&training);
    return bytes;
}

/* The score counts what the program sends (the rest is what is computed): sums of [256,64], columns
 * that are gathered, and nothing where a rank takes its columns. */
static void test_grid_search__counts_what_the_program_sends(void **state)
{
    static const struct {
        const char *text;
        double columns; /* of 256 tokens, more that a rank sends than with all in one way */
    } cases[] = {
        {WAYS_JOB(WAY("h.1.mlp.c_fc", "[[1,1,1],[1,1]]")), -64}, /* no sum */
        {WAYS_JOB(WAY("h.1.mlp.c_proj", "[[1,1,1],[1,2]]")), 128 + 32 - 64},
        {WAYS_JOB(WAY("h.1.attn", "[[1,1,1]]")), 96 - 64}, /* then c_proj is whole, too */
        {WAYS_JOB(WAY("h.*.mlp.c_fc", "[[1,1,1],[1,1]]")), -3 * 64},
    };
    double score, one_way, one_way_score;

    (void)state;
    one_way = forward_bytes(WAYS_JOB(""), &one_way_score);
    for (size_t i = 0; i < FLEET_COUNT(cases); i++) {
        double more = forward_bytes(cases[i].text, &score) - one_way;

        if (more != cases[i].columns * 256 * 4)
            fail_msg("%s: %g bytes more", cases[i].text, more);
        assert_true(fabs(score - one_way_score - SEARCH_BETA_DEFAULT * more) <
                    0.6 * SEARCH_BETA_DEFAULT * fabs(more));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_grid_search__divides_samples_as_long_as_there_are_some),
        cmocka_unit_test(test_grid_search__halves_powers_of_two_only),
        cmocka_unit_test(test_grid_search__finds_the_least_score),
        cmocka_unit_test(test_grid_search__counts_what_the_program_sends),
    };
    return cmocka_run_group_tests_name("grid_search", tests, NULL, NULL);
}

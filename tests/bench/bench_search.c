/* SPDX-License-Identifier: Apache-2.0 */

/*
 * How long the searches take: all divisions of a GPT of 96 layers over 1024 devices (at most 5 s is
 * allowed), and dynamic programming over a graph of that many layers. Processor time of this
 * process: it does not depend on what else the machine does.
 */
#include <math.h>
#include <stdio.h>
#include <time.h>

#include "libfleet/autoparallel/search/dynamic_programming.h"
#include "libfleet/autoparallel/search/full_search.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"
#include "libfleet/base/random.h"
#include "libfleet/training/training.h"

#define LAYERS     96
#define OPERATORS  12 /* of a layer */
#define STRATEGIES 66 /* of three axes on 1024 devices: 2^10 in all ways over them */

static double processor_ms(void)
{
    struct timespec now;

    fleet_assert(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now) == 0);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static void report(const char *what, double ms)
{
    printf("%-48s %8.0f ms of processor%s\n", what, ms, ms <= 5000 ? "" : "  too slow");
    printf("{\"bench\":\"search\",\"what\":\"%s\",\"processorMs\":%.1f,\"limitMs\":5000}\n", what,
           ms);
}

static void search_divisions(void)
{
    static const char text[] =
        "{\"model\":{\"name\":\"gpt\",\"layers\":96,\"heads\":96,\"width\":12288,\"context\":2048,"
        "\"vocabulary\":51200},\"data\":{\"tokenizer\":\"synthetic-markov\"},"
        "\"optimizer\":{\"name\":\"adamw\",\"learningRate\":0.001},\"globalBatchSize\":2048,"
        "\"microBatchSize\":1,\"steps\":1,\"precision\":\"bf16\"}";
    struct links links = {.devices_per_node = 8,
                          .compute = {{4e14, 2e14, 2e14}, 2e12},
                          .inside = {5e-6, 3e11},
                          .between = {1e-5, 5e10}};
    FLEET_AUTO_JSON cJSON *json = cJSON_Parse(text);
    struct fleet_errors errors = {0};
    struct training_config training;
    struct full_request request = {.training = &training,
                                   .policy = STRATEGY_FULL,
                                   .has_buddies = true,
                                   .devices = 1024,
                                   .memory = 80e9,
                                   .links = &links};
    struct full_result result;
    double start;

    fleet_assert(training_config_decode(json, "", &training, &errors) == 0);
    start = processor_ms();
    fleet_assert(full_search(&request, &result, &errors) == 0 && result.count > 0);
    report("full, 96 layers on 1024 devices", processor_ms() - start);
    printf("  %lld combinations, %lld planned\n", (long long)result.combinations,
           (long long)result.looked_at);
    training_config_release(&training);
}

/* Random costs: they do not change how long elimination takes. */
static int random_table(struct cost_graph *graph, struct fleet_random_key key, int rows)
{
    int table = cost_graph_add_table(graph, rows, STRATEGIES);

    for (int i = 0; i < rows; i++)
        for (int j = 0; j < STRATEGIES; j++)
            *cost_graph_at(graph, table, i, j) = (struct search_cost){
                .computation = fleet_random_uniform(key, (uint64_t)(i * STRATEGIES + j)),
                .partial = fleet_random_uniform(key, (uint64_t)(10000 + i * STRATEGIES + j))};
    return table;
}

/* A chain with a residual connection over each half of a layer. */
static void search_graph(void)
{
    struct search_weights weights = {.alpha = 1, .beta = 1, .memory_limit = INFINITY};
    struct fleet_random_key key = fleet_random_key(1, "bench", 0);
    struct cost_graph graph = {0};
    struct search_result result;
    struct fleet_error err;
    int node = random_table(&graph, key, 1), edge = random_table(&graph, key, STRATEGIES);
    double start;

    for (int i = 0; i < LAYERS * OPERATORS; i++) {
        cost_graph_add_node(&graph, "operator", node);
        if (i > 0)
            cost_graph_add_edge(&graph, i - 1, i, edge);
        if (i >= OPERATORS / 2 && i % (OPERATORS / 2) == 0)
            cost_graph_add_edge(&graph, i - OPERATORS / 2, i, edge);
    }
    start = processor_ms();
    fleet_assert(dynamic_programming_search(&graph, &weights, &result, &err) == 0);
    fleet_assert(result.is_exact);
    report("dynamic_programming, 1152 operators of 66 each", processor_ms() - start);
    search_result_release(&result);
    cost_graph_release(&graph);
}

int main(void)
{
    search_divisions();
    search_graph();
    return 0;
}

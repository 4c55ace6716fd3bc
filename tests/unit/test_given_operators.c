/* SPDX-License-Identifier: Apache-2.0 */

/*
 * spec.training.operatorStrategies: the degrees of the strategy that follow from them, or why there
 * are none. Each job is a small gpt or llama of 4 heads, 8 samples a batch.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/api/fleetjob.h"
#include "libfleet/autoparallel/model_operators.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/strategy/strategy.h"

#define SEMI  "parallel_mode: semi_auto_parallel"
#define AUTO  "parallel_mode: auto_parallel"
#define WIDE  "layers: 2, heads: 4, width: 32, context: 32"
#define FIRST "spec.training.operatorStrategies[0]"

struct given {
    const char *model;
    int workers;
    const char *context, *strategy, *operators;
    int micro_batch;
};

static void read_job(const struct given *given, struct fleetjob *job, struct fleet_errors *errors)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    fleet_strbuf_appendf(
        &text,
        "apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\nmetadata: {name: j}\nspec:\n"
        "  worker: {replicas: %d}\n  autoParallel: {%s}\n  strategy: {%s}\n  training:\n"
        "    model: {%s}\n    data: {tokenizer: synthetic-markov, symbols: 16}\n"
        "    optimizer: {name: adamw, learningRate: 0.1}\n"
        "    globalBatchSize: 8\n    microBatchSize: %d\n    steps: 4\n"
        "    operatorStrategies: [%s]\n",
        given->workers, given->context, given->strategy, given->model, given->micro_batch,
        given->operators);
    (void)fleetjob_read(text.text, text.length, job, errors);
}

/* "model 2 sequence 1 rows" or the errors. */
static void decide(const struct given *given, struct fleet_strbuf *out)
{
    struct fleet_errors errors = {0};
    struct fleetjob job;
    const struct strategy *s = &job.spec.strategy;

    read_job(given, &job, &errors);
    if (errors.count > 0)
        fleet_errors_print(&errors, out);
    else
        fleet_strbuf_appendf(out, "model %d sequence %d%s%s", s->hybrid_configs.mp_degree,
                             s->hybrid_configs.sep_degree,
                             s->tensor_parallel_configs.sequence_parallel ? " rows" : "",
                             job.spec.strategy_options.operator_divisions ? " by operator" : "");
    fleet_errors_release(&errors);
    fleetjob_release(&job);
}

static const struct {
    struct given given;
    const char *outcome; /* or the beginning of the errors */
} cases[] = {
    /* columns, rows, a table, heads, the loss: each says the whole grid */
    {{"name: gpt, " WIDE, 4, SEMI, "",
      "{operator: 'h.*.mlp.c_fc', in: [[2, 1, 1], [1, 2], [2]], out: [[2, 1, 2]]}", 1},
     "model 2 sequence 1"},
    {{"name: gpt, " WIDE, 4, SEMI, "", "{operator: 'h.0.mlp.c_proj', in: [[1, 1, 4], [4, 1]]}", 1},
     "model 4 sequence 1"},
    {{"name: gpt, " WIDE, 4, SEMI, "", "{operator: embedding, in: [[2, 1], [2, 1]]}", 1},
     "model 2 sequence 1"},
    {{"name: llama, " WIDE, 4, SEMI, "",
      "{operator: 'model.layers.?.self_attn', in: [[2, 1, 2]], out: [[2, 1, 2]]}", 1},
     "model 2 sequence 1"},
    {{"name: gpt, " WIDE, 2, SEMI, "", "{operator: loss, in: [[1, 1, 2], [1, 1]]}", 1},
     "model 2 sequence 1"},
    {{"name: gpt, " WIDE, 4, SEMI, "", "{operator: 'h.0.ln_1', in: [[4, 1, 1], [1], [1]]}", 1},
     "model 1 sequence 1"},
    {{"name: 'mlp', sizes: [16, 8, 16]", 4, SEMI, "", "{operator: layers.0, in: [[4, 1], [1, 1]]}",
      1},
     "model 1 sequence 1"},
    /* tokens: between divided layers, or of whole sequences */
    {{"name: gpt, " WIDE, 4, SEMI, "",
      "{operator: 'h.0.attn', in: [[2, 1, 2]]}, {operator: 'h.*.ln_?', in: [[2, 2, 1]]}", 1},
     "model 2 sequence 1 rows"},
    {{"name: gpt, " WIDE, 4, SEMI, "",
      "{operator: 'h.0.attn', in: [[2, 1, 2]]}, {operator: 'h.0.mlp.c_fc', in: [[2, 2, 1]]}", 1},
     "model 1 sequence 2"},
    /* stages, the searches, degrees of the strategy */
    {{"name: gpt, " WIDE, 4, SEMI ", pipeline_stages: 2", "",
      "{operator: 'h.0.mlp.c_fc', in: [[1, 1, 1], [1, 2]]}", 1},
     "model 2 sequence 1"},
    {{"name: gpt, " WIDE, 4, AUTO ", search_mode: sharding_propagation", "",
      "{operator: 'h.1.mlp.c_fc', in: [[1, 1, 1], [1, 4]]}", 1},
     "model 4 sequence 1"},
    {{"name: gpt, " WIDE, 4, AUTO ", search_mode: dynamic_programming", "",
      "{operator: 'h.1.mlp.c_fc', in: [[1, 1, 1], [1, 4]]}", 1},
     "model 4 sequence 1"},
    {{"name: gpt, " WIDE, 4, AUTO, "", "{operator: 'h.0.mlp.c_proj', out: [[2, 1, 1]]}", 1},
     "model 2 sequence 1"},
    {{"name: gpt, " WIDE, 4, SEMI, "hybrid_configs: {mp_degree: 2}",
      "{operator: 'h.0.mlp.c_fc', in: [[1, 1, 1], [1, 4]]}", 1},
     "spec.training.operatorStrategies: asks for hybrid_configs.mp_degree: 4, but "
     "spec.strategy.hybrid_configs.mp_degree is 2; give one of the two\n"},
    {{"name: gpt, " WIDE, 4, AUTO ", search_mode: sharding_propagation", "", "", 1},
     "spec.autoParallel.search_mode: sharding_propagation begins at operators with given "
     "strategies: give at least one in spec.training.operatorStrategies, or use "
     "recursive_programming or dynamic_programming\n"},
    /* operators that are whole while others are divided, and those in between */
    {{"name: gpt, " WIDE, 2, SEMI, "", "{operator: 'h.0.mlp.c_fc', in: [[1, 1, 1], [1, 1]]}", 1},
     "model 2 sequence 1 by operator"},
    {{"name: gpt, " WIDE, 4, SEMI, "",
      "{operator: 'h.*.attn.c_*', in: [[2, 1, 1], [1, 1]]}, {operator: 'h.0.mlp.c_fc', in: [[2, 1, "
      "1], [1, 2]]}",
      1},
     "model 2 sequence 1 by operator"},
    {{"name: gpt, " WIDE, 4, SEMI, "", "{operator: 'h.1.mlp.c_proj', in: [[2, 1, 1], [1, 1]]}", 1},
     "model 2 sequence 1 by operator"},
    {{"name: gpt, " WIDE, 4, SEMI, "", "{operator: 'h.1.mlp.c_proj', in: [[1, 1, 1], [1, 4]]}", 1},
     "model 4 sequence 1 by operator"},
    {{"name: gpt, " WIDE, 4, SEMI, "", "{operator: 'h.1.attn', in: [[1, 1, 1]]}", 1},
     "model 4 sequence 1 by operator"},
    {{"name: gpt, " WIDE, 2, SEMI, "", "{operator: loss, in: [[1, 1, 1], [1, 1]]}", 1},
     "model 2 sequence 1 by operator"},
    {{"name: gpt, " WIDE, 2, SEMI, "",
      "{operator: embedding, in: [[1, 1], [1, 1]]}, {operator: 'h.0.ln_1', in: [[1, 1, 1]]}", 1},
     "model 2 sequence 1 by operator"},
    {{"name: gpt, " WIDE, 2, SEMI, "", "{operator: embedding, in: [[1, 1], [1, 1]]}", 1},
     "model 1 sequence 2"},
    {{"name: llama, " WIDE, 4, SEMI, "",
      "{operator: '*.mlp.up_proj', in: [[2, 1, 1], [1, 1]]}, {operator: '*.self_attn.v_proj', in: "
      "[[2, 1, 2], [1, 2]]}, {operator: lm_head, in: [[2, 1, 1], [1, 1]]}",
      1},
     "model 2 sequence 1 by operator"},
    {{"name: gpt, " WIDE, 4, SEMI ", pipeline_stages: 2", "",
      "{operator: 'h.0.mlp.c_fc', in: [[1, 1, 1], [1, 1]]}", 1},
     "model 2 sequence 1 by operator"},
    /* tokens of single operators, and samples where micro-batches have them */
    {{"name: gpt, " WIDE, 4, SEMI, "",
      "{operator: 'h.0.ln_1', in: [[2, 2, 1]]}, {operator: 'h.1.ln_1', in: [[2, 1, 1]]}", 1},
     "model 2 sequence 1 by operator"},
    {{"name: gpt, " WIDE, 4, SEMI, "",
      "{operator: 'h.0.mlp.c_fc', in: [[2, 2, 1], [1, 1]], out: [[2, 2, 1]]}, {operator: "
      "'h.*.residual', in: [[2, 2, 1], [2, 2, 1]]}, {operator: lm_head, in: [[2, 1, 1], [2, 1]]}",
      1},
     "model 2 sequence 1 by operator"},
    {{"name: llama, dropout: 0.1, " WIDE, 4, SEMI, "",
      "{operator: '*.0.mlp.swiglu', in: [[1, 4, 1], [1, 4, 1]]}, {operator: '*.0.mlp.dropout', "
      "out: [[1, 4, 1]]}, {operator: '*.1.mlp.swiglu', in: [[1, 1, 1]]}, "
      "{operator: loss, in: [[1, 4, 1], [1, 4]]}",
      1},
     "model 4 sequence 1 by operator"},
    {{"name: gpt, " WIDE, 4, SEMI, "",
      "{operator: 'h.0.*', in: [[4, 1, 1]]}, {operator: 'h.1.*', in: [[2, 1, 1]]}", 2},
     "model 2 sequence 1 by operator"},
    {{"name: llama, kvHeads: 1, " WIDE, 4, SEMI, "",
      "{operator: '*.?_proj', in: [[4, 1, 1]]}, {operator: '*norm', in: [[2, 1, 1]]}, {operator: "
      "loss, in: [[4, 1, 1], [4, 1]]}",
      2},
     "model 2 sequence 1 by operator"},
    {{"name: gpt, " WIDE, 4, SEMI, "",
      "{operator: 'h.0.ln_1', in: [[4, 1, 1]]}, {operator: 'h.1.ln_1', in: [[2, 2, 1]]}", 1},
     "spec.training.operatorStrategies[1]: h.1.ln_1 and h.0.ln_1 "
     "(spec.training.operatorStrategies[0]) cannot both be divided so: all operators have one grid "
     "of ranks, and those that share a weight or an input one division; single operators can have "
     "whole samples on each rank if spec.training.microBatchSize (1) is a multiple of the ranks "
     "that share tensors\n"},
    {{"name: llama, kvHeads: 2, " WIDE, 4, SEMI, "", "{operator: '*.self_attn', in: [[1, 1, 1]]}",
      1},
     FIRST
     ": the built-in trainer does not divide model.layers.0.self_attn so: on the 4 ranks of a "
     "stage it can have in [[4, 1, 1]], out [[4, 1, 1]]; or in [[2, 1, 2]], out [[2, 1, 2]]; "
     "or in [[2, 1, 1]], out [[2, 1, 1]]\n"},
    /* mistakes */
    {{"name: gpt, " WIDE, 4, SEMI, "", "{operator: 'h.0.mlp.cfc', in: [[4, 1, 1]]}", 1},
     FIRST ".operator: \"h.0.mlp.cfc\" is no operator of gpt; did you mean \"h.0.mlp.c_fc\"?\n"},
    {{"name: gpt, " WIDE, 4, SEMI, "", "{operator: conv1, in: [[4, 1, 1]]}", 1},
     FIRST ".operator: \"conv1\" matches no operator of gpt, which has embedding, h.0.ln_1, "
           "h.0.attn.c_attn, h.0.attn, h.0.attn.c_proj, h.0.attn.residual, …\n"},
    {{"name: gpt, " WIDE, 4, SEMI, "", "{operator: 'h.0.ln_1'}", 1},
     FIRST ": has no strategy: give in, out or both\n"},
    {{"name: gpt, " WIDE, 4, SEMI, "", "{operator: 'h.0.ln_1', in: [[4, 0, 1]]}", 1},
     FIRST ".in[0][1]: must be an integer from 1 to 65536\n"},
    {{"name: gpt, " WIDE, 4, SEMI, "", "{operator: 'h.0.ln_1', in: [4, 1, 1]}", 1},
     FIRST ".in[0]: must be a list of at most 4 numbers, one for each dimension\n"},
    {{"name: gpt, " WIDE, 4, SEMI, "", "{operator: 'h.0.ln_1', out: {a: 1}}", 1},
     FIRST ".out: must be a list of lists of integers, not an object\n"},
    {{"name: gpt, " WIDE, 4, SEMI, "", "{operator: 'h.0.ln_1', in: [[4, 1]]}", 1},
     FIRST ": h.0.ln_1 (layer_norm): input 0: 2 numbers, it has 3 dimensions\n"},
    {{"name: gpt, " WIDE, 4, SEMI, "", "{operator: 'h.0.ln_1', in: [[3, 1, 1]]}", 1},
     FIRST ": h.0.ln_1 (layer_norm): input 0: dimension 0: 3 does not divide 8\n"},
    {{"name: gpt, " WIDE, 4, SEMI, "", "{operator: 'h.0.ln_1', in: [[1, 1, 2]]}", 1},
     FIRST ": h.0.ln_1 (layer_norm): input 0: dimension 2: 2, must be 1: the operator needs all of "
           "it\n"},
    {{"name: gpt, " WIDE, 4, SEMI, "", "{operator: 'h.0.ln_1', in: [[8, 1, 1]]}", 1},
     FIRST ": h.0.ln_1 (layer_norm): more parts than the 4 devices\n"},
    {{"name: gpt, " WIDE, 4, SEMI, "",
      "{operator: 'h.*', in: [[4, 1, 1]]}, {operator: 'h.0.ln_1', in: [[4, 1, 1]]}", 1},
     "spec.training.operatorStrategies[1].operator: \"h.0.ln_1\" matches only operators of earlier "
     "entries, and the first one counts: move it in front of them, or leave it out\n"},
    /* what one grid cannot do */
    {{"name: gpt, " WIDE, 2, SEMI, "", "{operator: 'h.0.mlp.c_fc', in: [[1, 1, 2], [2, 1]]}", 1},
     FIRST ": the built-in trainer does not divide h.0.mlp.c_fc so: on the 2 ranks of a stage it "
           "can have in [[2, 1, 1], [1, 1], [1]], out [[2, 1, 1]]; or in [[1, 1, 1], [1, 2], [2]], "
           "out [[1, 1, 2]]; or in [[1, 2, 1], [1, 1], [1]], out [[1, 2, 1]]; or in [[1, 1, 1], "
           "[1, 1], [1]], out [[1, 1, 1]]\n"},
    {{"name: llama, " WIDE, 2, SEMI, "",
      "{operator: '*.k_proj', in: [[1, 1, 1], [1, 1]]}, {operator: '*.q_proj', in: [[1, 1, 1], [2, "
      "1]]}",
      1},
     FIRST ": model.layers.0.self_attn.k_proj can be divided so, but not beside the other entries: "
           "operators that share a weight or an input are divided in one way\n"},
    {{"name: gpt, " WIDE, 2, SEMI, "",
      "{operator: embedding, in: [[1, 1], [1, 1]]}, {operator: lm_head, in: [[1, 1, 1], [2, 1]]}",
      1},
     "spec.training.operatorStrategies[1]: lm_head and embedding "
     "(spec.training.operatorStrategies[0]) cannot both be divided so: all operators have one grid "
     "of ranks, and those that share a weight or an input one division\n"},
    {{"name: gpt, " WIDE, 4, SEMI, "",
      "{operator: 'h.0.mlp.c_fc', in: [[2, 1, 1], [1, 2]]}, {operator: 'h.0.ln_1', in: [[1, 4, "
      "1]]}",
      1},
     "spec.training.operatorStrategies[1]: h.0.ln_1 and h.0.mlp.c_fc "
     "(spec.training.operatorStrategies[0]) cannot both be divided so: all operators have one grid "
     "of ranks, and those that share a weight or an input one division\n"},
};

static void test_given_operators__decide_the_grid(void **state)
{
    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(cases); i++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf found = {0};

        decide(&cases[i].given, &found);
        if (strcmp(fleet_strbuf_text(&found), cases[i].outcome) != 0)
            fail_msg("%s, %s: expected \"%s\", got \"%s\"", cases[i].given.context,
                     cases[i].given.operators, cases[i].outcome, fleet_strbuf_text(&found));
    }
}

/* All operators with the tuples of all their inputs. */
static void list_strategies(const struct model_operators *all,
                            const struct operator_strategy *strategies, struct fleet_strbuf *out)
{
    for (int op = 0; op < all->program.op_count; op++) {
        struct operator_axes axes;

        model_operators_axes(all, op, &axes);
        fleet_strbuf_appendf(out, "%s{operator: '%s', in: [", op ? ", " : "",
                             model_operators_name(all, op));
        for (int i = 0; i < axes.input_count; i++) {
            struct operator_splits splits = {0};

            if (axes.inputs[i].var != PROGRAM_NONE)
                operator_strategy_splits(&strategies[op], &axes.inputs[i], &splits);
            fleet_strbuf_append(out, i ? ", [" : "[");
            for (int d = 0; d < splits.dims; d++)
                fleet_strbuf_appendf(out, "%s%d", d ? ", " : "", (int)splits.split[d]);
            fleet_strbuf_append_char(out, ']');
        }
        fleet_strbuf_append(out, "]}");
    }
}

/* The strategy that each operator has on a grid, given to all of them, leads to that grid again. */
static void test_given_operators__know_what_the_trainer_runs(void **state)
{
    static const struct operator_grid grids[] = {
        {4, 1, 1, false, false}, {2, 1, 2, false, false}, {1, 1, 4, false, false},
        {2, 1, 2, true, false},  {1, 1, 4, true, false},  {2, 2, 1, false, false},
        {1, 2, 2, false, false}, {1, 2, 2, true, false},
    };
    static const char *const models[] = {"name: gpt, " WIDE, "name: llama, dropout: 0.1, " WIDE};
    struct operator_strategy strategies[200];
    struct fleet_error err;

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(grids) * FLEET_COUNT(models); i++) {
        const struct operator_grid *grid = &grids[i / FLEET_COUNT(models)];
        const char *model = models[i % FLEET_COUNT(models)];
        FLEET_AUTO_STRBUF struct fleet_strbuf operators = {0}, found = {0}, expected = {0};
        struct given given = {model, 4, SEMI, "", "", 1};
        struct fleet_errors errors = {0};
        struct model_operators all;
        struct fleetjob job;

        read_job(&given, &job, &errors);
        assert_int_equal(model_operators_init(&job.spec.training, &all, &err), 0);
        assert_true(all.program.op_count <= (int)FLEET_COUNT(strategies));
        assert_int_equal(model_operators_divide(&all, grid, strategies, &err), 0);
        for (int op = 0; op < all.program.op_count; op++) {
            struct operator_splits splits;
            struct operator_axes axes;

            model_operators_axes(&all, op, &axes);
            operator_strategy_splits(&strategies[op], &axes.inputs[0], &splits);
            fleet_strbuf_appendf(&operators, "%s{operator: '%s', in: [[", op ? ", " : "",
                                 model_operators_name(&all, op));
            for (int d = 0; d < splits.dims; d++)
                fleet_strbuf_appendf(&operators, "%s%d", d ? ", " : "", (int)splits.split[d]);
            fleet_strbuf_append(&operators, "]]}");
        }
        given.operators = operators.text;
        decide(&given, &found);
        fleet_strbuf_appendf(&expected, "model %d sequence %d%s", grid->model, grid->sequence,
                             grid->divides_rows ? " rows" : "");
        assert_string_equal(fleet_strbuf_text(&found), expected.text);
        model_operators_release(&all);
        fleet_errors_release(&errors);
        fleetjob_release(&job);
    }
}

static const struct given some[] = {
    {"name: gpt, " WIDE, 4, SEMI, "",
     "{operator: 'h.0.mlp.c_proj', in: [[2, 1, 1], [1, 2]]}, "
     "{operator: 'h.1.attn', in: [[2, 1, 1]]}, {operator: loss, in: [[2, 1, 1], [2, 1]]}",
     1},
    {"name: gpt, tieEmbeddings: false, " WIDE, 4, SEMI, "",
     "{operator: lm_head, in: [[1, 1, 4], [1, 4]]}, {operator: 'h.0.attn.c_attn', in: [[1, 1, "
     "4], [4, 1]]}",
     1},
    {"name: llama, " WIDE, 4, SEMI, "",
     "{operator: '*.0.self_attn.q_proj', in: [[2, 1, 1], [1, 1]]}, {operator: "
     "'*.1.mlp.down_proj', in: [[2, 1, 1], [1, 1]]}",
     1},
    {"name: llama, kvHeads: 2, " WIDE, 4, SEMI, "",
     "{operator: '*.0.self_attn', in: [[2, 1, 2]]}, "
     "{operator: '*.1.self_attn.?_proj', in: [[2, 1, 1], [1, 1]]}",
     1},
    {"name: gpt, " WIDE, 4, SEMI, "",
     "{operator: 'h.*.ln_?', in: [[2, 2, 1]]}, {operator: 'h.1.attn*', in: [[4, 1, 1]]}, "
     "{operator: 'h.0.mlp.c_*', in: [[2, 2, 1]]}, {operator: loss, in: [[4, 1, 1]]}",
     2},
    {"name: llama, dropout: 0.1, kvHeads: 2, " WIDE, 4, SEMI, "",
     "{operator: '*.0.*dropout', in: [[2, 2, 1]]}, {operator: '*_layernorm', in: [[2, 2, 1]]}, "
     "{operator: '*.1.self_attn', in: [[4, 1, 1]]}, {operator: '*.0.mlp.*', in: [[4, 1, 1]]}",
     2},
};

/* Strategies of some operators decide those of all; all of these given lead to the same. */
static void test_given_operators__say_again_what_they_made(void **state)
{
    struct operator_strategy strategies[200];
    struct fleet_error err;

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(some); i++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf operators = {0}, found = {0};
        struct operator_grid grid = {.sequence = 1, .by_operator = true};
        struct operator_strategy again[200];
        struct given given = some[i];
        struct fleet_errors errors = {0};
        struct model_operators all;
        struct fleetjob job;

        decide(&given, &found);
        if (!strstr(found.text, "by operator"))
            fail_msg("%s: %s", some[i].operators, found.text);
        read_job(&given, &job, &errors);
        grid.model = job.spec.strategy.hybrid_configs.mp_degree;
        grid.data = 4 / grid.model;
        assert_int_equal(model_operators_init(&job.spec.training, &all, &err), 0);
        assert_int_equal(model_operators_divide(&all, &grid, strategies, &err), 0);
        list_strategies(&all, strategies, &operators);
        model_operators_release(&all);
        fleetjob_release(&job);

        given.operators = operators.text;
        read_job(&given, &job, &errors);
        assert_int_equal(errors.count, 0);
        assert_int_equal(job.spec.strategy.hybrid_configs.mp_degree, grid.model);
        assert_int_equal(model_operators_init(&job.spec.training, &all, &err), 0);
        assert_int_equal(model_operators_divide(&all, &grid, again, &err), 0);
        for (int op = 0; op < all.program.op_count; op++)
            if (memcmp(again[op].parts, strategies[op].parts, sizeof(again[op].parts)) != 0)
                fail_msg("%s: another strategy of %s", some[i].operators,
                         model_operators_name(&all, op));
        model_operators_release(&all);
        fleetjob_release(&job);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_given_operators__decide_the_grid),
        cmocka_unit_test(test_given_operators__know_what_the_trainer_runs),
        cmocka_unit_test(test_given_operators__say_again_what_they_made),
    };
    return cmocka_run_group_tests_name("given_operators", tests, NULL, NULL);
}

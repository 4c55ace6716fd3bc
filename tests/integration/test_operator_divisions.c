/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Strategies of operators that one way to divide all of them does not give: some operators are
 * whole on each rank of a tensor-parallel group, others divided by columns or rows, or on some of
 * the tokens or samples, and activations are gathered or split between them.
 *
 *   - if all operators are whole, the weights have the bits of one worker
 *   - the bits depend neither on replicas, nor on stages, nor on a kill
 *   - losses are those of one worker up to rounding. The bound is measured as in test_grids.c:
 *     micro-batches of other sizes compute the same means in another order.
 *   - checkpoints and strategy files go on under any other strategy
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/strbuf.h"
#include "tests/support/job_folder.h"
#include "tests/support/job_killer.h"

#define LIMIT_S   600.0
#define STEPS     12
#define ROUNDINGS 16.0 /* as test_grids.c */
#define WHOLE     ", [1, 1]]}"

static const char gpt[] = "name: gpt";
static const char llama[] = "name: llama, dropout: 0.1, tieEmbeddings: false";

/* D stands for the number of replicas, E for that of ranks, two to a replica. */
static const struct strategy {
    const char *model, *name, *operators;
} strategies[] = {
    {gpt, "MLPs are whole, and so are the words",
     "{operator: 'h.*.mlp.c_fc', in: [[D, 1, 1]" WHOLE
     ", {operator: lm_head, in: [[D, 1, 1]" WHOLE},
    {gpt, "one block is whole",
     "{operator: 'h.1.attn.c_attn', in: [[D, 1, 1]" WHOLE
     ", {operator: 'h.1.mlp.c_fc', in: [[D, 1, 1]" WHOLE},
    {gpt, "columns are gathered, or split",
     "{operator: 'h.0.mlp.c_proj', in: [[D, 1, 1]" WHOLE
     ", {operator: 'h.1.mlp.c_proj', in: [[D, 1, 1], [1, 2]], out: [[D, 1, 2]]}"
     ", {operator: 'h.0.attn', in: [[D, 1, 1]]}, {operator: 'h.1.attn.c_attn', in: [[D, 1, 1]" WHOLE
     ", {operator: 'h.1.attn.c_proj', in: [[D, 1, 2], [2, 1]]}"},
    {llama, "llama: attention is whole, and layers by rows follow each other",
     "{operator: 'model.layers.0.self_attn.?_proj', in: [[D, 1, 1]" WHOLE
     ", {operator: 'model.layers.1.self_attn.o_proj', in: [[D, 1, 1]" WHOLE
     ", {operator: 'model.layers.1.mlp.gate_proj', in: [[D, 1, 2], [1, 2]]}"
     ", {operator: embedding, in: [[D, 1], [1, 1]]}"},
    {gpt, "tokens of norms, additions, layers and the loss, samples of attention",
     "{operator: 'h.0.ln_1', in: [[D, 2, 1]]}, {operator: '*.residual', in: [[D, 2, 1]]}"
     ", {operator: 'h.0.mlp.c_fc', in: [[D, 2, 1]" WHOLE
     ", {operator: 'h.1.attn', in: [[E, 1, 1]]}, {operator: 'h.1.mlp.c_proj', in: [[E, 1, 1]" WHOLE
     ", {operator: loss, in: [[D, 2, 1], [D, 2]]}"},
    {llama, "llama: tokens of dropouts and SwiGLU, samples of norms",
     "{operator: '*.dropout', in: [[D, 2, 1]]}, {operator: drop, in: [[E, 1, 1]]}"
     ", {operator: '*.0.mlp.swiglu', in: [[D, 2, 1]]}, {operator: '*norm', in: [[E, 1, 1]]}"
     ", {operator: '*.1.mlp.up_proj', in: [[D, 2, 1]" WHOLE},
};

#define ALL_WHOLE                                        \
    "{operator: 'h.*.attn.c_attn', in: [[D, 1, 1]" WHOLE \
    ", {operator: 'h.*.mlp.c_fc', in: [[D, 1, 1]" WHOLE  \
    ", {operator: lm_head, in: [[D, 1, 1]" WHOLE

/* ---- a job ----------------------------------------------------------------------------------- */

struct job {
    const char *model, *operators; /* NULL: one way divides all */
    int workers, replicas;
    const char *context, *training; /* more keys of the context, more lines of training */
    int micro_batch, steps;         /* 0: 2 samples, STEPS */
};

static void write_operators(const struct job *job, struct fleet_strbuf *out)
{
    fleet_strbuf_append(out, "    operatorStrategies: [");
    for (const char *at = job->operators; *at; at++)
        if (*at == 'D')
            fleet_strbuf_appendf(out, "%d", job->replicas);
        else if (*at == 'E')
            fleet_strbuf_appendf(out, "%d", 2 * job->replicas);
        else
            fleet_strbuf_append_char(out, *at);
    fleet_strbuf_append(out, "]\n");
}

static void run_job(const struct job *job, job_run_watch watch, void *context, struct job_run *run)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    FLEET_AUTO_FREE char *path = fleet_file_join(folder, "job.yaml");
    const char *arguments[] = {path, NULL};

    fleet_strbuf_appendf(
        &text,
        "apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\nmetadata: {name: mixed}\nspec:\n"
        "  worker: {replicas: %d}\n"
        "  autoParallel: {parallel_mode: semi_auto_parallel, gradients_mean: true%s}\n"
        "  training:\n"
        "    model: {%s, layers: 2, heads: 4, width: 32, context: 32}\n"
        "    data: {tokenizer: synthetic-markov, symbols: 16}\n"
        "    optimizer: {name: adamw, learningRate: 0.02, clip: {globalNorm: 1}}\n"
        "    globalBatchSize: 8\n    microBatchSize: %d\n    steps: %d\n%s",
        job->workers, job->context ? job->context : "", job->model,
        job->micro_batch ? job->micro_batch : 2, job->steps ? job->steps : STEPS,
        job->training ? job->training : "");
    if (job->operators)
        write_operators(job, &text);
    write_file("job.yaml", text.text, text.length);
    job_run(arguments, LIMIT_S, watch, context, run);
    if (run->exit_code != 0 || run->problem[0])
        fail_msg("exit %d, problem \"%s\": %s\n%s", run->exit_code, run->problem, run->errors,
                 text.text);
}

static void weights_of(const struct job *job, char sha256[65])
{
    struct job_run run;

    run_job(job, NULL, NULL, &run);
    memcpy(sha256, run.sha256, 65);
    job_run_release(&run);
}

/* ---- bits ------------------------------------------------------------------------------------ */

static void test_operator_divisions__whole_operators_have_the_bits_of_one_worker(void **state)
{
    char one[65], two[65], four[65];

    (void)state;
    weights_of(&(struct job){gpt, .workers = 1}, one);
    weights_of(&(struct job){gpt, ALL_WHOLE, .workers = 2, .replicas = 1}, two);
    weights_of(&(struct job){gpt, ALL_WHOLE, .workers = 4, .replicas = 2}, four);
    assert_string_equal(two, one);
    assert_string_equal(four, one);
}

static void test_operator_divisions__replicas_and_stages_change_no_bit(void **state)
{
    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(strategies); i++) {
        struct job job = {strategies[i].model, strategies[i].operators, .workers = 2,
                          .replicas = 1};
        char two[65], four[65];

        print_message("%s\n", strategies[i].name);
        weights_of(&job, two);
        job.workers = 4;
        job.replicas = i % 2 ? 1 : 2;
        job.context = i % 2 ? ", pipeline_stages: 2" : ", enable_parallel_optimizer: true";
        weights_of(&job, four);
        assert_string_equal(four, two);
    }
}

/* Eight ranks, four to a replica. */
static void test_operator_divisions__four_ranks_share_tokens(void **state)
{
    struct job job = {llama,
                      "{operator: '*norm', in: [[D, 4, 1]]}, {operator: '*.0.mlp.*', in: [[D, 4, 1]"
                      "]}, {operator: '*.self_attn.dropout', in: [[D, 4, 1]]}",
                      .workers = 4, .replicas = 1, .steps = 4};
    char four[65], eight[65];

    (void)state;
    weights_of(&job, four);
    job.workers = 8;
    job.replicas = 2;
    weights_of(&job, eight);
    assert_string_equal(eight, four);
}

/* ---- losses ---------------------------------------------------------------------------------- */

static double distance(const struct job_run *a, const struct job_run *b)
{
    double most = 0;

    for (int i = 0; i < STEPS; i++)
        most = fmax(most, fabs(a->steps[i].loss - b->steps[i].loss));
    return most;
}

/* One worker's losses, and how far others may be from them. */
static double bound_of(const char *model, struct job_run *one)
{
    double bound;

    run_job(&(struct job){model, .workers = 1}, NULL, NULL, one);
    bound = ROUNDINGS * ldexp(one->steps[0].loss, -23);
    for (int micro_batch = 1; micro_batch <= 4; micro_batch *= 4) {
        struct job_run other;

        run_job(&(struct job){model, .workers = 1, .micro_batch = micro_batch}, NULL, NULL, &other);
        bound = fmax(bound, ROUNDINGS * distance(one, &other));
        job_run_release(&other);
    }
    assert_true(bound < 1e-3 * one->steps[0].loss);
    return bound;
}

static void test_operator_divisions__losses_are_those_of_one_worker(void **state)
{
    const char *const models[] = {gpt, llama};

    (void)state;
    for (size_t m = 0; m < FLEET_COUNT(models); m++) {
        struct job_run one;
        double bound = bound_of(models[m], &one);

        for (size_t i = 0; i < FLEET_COUNT(strategies); i++) {
            struct job_run run;

            if (strategies[i].model != models[m])
                continue;
            run_job(&(struct job){models[m], strategies[i].operators, .workers = 2, .replicas = 1},
                    NULL, NULL, &run);
            print_message("%s: %.3g, at most %.3g\n", strategies[i].name, distance(&run, &one),
                          bound);
            assert_true(distance(&run, &one) <= bound);
            assert_string_not_equal(run.sha256, one.sha256); /* sums have another order */
            job_run_release(&run);
        }
        job_run_release(&one);
    }
}

/* ---- kills, checkpoints, files --------------------------------------------------------------- */

/* Of two replicas one trainer is killed; the weights are those of an undisturbed job. */
static bool lose(const void *context, int steps)
{
    const struct strategy *strategy = context;
    struct job job = {strategy->model, strategy->operators, .workers = 4, .replicas = 2,
                      .steps = steps};
    struct job_strike strike = {.at = 3};
    char undisturbed[65];
    struct job_run run;
    bool is_hit;

    weights_of(&job, undisturbed);
    run_job(&job, job_strike_watch, &strike, &run);
    assert_string_equal(run.sha256, undisturbed);
    is_hit = run.restart_count > 0;
    job_run_release(&run);
    return is_hit;
}

static void test_operator_divisions__a_killed_rank_comes_back(void **state)
{
    (void)state;
    assert_true(job_strike_until_hit(lose, &strategies[2], 20));
    assert_true(job_strike_until_hit(lose, &strategies[5], 20));
}

#define CHECKPOINT "    checkpoint: {path: saved}\n"

static void test_operator_divisions__any_strategy_goes_on_from_any_other(void **state)
{
    const struct job jobs[] = {
        {gpt, strategies[0].operators, 2, 1, "", CHECKPOINT, 0, 0},
        {gpt, strategies[2].operators, 4, 2, "", CHECKPOINT, 0, 0},
        {gpt, NULL, 1, 1, "", CHECKPOINT, 0, 0},
        {gpt, strategies[1].operators, 4, 1, ", pipeline_stages: 2", CHECKPOINT, 0, 0},
        {gpt, strategies[4].operators, 2, 1, "", CHECKPOINT, 0, 0},
    };
    char written[65] = "", read[65];

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(jobs); i++) {
        struct job job = jobs[i];
        struct job_run run;

        job.steps = STEPS + (int)i;
        if (i > 0) { /* all steps are done: the weights are those that were read */
            job.steps = STEPS + (int)i - 1;
            weights_of(&job, read);
            assert_string_equal(read, written);
            job.steps++;
        }
        run_job(&job, NULL, NULL, &run);
        assert_int_equal(run.step_count, i == 0 ? STEPS : 1);
        memcpy(written, run.sha256, sizeof(written));
        job_run_release(&run);
    }
}

static void test_operator_divisions__a_saved_file_runs_again(void **state)
{
    (void)state;
    for (size_t i = 2; i < FLEET_COUNT(strategies); i++) { /* one of each model */
        struct job job = {strategies[i].model, strategies[i].operators, .workers = 4, .replicas = 2,
                          .context = ", strategy_ckpt_save_file: saved.json"};
        char saved[65], loaded[65];

        weights_of(&job, saved);
        job.operators = NULL;
        job.context = ", strategy_ckpt_config: {load_file: saved.json}";
        weights_of(&job, loaded);
        assert_string_equal(loaded, saved);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, job_folder_make, job_folder_remove)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_operator_divisions__whole_operators_have_the_bits_of_one_worker),
        TEST(test_operator_divisions__replicas_and_stages_change_no_bit),
        TEST(test_operator_divisions__four_ranks_share_tokens),
        TEST(test_operator_divisions__losses_are_those_of_one_worker),
        TEST(test_operator_divisions__a_killed_rank_comes_back),
        TEST(test_operator_divisions__any_strategy_goes_on_from_any_other),
        TEST(test_operator_divisions__a_saved_file_runs_again),
    };

    return cmocka_run_group_tests_name("operator_divisions", tests, NULL, NULL);
}

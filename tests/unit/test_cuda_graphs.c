/* SPDX-License-Identifier: Apache-2.0 */

/*
 * CUDA graphs of the GPU's back end, over the fake libcudart: what a replayed step calls, that its
 * bits are those of single launches, and what happens where a graph cannot be made.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "agent/runtime/executor/communication.h"
#include "agent/runtime/executor/graphs.h"
#include "tests/cuda_fake/fake.h"
#include "tests/cuda_fake/step.h"

#define GRAPH_ENV   "FLEET_CUDA_GRAPH"
#define UNSUPPORTED 900 /* cudaErrorStreamCaptureUnsupported */
#define INVALIDATED 901 /* cudaErrorStreamCaptureInvalidated */
#define UPDATES     6

/* Calls of one section once its graph exists: the scalars, the graph. */
#define CALLS_OF_REPLAY 2

/* Those of the end of CHECK: two queues, the faults, which are a copy and a wait. */
#define CALLS_OF_FINISH 4
#define WAITS_OF_FINISH 3

static const struct communication alone; /* this rank */

static void set_graphs(const char *value)
{
    assert_int_equal(value ? setenv(GRAPH_ENV, value, 1) : unsetenv(GRAPH_ENV), 0);
}

static void open_step(struct step *step, uint64_t seed)
{
    struct fleet_error err;

    step_plan(step);
    fake_cuda_reset(seed);
    if (step_open(step, &err) < 0)
        fail_msg("%s", err.text);
}

static void close_step(struct step *step)
{
    step_close(step);
    step_release(step);
    assert_int_equal(fake_cuda_held(), 0);
}

static void run_section(struct step *step, enum program_section section, int64_t update)
{
    struct fleet_error err;

    if (step_section(step, section, update, &err) < 0)
        fail_msg("update %d: %s", (int)update, err.text);
}

static float run_update(struct step *step, int64_t update)
{
    struct fleet_error err;
    float loss = 0;

    if (step_run(step, update, &loss, &err) < 0)
        fail_msg("update %d: %s", (int)update, err.text);
    return loss;
}

static long calls_of(struct step *step, enum program_section section, int64_t update)
{
    long before = fake_cuda_calls();

    run_section(step, section, update);
    return fake_cuda_calls() - before;
}

/* ---- calls ----------------------------------------------------------------------------------- */

static void test_cuda_graphs__a_replayed_section_makes_few_calls(void **state)
{
    static const enum program_section sections[] = {PROGRAM_SECTION_MICRO_BATCH,
                                                    PROGRAM_SECTION_CHECK, PROGRAM_SECTION_UPDATE};
    struct step step;

    (void)state;
    for (int graphs = 0; graphs < 2; graphs++) {
        set_graphs(graphs ? NULL : "0");
        open_step(&step, 1);
        for (int64_t update = 1; update <= UPDATES; update++)
            for (size_t i = 0; i < FLEET_COUNT(sections); i++) {
                long calls = calls_of(&step, sections[i], update);
                long most = CALLS_OF_REPLAY + (i == 1 ? CALLS_OF_FINISH : 0);
                if (update > 2)
                    assert_true(graphs ? calls <= most : calls > most);
            }
        close_step(&step);
    }
}

/* An update waits once, behind the check; inputs, losses and the update itself do not. */
static void test_cuda_graphs__an_update_waits_in_one_place(void **state)
{
    struct step step;

    (void)state;
    open_step(&step, 1);
    for (int64_t update = 1; update <= UPDATES; update++) {
        long before = fake_cuda_waits();
        (void)run_update(&step, update);
        if (update > 2) /* before, captures */
            assert_int_equal(fake_cuda_waits() - before, WAITS_OF_FINISH);
    }
    close_step(&step);
}

/* ---- bits ------------------------------------------------------------------------------------ */

struct result {
    float losses[UPDATES];
    float *parameters;
    size_t bytes;
    long launches; /* of graphs */
};

static void train(uint64_t seed, const char *graphs, struct result *out)
{
    long before = fake_cuda_graph_launches();
    struct step step;

    set_graphs(graphs);
    open_step(&step, seed);
    for (int u = 0; u < UPDATES; u++)
        out->losses[u] = run_update(&step, u + 1);
    out->bytes = step.plan.memory.bytes[MEMORY_PARAMETERS];
    out->parameters = malloc(out->bytes);
    assert_non_null(out->parameters);
    step.backend->vtable->copy_out(step.backend, out->parameters,
                                   step.state.bases.segment[MEMORY_PARAMETERS], out->bytes);
    out->launches = fake_cuda_graph_launches() - before;
    close_step(&step);
    set_graphs(NULL);
}

/* Dropout, learning rate and bias corrections differ from update to update, so a graph that holds
 * those of its capture gives other bits. */
static void test_cuda_graphs__the_bits_are_those_of_single_launches(void **state)
{
    struct result plain, graphs;

    (void)state;
    train(1, "0", &plain);
    assert_int_equal(plain.launches, 0);
    assert_true(plain.losses[1] != plain.losses[2]);
    for (uint64_t seed = 1; seed <= 5; seed++) {
        train(seed, NULL, &graphs);
        assert_int_equal(graphs.launches, 3 * (UPDATES - 1));
        assert_memory_equal(graphs.losses, plain.losses, sizeof(plain.losses));
        assert_int_equal(graphs.bytes, plain.bytes);
        assert_memory_equal(graphs.parameters, plain.parameters, plain.bytes);
        free(graphs.parameters);
    }
    free(plain.parameters);
}

/* ---- other worlds ---------------------------------------------------------------------------- */

static void test_cuda_graphs__a_new_world_captures_again(void **state)
{
    struct step step;
    long before;

    (void)state;
    open_step(&step, 2);
    for (int64_t update = 1; update <= 3; update++)
        (void)run_update(&step, update);
    assert_int_equal(executor_bind(step.executor, &alone, NULL), 0);
    before = fake_cuda_graph_launches();
    (void)run_update(&step, 4);
    assert_int_equal(fake_cuda_graph_launches() - before, 0);
    (void)run_update(&step, 5);
    assert_int_equal(fake_cuda_graph_launches() - before, 3);
    assert_int_equal(executor_bind(step.executor, NULL, NULL), 0);
    close_step(&step);
}

/* The norm of a longer gradient, as another program on the same device may have it. */
static void prepare_larger(struct step *step)
{
    const int64_t shape[1] = {1 << 30};
    struct program_op op = {.kind = OP_GRAD_NORM, .input_count = 1, .output_count = 1};
    struct program program;
    struct fleet_error err;

    program_init(&program, "larger");
    op.inputs[0] = program_add_var(&program, "w", PROGRAM_FP32, PROGRAM_ROLE_PARAMETER, 1, shape);
    program.vars[op.inputs[0]].trained = true;
    op.outputs[0] = program_add_var(&program, "y", PROGRAM_FP32, PROGRAM_ROLE_ACTIVATION, 1, shape);
    if (backend_prepare(step->backend, &program, &op, &err) < 0)
        fail_msg("%s", err.text);
    program_release(&program);
}

/* A program that needs more working memory moves what the graphs hold. */
static void test_cuda_graphs__moved_working_memory_makes_graphs_stale(void **state)
{
    struct step step;
    long before;

    (void)state;
    open_step(&step, 3);
    for (int64_t update = 1; update <= 3; update++)
        (void)run_update(&step, update);
    before = fake_cuda_graph_launches();
    prepare_larger(&step);
    (void)run_update(&step, 4);
    assert_int_equal(fake_cuda_graph_launches() - before, 0);
    (void)run_update(&step, 5);
    assert_int_equal(fake_cuda_graph_launches() - before, 3);
    close_step(&step);
}

/* ---- several ranks --------------------------------------------------------------------------- */

/* A part that ranks run together; the other ranks are in `others_are_ready`. */
struct together {
    int plain, captured;
    int capture_rc;
    bool others_are_ready, was_ready;
};

static int run_plain(void *context, struct fleet_error *err)
{
    struct together *t = context;

    (void)err;
    t->plain++;
    return 0;
}

static int capture_nothing(void *context, struct fleet_error *err)
{
    struct together *t = context;

    t->captured++;
    return t->capture_rc < 0 ? fleet_error(err, t->capture_rc, "not captured") : 0;
}

static int agree(void *context, bool is_ready, bool *out, struct fleet_error *err)
{
    struct together *t = context;

    (void)err;
    t->was_ready = is_ready;
    *out = is_ready && t->others_are_ready;
    return 0;
}

/* Four runs of a key of its own. */
static void run_together(struct graphs *graphs, struct together *t)
{
    static const struct run_scalars scalars = {.update_1based = 1};
    const struct graphs_part part = {run_plain, capture_nothing, agree, t};
    static struct graph_key key;
    struct fleet_error err;

    key.first++;
    for (int run = 0; run < 4; run++)
        if (graphs_run(graphs, &key, &scalars, &part, &err) < 0)
            fail_msg("run %d: %s", run, err.text);
}

static void test_cuda_graphs__all_ranks_capture_or_none(void **state)
{
    struct together all = {.others_are_ready = true}, others = {.others_are_ready = false};
    struct together own = {.capture_rc = -ENOTSUP, .others_are_ready = true};
    struct graphs *graphs;
    struct step step;
    long before;

    (void)state;
    open_step(&step, 1);
    graphs = graphs_new(step.backend);
    assert_non_null(graphs);
    before = fake_cuda_graph_launches();
    run_together(graphs, &all);
    assert_int_equal(all.plain, 1);
    assert_int_equal(all.captured, 1);
    assert_int_equal(fake_cuda_graph_launches() - before, 3);
    run_together(graphs, &others);
    assert_true(others.was_ready);
    assert_int_equal(others.plain, 4);
    assert_int_equal(others.captured, 1);
    run_together(graphs, &own);
    assert_false(own.was_ready);
    assert_int_equal(own.plain, 4);
    assert_int_equal(own.captured, 1);
    assert_int_equal(fake_cuda_graph_launches() - before, 3);
    assert_int_equal(graphs_count(graphs), 1);
    graphs_free(graphs);
    close_step(&step);
}

/* The other ranks replay theirs, so a graph that has become stale is captured at once. */
static void test_cuda_graphs__a_stale_graph_of_several_ranks_is_captured_at_once(void **state)
{
    static const struct run_scalars scalars = {.update_1based = 1};
    struct together t = {.others_are_ready = true};
    const struct graphs_part part = {run_plain, capture_nothing, agree, &t};
    const struct graph_key key = {.first = 1};
    struct graphs *graphs;
    struct fleet_error err;
    struct step step;

    (void)state;
    open_step(&step, 1);
    graphs = graphs_new(step.backend);
    for (int run = 0; run < 3; run++)
        assert_int_equal(graphs_run(graphs, &key, &scalars, &part, &err), 0);
    prepare_larger(&step);
    assert_int_equal(graphs_run(graphs, &key, &scalars, &part, &err), 0);
    assert_int_equal(t.plain, 1);
    assert_int_equal(t.captured, 2);
    graphs_free(graphs);
    close_step(&step);
}

/* ---- other threads --------------------------------------------------------------------------- */

struct saver {
    struct step *step;
    atomic_bool ends;
    long reads;
};

/* A thread that saves reads parameters while the next micro-batches run. */
static void *save(void *context)
{
    struct saver *saver = context;
    struct backend *backend = saver->step->backend;
    void *memory = saver->step->state.bases.segment[MEMORY_PARAMETERS];

    while (!atomic_load(&saver->ends)) {
        void *host = backend_map(backend, memory, 64, BACKEND_READ);
        backend_unmap(backend, memory, 64, BACKEND_READ, host);
        saver->reads++;
    }
    return NULL;
}

/* The fake ends the process if another thread's copy or wait falls into a capture. */
static void test_cuda_graphs__another_thread_reads_while_graphs_are_captured(void **state)
{
    struct step step;
    struct saver saver = {.step = &step};
    pthread_t thread;

    (void)state;
    open_step(&step, 6);
    assert_int_equal(pthread_create(&thread, NULL, save, &saver), 0);
    for (int64_t update = 1; update <= 10; update++) {
        run_section(&step, PROGRAM_SECTION_MICRO_BATCH, update);
        if (update % 2 == 0) /* captured again in the next but one */
            assert_int_equal(executor_bind(step.executor, &alone, NULL), 0);
    }
    atomic_store(&saver.ends, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(saver.reads > 0);
    assert_int_equal(executor_bind(step.executor, NULL, NULL), 0);
    close_step(&step);
}

/* ---- what goes wrong ------------------------------------------------------------------------- */

static void test_cuda_graphs__a_replay_finds_ids_out_of_range(void **state)
{
    struct fleet_error err;
    struct step step;

    (void)state;
    open_step(&step, 4);
    for (int64_t update = 1; update <= 3; update++)
        (void)run_update(&step, update);
    step_fill(&step, "ids", 1 << 20);
    run_section(&step, PROGRAM_SECTION_MICRO_BATCH, 4);
    assert_int_equal(step_section(&step, PROGRAM_SECTION_CHECK, 4, &err), -EINVAL);
    assert_non_null(strstr(err.text, "embedding: the id at position 0 of sample 0"));
    (void)run_update(&step, 4); /* the fault is cleared */
    close_step(&step);
}

/* What CUDA does not capture runs without a graph, with the same bits. */
static void test_cuda_graphs__what_cannot_be_captured_runs_anyway(void **state)
{
    static const int codes[] = {UNSUPPORTED, INVALIDATED};
    struct result plain;

    (void)state;
    train(1, "0", &plain);
    for (size_t c = 0; c < FLEET_COUNT(codes); c++) {
        float loss = 0;
        struct step step;

        open_step(&step, 5);
        (void)run_update(&step, 1);
        step_fill(&step, "ids", 2);
        step_fill(&step, "targets", 3);
        fake_cuda_fail(fake_cuda_calls() + 5, codes[c]); /* a kernel between begin and end */
        run_section(&step, PROGRAM_SECTION_MICRO_BATCH, 2);
        run_section(&step, PROGRAM_SECTION_CHECK, 2);
        run_section(&step, PROGRAM_SECTION_UPDATE, 2);
        state_read(&step.state, step.plan.program.loss, &loss);
        assert_true(loss == plain.losses[1]);
        for (int u = 2; u < UPDATES; u++)
            assert_true(run_update(&step, u + 1) == plain.losses[u]);
        close_step(&step);
    }
    free(plain.parameters);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_graphs__a_replayed_section_makes_few_calls),
        cmocka_unit_test(test_cuda_graphs__an_update_waits_in_one_place),
        cmocka_unit_test(test_cuda_graphs__the_bits_are_those_of_single_launches),
        cmocka_unit_test(test_cuda_graphs__a_new_world_captures_again),
        cmocka_unit_test(test_cuda_graphs__moved_working_memory_makes_graphs_stale),
        cmocka_unit_test(test_cuda_graphs__all_ranks_capture_or_none),
        cmocka_unit_test(test_cuda_graphs__a_stale_graph_of_several_ranks_is_captured_at_once),
        cmocka_unit_test(test_cuda_graphs__another_thread_reads_while_graphs_are_captured),
        cmocka_unit_test(test_cuda_graphs__a_replay_finds_ids_out_of_range),
        cmocka_unit_test(test_cuda_graphs__what_cannot_be_captured_runs_anyway),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

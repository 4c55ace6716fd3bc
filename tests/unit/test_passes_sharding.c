/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What sharding's settings make of a program: where the ranges of parameters end, where optimizer
 * states lie, which ranks are the group.
 */
#include "agent/runtime/backend/cpu/backend_cpu.h"
#include "agent/runtime/backend/guard/guard_backend.h"
#include "agent/runtime/state.h"
#include "libfleet/base/error.h"
#include "libfleet/program/print.h"
#include "libfleet/strategy/select.h"
#include "tests/unit/passes_fixture.h"

#define JOB GPT(3, ADAMW)
#define BY_ANCHORS(names)                                                     \
    "{\"sharding\":true,\"sharding_configs\":{\"sharding_segment_strategy\":" \
    "\"segment_anchors\",\"segment_anchors\":[" names "]}}"

/* ---- ranges ---------------------------------------------------------------------------------- */

/* The names of the parameters that begin the ranges. */
static void expect_ranges(const char *strategy, const char *wanted)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf found = {0};
    int64_t end = 0;
    struct job job;

    build(&job, JOB, strategy);
    for (int i = 0; i < job.plan.program.op_count; i++) {
        const struct program_op *op = &job.plan.program.ops[i];
        if (op->kind != OP_ALL_GATHER || op->section != PROGRAM_SECTION_UPDATE)
            continue;
        assert_int_equal(op->attributes.flat_first, end);
        end += op->attributes.flat_count;
        for (int v = 0; v < job.plan.program.var_count; v++) {
            const struct program_var *var = &job.plan.program.vars[v];
            if (var->role == PROGRAM_ROLE_PARAMETER &&
                var->flat_offset == op->attributes.flat_first)
                fleet_strbuf_appendf(&found, "%s%s", found.length ? " " : "", var->name);
        }
    }
    assert_int_equal(end, job.plan.program.flat_count); /* all of them, each once */
    assert_string_equal(fleet_strbuf_text(&found), wanted);
    job_release(&job);
}

static void test_sharding__a_range_ends_at_each_anchor(void **state)
{
    (void)state;
    expect_ranges("{\"sharding\":true}", "wte.weight");
    expect_ranges(BY_ANCHORS("\"h.0\""), "wte.weight h.1.ln_1.weight");
    expect_ranges(BY_ANCHORS("\"h.1\",\"h.0\",\"h.1\""),
                  "wte.weight h.1.ln_1.weight h.2.ln_1.weight");
    expect_ranges(BY_ANCHORS("\"h.2\""), "wte.weight ln_f.weight");
    expect_ranges(BY_ANCHORS("\"lm_head\""), "wte.weight"); /* nothing is read behind it */
}

static void test_sharding__an_anchor_must_be_a_tensor(void **state)
{
    (void)state;
    expect_refused(JOB, BY_ANCHORS("\"h.0\",\"h.7\""),
                   "spec.strategy.sharding_configs.segment_anchors[1]: no tensor \"h.7\"; the "
                   "outputs of this model's layers are h.0 … h.2");
    expect_refused(JOB, BY_ANCHORS(""), "sharding_configs.segment_anchors: must not be empty");
}

/* ---- where optimizer states lie -------------------------------------------------------------- */

#define OFFLOADED "{\"sharding\":true,\"sharding_configs\":{\"optimize_offload\":true}}"

static void test_sharding__offloaded_states_are_memory_of_the_host(void **state)
{
    struct backend *cpu = NULL, *guard;
    struct fleet_error err;
    struct state memory;
    struct job job;

    (void)state;
    build(&job, JOB, OFFLOADED);
    assert_true(job.plan.program.offloads_states);
    assert_true(select_has_note(&job.plan.selection.notes, "sharding_configs.optimize_offload"));
    assert_int_equal(backend_cpu_new(FLEET_ISA_PLAIN, 1, &cpu, &err), 0);
    guard = backend_guard_new(cpu);
    assert_int_equal(state_init(&memory, &job.plan.program, &job.plan.memory, guard, &err), 0);
    for (int s = MEMORY_STATE0; s <= MEMORY_STATE1; s++) { /* the guard's own memory would fault */
        float *values = memory.bases.segment[s];
        assert_true(values[0] == 0.0f);
        values[0] = 1.0f;
        guard->vtable->copy_out(guard, &values[1], &values[0], sizeof(float));
        assert_true(values[1] == 1.0f);
    }
    state_release(&memory);
    backend_free(guard);
    job_release(&job);
}

static void test_sharding__offloaded_states_are_planned_for_the_host(void **state)
{
    struct job with, without;

    (void)state;
    build(&without, JOB, "{\"sharding\":true}");
    build(&with, JOB, OFFLOADED);
    assert_true(without.plan.bytes[PLAN_BYTES_OPTIMIZER] > 0);
    assert_int_equal(with.plan.bytes[PLAN_BYTES_OPTIMIZER], 0);
    assert_int_equal(with.plan.bytes[PLAN_BYTES_HOST], without.plan.bytes[PLAN_BYTES_OPTIMIZER]);
    assert_int_equal(plan_bytes_total(&with.plan), plan_bytes_total(&without.plan));
    job_release(&with);
    job_release(&without);
}

/* ---- the group ------------------------------------------------------------------------------- */

#define DATA "\"_dp_as_optimizer_sharding\":true}"

static void test_sharding__data_parallel_ranks_become_the_group(void **state)
{
    struct job plain, data;

    (void)state;
    job_init_for(&plain, JOB, "{\"sharding\":true}", 4);
    job_init_for(&data, JOB,
                 "{\"sharding\":true,\"hybrid_configs\":{\"sharding_degree\":1},"
                 "\"sharding_configs\":{" DATA "}",
                 4);
    assert_int_equal(plain.rc | data.rc, 0);
    assert_true(data.plan.topology.data_is_sharded);
    assert_int_equal(data.plan.topology.degree[TOPOLOGY_DATA], 1);
    assert_int_equal(plan_shards(&data.plan), 4);
    assert_true(select_is_applied(&data.plan.selection, UNIT_SHARDING));
    assert_int_equal(data.plan.bytes[PLAN_BYTES_OPTIMIZER], plain.plan.bytes[PLAN_BYTES_OPTIMIZER]);
    job_release(&plain);
    job_release(&data);
}

static void expect_told_idle(const char *strategy, int world, const char *because)
{
    const struct select_notes *notes;
    struct job job;
    bool is_there = false;

    job_init_for(&job, JOB, strategy, world);
    assert_int_equal(job.rc, 0);
    notes = &job.plan.selection.without_effect;
    for (size_t i = 0; i < notes->count; i++)
        is_there |= strstr(notes->items[i].knob, "sharding_configs.") &&
                    strstr(notes->items[i].because, because);
    if (!is_there)
        fail_msg("%s on %d: nothing says \"%s\"", strategy, world, because);
    job_release(&job);
}

static void test_sharding__says_which_settings_do_nothing(void **state)
{
    (void)state;
    expect_told_idle("{\"sharding\":true,\"sharding_configs\":{" DATA "}", 4,
                     "it is for a sharding group of one rank, and this one has 4");
    expect_told_idle("{\"sharding\":true,\"hybrid_configs\":{\"sharding_degree\":1},"
                     "\"sharding_configs\":{" DATA "}",
                     1, "there are no ranks of data parallelism");
    expect_told_idle(
        "{\"sharding\":true,\"amp\":true,\"sharding_configs\":{\"optimize_cast\":true}}", 4,
        "a micro-batch casts the parameters where it reads them");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sharding__a_range_ends_at_each_anchor),
        cmocka_unit_test(test_sharding__an_anchor_must_be_a_tensor),
        cmocka_unit_test(test_sharding__offloaded_states_are_memory_of_the_host),
        cmocka_unit_test(test_sharding__offloaded_states_are_planned_for_the_host),
        cmocka_unit_test(test_sharding__data_parallel_ranks_become_the_group),
        cmocka_unit_test(test_sharding__says_which_settings_do_nothing),
    };

    return cmocka_run_group_tests_name("passes_sharding", tests, NULL, NULL);
}

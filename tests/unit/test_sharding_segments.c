/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Segments of divided parameters: what is gathered, when, how often, and how long it lies in the
 * arena.
 */
#include "libfleet/plan/gathers.h"
#include "tests/unit/passes_fixture.h"

#define DIVIDED(mb, rest) \
    "{\"sharding\":true,\"sharding_configs\":{\"stage\":3,\"fuse_broadcast_MB\":" mb "}" rest "}"

static int count_gathers(const struct program *program, bool backward)
{
    int count = 0;

    for (int i = 0; i < program->op_count; i++)
        count += gathers_is(&program->ops[i]) && program->ops[i].backward == backward;
    return count;
}

/* Every parameter that a micro-batch reads was gathered before; nothing else is. */
static void expect_gathered(const struct program *program)
{
    FLEET_AUTO_FREE int *gathers = gathers_of_inputs(program);

    for (int i = 0; i < program->op_count; i++) {
        const struct program_op *op = &program->ops[i];
        for (int j = 0; j < op->input_count; j++) {
            const struct program_var *var =
                op->inputs[j] == PROGRAM_NONE ? NULL : &program->vars[op->inputs[j]];
            int gather = gathers[i * OP_INPUTS_MAX + j];
            bool is_read = var && var->role == PROGRAM_ROLE_PARAMETER &&
                           op->section == PROGRAM_SECTION_MICRO_BATCH;
            assert_int_equal(gather != PROGRAM_NONE, is_read);
            if (!is_read)
                continue;
            assert_true(gather < i);
            assert_true(op->backward || !program->ops[gather].backward);
        }
    }
}

static void test_sharding_segments__gather_what_is_read(void **state)
{
    static const char *const strategies[] = {
        DIVIDED("32", ""), DIVIDED("0.1", ""), DIVIDED("0.00001", ""),
        DIVIDED("0.05", ",\"amp\":true,\"recompute\":true"),
        DIVIDED("0.05", ",\"gradient_merge\":true,\"gradient_merge_configs\":{\"k_steps\":2}")};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(strategies); i++) {
        struct job job;
        build(&job, GPT(3, ADAMW), strategies[i]);
        expect_gathered(&job.plan.program);
        for (int op = 0; op < job.plan.program.op_count; op++) /* nothing is shared afterwards */
            assert_false(job.plan.program.ops[op].section == PROGRAM_SECTION_UPDATE &&
                         job.plan.program.ops[op].kind == OP_ALL_GATHER);
        job_release(&job);
    }
}

/* A model that is smaller than a segment is gathered once, at the front. */
static void test_sharding_segments__a_small_model_is_one_segment(void **state)
{
    struct job job;

    (void)state;
    build(&job, GPT(3, ADAMW), DIVIDED("32", ""));
    assert_true(gathers_is(&job.plan.program.ops[0]));
    assert_int_equal(job.plan.program.ops[0].attributes.flat_count, job.plan.program.flat_count);
    assert_int_equal(count_gathers(&job.plan.program, false), 1);
    assert_int_equal(count_gathers(&job.plan.program, true), 0);
    job_release(&job);
}

/* The gathers of a segment stand in front of the segment before it, not further. */
static void test_sharding_segments__are_gathered_one_segment_ahead(void **state)
{
    FLEET_AUTO_FREE int *gathers = NULL;
    int ahead = 0, readers = 0;
    struct job job;

    (void)state;
    build(&job, GPT(4, ADAMW), DIVIDED("0.1", ""));
    gathers = gathers_of_inputs(&job.plan.program);
    for (int i = 0; i < job.plan.program.op_count; i++)
        for (int j = 0; j < job.plan.program.ops[i].input_count; j++) {
            int gather = gathers[i * OP_INPUTS_MAX + j], between = 0;
            if (gather == PROGRAM_NONE)
                continue;
            for (int op = gather; op < i; op++) /* groups of gathers behind this one's */
                between += gathers_is(&job.plan.program.ops[op]) &&
                           !gathers_is(&job.plan.program.ops[op - (op > 0)]);
            ahead += between > 0;
            readers++;
            assert_in_range(between, 0, 2);
        }
    assert_true(readers > 50 && ahead > readers / 2);
    job_release(&job);
}

static int64_t largest_gather(const struct program *program)
{
    int64_t largest = 0;

    for (int i = 0; i < program->op_count; i++)
        if (gathers_is(&program->ops[i]) && program->ops[i].attributes.flat_count > largest)
            largest = program->ops[i].attributes.flat_count;
    return largest;
}

/* The arena has two segments at a time: more layers need no more of it for parameters. */
static void test_sharding_segments__lie_in_the_arena_while_they_are_read(void **state)
{
    static const char few[] = GPT(4, ADAMW), many[] = GPT(12, ADAMW);
    static const char none[] = "{\"sharding\":true,\"sharding_configs\":{\"stage\":2}}";
    size_t more[2];

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct job divided, whole;
        build(&divided, i ? many : few, DIVIDED("0.1", ""));
        build(&whole, i ? many : few, none);
        more[i] = divided.plan.memory.bytes[MEMORY_ARENA] - whole.plan.memory.bytes[MEMORY_ARENA];
        assert_true(largest_gather(&divided.plan.program) <
                    divided.plan.program.flat_count / (i ? 8 : 3));
        job_release(&divided);
        job_release(&whole);
    }
    assert_true(more[1] < more[0] + more[0] / 8);
}

/* amp: copies in 16 bits do not wait for the backward part; only the last segment's do. */
static void test_sharding_segments__casts_are_made_again(void **state)
{
    struct job divided, whole;

    (void)state;
    build(&divided, GPT(6, ADAMW), DIVIDED("0.1", ",\"amp\":true"));
    build(&whole, GPT(6, ADAMW), DIVIDED("32", ",\"amp\":true"));
    assert_true(count_ops(&divided.plan.program, OP_CAST, true) >
                count_ops(&whole.plan.program, OP_CAST, true) + 10);
    assert_int_equal(count_ops(&divided.plan.program, OP_CAST, false),
                     count_ops(&whole.plan.program, OP_CAST, false));
    job_release(&divided);
    job_release(&whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sharding_segments__gather_what_is_read),
        cmocka_unit_test(test_sharding_segments__a_small_model_is_one_segment),
        cmocka_unit_test(test_sharding_segments__are_gathered_one_segment_ahead),
        cmocka_unit_test(test_sharding_segments__lie_in_the_arena_while_they_are_read),
        cmocka_unit_test(test_sharding_segments__casts_are_made_again),
    };
    return cmocka_run_group_tests_name("sharding_segments", tests, NULL, NULL);
}

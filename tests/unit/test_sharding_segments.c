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

/* amp: weights that are only cast travel in the compute type; biases, norms and the tied table,
 * which are read in fp32, too, do not. */
static void test_sharding_segments__gathers_carry_the_compute_type(void **state)
{
    struct gathers_parts parts;
    int64_t halves = 0, all = 0;
    struct job job;

    (void)state;
    build(&job, GPT(6, ADAMW), DIVIDED("0.1", ",\"amp\":true"));
    gathers_parts_init(&job.plan.program, &parts);
    for (int i = 0; i < job.plan.program.op_count; i++) {
        const struct op_attributes *range = &job.plan.program.ops[i].attributes;
        int64_t at = range->flat_first;
        if (!gathers_is(&job.plan.program.ops[i]))
            continue;
        assert_int_equal(range->wire, OP_WIRE_FP16);
        for (int p = parts.starts[i]; p < parts.starts[i + 1]; p++) {
            assert_int_equal(parts.items[p].first, at);
            at = parts.items[p].end;
            halves += parts.items[p].type == PROGRAM_FP16 ? at - parts.items[p].first : 0;
        }
        assert_int_equal(at, range->flat_first + range->flat_count);
        all += range->flat_count;
    }
    assert_true(halves > all / 2 && halves < all);
    gathers_parts_release(&parts);
    job_release(&job);
}

#define BY_ANCHORS(names)                                                                 \
    "{\"sharding\":true,\"sharding_configs\":{\"stage\":3,\"sharding_segment_strategy\":" \
    "\"segment_anchors\",\"segment_anchors\":[" names "]}}"

/* The first parameter that each gather brings; "<": in the backward part. */
static void expect_gathers(const char *strategy, const char *wanted)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf found = {0};
    struct job job;

    build(&job, GPT(3, ADAMW), strategy);
    for (int i = 0; i < job.plan.program.op_count; i++) {
        const struct program_op *op = &job.plan.program.ops[i];
        if (!gathers_is(op))
            continue;
        for (int v = 0; v < job.plan.program.var_count; v++) {
            const struct program_var *var = &job.plan.program.vars[v];
            if (var->role == PROGRAM_ROLE_PARAMETER &&
                var->flat_offset == op->attributes.flat_first)
                fleet_strbuf_appendf(&found, "%s%s%s", found.length ? " " : "",
                                     op->backward ? "<" : "", var->name);
        }
    }
    expect_gathered(&job.plan.program);
    assert_string_equal(fleet_strbuf_text(&found), wanted);
    job_release(&job);
}

/* Segments end behind a layer, and its gradient; the last one goes on in the backward part. */
static void test_sharding_segments__end_at_anchors(void **state)
{
    (void)state;
    expect_gathers(BY_ANCHORS("\"h.1\""), "wte.weight h.2.ln_1.weight <h.0.ln_1.weight "
                                          "<h.0.attn.c_attn.weight");
    expect_gathers(BY_ANCHORS("\"h.0\",\"h.1\""),
                   "wte.weight h.1.ln_1.weight wte.weight h.2.ln_1.weight <h.1.ln_1.weight "
                   "<h.1.attn.c_attn.weight <h.0.ln_1.weight <h.0.attn.c_attn.weight");
    expect_refused(GPT(3, ADAMW), BY_ANCHORS("\"h.7\""),
                   "sharding_configs.segment_anchors[0]: no tensor \"h.7\"");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sharding_segments__gather_what_is_read),
        cmocka_unit_test(test_sharding_segments__a_small_model_is_one_segment),
        cmocka_unit_test(test_sharding_segments__are_gathered_one_segment_ahead),
        cmocka_unit_test(test_sharding_segments__lie_in_the_arena_while_they_are_read),
        cmocka_unit_test(test_sharding_segments__casts_are_made_again),
        cmocka_unit_test(test_sharding_segments__gathers_carry_the_compute_type),
        cmocka_unit_test(test_sharding_segments__end_at_anchors),
    };
    return cmocka_run_group_tests_name("sharding_segments", tests, NULL, NULL);
}

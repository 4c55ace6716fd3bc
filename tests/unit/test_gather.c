/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Gathers of divided parameters: with any division each rank has the whole range behind a gather,
 * and ranks together send what the plan counts. What is read through casts to 16 bits alone arrives
 * rounded, in half of the bytes.
 */
#include "agent/runtime/backend/cpu/kernels/typed.h"
#include "agent/runtime/executor/gather.h"
#include "libfleet/base/assert.h"
#include "libfleet/plan/gathers.h"
#include "libfleet/plan/ownership.h"
#include "libfleet/program/program.h"
#include "tests/unit/comm_ranks.h"

static const int64_t sizes[] = {100, 7, 30001, 31, 64, 5000, 5};
#define SIZES 7

struct gather_case {
    int world, shards;
    bool greedy, has_buddies;
    enum op_wire wire;
};

/* The long parameter and its neighbour are only cast; the first one is cast and read. */
#define CAST_FIRST 2
#define CAST_END   4

/* What the threads share; only read. */
struct job {
    const struct gather_case *the;
    struct program program;
    struct ownership map;
};

/* It is read by an operator of this kind, which writes the type. */
static void add_reader(struct program *program, enum op_kind kind, int var, enum program_type type)
{
    char name[32];
    int out;

    (void)snprintf(name, sizeof(name), "p%d.by_%d", var, (int)kind);
    out = program_add_var(program, name, type, PROGRAM_ROLE_ACTIVATION, 1, &sizes[var]);
    (void)program_add_op(program, &(struct program_op){.kind = kind,
                                                       .section = PROGRAM_SECTION_MICRO_BATCH,
                                                       .inputs = {var},
                                                       .input_count = 1,
                                                       .outputs = {out},
                                                       .output_count = 1,
                                                       .layer = -1});
}

static void add_readers(struct program *program, enum op_wire wire)
{
    enum program_type type = wire == OP_WIRE_BF16 ? PROGRAM_BF16 : PROGRAM_FP16;

    if (wire == OP_WIRE_OWN)
        return;
    for (int i = CAST_FIRST; i < CAST_END; i++)
        add_reader(program, OP_CAST, i, type);
    add_reader(program, OP_CAST, 0, type);
    add_reader(program, OP_GELU, 0, PROGRAM_FP32);
}

/* Three gathers: of some parameters in the middle, of one, of all. */
static void make_job(const struct gather_case *the, struct job *out)
{
    static const int ranges[][2] = {{1, 4}, {2, 3}, {0, SIZES}};
    struct ownership_rule rule = {.replicas = the->world,
                                  .shards = the->shards,
                                  .divided = OWNERSHIP_BIT(OWNERSHIP_PARAMETERS),
                                  .greedy = the->greedy,
                                  .has_buddies = the->has_buddies};

    out->the = the;
    program_init(&out->program, "t");
    for (int i = 0; i < SIZES; i++) {
        char name[16];
        (void)snprintf(name, sizeof(name), "p%d", i);
        (void)program_add_var(&out->program, name, PROGRAM_FP32, PROGRAM_ROLE_PARAMETER, 1,
                              &sizes[i]);
    }
    program_layout(&out->program);
    for (size_t i = 0; i < FLEET_COUNT(ranges); i++) {
        int64_t first = out->program.vars[ranges[i][0]].flat_offset;
        int64_t end = ranges[i][1] < SIZES ? out->program.vars[ranges[i][1]].flat_offset
                                           : out->program.flat_count;
        (void)program_add_op(&out->program,
                             &(struct program_op){.kind = OP_ALL_GATHER,
                                                  .section = PROGRAM_SECTION_MICRO_BATCH,
                                                  .layer = -1,
                                                  .attributes = {.group = OP_GROUP_SHARDING,
                                                                 .space = OP_SPACE_PARAMETERS,
                                                                 .flat_first = first,
                                                                 .flat_count = end - first,
                                                                 .wire = the->wire,
                                                                 .owned = true}});
    }
    add_readers(&out->program, the->wire);
    ownership_build(&out->program, &rule, &out->map);
}

static void release_job(struct job *job)
{
    ownership_release(&job->map);
    program_release(&job->program);
}

static float value_of(int64_t element)
{
    return 1.0f + (float)element;
}

static bool is_only_cast(const struct job *job, int64_t element)
{
    return job->the->wire != OP_WIRE_OWN && element >= job->program.vars[CAST_FIRST].flat_offset &&
           element < job->program.vars[CAST_END].flat_offset;
}

static float arrived(const struct job *job, int64_t element)
{
    float value = value_of(element);

    if (!is_only_cast(job, element))
        return value;
    return job->the->wire == OP_WIRE_BF16 ? typed_of_bf16(typed_to_bf16(value))
                                          : typed_of_fp16(typed_to_fp16(value));
}

/* Owners send each element of a range to each rank without it: bytes that the rank gets. */
static int64_t lacked_bytes(const struct job *job, int64_t first, int64_t end, int rank)
{
    int64_t bytes = 0;

    for (int64_t e = first; e < end; e++)
        if (ownership_place(&job->map, OWNERSHIP_PARAMETERS, e, rank) == OWNERSHIP_NOBODY)
            bytes += is_only_cast(job, e) ? 2 : 4;
    return bytes;
}

/* What the rank holds; other memory would be a defect. */
static float *make_held(const struct job *job, int rank)
{
    int64_t count =
        ownership_elements(&job->map, OWNERSHIP_PARAMETERS, job->program.flat_count, rank);
    float *held = calloc((size_t)count + 1, sizeof(*held));

    fleet_assert(held != NULL);
    for (int64_t e = 0; e < job->program.flat_count; e++) {
        int64_t place = ownership_place(&job->map, OWNERSHIP_PARAMETERS, e, rank);
        if (place != OWNERSHIP_NOBODY)
            held[place] = value_of(e);
    }
    return held;
}

static int expect_range(const struct job *job, const struct op_attributes *range, const float *out,
                        struct fleet_error *err)
{
    for (int64_t i = 0; i < range->flat_count; i++)
        if (out[i] != arrived(job, range->flat_first + i))
            return fleet_error(err, -EBADMSG, "element %lld is %g",
                               (long long)(range->flat_first + i), (double)out[i]);
    return 0;
}

static int gather_body(struct comm_rank *self, struct fleet_error *err)
{
    const struct job *job = self->all->argument;
    float *held = make_held(job, self->rank);
    float *out = malloc((size_t)job->program.flat_count * sizeof(*out));
    struct gather gather;
    int rc = 0;

    fleet_assert(out != NULL);
    gather_init(&gather, &job->program, &job->map, self->rank);
    for (int i = 0; i < job->program.op_count && rc == 0; i++) {
        const struct program_op *op = &job->program.ops[i];
        uint64_t before = self->comm->bytes_sent, planned;
        if (!gathers_is(op))
            continue;
        planned = (uint64_t)gathers_sent(&job->map, &gather.parts, i, self->rank);
        rc = gather_run(&gather, self->comm, NULL, op, held, out, comm_ranks_patience(), err);
        if (rc == 0)
            rc = expect_range(job, &op->attributes, out, err);
        if (rc == 0 && self->comm->bytes_sent - before != planned)
            rc = fleet_error(err, -EBADMSG, "sent %llu bytes, planned %llu",
                             (unsigned long long)(self->comm->bytes_sent - before),
                             (unsigned long long)planned);
    }
    gather_release(&gather);
    free(held);
    free(out);
    return rc;
}

static void test_gather__fills_the_range_on_every_rank(void **state)
{
    static const struct gather_case cases[] = {
        {1, 1, false, true, OP_WIRE_OWN},  {2, 2, false, false, OP_WIRE_OWN},
        {2, 2, false, true, OP_WIRE_FP16}, {3, 3, true, false, OP_WIRE_BF16},
        {3, 3, false, true, OP_WIRE_OWN},  {4, 2, true, false, OP_WIRE_FP16},
        {4, 4, true, true, OP_WIRE_OWN},   {5, 2, true, true, OP_WIRE_BF16},
        {8, 4, true, false, OP_WIRE_OWN},  {8, 8, false, true, OP_WIRE_FP16}};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(cases); i++) {
        struct job job;
        make_job(&cases[i], &job);
        comm_ranks_do(cases[i].world, gather_body, &job);
        release_job(&job);
    }
}

/* Each rank that lacks a part gets it once. */
static void test_gathers__count_each_receiver_once(void **state)
{
    (void)state;
    for (int world = 1; world <= 9; world++)
        for (int shards = 1; shards <= world; shards++)
            for (int buddies = 0; buddies < 2; buddies++) {
                struct gather_case the = {world, shards, shards % 2 == 0, buddies,
                                          (enum op_wire)(world % 3)};
                struct gathers_parts parts;
                struct job job;
                int64_t sent = 0, lacked = 0;
                make_job(&the, &job);
                gathers_parts_init(&job.program, &parts);
                for (int r = 0; r < world; r++) {
                    sent += gathers_sent(&job.map, &parts, 2, r); /* of all parameters */
                    lacked += lacked_bytes(&job, 0, job.program.flat_count, r);
                }
                assert_int_equal(sent, lacked);
                gathers_parts_release(&parts);
                release_job(&job);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gather__fills_the_range_on_every_rank),
        cmocka_unit_test(test_gathers__count_each_receiver_once),
    };
    return cmocka_run_group_tests_name("gather", tests, NULL, NULL);
}

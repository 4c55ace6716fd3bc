/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Gathers of divided parameters: with any division each rank has the whole range behind a gather,
 * and ranks together send what the plan counts.
 */
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
};

/* What the threads share; only read. */
struct job {
    const struct gather_case *the;
    struct program program;
    struct ownership map;
};

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
                                                                 .owned = true}});
    }
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

static int expect_range(const struct op_attributes *range, const float *out,
                        struct fleet_error *err)
{
    for (int64_t i = 0; i < range->flat_count; i++)
        if (out[i] != value_of(range->flat_first + i))
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
        const struct op_attributes *range = &op->attributes;
        uint64_t before = self->comm->bytes_sent, planned;
        planned = sizeof(float) * (uint64_t)gathers_sent(&job->map, self->rank, range->flat_first,
                                                         range->flat_first + range->flat_count);
        rc = gather_run(&gather, self->comm, NULL, op, held, out, comm_ranks_patience(), err);
        if (rc == 0)
            rc = expect_range(range, out, err);
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
        {1, 1, false, true}, {2, 2, false, false}, {2, 2, false, true}, {3, 3, true, false},
        {3, 3, false, true}, {4, 2, true, false},  {4, 4, true, true},  {5, 2, true, true},
        {8, 4, true, false}, {8, 8, false, true}};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(cases); i++) {
        struct comm_ranks ranks;
        struct job job;
        make_job(&cases[i], &job);
        comm_ranks_init(&ranks, cases[i].world);
        ranks.argument = &job;
        comm_ranks_run(&ranks, gather_body);
        comm_ranks_release(&ranks);
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
                struct gather_case the = {world, shards, shards % 2 == 0, buddies};
                struct job job;
                int64_t sent = 0, lacked = 0;
                make_job(&the, &job);
                for (int r = 0; r < world; r++) {
                    sent += gathers_sent(&job.map, r, 0, job.program.flat_count);
                    lacked +=
                        job.program.flat_count - ownership_elements(&job.map, OWNERSHIP_PARAMETERS,
                                                                    job.program.flat_count, r);
                }
                assert_int_equal(sent, lacked);
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

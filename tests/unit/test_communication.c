/* SPDX-License-Identifier: Apache-2.0 */

/* Programs that communicate, run by executors of several ranks: threads of this process, connected
 * as trainers are. Values are small integers, so that every sum is exact. */
#include <errno.h>
#include <inttypes.h>

#include "agent/runtime/executor/communication.h"
#include "agent/runtime/executor/executor.h"
#include "agent/runtime/state.h"
#include "tests/unit/comm_ranks.h"
#include "tests/unit/communication_fixture.h"
#include "tests/unit/passes_fixture.h"

static int expect(struct worker *w, const char *name, int64_t i, double wanted,
                  struct fleet_error *err)
{
    double found = (double)values_of(w, name)[i];

    return found == wanted ? 0
                           : fleet_error(err, -EBADMSG, "%s[%" PRId64 "] is %g, expected %g", name,
                                         i, found, wanted);
}

/* ---- every collective, of operands ----------------------------------------------------------- */

#define ROWS    2 /* of x, for each rank */
#define COLUMNS 3

/* Every result is a scalar, which keeps its place; `late` reads what a collective gives, and
 * `again` lies where x did. */
static const char operands[] = "program t loss=sum\n"
                               "var x fp32 input [%d,3]\n"
                               "var y fp32 activation [?]\n"
                               "var sum fp32 scalar [?]\n"
                               "var most fp32 scalar [?]\n"
                               "var mean fp32 scalar [?]\n"
                               "var halves fp32 scalar [?]\n"
                               "var own fp32 scalar [?]\n"
                               "var part fp32 scalar [?]\n"
                               "var whole fp32 scalar [?]\n"
                               "var copy fp32 scalar [?]\n"
                               "var turned fp32 scalar [?]\n"
                               "var late fp32 scalar [?]\n"
                               "var again fp32 activation [%d,3]\n"
                               "var later fp32 scalar [?]\n"
                               "forward scale x -> y ; scale=2\n"
                               "forward all_reduce y -> sum ; group=data\n"
                               "forward fill -> again ; scale=7\n"
                               "forward scale again -> later ; scale=1\n"
                               "forward scale sum -> late ; scale=10\n"
                               "forward all_reduce x -> most ; group=data reduction=max\n"
                               "forward all_reduce x -> mean ; group=data reduction=avg\n"
                               "forward all_reduce x -> halves ; group=data wire=fp16\n"
                               "forward reduce_to x -> own ; group=data root=%d\n"
                               "forward reduce_scatter x -> part ; group=data ranks=%d\n"
                               "forward all_gather part -> whole ; group=data ranks=%d\n"
                               "forward broadcast x -> copy ; group=data root=%d\n"
                               "forward all_to_all x -> turned ; group=data ranks=%d\n";

static double given(int rank, int64_t i)
{
    return (double)(rank * 16) + (double)(i % 13);
}

static int check_operands(struct worker *w, struct fleet_error *err)
{
    int world = w->self->all->world, rank = w->self->rank, rc = 0;
    int64_t part = (int64_t)ROWS * COLUMNS;

    for (int64_t i = 0; i < world * part && rc == 0; i++) {
        double sum = 0;

        for (int r = 0; r < world; r++)
            sum += given(r, i);
        rc = expect(w, "sum", i, 2 * sum, err);
        rc = rc ? rc : expect(w, "late", i, 20 * sum, err);
        rc = rc ? rc : expect(w, "later", i, 7, err);
        rc = rc ? rc : expect(w, "most", i, given(world - 1, i), err);
        rc = rc ? rc : expect(w, "mean", i, (double)((float)sum / (float)world), err);
        rc = rc ? rc : expect(w, "halves", i, sum, err);
        rc = rc ? rc : expect(w, "own", i, rank == world - 1 ? sum : 0, err);
        rc = rc ? rc : expect(w, "whole", i, sum, err);
        rc = rc ? rc : expect(w, "copy", i, given(world - 1, i), err);
        rc = rc ? rc : expect(w, "turned", i, given((int)(i / part), rank * part + i % part), err);
        if (i / part == rank)
            rc = rc ? rc : expect(w, "part", i % part, sum, err);
    }
    return rc;
}

static int run_operands(struct comm_rank *self, struct fleet_error *err)
{
    bool in_compute_queue = *(const bool *)self->all->argument;
    int world = self->all->world, rc;
    char text[sizeof(operands) + 64];
    struct worker w;

    (void)snprintf(text, sizeof(text), operands, world * ROWS, world * ROWS, world - 1, world,
                   world, world - 1, world);
    rc = worker_open(&w, self, text, world, in_compute_queue, err);
    for (int round = 0; round < 20 && rc == 0; round++) {
        for (int64_t i = 0; i < (int64_t)world * ROWS * COLUMNS; i++)
            values_of(&w, "x")[i] = (float)given(self->rank, i);
        rc = run(&w, PROGRAM_SECTION_MICRO_BATCH, err);
        rc = rc ? rc : check_operands(&w, err);
    }
    worker_close(&w);
    return rc;
}

static void test_communication__every_collective_of_operands(void **state)
{
    static const bool in_compute_queue[] = {false, true};

    (void)state;
    for (int world = 2; world <= 4; world++)
        for (int i = 0; i < 2; i++)
            run_on(world, run_operands, &in_compute_queue[i]);
}

/* ---- a rank without a micro-batch ------------------------------------------------------------ */

/* What it would compute counts as zero, and its own kernels do not run. */
static int run_absent(struct comm_rank *self, struct fleet_error *err)
{
    static const char text[] = "program t loss=sum\nvar x fp32 input [4]\n"
                               "var y fp32 activation [?]\nvar sum fp32 scalar [?]\n"
                               "var whole fp32 activation [?]\nvar twice fp32 scalar [?]\n"
                               "forward scale x -> y ; scale=3\n"
                               "forward all_reduce y -> sum ; group=data\n"
                               "backward scale sum -> whole ; scale=1\n"
                               "backward all_reduce whole -> twice ; group=data\n";
    struct run_scalars mine = {.absent = self->rank == 1};
    int present = self->all->world - 1;
    struct worker w;
    int rc = worker_open(&w, self, text, 4, false, err);

    for (int round = 0; round < 5 && rc == 0; round++) {
        for (int64_t i = 0; i < 4; i++)
            values_of(&w, "x")[i] = (float)(i + round);
        rc = executor_run(w.rank.executor, PROGRAM_SECTION_MICRO_BATCH, &w.rank.state.bases, &mine,
                          &never, err);
        for (int64_t i = 0; i < 4 && rc == 0; i++) {
            rc = expect(&w, "sum", i, (double)(3 * present) * (double)(i + round), err);
            rc = rc ? rc
                    : expect(&w, "twice", i, (double)(3 * present * present) * (double)(i + round),
                             err);
        }
    }
    worker_close(&w);
    return rc;
}

static void test_communication__a_rank_without_a_micro_batch_gives_zeros(void **state)
{
    (void)state;
    for (int world = 2; world <= 4; world++)
        run_on(world, run_absent, NULL);
}

/* Operators for training alone, and backward ones, are left out. */
static int run_evaluation(struct comm_rank *self, struct fleet_error *err)
{
    static const char text[] = "program t loss=y\nvar x fp32 input [4]\n"
                               "var y fp32 scalar [?]\nvar sum fp32 scalar [4]\n"
                               "forward scale x -> y ; scale=3\n"
                               "forward all_reduce y -> sum ; group=data training\n";
    const struct run_scalars evaluation = {.evaluation = true};
    struct worker w;
    int rc = worker_open(&w, self, text, 4, false, err);

    if (rc == 0)
        values_of(&w, "x")[2] = 5;
    if (rc == 0 && self->rank == 0) /* alone */
        rc = executor_run(w.rank.executor, PROGRAM_SECTION_MICRO_BATCH, &w.rank.state.bases,
                          &evaluation, &never, err);
    if (rc == 0 && self->rank == 0)
        rc = expect(&w, "y", 2, 15, err);
    rc = rc ? rc : expect(&w, "sum", 2, 0, err);
    worker_close(&w);
    return rc;
}

static void test_communication__an_evaluation_needs_no_other_rank(void **state)
{
    (void)state;
    run_on(2, run_evaluation, NULL);
}

/* ---- a rank to its neighbour ----------------------------------------------------------------- */

static int pass_on(struct comm_rank *self, struct fleet_error *err)
{
    static const char *const programs[] = {
        "program t loss=x\nvar x fp32 input [5]\nforward send x -> ; group=data shift=1\n",
        "program t loss=y\nvar y fp32 scalar [5]\n"
        "forward receive -> y ; group=data shift=-1\n"};
    struct worker w;
    int rc = worker_open(&w, self, programs[self->rank], 2, false, err);

    for (int i = 0; rc == 0 && self->rank == 0 && i < 5; i++)
        values_of(&w, "x")[i] = (float)given(3, i);
    rc = rc ? rc : run(&w, PROGRAM_SECTION_MICRO_BATCH, err);
    for (int i = 0; rc == 0 && self->rank == 1 && i < 5; i++)
        rc = expect(&w, "y", i, given(3, i), err);
    worker_close(&w);
    return rc;
}

static void test_communication__a_message_to_the_next_rank(void **state)
{
    (void)state;
    run_on(2, pass_on, NULL);
}

/* There is no rank behind the last one. */
static int send_beyond(struct comm_rank *self, struct fleet_error *err)
{
    static const char text[] =
        "program t loss=x\nvar x fp32 input [5]\nforward send x -> ; group=data shift=9\n";
    struct worker w;
    struct fleet_error reason;
    int rc = worker_open(&w, self, text, 2, false, err);

    if (rc == 0 && run(&w, PROGRAM_SECTION_MICRO_BATCH, &reason) != -EINVAL)
        rc = fleet_error(err, -EBADMSG, "a message to nobody was sent");
    else if (rc == 0 && !strstr(reason.text, "send: place"))
        rc = fleet_error(err, -EBADMSG, "%.400s", reason.text);
    worker_close(&w);
    return rc;
}

static void test_communication__refuses_a_message_to_nobody(void **state)
{
    (void)state;
    run_on(2, send_beyond, NULL);
}

/* ---- ranges ---------------------------------------------------------------------------------- */

#define FLAT 48

static const char ranges[] =
    "program t loss=q state_count=1 flat_count=48\n"
    "var p fp32 parameter [40] trained flat=0\n"
    "var q fp32 scalar [1]\n"
    "forward fill -> q ; scale=1\n"
    "update all_reduce -> ; group=data space=parameters count=16 reduction=avg\n"
    "update reduce_to -> ; group=data space=parameters first=16 count=16 root=1\n"
    "update broadcast -> ; group=data space=state0 first=6 count=42 root=1\n"
    "update all_gather -> ; group=data space=parameters first=32 count=12\n"
    "update reduce_scatter -> ; group=data space=state0 first=0 count=6\n";

/* Rank r owns the r-th part. */
static void share(void *context, const struct program_op *op, int place, int64_t *out_first,
                  int64_t *out_count)
{
    int world = ((struct worker *)context)->self->all->world;

    *out_count = op->attributes.flat_count / world;
    *out_first = op->attributes.flat_first + place * *out_count;
}

static int check_ranges(const struct worker *w, const float *p, const float *s,
                        struct fleet_error *err)
{
    int world = w->self->all->world, rank = w->self->rank;

    for (int i = 0; i < FLAT; i++) {
        float sum = 0, wanted_p, wanted_s = (float)given(1, i);
        int owner = (i - 32) / (12 / world), part = 6 / world;
        bool is_own = i / part == rank;

        for (int r = 0; r < world; r++)
            sum += (float)given(r, i);
        wanted_p = i < 16 ? sum / (float)world : rank == 1 ? sum : (float)given(rank, i);
        if (i >= 32)
            wanted_p = (float)given(i < 44 ? owner : rank, i);
        if (i < 6)
            wanted_s = is_own ? sum : (float)given(rank, i);
        if (p[i] != wanted_p || s[i] != wanted_s)
            return fleet_error(err, -EBADMSG, "element %d: %g and %g, expected %g and %g", i,
                               (double)p[i], (double)s[i], (double)wanted_p, (double)wanted_s);
    }
    return 0;
}

static int run_ranges(struct comm_rank *self, struct fleet_error *err)
{
    struct worker w;
    int rc = worker_open(&w, self, ranges, 3, false, err);
    float *p, *s;

    w.rank.communication.owned = share;
    w.rank.communication.context = &w;
    for (int round = 0; round < 5 && rc == 0; round++) {
        p = w.rank.state.bases.segment[MEMORY_PARAMETERS];
        s = w.rank.state.bases.segment[MEMORY_STATE0];
        for (int i = 0; i < FLAT; i++)
            p[i] = s[i] = (float)given(self->rank, i);
        rc = run(&w, PROGRAM_SECTION_UPDATE, err);
        rc = rc ? rc : check_ranges(&w, p, s, err);
    }
    worker_close(&w);
    return rc;
}

static void test_communication__ranges_in_the_update_section(void **state)
{
    (void)state;
    for (int world = 2; world <= 3; world++)
        run_on(world, run_ranges, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_communication__every_collective_of_operands),
        cmocka_unit_test(test_communication__a_rank_without_a_micro_batch_gives_zeros),
        cmocka_unit_test(test_communication__an_evaluation_needs_no_other_rank),
        cmocka_unit_test(test_communication__a_message_to_the_next_rank),
        cmocka_unit_test(test_communication__refuses_a_message_to_nobody),
        cmocka_unit_test(test_communication__ranges_in_the_update_section),
    };
    return cmocka_run_group_tests_name("communication", tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Communication beside computation: sums of gradients start while other gradients are computed,
 * send the bytes of the plan, and end when a rank is lost; what waits for which memory.
 */
#include <errno.h>

#include "agent/runtime/executor/communication.h"
#include "agent/runtime/executor/executor.h"
#include "agent/runtime/executor/executor_internal.h"
#include "agent/runtime/executor/order.h"
#include "agent/runtime/state.h"
#include "libfleet/base/assert.h"
#include "libfleet/plan/plan_cost.h"
#include "libfleet/plan/program_traffic.h"
#include "libfleet/program/print.h"
#include "libfleet/program/verify.h"
#include "tests/unit/comm_ranks.h"
#include "tests/unit/communication_fixture.h"
#include "tests/unit/passes_fixture.h"

#define PATIENCE_S 120

/* ---- the gradient ---------------------------------------------------------------------------- */

/* x is filled by the test; q's bucket is complete one operator before p's. */
static const char gradient[] = "program t loss=l flat_count=32\n"
                               "var p fp32 parameter [16] trained flat=0\n"
                               "var q fp32 parameter [16] trained flat=16\n"
                               "var p@GRAD fp32 gradient [16] of=p flat=0\n"
                               "var q@GRAD fp32 gradient [16] of=q flat=16\n"
                               "var x fp32 input [16]\n"
                               "var l fp32 scalar [1]\n"
                               "forward fill -> l ; scale=1\n"
                               "backward scale x -> q@GRAD ; scale=3\n"
                               "backward %s x -> p@GRAD ;%s\n"
                               "exchange %s -> ; group=data space=gradients first=16 count=16%s\n"
                               "exchange %s -> ; group=data space=gradients first=0 count=16%s\n";

/* Instructions of this rank from `first` on, the last micro-batch with what may run ahead. */
static int run_leaves(struct worker *w, int64_t first, struct fleet_error *err)
{
    int rc = 0;

    for (int64_t i = first; i < w->range.folds_first && rc == 0; i++) {
        const struct tree_instruction *in = &w->range.instructions[i];
        struct executor_bases bases = w->rank.state.bases;

        if (in->kind == TREE_ADD) {
            w->rank.backend->vtable->add(w->rank.backend, w->rank.state.slots[in->into],
                                         w->rank.state.slots[in->slot], w->rank.program.flat_count);
            continue;
        }
        for (int j = 0; j < 16; j++)
            values_of(w, "x")[j] = (float)(in->leaf + j);
        bases.segment[MEMORY_GRADIENTS] = w->rank.state.slots[in->slot];
        if (i + 1 < w->range.folds_first)
            rc = executor_run(w->rank.executor, PROGRAM_SECTION_MICRO_BATCH, &bases, &scalars,
                              &never, err);
        else
            rc = executor_run_last(w->rank.executor, &bases, &w->rank.state.bases, &scalars, &never,
                                   err);
    }
    if (rc < 0)
        return rc;
    return executor_run(w->rank.executor, PROGRAM_SECTION_EXCHANGE, &w->rank.state.bases, &scalars,
                        &never, err);
}

struct gradient_case {
    const char *operator, * attributes;
    int64_t leaves;
    bool in_compute_queue;
};

static int run_gradient(struct comm_rank *self, struct fleet_error *err)
{
    const struct gradient_case *c = self->all->argument;
    char text[sizeof(gradient) + 100];
    struct worker w;
    int rc;

    (void)snprintf(text, sizeof(text), gradient, "scale", " scale=5", c->operator, c->attributes,
                   c->operator, c->attributes);
    rc = worker_open(&w, self, text, c->leaves, c->in_compute_queue, err);
    for (int round = 0; round < 10 && rc == 0; round++) {
        struct executor_times times;

        rc = run_leaves(&w, 0, err);
        for (int i = 0; i < 32 && rc == 0; i++) {
            float wanted = 0;
            for (int64_t leaf = 0; leaf < c->leaves; leaf++)
                wanted += (float)((i < 16 ? 5 : 3) * (leaf + i % 16));
            if (w.rank.state.slots[0][i] != wanted)
                rc = fleet_error(err, -EBADMSG, "element %d is %g, expected %g", i,
                                 (double)w.rank.state.slots[0][i], (double)wanted);
        }
        executor_times(w.rank.executor, &times);
        if (!(times.communication_s > 0) || times.waited_s < 0)
            rc = fleet_error(err, -EBADMSG, "no time was taken for communication");
    }
    worker_close(&w);
    return rc;
}

static void test_communication__sums_gradients_while_others_are_computed(void **state)
{
    static const struct gradient_case cases[] = {
        {"tree_sum", "", 7, false},
        {"tree_sum", "", 8, true},
        {"tree_sum", "", 1, false}, /* ranks without leaves */
        {"all_reduce", "", 6, false},
        {"all_reduce", " wire=fp16", 8, false},
        {"all_reduce", " wire=fp16", 1, true},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (int world = 2; world <= 4; world++)
            run_on(world, run_gradient, &cases[i]);
}

/* ---- what overlaps --------------------------------------------------------------------------- */

/* Of rank 0: exchanges that have begun; a kernel waits for the first. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int begun;
    bool was_late;
} overlap = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static double note_begin(void *context)
{
    if (((struct worker *)context)->self->rank == 0) {
        pthread_mutex_lock(&overlap.lock);
        overlap.begun++;
        pthread_cond_broadcast(&overlap.changed);
        pthread_mutex_unlock(&overlap.lock);
    }
    return comm_ranks_patience();
}

static int wait_for_begin(struct backend *backend, const struct kernel_call *call,
                          struct fleet_error *err)
{
    struct timespec until;

    (void)backend, (void)err;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PATIENCE_S;
    pthread_mutex_lock(&overlap.lock);
    while (overlap.begun == 0 && !overlap.was_late)
        overlap.was_late =
            pthread_cond_timedwait(&overlap.changed, &overlap.lock, &until) == ETIMEDOUT;
    overlap.was_late |= overlap.begun != 1; /* the second bucket is not complete */
    pthread_mutex_unlock(&overlap.lock);
    memset(call->out[0], 0, 16 * sizeof(float));
    return 0;
}

static kernel_fn (*true_kernel)(struct backend *, enum op_kind);

static kernel_fn waiting_kernel(struct backend *backend, enum op_kind kind)
{
    return kind == OP_RELU ? wait_for_begin : true_kernel(backend, kind);
}

static int overlap_buckets(struct comm_rank *self, struct fleet_error *err)
{
    char text[sizeof(gradient) + 100];
    struct backend_vtable vtable;
    struct worker w;
    int rc;

    (void)snprintf(text, sizeof(text), gradient, "relu", "", "tree_sum", "", "tree_sum", "");
    rc = worker_open(&w, self, text, 4, false, err);
    w.rank.communication.deadline_ms = note_begin;
    w.rank.communication.context = &w;
    if (rc == 0 && self->rank == 0) { /* a kernel that waits, on this rank's executor */
        vtable = *w.rank.backend->vtable;
        true_kernel = vtable.kernel;
        vtable.kernel = waiting_kernel;
        w.rank.backend->vtable = &vtable;
        executor_free(w.rank.executor);
        rc = executor_new(&w.rank.program, &w.rank.memory, w.rank.backend, &w.rank.executor, err);
        rc = rc ? rc : executor_bind(w.rank.executor, &w.rank.communication, err);
    }
    rc = rc ? rc : run_leaves(&w, w.range.folds_first - 1, err);
    worker_close(&w);
    return rc;
}

static void test_communication__a_bucket_leaves_before_the_next_is_computed(void **state)
{
    (void)state;
    overlap.begun = 0;
    overlap.was_late = false;
    run_on(2, overlap_buckets, NULL);
    assert_false(overlap.was_late);
    assert_int_equal(overlap.begun, 2);
}

/* ---- bytes ----------------------------------------------------------------------------------- */

/* What each replica of a job sends: as its plan says, byte for byte. */
static int run_exchange(struct comm_rank *self, struct fleet_error *err)
{
    const struct job *job = self->all->argument;
    struct plan_traffic traffic = {.count = 0};
    double planned;
    struct worker w;
    uint64_t before;
    int rc;

    memset(&w, 0, sizeof(w));
    program_copy(&job->plan.program, &w.rank.program);
    rc = worker_prepare(&w, self, job->plan.leaves, false, err);
    before = self->comm->bytes_sent;
    if (rc == 0)
        rc = run(&w, PROGRAM_SECTION_EXCHANGE, err);
    program_traffic(&job->plan, self->rank, &traffic);
    planned = plan_cost_sent(&traffic);
    if (rc == 0 && (double)(self->comm->bytes_sent - before) != planned)
        rc = fleet_error(err, -EBADMSG, "sent %.0f bytes, the plan says %.0f",
                         (double)(self->comm->bytes_sent - before), planned);
    worker_close(&w);
    return rc;
}

static void test_communication__sends_the_bytes_of_the_plan(void **state)
{
    static const char *const strategies[] = {
        "{}", "{\"fuse_grad_size_in_MB\":1,\"last_comm_group_size_MB\":0.25}",
        "{\"fuse_all_reduce_ops\":false}", "{\"fp16_allreduce\":true}",
        "{\"gradient_merge\":true,\"gradient_merge_configs\":{\"k_steps\":3}}"};

    (void)state;
    for (size_t i = 0; i < sizeof(strategies) / sizeof(strategies[0]); i++)
        for (int world = 2; world <= 3; world++) {
            struct job job;

            job_init_for(&job, GPT(12, ADAMW), strategies[i], world);
            assert_int_equal(job.rc, 0);
            assert_true(job.plan.sent_bytes > 0);
            run_on(world, run_exchange, &job);
            job_release(&job);
        }
}

/* The rank's group along one axis: `count` ranks from `first` on, `stride` apart. All ranks take
 * part in making each group; the others give NULL. */
static int make_group(struct comm_rank *self, int first, int stride, int count, struct comm **out,
                      struct fleet_error *err)
{
    int list[COMM_RANKS_MAX];
    struct comm *made = NULL;
    int rc;

    for (int i = 0; i < count; i++)
        list[i] = first + i * stride;
    rc = comm_group(self->comm, list, count, comm_ranks_patience(), &made, err);
    if (made)
        *out = made;
    return rc;
}

/* Ranks that share sequences are neighbours, as in the grid. */
static int make_groups(struct comm_rank *self, int shared, int replicas, struct comm *groups[2],
                       struct fleet_error *err)
{
    int rc = 0;

    for (int r = 0; r < replicas && rc == 0; r++)
        rc = make_group(self, r * shared, 1, shared, &groups[0], err);
    for (int s = 0; s < shared && replicas > 1 && rc == 0; s++)
        rc = make_group(self, s, shared, replicas, &groups[1], err);
    return rc;
}

static uint64_t sent_in(struct comm *const groups[2])
{
    return groups[0]->bytes_sent + (groups[1] ? groups[1]->bytes_sent : 0);
}

/* All micro-batches of an update, then the exchange. What the activations hold is no matter. */
static int run_update(struct worker *w, struct fleet_error *err)
{
    int rc = 0;

    for (int64_t i = 0; i < w->range.folds_first && rc == 0; i++) {
        const struct tree_instruction *in = &w->range.instructions[i];
        struct executor_bases bases = w->rank.state.bases;

        bases.segment[MEMORY_GRADIENTS] = w->rank.state.slots[in->slot];
        if (in->kind != TREE_ADD)
            rc = executor_run(w->rank.executor, PROGRAM_SECTION_MICRO_BATCH, &bases, &scalars,
                              &never, err);
    }
    if (rc < 0)
        return rc;
    return executor_run(w->rank.executor, PROGRAM_SECTION_EXCHANGE, &w->rank.state.bases, &scalars,
                        &never, err);
}

static int share_sequences(struct comm_rank *self, struct fleet_error *err)
{
    const struct job *job = self->all->argument;
    int shared = job->plan.topology.degree[TOPOLOGY_SEQUENCE], replicas = plan_replicas(&job->plan);
    struct plan_traffic traffic = {.count = 0};
    struct comm *groups[2] = {NULL};
    uint64_t before = 0;
    struct worker w;
    double planned;
    int rc;

    memset(&w, 0, sizeof(w));
    program_copy(&job->plan.program, &w.rank.program);
    rc = make_groups(self, shared, replicas, groups, err);
    if (rc == 0)
        rc = worker_prepare_in(&w, self, job->plan.leaves, groups[1], groups[0], false, err);
    if (rc == 0) {
        before = sent_in(groups);
        rc = run_update(&w, err);
    }
    program_traffic(&job->plan, self->rank / shared, &traffic);
    planned = plan_cost_sent(&traffic);
    if (rc == 0 && (double)(sent_in(groups) - before) != planned)
        rc = fleet_error(err, -EBADMSG, "rank %d sent %.0f bytes, the plan says %.0f", self->rank,
                         (double)(sent_in(groups) - before), planned);
    worker_close(&w);
    comm_free(groups[0]);
    comm_free(groups[1]);
    return rc;
}

/* Four micro-batches, so that each replica has as many as the plan counts. */
static void test_communication__ranks_of_a_sequence_send_the_bytes_of_the_plan(void **state)
{
    static const struct {
        const char *strategy;
        int world;
    } rows[] = {{"{\"hybrid_configs\":{\"sep_degree\":2}}", 2},
                {"{\"hybrid_configs\":{\"sep_degree\":4}}", 4},
                {"{\"hybrid_configs\":{\"sep_degree\":2}}", 4},
                {"{\"amp\":true,\"hybrid_configs\":{\"sep_degree\":2}}", 4},
                {"{\"recompute\":true,\"hybrid_configs\":{\"sep_degree\":2}}", 4},
                {"{\"gradient_merge\":true,\"gradient_merge_configs\":{\"k_steps\":2},"
                 "\"hybrid_configs\":{\"sep_degree\":2}}",
                 8}};

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct job job;

        job_init_for(&job, GPT(2, ADAMW), rows[i].strategy, rows[i].world);
        assert_int_equal(job.rc, 0);
        assert_true(job.plan.sent_bytes > 0);
        run_on(rows[i].world, share_sequences, &job);
        job_release(&job);
    }
}

/* ---- failures -------------------------------------------------------------------------------- */

/* Rank 1 dies instead of taking part. */
static int lose_a_rank(struct comm_rank *self, struct fleet_error *err)
{
    char text[sizeof(gradient) + 100];
    struct fleet_error reason = {.text = ""};
    struct worker w;
    int rc;

    (void)snprintf(text, sizeof(text), gradient, "scale", " scale=5", "tree_sum", "", "tree_sum",
                   "");
    rc = worker_open(&w, self, text, 4, false, err);
    if (self->rank == 1) {
        comm_abort(self->comm);
    } else if (rc == 0) {
        int outcome = run_leaves(&w, 0, &reason);
        if (outcome >= 0 || !strstr(reason.text, "tree_sum"))
            rc = fleet_error(err, -EBADMSG, "%d: %.400s", outcome, reason.text);
        executor_cancel(w.rank.executor); /* nothing is in flight any more */
    }
    worker_close(&w);
    return rc;
}

static void test_communication__a_lost_rank_ends_the_run(void **state)
{
    (void)state;
    for (int round = 0; round < 5; round++)
        run_on(3, lose_a_rank, NULL);
}

/* ---- order ----------------------------------------------------------------------------------- */

static void test_communication__memory_says_what_waits(void **state)
{
    static const char text[] =
        "program t loss=l flat_count=32\n"
        "var p fp32 parameter [16] trained flat=0\n"
        "var q fp32 parameter [16] trained flat=16\n"
        "var a fp32 activation [16]\nvar b fp32 activation [16]\nvar c fp32 activation [16]\n"
        "var l fp32 scalar [16]\n"
        "forward fill -> a ;\n"                                                  /* 0 */
        "forward all_reduce a -> b ; group=data\n"                               /* 1 */
        "forward scale b -> c ; scale=1\n"                                       /* 2: reads b */
        "forward scale c -> l ; scale=1\n"                                       /* 3: reads c */
        "forward broadcast -> ; group=data space=parameters first=16 count=16\n" /* 4 */
        "forward scale p -> l ; scale=1\n"                                       /* 5 */
        "forward scale q -> l ; scale=1\n";                                      /* 6 */
    static const struct {
        int a, b;
        bool conflicts;
    } cases[] = {{1, 2, true}, {1, 3, true} /* c lies where b did */,
                 {1, 0, true}, {4, 5, false},
                 {4, 6, true}, {5, 6, true},
                 {1, 4, false}};
    struct program program;
    struct memory_plan plan;

    (void)state;
    assert_int_equal(print_parse(text, strlen(text), &program, NULL), 0);
    assert_int_equal(verify_program(&program, VERIFY_FORWARD, NULL), 0);
    assert_int_equal(memory_plan_build(&program, NULL, 0, &plan, NULL), 0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct program_op *a = &program.ops[cases[i].a], *b = &program.ops[cases[i].b];
        assert_int_equal(order_conflict(&program, &plan, a, b), cases[i].conflicts);
        assert_int_equal(order_conflict(&program, &plan, b, a), cases[i].conflicts);
    }
    memory_plan_release(&plan);
    program_release(&program);
}

/* All ranks start sums in one order, that of the program. So a sum whose gradient is complete waits
 * for the one before it. The first sum waits for its own gradient only. */
static void test_communication__a_sum_starts_behind_the_one_before_it(void **state)
{
    static const char text[] =
        "program t loss=l flat_count=48\n"
        "var p fp32 parameter [16] trained flat=0\n"
        "var q fp32 parameter [16] trained flat=16\n"
        "var r fp32 parameter [16] trained flat=32\n"
        "var p@GRAD fp32 gradient [16] of=p flat=0\n"
        "var q@GRAD fp32 gradient [16] of=q flat=16\n"
        "var r@GRAD fp32 gradient [16] of=r flat=32\n"
        "var x fp32 input [16]\n"
        "var l fp32 scalar [1]\n"
        "forward fill -> l ; scale=1\n"          /* launch 0 */
        "backward scale x -> r@GRAD ; scale=1\n" /* 1 */
        "backward scale x -> p@GRAD ; scale=1\n" /* 2 */
        "backward scale x -> q@GRAD ; scale=1\n" /* 3 */
        "exchange tree_sum -> ; group=data space=gradients first=0 count=16\n"
        "exchange tree_sum -> ; group=data space=gradients first=32 count=16\n"
        "exchange tree_sum -> ; group=data space=gradients first=16 count=16\n";
    static const int ready[] = {2, 2, 3};
    struct executor_rank rank = {0};

    (void)state;
    assert_int_equal(print_parse(text, strlen(text), &rank.program, NULL), 0);
    assert_int_equal(executor_rank_open(&rank, FLEET_ISA_PLAIN, 1, NULL), 0);
    for (size_t i = 0; i < FLEET_COUNT(ready); i++) {
        const struct executor *executor = rank.executor;
        int at = executor->first[PROGRAM_SECTION_EXCHANGE] + (int)i;
        assert_int_equal(executor->launches[at].ready, ready[i]);
    }
    assert_int_equal(rank.executor->front_end, rank.executor->first[PROGRAM_SECTION_EXCHANGE + 1]);
    executor_rank_close(&rank);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_communication__sums_gradients_while_others_are_computed),
        cmocka_unit_test(test_communication__a_bucket_leaves_before_the_next_is_computed),
        cmocka_unit_test(test_communication__sends_the_bytes_of_the_plan),
        cmocka_unit_test(test_communication__ranks_of_a_sequence_send_the_bytes_of_the_plan),
        cmocka_unit_test(test_communication__a_lost_rank_ends_the_run),
        cmocka_unit_test(test_communication__memory_says_what_waits),
        cmocka_unit_test(test_communication__a_sum_starts_behind_the_one_before_it),
    };
    return cmocka_run_group_tests_name("communication_order", tests, NULL, NULL);
}

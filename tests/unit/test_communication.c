/* SPDX-License-Identifier: Apache-2.0 */

/* Programs that communicate, run by executors of several ranks: threads of this process, connected
 * as trainers are. Values are small integers, so that every sum is exact. */
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>

#include "agent/runtime/backend/cpu/backend_cpu.h"
#include "agent/runtime/executor/communication.h"
#include "agent/runtime/executor/executor.h"
#include "agent/runtime/executor/order.h"
#include "agent/runtime/leaf_range.h"
#include "agent/runtime/state.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/plan/plan_cost.h"
#include "libfleet/plan/program_traffic.h"
#include "libfleet/plan/runtime_traffic.h"
#include "libfleet/program/print.h"
#include "libfleet/program/verify.h"
#include "tests/unit/comm_ranks.h"
#include "tests/unit/passes_fixture.h"

#define PATIENCE_S 120

static const atomic_bool never;
static const struct run_scalars scalars = {.update_1based = 1};

/* A rank with its program, memory and executor. */
struct worker {
    struct comm_rank *self;
    struct program program;
    struct memory_plan memory;
    struct backend *backend;
    struct state state;
    struct executor *executor;
    struct communication communication;
    struct leaf_range range;
    struct tree_node nodes[TREE_NODES_MAX];
    void *workspace;
};

static double deadline(void *context)
{
    (void)context;
    return comm_ranks_patience();
}

/* With w->program. */
static int worker_prepare(struct worker *w, struct comm_rank *self, int64_t leaves,
                          bool in_compute_queue, struct fleet_error *err)
{
    struct comm *comm = self->comm;
    int rc;

    w->self = self;
    if ((rc = memory_plan_build(&w->program, NULL, 0, &w->memory, err)) < 0 ||
        (rc = backend_cpu_new(FLEET_ISA_PLAIN, 1, &w->backend, err)) < 0 ||
        (rc = state_init(&w->state, &w->program, &w->memory, w->backend, err)) < 0 ||
        (rc = executor_new(&w->program, &w->memory, w->backend, &w->executor, err)) < 0)
        return rc;
    leaf_range_init(&w->range, leaves, comm->world, comm->rank);
    if ((rc = state_reserve_slots(&w->state, w->range.slots, err)) < 0)
        return rc;
    w->communication =
        (struct communication){.world = comm,
                               .in_compute_queue = in_compute_queue,
                               .deadline_ms = deadline,
                               .slots = w->state.slots,
                               .nodes = tree_nodes(leaves, w->range.first, w->range.end, w->nodes),
                               .leaves = leaves,
                               .folds = w->range.instructions + w->range.folds_first,
                               .fold_count = w->range.count - w->range.folds_first,
                               .averaged = (double)leaves};
    w->communication.groups[OP_GROUP_DATA] = w->communication.groups[OP_GROUP_REPLICAS] = comm;
    w->workspace = malloc(communication_workspace(&w->communication, &w->program) + 1);
    w->communication.workspace = w->workspace;
    w->state.bases.segment[MEMORY_GRADIENTS] = w->state.slots[0];
    return executor_bind(w->executor, &w->communication, err);
}

static int worker_open(struct worker *w, struct comm_rank *self, const char *text, int64_t leaves,
                       bool in_compute_queue, struct fleet_error *err)
{
    int rc;

    memset(w, 0, sizeof(*w));
    if ((rc = print_parse(text, strlen(text), &w->program, err)) < 0 ||
        (rc = verify_program(&w->program, VERIFY_FORWARD, err)) < 0)
        return rc;
    return worker_prepare(w, self, leaves, in_compute_queue, err);
}

static void worker_close(struct worker *w)
{
    executor_free(w->executor);
    state_release(&w->state);
    backend_free(w->backend);
    leaf_range_release(&w->range);
    memory_plan_release(&w->memory);
    program_release(&w->program);
    free(w->workspace);
}

static float *values_of(struct worker *w, const char *name)
{
    return state_address(&w->state, program_find_var(&w->program, name));
}

static int expect(struct worker *w, const char *name, int64_t i, double wanted,
                  struct fleet_error *err)
{
    double found = (double)values_of(w, name)[i];

    return found == wanted ? 0
                           : fleet_error(err, -EBADMSG, "%s[%" PRId64 "] is %g, expected %g", name,
                                         i, found, wanted);
}

/* Run a section; the communicator sends what the operators say. */
static int run(struct worker *w, enum program_section section, struct fleet_error *err)
{
    struct runtime_place place = {
        .ranks = w->self->all->world, .place = w->self->rank, .leaves = w->range.leaves};
    uint64_t before = w->self->comm->bytes_sent;
    int rc = executor_run(w->executor, section, &w->state.bases, &scalars, &never, err);
    double planned = 0, sent = (double)(w->self->comm->bytes_sent - before);

    for (int i = 0; i < w->program.op_count; i++)
        if (w->program.ops[i].section == section &&
            op_definition(w->program.ops[i].kind)->is_communication)
            planned += runtime_sent(&w->program, &w->program.ops[i], &place);
    if (rc == 0 && sent != planned)
        rc = fleet_error(err, -EBADMSG, "sent %.0f bytes, planned %.0f", sent, planned);
    return rc;
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

static void run_on(int world, int (*body)(struct comm_rank *, struct fleet_error *),
                   const void *argument)
{
    struct comm_ranks c;

    comm_ranks_init(&c, world);
    c.argument = argument;
    comm_ranks_run(&c, body);
    comm_ranks_release(&c);
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
        rc = executor_run(w.executor, PROGRAM_SECTION_MICRO_BATCH, &w.state.bases, &mine, &never,
                          err);
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
        rc = executor_run(w.executor, PROGRAM_SECTION_MICRO_BATCH, &w.state.bases, &evaluation,
                          &never, err);
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

    w.communication.owned = share;
    w.communication.context = &w;
    for (int round = 0; round < 5 && rc == 0; round++) {
        p = w.state.bases.segment[MEMORY_PARAMETERS];
        s = w.state.bases.segment[MEMORY_STATE0];
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
        struct executor_bases bases = w->state.bases;

        if (in->kind == TREE_ADD) {
            w->backend->vtable->add(w->backend, w->state.slots[in->into], w->state.slots[in->slot],
                                    w->program.flat_count);
            continue;
        }
        for (int j = 0; j < 16; j++)
            values_of(w, "x")[j] = (float)(in->leaf + j);
        bases.segment[MEMORY_GRADIENTS] = w->state.slots[in->slot];
        if (i + 1 < w->range.folds_first)
            rc = executor_run(w->executor, PROGRAM_SECTION_MICRO_BATCH, &bases, &scalars, &never,
                              err);
        else
            rc = executor_run_last(w->executor, &bases, &w->state.bases, &scalars, &never, err);
    }
    if (rc < 0)
        return rc;
    return executor_run(w->executor, PROGRAM_SECTION_EXCHANGE, &w->state.bases, &scalars, &never,
                        err);
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
            if (w.state.slots[0][i] != wanted)
                rc = fleet_error(err, -EBADMSG, "element %d is %g, expected %g", i,
                                 (double)w.state.slots[0][i], (double)wanted);
        }
        executor_times(w.executor, &times);
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
    w.communication.deadline_ms = note_begin;
    w.communication.context = &w;
    if (rc == 0 && self->rank == 0) { /* a kernel that waits, on this rank's executor */
        vtable = *w.backend->vtable;
        true_kernel = vtable.kernel;
        vtable.kernel = waiting_kernel;
        w.backend->vtable = &vtable;
        executor_free(w.executor);
        rc = executor_new(&w.program, &w.memory, w.backend, &w.executor, err);
        rc = rc ? rc : executor_bind(w.executor, &w.communication, err);
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
    program_copy(&job->plan.program, &w.program);
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
        executor_cancel(w.executor); /* nothing is in flight any more */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_communication__every_collective_of_operands),
        cmocka_unit_test(test_communication__a_rank_without_a_micro_batch_gives_zeros),
        cmocka_unit_test(test_communication__an_evaluation_needs_no_other_rank),
        cmocka_unit_test(test_communication__a_message_to_the_next_rank),
        cmocka_unit_test(test_communication__refuses_a_message_to_nobody),
        cmocka_unit_test(test_communication__ranges_in_the_update_section),
        cmocka_unit_test(test_communication__sums_gradients_while_others_are_computed),
        cmocka_unit_test(test_communication__a_bucket_leaves_before_the_next_is_computed),
        cmocka_unit_test(test_communication__sends_the_bytes_of_the_plan),
        cmocka_unit_test(test_communication__a_lost_rank_ends_the_run),
        cmocka_unit_test(test_communication__memory_says_what_waits),
    };
    return cmocka_run_group_tests_name("communication", tests, NULL, NULL);
}

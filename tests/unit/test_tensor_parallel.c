/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Models whose tensors are divided over ranks, run by executors in threads of this process, beside
 * one rank that has all:
 *
 *   - a rank's initial parameters are its part of the whole ones, bit for bit
 *   - losses have the same bits on all ranks, and so have the gradients of tensors that are whole
 *   - loss, gradients and weights after some steps are those of one rank, except for rounding
 *   - on several replicas of such ranks the weights have the same bits as on one
 *   - the global norm has the same bits on all ranks, and so have weights that are whole
 *   - an infinite element on one rank is found by all
 *
 * The bound for rounding: a sum of n terms in another order differs by at most n·u of the sum of
 * magnitudes (Higham, "Accuracy and stability", 4.2). n is the longest sum here, the words, hidden
 * features or tokens, and each operator on the longest way passes the error of those before it on:
 * DEPTH of them, at most twice per layer and direction. Relative to the norm of each tensor. In 16
 * bits each of these operators rounds its result once more.
 */
#include <math.h>

#include "agent/runtime/backend/cpu/backend_level.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/program/models/model.h"
#include "libfleet/program/passes/pass.h"
#include "libfleet/program/print.h"
#include "libfleet/program/slice.h"
#include "libfleet/strategy/strategy.h"
#include "tests/unit/executor_rank.h"
#include "tests/unit/passes_fixture.h"
#include "tests/unit/tensor_parallel_fixture.h"
#include "tests/unit/tensor_parallel_jobs.h"

#define STEPS      3
#define LOSS_SCALE 1024.0f
#define LEAVES     2 /* micro-batches of an update */
#define RATE       0.5
#define DEPTH      64.0
#define LENGTH     256.0
#define BOUND      (DEPTH * LENGTH * 0x1p-24)
#define BOUND_16   (BOUND + DEPTH * 0x1p-9)

/* A rank with its program, its state and an executor. */
struct worker {
    struct executor_rank rank;
    struct comm *groups[2];    /* along the model and the data axis; NULL: this rank alone */
    int64_t first, end;        /* its micro-batches of an update */
    float *initial, *gradient; /* [flat_count], of the first step */
    float losses[STEPS][LEAVES], norms[STEPS];
    bool overflows; /* after the last step it makes an element of its gradient infinite */
    float found_inf;
};

/* Where a worker stands: the ranks that share tensors vary fastest. */
struct place {
    struct program_cell cell;
    int replicas, replica;
};

struct trial {
    struct training_config training;
    enum fleet_isa level;
    struct knobs knobs;
    int model_ranks;
    bool is_joined; /* at work on these workers */
    struct worker whole;
    struct worker parts[COMM_RANKS_MAX];   /* of one replica */
    struct worker doubled[COMM_RANKS_MAX]; /* of two */
    struct worker joined[COMM_RANKS_MAX];  /* of one replica that does not divide rows */
};

/* The groups of rank `rank` of `comm`: all ranks take part in making each. */
static int make_groups(struct worker *w, const struct place *place, struct comm *comm,
                       struct fleet_error *err)
{
    int ranks = place->cell.model_ranks, rc = 0;

    for (int replica = 0; replica < place->replicas && rc == 0; replica++) {
        int list[COMM_RANKS_MAX];
        struct comm *made = NULL;
        for (int m = 0; m < ranks; m++)
            list[m] = replica * ranks + m;
        rc = comm_group(comm, list, ranks, comm_ranks_patience(), &made, err);
        if (made)
            w->groups[0] = made;
    }
    for (int m = 0; m < ranks && rc == 0 && place->replicas > 1; m++) {
        int list[COMM_RANKS_MAX];
        struct comm *made = NULL;
        for (int replica = 0; replica < place->replicas; replica++)
            list[replica] = replica * ranks + m;
        rc = comm_group(comm, list, place->replicas, comm_ranks_patience(), &made, err);
        if (made)
            w->groups[1] = made;
    }
    return rc;
}

/* What makes the mean of the sum of LEAVES gradients. */
static double gradient_scale(const struct worker *w)
{
    return 1.0 / LEAVES / (w->rank.program.loss_scaling == PROGRAM_NONE ? 1.0 : (double)LOSS_SCALE);
}

static int worker_open(struct worker *w, const struct trial *trial, const struct place *place,
                       struct comm *comm, struct fleet_error *err)
{
    struct knobs knobs = trial->knobs;
    int rc;

    knobs.recompute &= comm != NULL;
    w->first = tree_first_leaf(LEAVES, place->replicas, place->replica);
    w->overflows = comm && place->cell.model_rank == place->cell.model_ranks - 1;
    w->end = tree_first_leaf(LEAVES, place->replicas, place->replica + 1);
    if ((rc = build_cell(&trial->training, knobs, place->cell, &w->rank.program, err)) < 0 ||
        (rc = executor_rank_open(&w->rank, trial->level, LEAVES, err)) < 0 ||
        (comm && (rc = make_groups(w, place, comm, err)) < 0))
        return rc;
    w->rank.communication.world = comm;
    w->rank.communication.groups[OP_GROUP_MODEL] = w->groups[0];
    w->rank.communication.groups[OP_GROUP_DATA] = w->groups[1];
    w->rank.communication.groups[OP_GROUP_REPLICAS] = w->groups[1];
    state_initialize(&w->rank.state, &(struct state_seeds){7, 7}, 1);
    executor_rank_scale_loss(&w->rank, LOSS_SCALE);
    return executor_rank_bind(&w->rank, LEAVES, w->first, w->end, err);
}

static void worker_close(struct worker *w)
{
    executor_rank_close(&w->rank);
    comm_free(w->groups[0]);
    comm_free(w->groups[1]);
    free(w->initial);
    free(w->gradient);
}

/* Tokens of a step: all words of the vocabulary, its first and last ones, too. */
static void fill(struct worker *w, const char *input, int step, int shift)
{
    int var = program_find_var(&w->rank.program, input);
    int32_t *ids = state_address(&w->rank.state, var);

    for (int64_t i = 0; i < program_var_elements(&w->rank.program.vars[var]); i++)
        ids[i] = (int32_t)((i * 11 + step * 5 + shift) % WORDS);
}

static float *copy_of(const struct worker *w, const void *from)
{
    size_t bytes = (size_t)w->rank.program.flat_count * sizeof(float);
    float *copy = malloc(bytes);

    fleet_assert(copy != NULL);
    memcpy(copy, from, bytes);
    return copy;
}

/* Its micro-batches of a step, each into a slot, then their sum into the first slot. */
static int run_leaves(struct worker *w, int step, struct fleet_error *err)
{
    int rc = 0;

    for (int64_t leaf = w->first; leaf < w->end && rc == 0; leaf++) {
        struct run_scalars scalars = {.seed = 7, .step = step, .first_sample = 2 * leaf};
        int number = LEAVES * step + (int)leaf;

        fill(w, "ids", number, 0);
        fill(w, "targets", number, 11);
        w->rank.state.bases.segment[MEMORY_GRADIENTS] = w->rank.state.slots[leaf - w->first];
        rc = executor_run(w->rank.executor, PROGRAM_SECTION_MICRO_BATCH, &w->rank.state.bases,
                          &scalars, &never, err);
        w->losses[step][leaf] = *(float *)state_address(&w->rank.state, w->rank.program.loss);
    }
    w->rank.state.bases.segment[MEMORY_GRADIENTS] = w->rank.state.slots[0];
    for (int64_t i = 0; i < w->rank.program.flat_count && w->end - w->first == LEAVES; i++)
        w->rank.state.slots[0][i] += w->rank.state.slots[1][i];
    return rc;
}

/* The last element of a result of the section check. */
static float result(const struct worker *w, const char *name)
{
    int var = program_find_var(&w->rank.program, name);
    const float *values = state_address(&w->rank.state, var);

    return values[program_var_elements(&w->rank.program.vars[var]) - 1];
}

/* The gradient of the last step again, with an infinite element in the part of one rank. */
static int check_overflow(struct worker *w, struct fleet_error *err)
{
    struct run_scalars scalars = {.gradient_scale = gradient_scale(w)};
    int var = 0, rc;

    while (w->overflows && w->rank.program.vars[var].slice.parts == 0)
        var++;
    if (w->overflows)
        w->rank.state.slots[0][w->rank.program.vars[var].flat_offset] = INFINITY;
    rc = executor_run(w->rank.executor, PROGRAM_SECTION_CHECK, &w->rank.state.bases, &scalars,
                      &never, err);
    w->found_inf = result(w, "found_inf");
    return rc;
}

static int train(struct worker *w, struct fleet_error *err)
{
    int rc = 0;

    w->initial = copy_of(w, w->rank.state.bases.segment[MEMORY_PARAMETERS]);
    for (int step = 0; step < STEPS && rc == 0; step++) {
        struct run_scalars scalars = {
            .gradient_scale = gradient_scale(w), .learning_rate = RATE, .update_1based = step + 1};

        rc = run_leaves(w, step, err);
        if (rc == 0 && w->groups[1])
            rc = executor_run(w->rank.executor, PROGRAM_SECTION_EXCHANGE, &w->rank.state.bases,
                              &scalars, &never, err);
        if (step == 0)
            w->gradient = copy_of(w, w->rank.state.slots[0]);
        for (int section = PROGRAM_SECTION_CHECK; section <= PROGRAM_SECTION_UPDATE; section++)
            if (rc == 0)
                rc = executor_run(w->rank.executor, (enum program_section)section,
                                  &w->rank.state.bases, &scalars, &never, err);
        w->norms[step] = result(w, "norms");
    }
    return rc < 0 ? rc : check_overflow(w, err);
}

static struct worker *workers_of(struct trial *trial, int replicas)
{
    return trial->is_joined ? trial->joined : replicas > 1 ? trial->doubled : trial->parts;
}

static int run_part(struct comm_rank *self, struct fleet_error *err)
{
    struct trial *trial = (struct trial *)(uintptr_t)self->all->argument;
    int ranks = trial->model_ranks;
    struct place place = {.cell = {.model_ranks = ranks, .model_rank = self->rank % ranks},
                          .replicas = self->all->world / ranks,
                          .replica = self->rank / ranks};
    struct worker *w = &workers_of(trial, place.replicas)[self->rank];
    int rc = worker_open(w, trial, &place, self->comm, err);

    return rc < 0 ? rc : train(w, err);
}

/* ---- comparisons ----------------------------------------------------------------------------- */

/* All elements of a rank's parameter are those of the whole one. */
static void expect_part(const struct trial *trial, int rank, int var)
{
    const struct worker *w = &trial->parts[rank];
    const struct program_var *mine = &w->rank.program.vars[var], *all;
    int whole = program_find_var(&trial->whole.rank.program, mine->name);
    int64_t run;

    assert_int_not_equal(whole, PROGRAM_NONE);
    all = &trial->whole.rank.program.vars[whole];
    for (int64_t i = 0; i < program_var_elements(mine); i++) {
        float ours = w->initial[mine->flat_offset + i];
        float theirs = trial->whole.initial[all->flat_offset + slice_place(mine, i, &run)];
        if (memcmp(&ours, &theirs, sizeof(ours)) != 0)
            fail_msg("%s[%ld] of rank %d is %g, in the whole tensor %g", mine->name, (long)i, rank,
                     (double)ours, (double)theirs);
    }
}

static double bound_of(const struct trial *trial)
{
    return training_precision(&trial->training, false) == TRAINING_FP32 ? BOUND : BOUND_16;
}

/* The part of a flat space of `w` that is `var`, beside the same of one rank. */
static void expect_near(const struct trial *trial, int rank, int var, const float *ours,
                        const float *theirs, const char *what)
{
    const struct worker *w = &trial->parts[rank];
    const struct program_var *mine = &w->rank.program.vars[var];
    int whole = program_find_var(&trial->whole.rank.program, mine->name);
    const struct program_var *all = &trial->whole.rank.program.vars[whole];
    double error = 0, norm = 0, bound = bound_of(trial);
    int64_t run;

    for (int64_t i = 0; i < program_var_elements(mine); i++) {
        double a = (double)ours[mine->flat_offset + i];
        double b = (double)theirs[all->flat_offset + slice_place(mine, i, &run)];
        error += (a - b) * (a - b);
        norm += b * b;
    }
    if (!(sqrt(error) <= bound * sqrt(norm) + 1e-12))
        fail_msg("%s of %s on rank %d differs by %g of %g", what, mine->name, rank, sqrt(error),
                 sqrt(norm));
}

static const float *parameters_of(const struct worker *w)
{
    return w->rank.state.bases.segment[MEMORY_PARAMETERS];
}

/* What all ranks have is the same everywhere. */
static void expect_alike(const struct trial *trial, int rank, int var)
{
    const struct worker *w = &trial->parts[rank], *first = &trial->parts[0];
    const struct program_var *mine = &w->rank.program.vars[var],
                             *other = &first->rank.program.vars[var];
    size_t bytes = program_var_bytes(mine);

    assert_string_equal(mine->name, other->name);
    if (mine->slice.parts == 0 &&
        memcmp(w->gradient + mine->flat_offset, first->gradient + other->flat_offset, bytes) != 0)
        fail_msg("the gradient of %s differs between rank %d and rank 0", mine->name, rank);
    if (mine->slice.parts == 0 && memcmp(parameters_of(w) + mine->flat_offset,
                                         parameters_of(first) + other->flat_offset, bytes) != 0)
        fail_msg("the trained %s differs between rank %d and rank 0", mine->name, rank);
}

/* Norms of whole tensors, and the flag, on each rank. */
static void compare_checks(const struct trial *trial, int rank)
{
    const struct worker *w = &trial->parts[rank];

    for (int step = 0; step < STEPS; step++) {
        double whole = (double)trial->whole.norms[step];
        assert_memory_equal(&w->norms[step], &trial->parts[0].norms[step], sizeof(float));
        assert_true(whole > 0);
        if (!(fabs((double)w->norms[step] - whole) <= bound_of(trial) * whole))
            fail_msg("step %d: the norm of rank %d is %g, of the whole gradient %g", step, rank,
                     (double)w->norms[step], whole);
    }
    assert_true(trial->whole.found_inf == 0.0f && w->found_inf == 1.0f);
}

static void compare(const struct trial *trial, int rank)
{
    const struct worker *w = &trial->parts[rank];
    int64_t elements = 0;

    compare_checks(trial, rank);

    for (int i = 0; i < STEPS * LEAVES; i++) {
        float ours = w->losses[i / LEAVES][i % LEAVES];
        float first = trial->parts[0].losses[i / LEAVES][i % LEAVES];
        double whole = (double)trial->whole.losses[i / LEAVES][i % LEAVES];
        if (memcmp(&ours, &first, sizeof(float)) != 0)
            fail_msg("micro-batch %d: the loss of rank %d is %.9g, of rank 0 %.9g", i, rank,
                     (double)ours, (double)first);
        assert_true(fabs((double)ours - whole) <= bound_of(trial) * whole);
    }
    for (int v = 0; v < w->rank.program.var_count; v++) {
        if (w->rank.program.vars[v].role != PROGRAM_ROLE_PARAMETER)
            continue;
        elements += program_var_elements(&w->rank.program.vars[v]);
        expect_part(trial, rank, v);
        expect_alike(trial, rank, v);
        expect_near(trial, rank, v, w->gradient, trial->whole.gradient, "the gradient");
        expect_near(trial, rank, v, w->rank.state.bases.segment[MEMORY_PARAMETERS],
                    trial->whole.rank.state.bases.segment[MEMORY_PARAMETERS], "the trained weight");
    }
    assert_true(elements < trial->whole.rank.program.flat_count);
}

/* On two replicas each rank has the bits that its place of the one replica has. */
static void compare_doubled(const struct trial *trial)
{
    for (int r = 0; r < 2 * trial->model_ranks; r++) {
        const struct worker *w = &trial->doubled[r], *one = &trial->parts[r % trial->model_ranks];
        size_t bytes = (size_t)w->rank.program.flat_count * sizeof(float);

        assert_int_equal(w->rank.program.flat_count, one->rank.program.flat_count);
        assert_memory_equal(w->gradient, one->gradient, bytes);
        assert_memory_equal(w->rank.state.bases.segment[MEMORY_PARAMETERS],
                            one->rank.state.bases.segment[MEMORY_PARAMETERS], bytes);
    }
}

/* All ranks of `replicas`; their state stays in the trial. */
static void run_parts(struct trial *trial, int replicas)
{
    struct worker *workers = workers_of(trial, replicas);
    struct comm_ranks ranks;

    comm_ranks_init(&ranks, replicas * trial->model_ranks);
    ranks.argument = trial;
    comm_ranks_run(&ranks, run_part);
    for (int r = 0; r < replicas * trial->model_ranks; r++) { /* groups go before their world */
        (void)executor_bind(workers[r].rank.executor, NULL, NULL);
        for (int g = 0; g < 2; g++) {
            comm_free(workers[r].groups[g]);
            workers[r].groups[g] = NULL;
        }
    }
    comm_ranks_release(&ranks);
}

/* Until the first update divided rows change no bit but those of sums over rows: the gradients of
 * norms and of biases that all ranks have. */
static void compare_joined(struct trial *trial)
{
    int same = 0, near = 0;

    trial->is_joined = true;
    trial->knobs.rows = false;
    run_parts(trial, 1);
    for (int r = 0; r < trial->model_ranks; r++) {
        const struct worker *w = &trial->parts[r], *joined = &trial->joined[r];

        assert_memory_equal(w->losses[0], joined->losses[0], sizeof(w->losses[0]));
        assert_int_equal(w->rank.program.flat_count, joined->rank.program.flat_count);
        for (int v = 0; v < w->rank.program.var_count; v++) {
            const struct program_var *var = &w->rank.program.vars[v];
            if (var->role != PROGRAM_ROLE_PARAMETER)
                continue;
            if (memcmp(w->gradient + var->flat_offset, joined->gradient + var->flat_offset,
                       program_var_bytes(var)) == 0)
                same++;
            else if (var->slice.parts == 0 && var->ndim == 1)
                near++;
            else
                fail_msg("rank %d: rows change the gradient of %s", r, var->name);
        }
        worker_close(&trial->joined[r]);
    }
    print_message("  %d gradients have the same bits, %d are sums over rows\n", same, near);
}

/* With recompute a rank's program has more operators. */
static void expect_recompute(const struct trial *trial)
{
    struct program_cell cell = {.model_ranks = trial->model_ranks};
    struct fleet_error err = {.text = ""};
    struct knobs knobs = trial->knobs;
    struct program plain;

    knobs.recompute = false;
    if (build_cell(&trial->training, knobs, cell, &plain, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(trial->parts[0].rank.program.op_count > plain.op_count,
                     trial->knobs.recompute);
    program_release(&plain);
}

static void test_tensor_parallel__trains_as_one_rank_does(void **state)
{
    static const struct place alone = {.replicas = 1};

    (void)state;
    for (size_t i = 0; i < sizeof(jobs) / sizeof(jobs[0]); i++) {
        struct trial *trial = calloc(1, sizeof(*trial));
        struct fleet_error err = {.text = ""};

        assert_non_null(trial);
        print_message("%s\n", jobs[i].name);
        decode(jobs[i].training, &trial->training);
        trial->level = i % 2 ? backend_level_detect() : FLEET_ISA_PLAIN;
        trial->knobs = jobs[i].knobs;
        trial->model_ranks = jobs[i].ranks;
        if (worker_open(&trial->whole, trial, &alone, NULL, &err) < 0 ||
            train(&trial->whole, &err) < 0)
            fail_msg("one rank: %s", err.text);
        run_parts(trial, 1);
        run_parts(trial, 2);
        for (int r = 0; r < jobs[i].ranks; r++)
            compare(trial, r);
        compare_doubled(trial);
        expect_recompute(trial);
        if (jobs[i].knobs.rows)
            compare_joined(trial);
        for (int r = 0; r < 2 * jobs[i].ranks; r++)
            worker_close(&trial->doubled[r]);
        for (int r = 0; r < jobs[i].ranks; r++)
            worker_close(&trial->parts[r]);
        worker_close(&trial->whole);
        training_config_release(&trial->training);
        free(trial);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensor_parallel__trains_as_one_rank_does),
    };
    return cmocka_run_group_tests_name("tensor_parallel", tests, NULL, NULL);
}

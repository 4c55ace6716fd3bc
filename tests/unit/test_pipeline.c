/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Models that are cut into the stages of a pipeline, run by executors in threads of this process,
 * beside one rank that has all layers. Losses, norms, gradients and weights after some steps have
 * the bits of one rank: with every schedule, with one and with two replicas, with tied embeddings,
 * uneven stages, dropout, recompute and 16-bit arithmetic. What ran is the printed schedule.
 */
#include <math.h>

#include "agent/runtime/backend/cpu/backend_level.h"
#include "agent/runtime/executor/schedule.h"
#include "tests/unit/executor_rank.h"
#include "tests/unit/pipeline_fixture.h"

#define WORDS      37
#define STEPS      2
#define LOSS_SCALE 1024.0f
#define RATE       0.1
#define LEAVES_MAX 16
#define COPIES_MAX 16

/* A rank with its program, its state and an executor. */
struct worker {
    const struct job_case *job;
    struct executor_rank rank;
    struct comm *groups[2]; /* along the pipeline and the data axis; NULL: this rank alone */
    struct tree_instruction *instructions;
    int64_t instruction_count, first, end; /* of its micro-batches */
    struct schedule *schedule;             /* NULL: one rank has all layers */
    struct executor_bases bases[COPIES_MAX];
    int copy_of[LEAVES_MAX], copies;
    int step;
    float *gradient; /* [flat_count], complete, of the first step */
    float losses[STEPS][LEAVES_MAX], norms[STEPS];
    bool is_as_printed;
    int fails_at; /* this micro-batch; -1: none */
};

struct place {
    int stage, replica;
};

struct trial {
    const struct job_case *job;
    struct training_config training;
    enum fleet_isa level;
    struct worker whole;
    struct worker ranks[COMM_RANKS_MAX];
    int lost_rank; /* that fails in the second micro-batch, or -1 */
};

/* ---- a rank ---------------------------------------------------------------------------------- */

/* The groups of this rank: all ranks take part in making each. */
static int make_groups(struct worker *w, struct comm *comm, struct fleet_error *err)
{
    int stages = w->job->shape.stages, replicas = w->job->replicas, rc = 0;

    for (int group = 0; group < replicas + stages && rc == 0; group++) {
        bool is_pipeline = group < replicas;
        int list[COMM_RANKS_MAX], count = is_pipeline ? stages : replicas;
        struct comm *made = NULL;

        for (int i = 0; i < count; i++)
            list[i] = is_pipeline ? group * stages + i : i * stages + group - replicas;
        if (count > 1)
            rc = comm_group(comm, list, count, comm_ranks_patience(), &made, err);
        if (made)
            w->groups[is_pipeline ? 0 : 1] = made;
    }
    return rc;
}

/* Each micro-batch in flight has a copy of these segments. */
static int make_copies(struct worker *w, struct fleet_error *err)
{
    static const enum memory_segment own[] = {MEMORY_ARENA, MEMORY_INPUTS, MEMORY_HOST};

    w->bases[0] = w->rank.state.bases;
    for (int copy = 1; copy < w->copies; copy++) {
        w->bases[copy] = w->rank.state.bases;
        for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
            if (!(w->bases[copy].segment[own[i]] = state_allocate(
                      &w->rank.state, own[i], w->rank.memory.bytes[own[i]] + 1, err)))
                return -ENOMEM;
    }
    return 0;
}

static int make_schedule(struct worker *w, int stage, struct fleet_error *err)
{
    struct pipeline_shape shape = w->job->shape;
    struct schedule_tree tree = {.instructions = w->instructions,
                                 .count = w->instruction_count,
                                 .folds_first = w->instruction_count,
                                 .slots = w->rank.state.slots,
                                 .backend = w->rank.backend};

    shape.micro_batches = (int)(w->end - w->first);
    w->copies = pipeline_copies(&shape, stage, w->copy_of);
    w->schedule = schedule_new(&shape, stage, &w->rank.program, &tree);
    return make_copies(w, err);
}

static int worker_open(struct worker *w, const struct trial *trial, const struct place *place,
                       struct comm *comm, struct fleet_error *err)
{
    const struct job_case *job = trial->job;
    int replicas = comm ? job->replicas : 1, slots, rc;

    w->job = job;
    w->fails_at = -1;
    w->first = tree_first_leaf(job->leaves, replicas, place->replica);
    w->end = tree_first_leaf(job->leaves, replicas, place->replica + 1);
    w->instruction_count = tree_schedule(job->leaves, w->first, w->end, &w->instructions, &slots);
    if ((rc = build_stage(&trial->training, job,
                          comm ? cell_of(job, place->stage) : (struct program_cell){0},
                          &w->rank.program, err)) < 0 ||
        (rc = executor_rank_open(&w->rank, trial->level, slots, err)) < 0 ||
        (comm && (rc = make_groups(w, comm, err)) < 0) ||
        (comm && (rc = make_schedule(w, place->stage, err)) < 0))
        return rc;
    w->rank.communication.world = comm;
    w->rank.communication.groups[OP_GROUP_PIPELINE] = w->groups[0];
    w->rank.communication.groups[OP_GROUP_DATA] = w->groups[1];
    w->rank.communication.groups[OP_GROUP_REPLICAS] = w->groups[1];
    state_initialize(&w->rank.state, &(struct state_seeds){7, 7}, 1);
    executor_rank_scale_loss(&w->rank, LOSS_SCALE);
    return executor_rank_bind(&w->rank, job->leaves, w->first, w->end, err);
}

static void worker_close(struct worker *w)
{
    static const enum memory_segment own[] = {MEMORY_ARENA, MEMORY_INPUTS, MEMORY_HOST};

    for (int copy = 1; copy < w->copies; copy++)
        for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
            state_deallocate(&w->rank.state, own[i], w->bases[copy].segment[own[i]]);
    schedule_free(w->schedule);
    executor_rank_close(&w->rank);
    free(w->instructions);
    free(w->gradient);
}

/* ---- a step ---------------------------------------------------------------------------------- */

static void fill(const struct worker *w, const struct executor_bases *bases, const char *input,
                 int number, int shift)
{
    int var = program_find_var(&w->rank.program, input);
    int32_t *ids =
        (int32_t *)((char *)bases->segment[MEMORY_INPUTS] + w->rank.memory.places[var].offset);

    for (int64_t i = 0; i < program_var_elements(&w->rank.program.vars[var]); i++)
        ids[i] = (int32_t)((i * 11 + number * 5 + shift) % WORDS);
}

static void fill_both(const struct worker *w, const struct executor_bases *bases, int64_t leaf)
{
    int number = w->job->leaves * w->step + (int)leaf;

    fill(w, bases, "ids", number, 0);
    fill(w, bases, "targets", number, 11);
}

static struct run_scalars scalars_of(const struct worker *w, int64_t leaf)
{
    return (struct run_scalars){.seed = 7, .step = w->step, .first_sample = 2 * leaf};
}

static int begin(void *context, const struct pipeline_step *step, struct fleet_error *err)
{
    struct worker *w = context;

    (void)err;
    fill_both(w, &w->bases[w->copy_of[step->micro_batch]],
              schedule_leaf(w->schedule, step->micro_batch));
    return 0;
}

static int end(void *context, const struct pipeline_step *step, struct fleet_error *err)
{
    struct worker *w = context;

    if (step->micro_batch == w->fails_at) {
        comm_abort(w->rank.communication.world);
        return fleet_error(err, -EIO, "the stage is lost");
    }
    if (step->pass == PIPELINE_FORWARD && step->chunk == w->job->shape.chunks - 1)
        w->losses[w->step][schedule_leaf(w->schedule, step->micro_batch)] =
            *(float *)state_address(&w->rank.state, w->rank.program.loss);
    return 0;
}

static void use(void *context, const struct pipeline_step *step, struct executor_bases *out_bases,
                struct run_scalars *out_scalars)
{
    struct worker *w = context;

    *out_bases = w->bases[w->copy_of[step->micro_batch]];
    *out_scalars = scalars_of(w, schedule_leaf(w->schedule, step->micro_batch));
}

static const struct schedule_owner owner = {.begin = begin, .end = end, .use = use};

static bool ran_as_printed(const struct worker *w, int stage)
{
    struct pipeline_shape shape = w->job->shape;
    struct pipeline_step steps[3 * 2 * LEAVES_MAX];
    const struct pipeline_step *trace;
    size_t count, traced;

    shape.micro_batches = (int)(w->end - w->first);
    count = pipeline_step_count(&shape);
    trace = schedule_trace(w->schedule, &traced);
    pipeline_steps(&shape, stage, steps);
    for (size_t i = 0; i < count && traced == count; i++)
        if (trace[i].pass != steps[i].pass || trace[i].chunk != steps[i].chunk ||
            trace[i].micro_batch != steps[i].micro_batch)
            return false;
    return traced == count;
}

/* One rank: its micro-batches one after the other. */
static int run_leaves(struct worker *w, struct fleet_error *err)
{
    int rc = 0;

    for (int64_t i = 0; i < w->instruction_count && rc == 0; i++) {
        const struct tree_instruction *in = &w->instructions[i];
        struct run_scalars scalars = scalars_of(w, in->leaf);
        struct executor_bases bases = w->rank.state.bases;

        if (in->kind == TREE_ADD) {
            w->rank.backend->vtable->add(w->rank.backend, w->rank.state.slots[in->into],
                                         w->rank.state.slots[in->slot], w->rank.program.flat_count);
            continue;
        }
        fill_both(w, &bases, in->leaf);
        bases.segment[MEMORY_GRADIENTS] = w->rank.state.slots[in->slot];
        rc = executor_run(w->rank.executor, PROGRAM_SECTION_MICRO_BATCH, &bases, &scalars, &never,
                          err);
        w->losses[w->step][in->leaf] =
            *(float *)state_address(&w->rank.state, w->rank.program.loss);
    }
    return rc;
}

static float norm_of(const struct worker *w)
{
    int var = program_find_var(&w->rank.program, "norms");
    const float *values = state_address(&w->rank.state, var);

    return values[program_var_elements(&w->rank.program.vars[var]) - 1];
}

static int train(struct worker *w, int stage, struct fleet_error *err)
{
    struct schedule_owner own = owner;
    int rc = 0;

    own.context = w;
    w->is_as_printed = true;
    for (w->step = 0; w->step < STEPS && rc == 0; w->step++) {
        double scale = w->rank.program.loss_scaling == PROGRAM_NONE ? 1 : (double)LOSS_SCALE;
        struct run_scalars scalars = {.gradient_scale = 1.0 / w->job->leaves / scale,
                                      .learning_rate = RATE,
                                      .update_1based = w->step + 1};

        rc = w->schedule ? schedule_run(w->schedule, w->rank.executor, &own, &never, err)
                         : run_leaves(w, err);
        w->is_as_printed &= rc == 0 && (!w->schedule || ran_as_printed(w, stage));
        w->rank.state.bases.segment[MEMORY_GRADIENTS] = w->rank.state.slots[0];
        for (int section = PROGRAM_SECTION_EXCHANGE; section <= PROGRAM_SECTION_UPDATE; section++) {
            if (rc == 0)
                rc = executor_run(w->rank.executor, (enum program_section)section,
                                  &w->rank.state.bases, &scalars, &never, err);
            if (section == PROGRAM_SECTION_CHECK && w->step == 0 && rc == 0) {
                size_t bytes = (size_t)w->rank.program.flat_count * sizeof(float);
                w->gradient = malloc(bytes);
                fleet_assert(w->gradient);
                memcpy(w->gradient, w->rank.state.slots[0], bytes);
            }
        }
        if (rc == 0)
            w->norms[w->step] = norm_of(w);
    }
    return rc;
}

static int run_rank(struct comm_rank *self, struct fleet_error *err)
{
    struct trial *trial = (struct trial *)(uintptr_t)self->all->argument;
    int stages = trial->job->shape.stages;
    struct place place = {.stage = self->rank % stages, .replica = self->rank / stages};
    int rc = worker_open(&trial->ranks[self->rank], trial, &place, self->comm, err);

    if (self->rank == trial->lost_rank)
        trial->ranks[self->rank].fails_at = 1;
    return rc < 0 ? rc : train(&trial->ranks[self->rank], place.stage, err);
}

/* ---- comparisons ----------------------------------------------------------------------------- */

static void expect_equal(const struct trial *trial, const struct worker *w, int var,
                         const float *ours, const float *theirs, const char *what)
{
    const struct program *all = &trial->whole.rank.program;
    const struct program_var *mine = &w->rank.program.vars[var];
    int whole = program_find_var(all, mine->name);

    assert_int_not_equal(whole, PROGRAM_NONE);
    for (int64_t i = 0; i < program_var_elements(mine); i++) {
        float a = ours[mine->flat_offset + i], b = theirs[all->vars[whole].flat_offset + i];
        if (memcmp(&a, &b, sizeof(a)) != 0)
            fail_msg("%s: %s[%ld] of rank %d is %.9g, of one rank %.9g", what, mine->name, (long)i,
                     (int)(w - trial->ranks), (double)a, (double)b);
    }
}

/* Returns the elements that this rank alone has, or has first. */
static int64_t compare(const struct trial *trial, const struct worker *w, bool is_last)
{
    int64_t elements = 0;

    assert_true(w->is_as_printed);
    for (int step = 0; step < STEPS && is_last; step++)
        assert_memory_equal(&w->losses[step][w->first], &trial->whole.losses[step][w->first],
                            (size_t)(w->end - w->first) * sizeof(float));
    for (int v = 0; v < w->rank.program.var_count; v++) {
        if (w->rank.program.vars[v].role != PROGRAM_ROLE_PARAMETER)
            continue;
        if (!w->rank.program.vars[v].is_copy)
            elements += program_var_elements(&w->rank.program.vars[v]);
        expect_equal(trial, w, v, w->gradient, trial->whole.gradient, "gradient");
        expect_equal(trial, w, v, w->rank.state.bases.segment[MEMORY_PARAMETERS],
                     trial->whole.rank.state.bases.segment[MEMORY_PARAMETERS], "weight");
    }
    assert_true(w->norms[0] > 0);
    assert_memory_equal(w->norms, trial->whole.norms, sizeof(w->norms));
    return elements;
}

static int64_t whole_elements(const struct program *program)
{
    int64_t elements = 0;

    for (int v = 0; v < program->var_count; v++)
        if (program->vars[v].role == PROGRAM_ROLE_PARAMETER)
            elements += program_var_elements(&program->vars[v]);
    return elements;
}

/* All ranks end well, or, if one is lost, all with an error. */
static void run_ranks(struct trial *trial)
{
    struct comm_ranks ranks;
    int count = trial->job->replicas * trial->job->shape.stages;

    comm_ranks_init(&ranks, count);
    ranks.argument = trial;
    comm_ranks_start(&ranks, run_rank);
    comm_ranks_join(&ranks);
    for (int r = 0; r < count; r++)
        if ((ranks.ranks[r].rc < 0) != (trial->lost_rank >= 0))
            fail_msg("%s", ranks.ranks[r].text);
    for (int r = 0; r < count; r++) { /* groups go before their world */
        (void)executor_bind(trial->ranks[r].rank.executor, NULL, NULL);
        comm_free(trial->ranks[r].groups[0]);
        comm_free(trial->ranks[r].groups[1]);
    }
    comm_ranks_release(&ranks);
}

static void test_pipeline__trains_as_one_rank_does(void **state)
{
    static const struct place alone;

    (void)state;
    for (size_t i = 0; i < sizeof(jobs) / sizeof(jobs[0]); i++) {
        struct trial *trial = calloc(1, sizeof(*trial));
        struct fleet_error err = {.text = ""};
        int stages = jobs[i].shape.stages, count = stages * jobs[i].replicas;
        int64_t elements = 0;

        assert_non_null(trial);
        print_message("%s\n", jobs[i].name);
        trial->job = &jobs[i];
        trial->lost_rank = -1;
        decode(jobs[i].training, &trial->training);
        trial->level = i % 2 ? backend_level_detect() : FLEET_ISA_PLAIN;
        if (worker_open(&trial->whole, trial, &alone, NULL, &err) < 0 ||
            train(&trial->whole, 0, &err) < 0)
            fail_msg("one rank: %s", err.text);
        run_ranks(trial);
        for (int r = 0; r < count; r++)
            elements += compare(trial, &trial->ranks[r], r % stages == stages - 1);
        assert_int_equal(elements, jobs[i].replicas * whole_elements(&trial->whole.rank.program));
        for (int r = 0; r < count; r++)
            worker_close(&trial->ranks[r]);
        worker_close(&trial->whole);
        training_config_release(&trial->training);
        free(trial);
    }
}

/* No stage waits for one that is gone. */
static void test_pipeline__a_lost_stage_ends_all(void **state)
{
    (void)state;
    for (int lost = 0; lost < 3; lost++) {
        struct trial *trial = calloc(1, sizeof(*trial));

        assert_non_null(trial);
        trial->job = &jobs[1 + lost]; /* F-then-B, interleaved, interleaved */
        trial->lost_rank = lost;
        trial->level = FLEET_ISA_PLAIN;
        decode(trial->job->training, &trial->training);
        run_ranks(trial);
        for (int r = 0; r < trial->job->shape.stages; r++)
            worker_close(&trial->ranks[r]);
        training_config_release(&trial->training);
        free(trial);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pipeline__trains_as_one_rank_does),
        cmocka_unit_test(test_pipeline__a_lost_stage_ends_all),
    };
    return cmocka_run_group_tests_name("pipeline", tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A trainer of one's own with fleet.h: it fits y = 3 x + 1 by gradient descent. Each rank has a
 * part of the points; the gradients are added over the ranks. If a worker is lost, the others keep
 * their memory and wait for the next generation. The worker that replaces it gets the state of one
 * that was left, so no step is lost. Rank 0 writes a checkpoint every ten steps, for the case that
 * all workers are lost.
 *
 *     cc own-trainer.c $(pkg-config --cflags --libs fleet) -o own-trainer
 *
 * CHECKPOINTS is a folder that all workers can write to.
 */
#include <fleet/fleet_job.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define STEPS  200
#define POINTS 64
#define RATE   0.5

struct model {
    double slope, shift;
};

static int failed(const struct fleet_error *err)
{
    (void)fprintf(stderr, "%s\n", err->text);
    return 1; /* the agent starts this rank again */
}

/* Join the next generation, and get the newest state of its ranks, or the checkpoint. */
static int join(struct model *model, int64_t *step, struct fleet_error *err)
{
    const struct fleet_state_entry state[] = {{"slope", {&model->slope, FLEET_FP64, 0, {0}}},
                                              {"shift", {&model->shift, FLEET_FP64, 0, {0}}}};
    int rc;

    do { /* a rank may be lost while they exchange the state */
        rc = fleet_wait_generation(err);
        if (rc < 0)
            return rc;
        rc = fleet_resume(state, 2, step, err);
    } while (rc == FLEET_RANK_LOST || rc == FLEET_GENERATION_ENDED);
    if (rc == 0)
        printf("rank %d of %d goes on from step %" PRId64 "\n", fleet_rank(NULL),
               fleet_world_size(NULL), *step);
    (void)fflush(stdout);
    return rc;
}

/* One step over this rank's points: sums of both gradients and of the loss. */
static void gradients(const struct model *model, double sums[3])
{
    sums[0] = sums[1] = sums[2] = 0;
    for (int i = fleet_rank(NULL); i < POINTS; i += fleet_world_size(NULL)) {
        double x = (double)i / POINTS, error = model->slope * x + model->shift - (3 * x + 1);
        sums[0] += error * x / POINTS;
        sums[1] += error / POINTS;
        sums[2] += error * error / POINTS;
    }
}

/* A checkpoint that cannot be written is no reason to end: the one before stays. */
static void save(struct model *model, int64_t step)
{
    const struct fleet_state_entry state[] = {{"slope", {&model->slope, FLEET_FP64, 0, {0}}},
                                              {"shift", {&model->shift, FLEET_FP64, 0, {0}}}};
    const char *folder = getenv("CHECKPOINTS");
    struct fleet_error err;

    if (fleet_checkpoint_save(folder ? folder : ".", step, state, 2, &err) < 0)
        (void)fprintf(stderr, "%s\n", err.text);
}

int main(void)
{
    struct fleet_error err;
    struct model model = {0, 0};
    double sums[3];
    struct fleet_tensor all = {sums, FLEET_FP64, 1, {3}};
    int64_t step = 0;

    if (join(&model, &step, &err) < 0)
        return failed(&err);
    while (step < STEPS) {
        int rc;

        gradients(&model, sums);
        rc = fleet_all_reduce(&all, FLEET_SUM, NULL, NULL, &err);
        if (rc == FLEET_RANK_LOST || rc == FLEET_GENERATION_ENDED) {
            (void)fprintf(stderr, "%s\n", err.text);
            rc = join(&model, &step, &err);
            if (rc == 0)
                continue; /* this step again, perhaps with another number of ranks */
        }
        if (rc < 0)
            return failed(&err);
        model.slope -= RATE * sums[0];
        model.shift -= RATE * sums[1];
        step++;
        (void)fleet_report(step, STEPS, sums[2], &err);
        if (step % 10 == 0)
            save(&model, step);
        (void)nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL); /* to be watched */
    }
    printf("rank %d of %d: y = %.3f x + %.3f\n", fleet_rank(NULL), fleet_world_size(NULL),
           model.slope, model.shift);
    fleet_env_release();
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A trainer of one's own with fleet.h: it fits y = 3 x + 1 by gradient descent. Each rank has a
 * part of the points; the gradients are added over the ranks. Rank 0 writes a checkpoint every ten
 * steps and reports it, so the ranks go on from there after a worker was lost.
 *
 *     cc own-trainer.c $(pkg-config --cflags --libs fleet) -o own-trainer
 *
 * CHECKPOINTS is a folder that all workers can write to.
 */
#include <fleet/fleet.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define STEPS  200
#define POINTS 64
#define RATE   0.5

struct state {
    int step;
    double slope, shift;
};

static int failed(const struct fleet_error *err)
{
    (void)fprintf(stderr, "%s\n", err->text);
    return 1; /* the agent starts all ranks again */
}

static void report(const char *line)
{
    const char *path = getenv("FLEET_PROGRESS_FILE");
    FILE *file = path ? fopen(path, "w") : NULL;

    if (file) {
        (void)fprintf(file, "%s\n", line);
        (void)fclose(file);
    }
}

/* Rank 0 reads the checkpoint, if there is one; the others get its state. */
static int resume(struct state *state, struct fleet_error *err)
{
    const char *path = getenv("FLEET_RESUME_PATH");
    struct fleet_tensor bytes = {state, FLEET_UINT8, 1, {sizeof(*state)}};
    FILE *file;

    if (fleet_rank(NULL) == 0 && path && path[0] && (file = fopen(path, "rb")) != NULL) {
        if (fread(state, sizeof(*state), 1, file) != 1)
            *state = (struct state){0};
        (void)fclose(file);
    }
    return fleet_broadcast(&bytes, 0, NULL, NULL, err);
}

/* The file is complete before it has its name, and has its name before it is reported. */
static void save(const struct state *state, double loss)
{
    char path[512], part[520], line[640];
    const char *folder = getenv("CHECKPOINTS");
    FILE *file;

    (void)snprintf(path, sizeof(path), "%s/step-%d", folder ? folder : ".", state->step);
    (void)snprintf(part, sizeof(part), "%s.part", path);
    file = fopen(part, "wb");
    if (!file)
        return;
    if (fwrite(state, sizeof(*state), 1, file) == 1 && fclose(file) == 0 &&
        rename(part, path) == 0) {
        (void)snprintf(line, sizeof(line),
                       "{\"step\": %d, \"steps\": %d, \"loss\": %.9g, \"checkpoint\": %d, "
                       "\"path\": \"%s\"}",
                       state->step, STEPS, loss, state->step, path);
        report(line);
    }
}

/* One step over this rank's points: sums of both gradients and of the loss. */
static void gradients(const struct state *state, double sums[3])
{
    sums[0] = sums[1] = sums[2] = 0;
    for (int i = fleet_rank(NULL); i < POINTS; i += fleet_world_size(NULL)) {
        double x = (double)i / POINTS, error = state->slope * x + state->shift - (3 * x + 1);
        sums[0] += error * x / POINTS;
        sums[1] += error / POINTS;
        sums[2] += error * error / POINTS;
    }
}

int main(void)
{
    struct fleet_error err;
    struct state state = {0};
    double sums[3];
    struct fleet_tensor all = {sums, FLEET_FP64, 1, {3}};
    char line[64];

    if (fleet_env_init(&err) < 0 || resume(&state, &err) < 0)
        return failed(&err);
    (void)snprintf(line, sizeof(line), "{\"resumed\": %d}", state.step);
    if (fleet_rank(NULL) == 0)
        report(line);
    while (state.step < STEPS) {
        gradients(&state, sums);
        if (fleet_all_reduce(&all, FLEET_SUM, NULL, NULL, &err) < 0)
            return failed(&err);
        state.slope -= RATE * sums[0];
        state.shift -= RATE * sums[1];
        state.step++;
        if (fleet_rank(NULL) == 0 && state.step % 10 == 0)
            save(&state, sums[2]);
        (void)nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL); /* to be watched */
    }
    printf("rank %d of %d: y = %.3f x + %.3f\n", fleet_rank(NULL), fleet_world_size(NULL),
           state.slope, state.shift);
    fleet_env_release();
    return 0;
}

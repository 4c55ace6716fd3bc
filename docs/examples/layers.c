/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Layers, models and optimizers over two ranks with fleet.h: a part that is computed again in the
 * backward pass, a linear layer whose weight is divided, a parameter on a mesh with an optimizer of
 * its own, and the model and optimizer of a strategy. The program forks its two ranks itself.
 *
 *     cc layers.c $(pkg-config --cflags --libs fleet) -o layers && ./layers
 */
#include <fleet/fleet_mesh.h>
#include <fleet/fleet_recompute.h>
#include <fleet/fleet_spawn.h>
#include <fleet/fleet_strategy.h>
#include <stdio.h>
#include <stdlib.h>

#define RANKS 2

static struct fleet_error err;

static void need(int rc)
{
    if (rc >= 0)
        return;
    (void)fprintf(stderr, "rank %d: %s\n", fleet_rank(NULL), err.text);
    exit(1);
}

static void expect(const char *what, float found, float wanted)
{
    if (found == wanted)
        return;
    (void)fprintf(stderr, "%s: %g, expected %g\n", what, found, wanted);
    exit(1);
}

static void sgd(void *rate, const struct fleet_update *u)
{
    for (int64_t i = 0; i < u->count; i++)
        u->value[i] -= *(const float *)rate * u->gradient[i];
}

static float rate = 0.5F;
static const struct fleet_optimizer optimizer = {sgd, &rate, 0};

/* y = x²: its gradient needs x, which the part keeps when it runs for the second time. */
static float kept;

static int square(void *context, const struct fleet_tensor *in, const struct fleet_tensor *out,
                  bool keep, struct fleet_error *e)
{
    float x = *(const float *)in[0].data;

    (void)context, (void)e;
    if (keep)
        kept = x;
    *(float *)out[0].data = x * x;
    return 0;
}

static int square_back(void *context, const struct fleet_tensor *dy, const struct fleet_tensor *dx,
                       struct fleet_error *e)
{
    (void)context, (void)e;
    *(float *)dx[0].data = 2 * kept * *(const float *)dy[0].data;
    return 0;
}

static void recompute(void)
{
    const struct fleet_recompute_part part = {.forward = square, .backward = square_back};
    float x = 3, y, dx, dy = 1;
    const struct fleet_tensor in = {&x, FLEET_FP32, 0, {0}}, out = {&y, FLEET_FP32, 0, {0}},
                              d_in = {&dx, FLEET_FP32, 0, {0}}, d_out = {&dy, FLEET_FP32, 0, {0}};
    struct fleet_recompute *again;

    need(fleet_recompute_forward(&part, &in, 1, &out, 1, &again, &err));
    need(fleet_recompute_backward(again, &d_out, &d_in, &err));
    fleet_recompute_free(again);
    expect("gradient of x²", dx, 6);
}

/* Each rank has one of the two columns; both get the whole output. */
static void split(void)
{
    float weight[] = {1, 2, 3, 4}, x[] = {1, 1}, y[2];
    const struct fleet_tensor w = {weight, FLEET_FP32, 2, {2, 2}};
    const struct fleet_tensor in = {x, FLEET_FP32, 2, {1, 2}}, out = {y, FLEET_FP32, 2, {1, 2}};
    const struct fleet_split_options options = {.kind = FLEET_SPLIT_LINEAR,
                                                .rows = 2,
                                                .columns = 2,
                                                .axis = 1,
                                                .partitions = RANKS,
                                                .gather_out = true};
    struct fleet_split *layer;

    need(fleet_split_new(&options, &w, NULL, NULL, &layer, &err));
    need(fleet_split_forward(layer, &in, &out, &err));
    fleet_split_free(layer);
    expect("second output of the divided layer", y[1], 6);
}

/* A parameter is replicated on a mesh; its gradient is partial, the optimizer's state divided. */
static void on_a_mesh(void)
{
    const int64_t shape[] = {RANKS}, ids[] = {0, 1};
    const struct fleet_placement partial = {FLEET_PARTIAL, 0, FLEET_AVG};
    const struct fleet_shard_stage stage = {.stage = 1};
    float value[] = {1, 2}, part[] = {(float)fleet_rank(NULL), 2};
    struct fleet_param param = {"weight", {value, FLEET_FP32, 1, {2}}, NULL};
    struct fleet_sharded_optimizer *sharded;
    const struct fleet_dtensor *gradients[1];
    struct fleet_dtensor *gradient;
    struct fleet_mesh *mesh;

    need(fleet_mesh_new(1, shape, ids, NULL, &mesh, &err));
    need(fleet_model_shard(&param, 1, mesh, NULL, NULL, &err));
    need(fleet_dtensor_from_local(part, &param.value, mesh, &partial, 1, &gradient, &err));
    need(fleet_optimizer_shard(&param, 1, &optimizer, &stage, &sharded, &err));
    gradients[0] = gradient;
    need(fleet_optimizer_shard_step(sharded, gradients, NULL, &err));
    expect("parameter on a mesh", ((float *)fleet_dtensor_local(param.sharded)->data)[0], 0.75F);
    fleet_optimizer_shard_free(sharded);
    fleet_dtensor_free(gradient);
    fleet_dtensor_free(param.sharded);
    fleet_mesh_free(mesh);
}

/* The strategy merges the gradients of two steps. */
static void by_a_strategy(void)
{
    float value[] = {1}, gradient[] = {0};
    const struct fleet_ddp_tensor tensor = {
        "w", {value, FLEET_FP32, 1, {1}}, gradient, FLEET_DDP_DENSE};
    struct fleet_strategy *strategy;
    struct fleet_group_sharded *merged;
    struct fleet_ddp *model;

    need(fleet_strategy_from_groups("{\"gradient_merge\": {\"enable\": true, \"k_steps\": 2}}",
                                    &strategy, &err));
    need(fleet_init(NULL, true, strategy, &err));
    need(fleet_distributed_model(&tensor, 1, &model, &err));
    fleet_ddp_free(model); /* the optimizer below exchanges the gradients itself */
    need(fleet_distributed_optimizer(&tensor, 1, &optimizer, NULL, &merged, &err));
    for (int i = 0; i < 2; i++) {
        gradient[0] = (float)fleet_rank(NULL);
        need(fleet_group_shard_step(merged, NULL, NULL, &err));
    }
    expect("value after two merged steps", value[0], 0.75F);
    fleet_group_shard_free(merged);
    fleet_strategy_free(strategy);
    fleet_release();
}

static int train(void *argument)
{
    (void)argument;
    need(fleet_env_init(&err));
    recompute();
    split();
    on_a_mesh();
    by_a_strategy();
    printf("rank %d has done all of it\n", fleet_rank(NULL));
    return 0;
}

int main(void)
{
    const struct fleet_spawn_options options = {.processes = RANKS};

    need(fleet_spawn(train, NULL, &options, &err));
    return 0;
}

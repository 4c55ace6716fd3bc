/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/step/leaf.h"

#include <inttypes.h>

#include "agent/runtime/trainer.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"

/* The number, in the endless sequence of samples, of the first one of leaf `leaf` of `update`. */
static int64_t first_sample(const struct trainer *trainer, int64_t update, int64_t leaf)
{
    int64_t batch = (update - 1) * trainer->job.merge + leaf / trainer->job.micro_batches;

    return batch * trainer->job.config.global_batch_size +
           leaf % trainer->job.micro_batches * trainer->job.config.micro_batch_size;
}

/* Count the time since `started_ms` to a part of the update's. */
static void times_add(double *part_s, double started_ms)
{
    *part_s += (fleet_monotonic_ms() - started_ms) * 1e-3;
}

/* An input variable while the host writes it. */
struct input {
    void *device, *host;
    size_t bytes;
};

static struct input map_input(const struct trainer *trainer, const struct executor_bases *bases,
                              int var)
{
    const struct memory_place *place = &trainer->state.memory->places[var];
    struct input input = {.device = (char *)bases->segment[place->segment] + place->offset,
                          .bytes = program_var_bytes(&trainer->job.plan.program.vars[var])};

    input.host = backend_map(trainer->state.backend, input.device, input.bytes, BACKEND_FEED);
    return input;
}

static void unmap_input(const struct trainer *trainer, const struct input *input)
{
    backend_unmap(trainer->state.backend, input->device, input->bytes, BACKEND_FEED, input->host);
}

int leaf_load(struct trainer *trainer, int64_t update, int64_t leaf,
              const struct executor_bases *bases, struct fleet_error *err)
{
    int64_t batch = (update - 1) * trainer->job.merge + leaf / trainer->job.micro_batches;
    double started_ms = fleet_monotonic_ms();
    struct input inputs = map_input(trainer, bases, trainer->job.inputs);
    struct input targets = map_input(trainer, bases, trainer->job.targets);
    int rc = prefetch_take(trainer->data.prefetch, first_sample(trainer, update, leaf), inputs.host,
                           targets.host, err);

    unmap_input(trainer, &inputs);
    unmap_input(trainer, &targets);
    if (rc < 0)
        return fleet_error_wrap(err, "step %" PRId64, batch + 1);
    sample_log_read(trainer, update, leaf, first_sample(trainer, update, leaf));
    times_add(&trainer->report.times.data_s, started_ms);
    return 0;
}

struct run_scalars leaf_scalars(const struct trainer *trainer, int64_t update, int64_t leaf)
{
    return (struct run_scalars){
        .seed = trainer->job.config.seed,
        .step = (update - 1) * trainer->job.merge + leaf / trainer->job.micro_batches,
        .first_sample = leaf % trainer->job.micro_batches * trainer->job.config.micro_batch_size,
    };
}

void leaf_want(struct trainer *trainer, int64_t update, int64_t leaf)
{
    double started_ms = fleet_monotonic_ms();

    if (update <= trainer->job.updates)
        prefetch_want(trainer->data.prefetch, first_sample(trainer, update, leaf));
    times_add(&trainer->report.times.data_s, started_ms);
}

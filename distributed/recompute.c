/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "distributed/distributed.h"
#include "include/fleet/fleet_recompute.h"
#include "libfleet/base/cleanup.h"

struct fleet_recompute {
    struct fleet_recompute_part part;
    struct fleet_tensor inputs[FLEET_RECOMPUTE_TENSORS_MAX];  /* data: copies */
    struct fleet_tensor outputs[FLEET_RECOMPUTE_TENSORS_MAX]; /* data: NULL until the second run */
    int input_count, output_count;
    void *random_state; /* before the first run */
    bool is_done;
};

static size_t bytes_of(const struct fleet_tensor *tensor)
{
    static const size_t sizes[] = {1, 1, 4, 8, 2, 2, 4, 8, 1, 8, 16}; /* by enum fleet_type */
    size_t bytes = sizes[tensor->type];

    for (int i = 0; i < tensor->dimensions; i++)
        bytes *= (size_t)tensor->shape[i];
    return bytes;
}

static int check_tensors(const char *which, const struct fleet_tensor *tensors, int count,
                         struct fleet_error *err)
{
    const char *what = "fleet_recompute_forward";

    if (!tensors || count < 1 || count > FLEET_RECOMPUTE_TENSORS_MAX)
        return fleet_error(err, -EINVAL, "%s: %d %s, allowed: 1 to %d", what, count, which,
                           FLEET_RECOMPUTE_TENSORS_MAX);
    for (int i = 0; i < count; i++) {
        bool good = tensors[i].data && tensors[i].type <= FLEET_COMPLEX128 &&
                    tensors[i].dimensions >= 0 && tensors[i].dimensions <= FLEET_DIMENSIONS_MAX;
        for (int d = 0; good && d < tensors[i].dimensions; d++)
            good = tensors[i].shape[d] > 0;
        if (!good)
            return fleet_error(err, -EINVAL, "%s: %s[%d] has no data, or a wrong type or shape",
                               what, which, i);
    }
    return 0;
}

/* A copy of memory; NULL: there is no room. */
static void *copy_of(const void *data, size_t bytes)
{
    void *copy = malloc(bytes ? bytes : 1);

    if (copy && bytes)
        memcpy(copy, data, bytes);
    return copy;
}

static int keep(struct fleet_recompute *r, const struct fleet_tensor *inputs,
                const struct fleet_tensor *outputs, struct fleet_error *err)
{
    bool good = true;

    for (int i = 0; i < r->input_count; i++) {
        r->inputs[i] = inputs[i];
        r->inputs[i].data = copy_of(inputs[i].data, bytes_of(&inputs[i]));
        good &= r->inputs[i].data != NULL;
    }
    for (int i = 0; i < r->output_count; i++) {
        r->outputs[i] = outputs[i];
        r->outputs[i].data = NULL;
    }
    if (r->part.random_state) {
        r->random_state = copy_of(r->part.random_state, r->part.random_bytes);
        good &= r->random_state != NULL;
    }
    return good ? 0 : fleet_error(err, -ENOMEM, "fleet_recompute_forward: out of memory");
}

int fleet_recompute_forward(const struct fleet_recompute_part *part,
                            const struct fleet_tensor *inputs, int input_count,
                            const struct fleet_tensor *outputs, int output_count,
                            struct fleet_recompute **out, struct fleet_error *err)
{
    struct fleet_recompute *r;
    int rc;

    if (!part || !part->forward || !part->backward)
        return fleet_error(err, -EINVAL, "fleet_recompute_forward: the part lacks a function");
    rc = check_tensors("inputs", inputs, input_count, err);
    if (rc == 0)
        rc = check_tensors("outputs", outputs, output_count, err);
    if (rc == 0)
        rc = argument_check(out, "fleet_recompute_forward", "out", err);
    if (rc < 0)
        return rc;
    r = calloc(1, sizeof(*r));
    if (!r)
        return fleet_error(err, -ENOMEM, "fleet_recompute_forward: out of memory");
    r->part = *part;
    r->input_count = input_count;
    r->output_count = output_count;
    rc = keep(r, inputs, outputs, err);
    if (rc == 0)
        rc = part->forward(part->context, inputs, outputs, false, err);
    if (rc < 0) {
        fleet_recompute_free(r);
        return rc;
    }
    *out = r;
    return 0;
}

static int run_again(struct fleet_recompute *r, const struct fleet_tensor *output_gradients,
                     const struct fleet_tensor *input_gradients, struct fleet_error *err)
{
    int rc;

    for (int i = 0; i < r->output_count; i++) {
        r->outputs[i].data = calloc(1, bytes_of(&r->outputs[i]));
        if (!r->outputs[i].data)
            return fleet_error(err, -ENOMEM, "fleet_recompute_backward: out of memory");
    }
    rc = r->part.forward(r->part.context, r->inputs, r->outputs, true, err);
    return rc < 0 ? rc : r->part.backward(r->part.context, output_gradients, input_gradients, err);
}

int fleet_recompute_backward(struct fleet_recompute *recompute,
                             const struct fleet_tensor *output_gradients,
                             const struct fleet_tensor *input_gradients, struct fleet_error *err)
{
    const char *what = "fleet_recompute_backward";
    struct fleet_recompute_part *part;
    FLEET_AUTO_FREE void *now = NULL;
    bool is_wanted = false;
    int rc = argument_check(recompute, what, "recompute", err);

    if (rc == 0)
        rc = argument_check(output_gradients, what, "output_gradients", err);
    if (rc == 0)
        rc = argument_check(input_gradients, what, "input_gradients", err);
    if (rc < 0)
        return rc;
    part = &recompute->part;
    for (int i = 0; i < recompute->input_count; i++)
        is_wanted |= input_gradients[i].data != NULL;
    if (!is_wanted)
        return fleet_error(err, -EINVAL, "%s: no input needs a gradient", what);
    if (recompute->is_done)
        return fleet_error(err, -EINVAL, "%s: it was called before", what);
    recompute->is_done = true;
    if (part->random_state) {
        now = copy_of(part->random_state, part->random_bytes);
        if (!now)
            return fleet_error(err, -ENOMEM, "%s: out of memory", what);
        memcpy(part->random_state, recompute->random_state, part->random_bytes);
    }
    rc = run_again(recompute, output_gradients, input_gradients, err);
    if (part->random_state)
        memcpy(part->random_state, now, part->random_bytes);
    return rc;
}

void fleet_recompute_free(struct fleet_recompute *recompute)
{
    if (!recompute)
        return;
    for (int i = 0; i < recompute->input_count; i++)
        free(recompute->inputs[i].data);
    for (int i = 0; i < recompute->output_count; i++)
        free(recompute->outputs[i].data);
    free(recompute->random_state);
    free(recompute);
}

/* SPDX-License-Identifier: Apache-2.0 */

/* Whole models: equal values, gradients without buckets, saved states. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/runtime/comm/comm.h"
#include "distributed/ddp/ddp_internal.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/digest.h"

#define FUSED_BYTES ((int64_t)128 << 20)

int fleet_ddp_check_equal(struct fleet_ddp *ddp, struct fleet_error *err)
{
    FLEET_AUTO_FREE int64_t *numbers = NULL;
    int at, rc = argument_check(ddp, "fleet_ddp_check_equal", "ddp", err);

    if (rc < 0)
        return rc;
    numbers = calloc((size_t)ddp->count, sizeof(*numbers));
    if (!numbers)
        return fleet_error(err, -ENOMEM, "fleet_ddp_check_equal: out of memory");
    for (int i = 0; i < ddp->count; i++) {
        const struct ddp_param *param = &ddp->params[i];
        uint8_t digest[FLEET_SHA256_SIZE];

        fleet_sha256(param->value.data,
                     (size_t)param->elements * comm_type_size((enum comm_type)param->value.type),
                     digest);
        memcpy(&numbers[i], digest, sizeof(numbers[i]));
    }
    rc = ddp_compare(ddp->group, numbers, ddp->count, &at, err);
    if (rc < 0 || at < 0)
        return rc;
    return fleet_error(err, -EPROTO, "fleet_ddp_check_equal: %s differs between ranks",
                       ddp->params[at].name);
}

/* ---- gradients without buckets --------------------------------------------------------------- */

/* tensors[first … *end) of one type, as many as fit into one buffer. */
static int64_t take_run(const struct fleet_ddp_tensor *tensors, int count, enum fleet_type type,
                        int *at, bool scatter, int ranks, char *buffer)
{
    int64_t taken = 0, size = (int64_t)ddp_gradient_size(type);

    for (; *at < count; (*at)++) {
        const struct fleet_ddp_tensor *tensor = &tensors[*at];
        int64_t elements;

        if (tensor->kind == FLEET_DDP_FIXED || !tensor->gradient || tensor->value.type != type)
            continue;
        elements = ddp_elements(&tensor->value);
        if (taken > 0 && (taken + elements) * size > FUSED_BYTES)
            break;
        if (buffer && scatter)
            memcpy(tensor->gradient, buffer + taken * size, (size_t)(elements * size));
        else if (buffer)
            ddp_scale(type, buffer + taken * size, tensor->gradient, elements, ranks);
        taken += elements;
    }
    return taken;
}

static int average_type(const struct fleet_ddp_tensor *tensors, int count, enum fleet_type type,
                        struct fleet_group *group, struct fleet_error *err)
{
    for (int first = 0; first < count;) {
        int end = first, again = first;
        int64_t elements = take_run(tensors, count, type, &end, false, group->count, NULL);
        FLEET_AUTO_FREE char *buffer = NULL;
        struct fleet_tensor tensor;
        int rc;

        if (elements == 0)
            return 0;
        buffer = malloc((size_t)elements * ddp_gradient_size(type));
        if (!buffer)
            return fleet_error(err, -ENOMEM, "fleet_all_reduce_gradients: out of memory");
        (void)take_run(tensors, end, type, &again, false, group->count, buffer);
        tensor = (struct fleet_tensor){buffer, type, 1, {elements}};
        rc = fleet_all_reduce(&tensor, FLEET_SUM, group, NULL, err);
        if (rc < 0)
            return fleet_error_wrap(err, "fleet_all_reduce_gradients");
        (void)take_run(tensors, end, type, &first, true, group->count, buffer);
    }
    return 0;
}

int fleet_all_reduce_gradients(const struct fleet_ddp_tensor *tensors, int count,
                               struct fleet_group *group, struct fleet_error *err)
{
    static const enum fleet_type types[] = {FLEET_FP16, FLEET_BF16, FLEET_FP32, FLEET_FP64};
    const char *what = "fleet_all_reduce_gradients";
    int rc = group_ready(what, group, &group, err);

    if (rc == 0 && (count < 0 || (count > 0 && !tensors)))
        rc = fleet_error(err, -EINVAL, "%s: %d tensors at %p", what, count, (const void *)tensors);
    for (int i = 0; rc == 0 && i < count; i++) {
        const char *name = tensors[i].name ? tensors[i].name : "a tensor";

        if (tensors[i].kind == FLEET_DDP_SPARSE)
            rc = fleet_error(err, -EINVAL, "%s: %s is sparse", what, name);
        else if (tensors[i].kind == FLEET_DDP_DENSE && tensors[i].gradient &&
                 (ddp_gradient_size(tensors[i].value.type) == 0 ||
                  ddp_elements(&tensors[i].value) < 1))
            rc = fleet_error(err, -EINVAL, "%s: %s has a wrong type or shape", what, name);
    }
    for (size_t t = 0; rc == 0 && group->count > 1 && t < sizeof(types) / sizeof(types[0]); t++)
        rc = average_type(tensors, count, types[t], group, err);
    return rc;
}

/* ---- state ----------------------------------------------------------------------------------- */

/* Why the entry does not fit; NULL: it does. */
static const char *misfit(const struct fleet_tensor *model, const struct fleet_tensor *entry)
{
    bool same_shape = model->dimensions == entry->dimensions;

    for (int i = 0; same_shape && i < model->dimensions; i++)
        same_shape = model->shape[i] == entry->shape[i];
    if (!same_shape)
        return "has another shape in the state";
    return model->type == entry->type ? NULL : "has another type in the state";
}

static bool is_sound(const char *name, const struct fleet_tensor *tensor)
{
    return name && (int)tensor->type >= 0 && tensor->type <= FLEET_COMPLEX128 &&
           tensor->dimensions >= 0 && tensor->dimensions <= FLEET_DIMENSIONS_MAX &&
           ddp_elements(tensor) >= 0 && (tensor->data || ddp_elements(tensor) == 0);
}

int fleet_state_set(const struct fleet_ddp_tensor *tensors, int count,
                    const struct fleet_state_entry *state, int state_count, struct fleet_error *err)
{
    int left = 0;

    if ((!tensors && count != 0) || (!state && state_count != 0) || count < 0 || state_count < 0)
        return fleet_error(err, -EINVAL, "fleet_state_set: %d tensors at %p, %d entries at %p",
                           count, (const void *)tensors, state_count, (const void *)state);
    for (int i = 0; i < state_count; i++)
        if (!is_sound(state[i].name, &state[i].tensor))
            return fleet_error(err, -EINVAL,
                               "fleet_state_set: state[%d] has no name, a wrong type, a wrong "
                               "shape or no data",
                               i);
    for (int i = 0; i < count; i++)
        if (!is_sound(tensors[i].name, &tensors[i].value))
            return fleet_error(err, -EINVAL,
                               "fleet_state_set: tensors[%d] has no name, a wrong type, a wrong "
                               "shape or no data",
                               i);
    for (int i = 0; i < count; i++) {
        const char *why = "is not in the state";
        int64_t elements = ddp_elements(&tensors[i].value);
        const struct fleet_state_entry *entry = state;

        while (entry < state + state_count && strcmp(entry->name, tensors[i].name) != 0)
            entry++;
        if (entry < state + state_count)
            why = misfit(&tensors[i].value, &entry->tensor);
        if (why) {
            ddp_warn("%s %s; it stays as it is", tensors[i].name, why);
            left++;
        } else if (elements > 0) {
            memcpy(tensors[i].value.data, entry->tensor.data,
                   (size_t)elements * comm_type_size((enum comm_type)entry->tensor.type));
        }
    }
    return left;
}

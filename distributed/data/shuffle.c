/* SPDX-License-Identifier: Apache-2.0 */

/* Orders of instances: on one worker, over all workers, of single slots. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/runtime/comm/comm.h"
#include "distributed/data/dataset.h"
#include "libfleet/base/random.h"

/* Put `list` into the order that the key gives. */
static int permute(struct instance **list, size_t count, struct fleet_random_key key,
                   struct fleet_error *err)
{
    struct instance **copy;

    if (count == 0)
        return 0;
    copy = malloc(count * sizeof(*copy));
    if (!copy)
        return fleet_error(err, -ENOMEM, "out of memory");
    memcpy(copy, list, count * sizeof(*copy));
    for (size_t i = 0; i < count; i++)
        list[i] = copy[fleet_random_permute(key, count, i)];
    free(copy);
    return 0;
}

int fleet_dataset_local_shuffle(struct fleet_dataset *dataset, struct fleet_error *err)
{
    const char *what = "fleet_dataset_local_shuffle";
    int rc = dataset_in_memory(what, dataset, err);

    if (rc < 0)
        return rc;
    rc = permute(dataset->loaded.list, dataset->loaded.count,
                 fleet_random_key(dataset->seed, "dataset local shuffle", dataset->shuffles), err);
    if (rc < 0)
        return fleet_error_wrap(err, "%s", what);
    dataset->shuffles++;
    dataset->has_begun = false;
    return 0;
}

/* ---- over all workers ------------------------------------------------------------------------ */

/* What goes to one rank, or comes from it: instances one after the other, size first. */
struct parcel {
    uint8_t *bytes;
    uint64_t size;
};

struct exchange {
    int world;
    struct parcel *out, *in; /* [world] */
    uint64_t *sizes;         /* [2][world]: sent, received */
};

static void exchange_release(struct exchange *x)
{
    for (int i = 0; i < x->world; i++) {
        if (x->out)
            free(x->out[i].bytes);
        if (x->in)
            free(x->in[i].bytes);
    }
    free(x->out);
    free(x->in);
    free(x->sizes);
}

/* The rank of the group that instance `index` goes to. */
static int destination(const struct fleet_dataset *d, const struct fleet_group *group, size_t index,
                       struct fleet_random_key key)
{
    uint32_t length;
    const char *id = instance_id(d->loaded.list[index], &length);

    if (d->merge_by_ins_id)
        return (int)(xxh64(id, length) % (uint64_t)group->count);
    return (int)(fleet_random_u64(key, index) % (uint64_t)group->count);
}

/* Pack what each rank gets. */
static int pack(const struct fleet_dataset *d, const struct fleet_group *group, struct exchange *x,
                struct fleet_error *err)
{
    struct fleet_random_key key =
        fleet_random_key(d->seed, "dataset global shuffle",
                         d->shuffles * FLEET_DATA_SLOTS_MAX + (uint64_t)group->comm->rank);
    const size_t head = sizeof(uint32_t);

    for (size_t i = 0; i < d->loaded.count; i++)
        x->out[destination(d, group, i, key)].size += head + d->loaded.list[i]->size;
    for (int r = 0; r < x->world; r++) {
        x->out[r].bytes = malloc(x->out[r].size + 1);
        if (!x->out[r].bytes)
            return fleet_error(err, -ENOMEM, "out of memory");
        x->sizes[r] = x->out[r].size;
        x->out[r].size = 0;
    }
    for (size_t i = 0; i < d->loaded.count; i++) {
        struct parcel *to = &x->out[destination(d, group, i, key)];
        const struct instance *one = d->loaded.list[i];
        memcpy(to->bytes + to->size, &one->size, head);
        memcpy(to->bytes + to->size + head, one->bytes, one->size);
        to->size += head + one->size;
    }
    return 0;
}

/* Send and receive all parcels. A failure on this rank aborts the exchange on all. */
static int swap(const struct fleet_dataset *d, struct fleet_group *group, struct exchange *x,
                struct fleet_error *err)
{
    size_t count = (size_t)x->world;
    const void **send = calloc(count, sizeof(*send));
    void **receive = calloc(count, sizeof(*receive));
    uint64_t *received = x->sizes + count, all = 0;
    int rc = send && receive ? 0 : fleet_error(err, -ENOMEM, "out of memory");

    if (rc == 0)
        rc = comm_all_to_all(group->comm, x->sizes, sizeof(uint64_t), received,
                             group_deadline(group), err);
    for (size_t r = 0; rc == 0 && r < count; r++) {
        all += received[r];
        x->in[r].bytes = all <= d->bytes_max ? malloc(received[r] + 1) : NULL;
        if (!x->in[r].bytes)
            rc =
                fleet_error(err, -ENOMEM, "no memory for %llu bytes of the others (bytes_max %llu)",
                            (unsigned long long)all, (unsigned long long)d->bytes_max);
        x->in[r].size = received[r];
        send[r] = x->out[r].bytes;
        receive[r] = x->in[r].bytes;
    }
    if (rc == -ENOMEM)
        comm_abort(group->comm); /* the other ranks are on their way into the exchange */
    if (rc == 0)
        rc = comm_exchange(group->comm, send, x->sizes, receive, received, group_deadline(group),
                           err);
    free(send);
    free(receive);
    return rc;
}

/* Make instances of the bytes of one rank. */
static int unpack(const struct fleet_dataset *d, const struct parcel *parcel, struct instances *out,
                  struct fleet_error *err)
{
    const uint8_t *at = parcel->bytes, *end = at + parcel->size;
    int rc = 0;

    while (rc == 0 && at < end) {
        struct instance *one;
        uint32_t size;
        if ((size_t)(end - at) < sizeof(size))
            return fleet_error(err, -EBADMSG, "an instance of another worker is cut off");
        memcpy(&size, at, sizeof(size));
        at += sizeof(size);
        if ((size_t)(end - at) < size)
            return fleet_error(err, -EBADMSG, "an instance of another worker is cut off");
        one = malloc(sizeof(*one) + size);
        if (!one)
            return fleet_error(err, -ENOMEM, "out of memory");
        one->size = size;
        memcpy(one->bytes, at, size);
        at += size;
        rc = instance_check(&d->format, one, err);
        if (rc < 0)
            free(one);
        else
            rc = instances_add(out, one, d->bytes_max, err);
    }
    return rc;
}

/* The whole exchange; *out is what this rank has then. */
static int exchange_all(struct fleet_dataset *d, struct fleet_group *group, struct instances *out,
                        struct fleet_error *err)
{
    struct exchange x = {.world = group->count};
    size_t count = (size_t)group->count;
    int rc;

    x.out = calloc(count, sizeof(*x.out));
    x.in = calloc(count, sizeof(*x.in));
    x.sizes = calloc(2 * count, sizeof(*x.sizes));
    rc = x.out && x.in && x.sizes ? pack(d, group, &x, err)
                                  : fleet_error(err, -ENOMEM, "out of memory");
    if (rc < 0)
        comm_abort(group->comm);
    else
        rc = swap(d, group, &x, err);
    for (int r = 0; rc == 0 && r < group->count; r++)
        rc = unpack(d, &x.in[r], out, err);
    exchange_release(&x);
    return rc;
}

int fleet_dataset_global_shuffle(struct fleet_dataset *dataset, struct fleet_group *group,
                                 struct fleet_error *err)
{
    const char *what = "fleet_dataset_global_shuffle";
    struct instances mixed = {0};
    int rc = dataset_in_memory(what, dataset, err);

    if (rc == 0)
        rc = group_ready(what, group, &group, err);
    if (rc < 0)
        return rc;
    rc = exchange_all(dataset, group, &mixed, err);
    if (rc == 0)
        rc = permute(mixed.list, mixed.count,
                     fleet_random_key(dataset->seed, "dataset global order",
                                      dataset->shuffles * FLEET_DATA_SLOTS_MAX +
                                          (uint64_t)group->comm->rank),
                     err);
    if (rc < 0) {
        instances_release(&mixed);
        return fleet_error_wrap(err, "%s", what);
    }
    instances_release(&dataset->loaded);
    dataset->loaded = mixed;
    dataset->shuffles++;
    dataset->has_begun = false;
    return 0;
}

/* ---- slots ----------------------------------------------------------------------------------- */

static int find_slot(const struct fleet_dataset *d, const char *name)
{
    for (int i = 0; name && i < d->format.slot_count; i++)
        if (strcmp(d->format.slots[i].name, name) == 0)
            return i;
    return -1;
}

static int shuffle_slot(struct fleet_dataset *d, int slot, struct fleet_error *err)
{
    struct instances *all = &d->loaded;
    struct fleet_random_key key = fleet_random_key(
        d->seed, "dataset slot shuffle", d->shuffles * FLEET_DATA_SLOTS_MAX + (uint64_t)slot);
    struct instance **changed = calloc(all->count + 1, sizeof(*changed));

    if (!changed)
        return fleet_error(err, -ENOMEM, "out of memory");
    for (size_t i = 0; i < all->count; i++) {
        const struct instance *from = all->list[fleet_random_permute(key, all->count, i)];
        changed[i] = instance_with_slot(&d->format, all->list[i], slot, from);
        if (!changed[i]) {
            while (i > 0)
                free(changed[--i]);
            free(changed);
            return fleet_error(err, -ENOMEM, "out of memory");
        }
    }
    for (size_t i = 0; i < all->count; i++) {
        free(all->list[i]);
        all->list[i] = changed[i];
    }
    free(changed);
    return 0;
}

int fleet_dataset_slots_shuffle(struct fleet_dataset *dataset, const char *const *names, int count,
                                struct fleet_error *err)
{
    const char *what = "fleet_dataset_slots_shuffle";
    int rc = dataset_in_memory(what, dataset, err);

    if (rc == 0 && (!names || count < 1))
        rc = fleet_error(err, -EINVAL, "%s: no slots", what);
    for (int i = 0; rc == 0 && i < count; i++)
        if (!names[i] || find_slot(dataset, names[i]) < 0)
            rc = fleet_error(err, -ENOENT, "%s: there is no slot \"%s\"", what,
                             names[i] ? names[i] : "(NULL)");
    for (int i = 0; rc == 0 && i < count; i++) {
        rc = shuffle_slot(dataset, find_slot(dataset, names[i]), err);
        if (rc < 0)
            rc = fleet_error_wrap(err, "%s", what);
    }
    if (rc == 0) {
        dataset->shuffles++;
        dataset->has_begun = false;
    }
    return rc;
}

/* ---- sizes ----------------------------------------------------------------------------------- */

int fleet_dataset_size(struct fleet_dataset *dataset, int64_t *out, struct fleet_error *err)
{
    int rc = dataset_in_memory("fleet_dataset_size", dataset, err);

    if (rc == 0)
        rc = argument_check(out, "fleet_dataset_size", "out", err);
    if (rc == 0)
        *out = (int64_t)dataset->loaded.count;
    return rc;
}

int fleet_dataset_size_of_all(struct fleet_dataset *dataset, struct fleet_group *group,
                              int64_t *out, struct fleet_error *err)
{
    int64_t size;
    struct fleet_tensor tensor = {&size, FLEET_INT64, 0, {0}};
    int rc = dataset_in_memory("fleet_dataset_size_of_all", dataset, err);

    if (rc == 0)
        rc = argument_check(out, "fleet_dataset_size_of_all", "out", err);
    if (rc < 0)
        return rc;
    size = (int64_t)dataset->loaded.count;
    rc = fleet_all_reduce(&tensor, FLEET_SUM, group, NULL, err);
    if (rc < 0)
        return fleet_error_wrap(err, "fleet_dataset_size_of_all");
    *out = size;
    return 0;
}

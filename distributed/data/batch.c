/* SPDX-License-Identifier: Apache-2.0 */

/* Batches: the values of each slot one after the other, and where each instance begins. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "distributed/data/dataset.h"

/* ---- memory ---------------------------------------------------------------------------------- */

int batch_open(struct fleet_dataset *dataset, struct fleet_error *err)
{
    struct batch_memory *b = &dataset->batch;
    size_t slots = (size_t)dataset->format.slot_count, size = (size_t)dataset->batch_size;

    b->slots = calloc(slots, sizeof(*b->slots));
    b->values = calloc(slots, sizeof(*b->values));
    b->value_room = calloc(slots, sizeof(*b->value_room));
    b->offsets = calloc(slots, sizeof(*b->offsets));
    b->ids = calloc(size, sizeof(*b->ids));
    b->contents = calloc(size, sizeof(*b->contents));
    if (!b->slots || !b->values || !b->value_room || !b->offsets || !b->ids || !b->contents)
        return fleet_error(err, -ENOMEM, "out of memory");
    for (size_t i = 0; i < slots; i++) {
        b->offsets[i] = calloc(size + 1, sizeof(*b->offsets[i]));
        if (!b->offsets[i])
            return fleet_error(err, -ENOMEM, "out of memory");
    }
    return 0;
}

static void clear_texts(struct batch_memory *b)
{
    for (int i = 0; i < b->filled; i++) {
        free(b->ids[i]);
        free(b->contents[i]);
        b->ids[i] = b->contents[i] = NULL;
    }
    b->filled = 0;
}

void batch_close(struct fleet_dataset *dataset)
{
    struct batch_memory *b = &dataset->batch;

    clear_texts(b);
    for (int i = 0; b->values && b->offsets && i < dataset->format.slot_count; i++) {
        free(b->values[i]);
        free(b->offsets[i]);
    }
    free(b->slots);
    free(b->values);
    free(b->value_room);
    free(b->offsets);
    free(b->ids);
    free(b->contents);
}

/* ---- filling --------------------------------------------------------------------------------- */

static int add_values(struct fleet_dataset *d, const struct instance *instance, int slot, int place,
                      struct fleet_error *err)
{
    struct batch_memory *b = &d->batch;
    size_t unit = slot_value_size(&d->format.slots[slot]), begin, end;
    uint32_t count;
    const uint8_t *values = instance_slot(&d->format, instance, slot, &count);

    begin = (size_t)b->offsets[slot][place] * unit;
    end = begin + count * unit;
    if (end > b->value_room[slot]) {
        uint8_t *grown = realloc(b->values[slot], 2 * end);
        if (!grown)
            return fleet_error(err, -ENOMEM, "out of memory");
        b->values[slot] = grown;
        b->value_room[slot] = 2 * end;
    }
    memcpy(b->values[slot] + begin, values, count * unit);
    b->offsets[slot][place + 1] = b->offsets[slot][place] + count;
    return 0;
}

static int add_instance(struct fleet_dataset *d, const struct instance *instance, int place,
                        struct fleet_error *err)
{
    struct batch_memory *b = &d->batch;
    uint32_t length;
    const char *text = instance_id(instance, &length);
    int rc = 0;

    b->ids[place] = strndup(text, length);
    text = instance_content(instance, &length);
    b->contents[place] = strndup(text, length);
    b->filled = place + 1;
    if (!b->ids[place] || !b->contents[place])
        return fleet_error(err, -ENOMEM, "out of memory");
    for (int s = 0; rc == 0 && s < d->format.slot_count; s++)
        rc = add_values(d, instance, s, place, err);
    return rc;
}

/* What the caller sees of `size` instances. */
static void show(struct fleet_dataset *d, int size, struct fleet_batch *out)
{
    struct batch_memory *b = &d->batch;

    for (int s = 0; s < d->format.slot_count; s++) {
        if (d->format.slots[s].type == FLEET_SLOT_FLOAT)
            b->slots[s].values.floats = (const float *)(void *)b->values[s];
        else
            b->slots[s].values.ids = (const uint64_t *)(void *)b->values[s];
        b->slots[s].offsets = b->offsets[s];
    }
    *out = (struct fleet_batch){
        .size = size,
        .slots = b->slots,
        .ids = d->format.parse_ins_id ? (const char *const *)b->ids : NULL,
        .contents = d->format.parse_content ? (const char *const *)b->contents : NULL};
}

/* ---- the next one ---------------------------------------------------------------------------- */

int fleet_dataset_begin(struct fleet_dataset *dataset, struct fleet_error *err)
{
    if (argument_check(dataset, "fleet_dataset_begin", "dataset", err) < 0)
        return -EINVAL;
    if (dataset->is_preloading)
        return fleet_error(err, -EALREADY, "fleet_dataset_begin: the files are being loaded");
    reader_free(dataset->reader);
    dataset->reader = NULL;
    dataset->next = 0;
    dataset->file = 0;
    dataset->has_begun = true;
    return 0;
}

/* The next instance of a queue: 1, 0, or an error. The caller frees it. */
static int take_line(struct fleet_dataset *d, struct instance **out, struct fleet_error *err)
{
    while (d->file < d->file_count) {
        int rc = d->reader ? 0 : reader_open(&d->commands, d->files[d->file], &d->reader, err);
        if (rc == 0)
            rc = instance_read(d, d->files[d->file], d->reader, out, err);
        if (rc != 0)
            return rc;
        reader_free(d->reader);
        d->reader = NULL;
        d->file++;
    }
    return 0;
}

static int fill(struct fleet_dataset *d, int *size, struct fleet_error *err)
{
    int rc = 1;

    for (*size = 0; *size < d->batch_size; ++*size) {
        struct instance *own = NULL;
        if (d->is_queue)
            rc = take_line(d, &own, err);
        else
            rc = d->next < d->loaded.count;
        if (rc <= 0)
            return rc;
        rc = add_instance(d, own ? own : d->loaded.list[d->next++], *size, err);
        free(own);
        if (rc < 0)
            return rc;
    }
    return 0;
}

int fleet_dataset_next(struct fleet_dataset *dataset, struct fleet_batch *out,
                       struct fleet_error *err)
{
    int size, rc = argument_check(dataset, "fleet_dataset_next", "dataset", err);

    if (rc == 0)
        rc = argument_check(out, "fleet_dataset_next", "out", err);
    if (rc < 0)
        return rc;
    if (!dataset->has_begun)
        return fleet_error(err, -EINVAL, "fleet_dataset_next: call fleet_dataset_begin() first");
    clear_texts(&dataset->batch);
    rc = fill(dataset, &size, err);
    if (rc < 0) {
        dataset->has_begun = false;
        return fleet_error_wrap(err, "fleet_dataset_next");
    }
    if (size == 0)
        return 0;
    show(dataset, size, out);
    return 1;
}

/* SPDX-License-Identifier: Apache-2.0 */

/* Making a data set, and loading it. */
#include "distributed/data/dataset.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_TIMEOUT_MS 3600000
#define DEFAULT_BYTES_MAX  (16ULL << 30)
#define BATCH_MAX          (1 << 20)
#define FILES_MAX          (1 << 20)

/* ---- options --------------------------------------------------------------------------------- */

static int check_slots(const struct fleet_data_options *o, struct fleet_error *err)
{
    if (!o->slots || o->slot_count < 1 || o->slot_count > FLEET_DATA_SLOTS_MAX)
        return fleet_error(err, -EINVAL, "slot_count is %d, allowed: 1 to %d", o->slot_count,
                           FLEET_DATA_SLOTS_MAX);
    for (int i = 0; i < o->slot_count; i++) {
        const struct fleet_slot *slot = &o->slots[i];
        if (!slot->name || !slot->name[0])
            return fleet_error(err, -EINVAL, "slots[%d].name: required", i);
        if (slot->type != FLEET_SLOT_FLOAT && slot->type != FLEET_SLOT_INT64)
            return fleet_error(err, -EINVAL, "slot \"%s\": type %d, allowed: float and int64",
                               slot->name, (int)slot->type);
        if (slot->elements < 0 || slot->elements > FLEET_DATA_LINE_MAX)
            return fleet_error(err, -EINVAL, "slot \"%s\": elements is %lld, allowed: 0 to %d",
                               slot->name, (long long)slot->elements, FLEET_DATA_LINE_MAX);
        for (int j = 0; j < i; j++)
            if (strcmp(o->slots[j].name, slot->name) == 0)
                return fleet_error(err, -EINVAL, "slot \"%s\" is there twice", slot->name);
    }
    return 0;
}

static int check_options(const struct fleet_data_options *o, struct fleet_error *err)
{
    if (o->batch_size < 0 || o->batch_size > BATCH_MAX)
        return fleet_error(err, -EINVAL, "batch_size is %d, allowed: 1 to %d", o->batch_size,
                           BATCH_MAX);
    if (o->threads < 0 || o->threads > FLEET_DATA_THREADS_MAX)
        return fleet_error(err, -EINVAL, "threads is %d, allowed: 1 to %d", o->threads,
                           FLEET_DATA_THREADS_MAX);
    if (o->timeout_ms < 0)
        return fleet_error(err, -EINVAL, "timeout_ms is %d, allowed: 0 or more", o->timeout_ms);
    if (o->merge_by_ins_id && !o->parse_ins_id)
        return fleet_error(err, -EINVAL, "merge_by_ins_id needs parse_ins_id");
    return check_slots(o, err);
}

static int copy_options(struct fleet_dataset *d, const struct fleet_data_options *o,
                        struct fleet_error *err)
{
    const char *pipe = o->pipe_command && o->pipe_command[0] ? o->pipe_command : "cat";

    d->format.slots = calloc((size_t)o->slot_count, sizeof(*d->format.slots));
    d->pipe_command = strdup(pipe);
    d->download = o->download ? strdup(o->download) : NULL;
    if (!d->format.slots || !d->pipe_command || (o->download && !d->download))
        return fleet_error(err, -ENOMEM, "out of memory");
    for (int i = 0; i < o->slot_count; i++) {
        d->format.slots[i] = o->slots[i];
        d->format.slots[i].name = strdup(o->slots[i].name);
        d->format.slot_count = i + 1;
        if (!d->format.slots[i].name)
            return fleet_error(err, -ENOMEM, "out of memory");
    }
    d->format.parse_ins_id = o->parse_ins_id;
    d->format.parse_content = o->parse_content;
    d->merge_by_ins_id = o->merge_by_ins_id;
    d->batch_size = o->batch_size ? o->batch_size : 1;
    d->threads = o->threads ? o->threads : 1;
    d->bytes_max = o->bytes_max ? o->bytes_max : DEFAULT_BYTES_MAX;
    d->seed = o->seed;
    d->commands =
        (struct reader_options){.pipe_command = d->pipe_command,
                                .download = d->download,
                                .timeout_ms = o->timeout_ms ? o->timeout_ms : DEFAULT_TIMEOUT_MS};
    return batch_open(d, err);
}

static int dataset_new(const char *what, bool is_queue, const struct fleet_data_options *options,
                       struct fleet_dataset **out, struct fleet_error *err)
{
    struct fleet_dataset *dataset;
    int rc = options ? check_options(options, err) : fleet_error(err, -EINVAL, "options is NULL");

    if (rc < 0)
        return fleet_error_wrap(err, "%s", what);
    dataset = calloc(1, sizeof(*dataset));
    if (!dataset)
        return fleet_error(err, -ENOMEM, "%s: out of memory", what);
    dataset->is_queue = is_queue;
    rc = copy_options(dataset, options, err);
    if (rc < 0) {
        fleet_dataset_free(dataset);
        return fleet_error_wrap(err, "%s", what);
    }
    *out = dataset;
    return 0;
}

int fleet_dataset_memory(const struct fleet_data_options *options, struct fleet_dataset **out,
                         struct fleet_error *err)
{
    return dataset_new("fleet_dataset_memory", false, options, out, err);
}

int fleet_dataset_queue(const struct fleet_data_options *options, struct fleet_dataset **out,
                        struct fleet_error *err)
{
    return dataset_new("fleet_dataset_queue", true, options, out, err);
}

static void free_files(char **files, int count)
{
    for (int i = 0; i < count; i++)
        free(files[i]);
    free(files);
}

void fleet_dataset_free(struct fleet_dataset *dataset)
{
    if (!dataset)
        return;
    if (dataset->is_preloading)
        (void)pthread_join(dataset->preloader, NULL);
    reader_free(dataset->reader);
    instances_release(&dataset->loaded);
    batch_close(dataset);
    free_files(dataset->files, dataset->file_count);
    for (int i = 0; i < dataset->format.slot_count; i++)
        free((void *)(uintptr_t)dataset->format.slots[i].name);
    free(dataset->format.slots);
    free(dataset->pipe_command);
    free(dataset->download);
    free(dataset);
}

int fleet_dataset_set_files(struct fleet_dataset *dataset, const char *const *files, int count,
                            struct fleet_error *err)
{
    char **copy;

    if (argument_check(dataset, "fleet_dataset_set_files", "dataset", err) < 0)
        return -EINVAL;
    if (count < 0 || count > FILES_MAX || (!files && count > 0))
        return fleet_error(err, -EINVAL, "fleet_dataset_set_files: %d files, allowed: 0 to %d",
                           count, FILES_MAX);
    if (dataset->is_preloading)
        return fleet_error(err, -EALREADY, "fleet_dataset_set_files: the files are being loaded");
    copy = calloc((size_t)count + 1, sizeof(*copy));
    for (int i = 0; copy && i < count; i++)
        if (!files[i] || !(copy[i] = strdup(files[i]))) {
            free_files(copy, i);
            return fleet_error(err, files[i] ? -ENOMEM : -EINVAL,
                               "fleet_dataset_set_files: files[%d]", i);
        }
    if (!copy)
        return fleet_error(err, -ENOMEM, "fleet_dataset_set_files: out of memory");
    free_files(dataset->files, dataset->file_count);
    dataset->files = copy;
    dataset->file_count = count;
    dataset->has_begun = false;
    return 0;
}

/* ---- instances ------------------------------------------------------------------------------- */

int instances_add(struct instances *instances, struct instance *instance, uint64_t bytes_max,
                  struct fleet_error *err)
{
    uint64_t bytes = instances->bytes + sizeof(*instance) + instance->size;

    if (bytes_max > 0 && bytes > bytes_max) {
        free(instance);
        return fleet_error(err, -ENOMEM, "the data need more than bytes_max, %llu bytes",
                           (unsigned long long)bytes_max);
    }
    if (instances->count == instances->room) {
        size_t room = instances->room ? 2 * instances->room : 1024;
        struct instance **list = realloc(instances->list, room * sizeof(*list));
        if (!list) {
            free(instance);
            return fleet_error(err, -ENOMEM, "out of memory");
        }
        instances->list = list;
        instances->room = room;
    }
    instances->list[instances->count++] = instance;
    instances->bytes = bytes;
    return 0;
}

void instances_release(struct instances *instances)
{
    for (size_t i = 0; i < instances->count; i++)
        free(instances->list[i]);
    free(instances->list);
    *instances = (struct instances){0};
}

int instance_read(const struct fleet_dataset *dataset, const char *file, struct reader *reader,
                  struct instance **out, struct fleet_error *err)
{
    const char *line;
    size_t length;
    int rc = reader_next(reader, &line, &length, err);

    if (rc <= 0)
        return rc;
    rc = instance_parse(&dataset->format, line, length, out, err);
    return rc < 0 ? fleet_error_wrap(err, "%s:%ld", file, reader_line(reader)) : 1;
}

/* ---- loading --------------------------------------------------------------------------------- */

struct loading {
    const struct fleet_dataset *dataset;
    struct instances *files; /* [file_count] */
    pthread_mutex_t lock;    /* protects the members below */
    int next;                /* file */
    int result;
    struct fleet_error error; /* of the first failure */
};

/* Read one file into its list. */
static int load_file(const struct loading *l, int index, struct fleet_error *err)
{
    const struct fleet_dataset *d = l->dataset;
    struct reader *reader = NULL;
    struct instance *instance;
    int rc = reader_open(&d->commands, d->files[index], &reader, err);

    while (rc == 0 && (rc = instance_read(d, d->files[index], reader, &instance, err)) > 0)
        rc = instances_add(&l->files[index], instance, d->bytes_max, err);
    reader_free(reader);
    return rc;
}

static void *load_files(void *data)
{
    struct loading *l = data;

    for (;;) {
        struct fleet_error err;
        int index, rc;
        (void)pthread_mutex_lock(&l->lock);
        index = l->result == 0 && l->next < l->dataset->file_count ? l->next++ : -1;
        (void)pthread_mutex_unlock(&l->lock);
        if (index < 0)
            return NULL;
        rc = load_file(l, index, &err);
        (void)pthread_mutex_lock(&l->lock);
        if (rc < 0 && l->result == 0) {
            l->result = rc;
            l->error = err;
        }
        (void)pthread_mutex_unlock(&l->lock);
    }
}

/* Put the files' lists together, in their order. */
static int join_files(struct fleet_dataset *d, struct instances *files, struct fleet_error *err)
{
    struct instances all = {0};
    int rc = 0;

    for (int f = 0; rc == 0 && f < d->file_count; f++)
        for (size_t i = 0; rc == 0 && i < files[f].count; i++) {
            rc = instances_add(&all, files[f].list[i], d->bytes_max, err);
            files[f].list[i] = NULL; /* taken */
        }
    if (rc < 0) {
        instances_release(&all);
        return rc;
    }
    instances_release(&d->loaded);
    d->loaded = all;
    d->has_begun = false;
    return 0;
}

static int load(struct fleet_dataset *d, struct fleet_error *err)
{
    struct loading l = {.dataset = d, .lock = PTHREAD_MUTEX_INITIALIZER};
    int threads = d->threads < d->file_count ? d->threads : d->file_count, started = 0, rc;
    pthread_t others[FLEET_DATA_THREADS_MAX];

    l.files = calloc((size_t)d->file_count + 1, sizeof(*l.files));
    if (!l.files)
        return fleet_error(err, -ENOMEM, "out of memory");
    while (started < threads - 1 && pthread_create(&others[started], NULL, load_files, &l) == 0)
        started++;
    (void)load_files(&l);
    for (int i = 0; i < started; i++)
        (void)pthread_join(others[i], NULL);
    rc = l.result;
    if (rc < 0 && err)
        *err = l.error;
    if (rc == 0)
        rc = join_files(d, l.files, err);
    for (int f = 0; f < d->file_count; f++)
        instances_release(&l.files[f]);
    free(l.files);
    return rc;
}

int dataset_in_memory(const char *what, const struct fleet_dataset *d, struct fleet_error *err)
{
    if (argument_check(d, what, "dataset", err) < 0)
        return -EINVAL;
    if (d->is_queue)
        return fleet_error(err, -ENOTSUP, "%s: a queue holds nothing in memory", what);
    if (d->is_preloading)
        return fleet_error(err, -EALREADY, "%s: the files are being loaded", what);
    return 0;
}

int fleet_dataset_load(struct fleet_dataset *dataset, struct fleet_error *err)
{
    int rc = dataset_in_memory("fleet_dataset_load", dataset, err);

    if (rc == 0 && load(dataset, err) < 0)
        return fleet_error_wrap(err, "fleet_dataset_load");
    return rc;
}

static void *preload(void *data)
{
    struct fleet_dataset *dataset = data;

    dataset->preload_result = load(dataset, &dataset->preload_error);
    return NULL;
}

int fleet_dataset_preload(struct fleet_dataset *dataset, struct fleet_error *err)
{
    int rc = dataset_in_memory("fleet_dataset_preload", dataset, err);

    if (rc < 0)
        return rc;
    if (pthread_create(&dataset->preloader, NULL, preload, dataset) != 0)
        return fleet_error(err, -EAGAIN, "fleet_dataset_preload: no thread can be started");
    dataset->is_preloading = true;
    return 0;
}

int fleet_dataset_preload_wait(struct fleet_dataset *dataset, struct fleet_error *err)
{
    if (argument_check(dataset, "fleet_dataset_preload_wait", "dataset", err) < 0)
        return -EINVAL;
    if (!dataset->is_preloading)
        return fleet_error(err, -EINVAL, "fleet_dataset_preload_wait: nothing is being loaded");
    (void)pthread_join(dataset->preloader, NULL);
    dataset->is_preloading = false;
    if (dataset->preload_result < 0 && err)
        *err = dataset->preload_error;
    return dataset->preload_result < 0 ? fleet_error_wrap(err, "fleet_dataset_preload_wait") : 0;
}

void fleet_dataset_release_memory(struct fleet_dataset *dataset)
{
    if (!dataset)
        return;
    if (dataset->is_preloading)
        (void)fleet_dataset_preload_wait(dataset, NULL);
    instances_release(&dataset->loaded);
    dataset->has_begun = false;
}

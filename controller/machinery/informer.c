/* SPDX-License-Identifier: Apache-2.0 */

/*
 * One reflector for each namespace, or one for the cluster; all feed one store.
 */
#include "controller/machinery/informer.h"

#include <stdlib.h>

#include "libfleet/base/assert.h"

struct informer {
    struct informer_options options; /* after the start, only its callbacks are used */
    struct store *store;
    struct reflector **reflectors; /* [count] */
    size_t count, synced;
};

static void on_one_synced(void *user)
{
    struct informer *informer = user;

    if (++informer->synced == informer->count && informer->options.on_synced)
        informer->options.on_synced(informer->options.user);
}

static void on_one_trouble(void *user, const struct fleet_error *err)
{
    const struct informer *informer = user;

    if (informer->options.on_trouble)
        informer->options.on_trouble(informer->options.user, err);
}

struct informer *informer_new(struct kube_io *io, const struct informer_options *options)
{
    struct informer *informer = calloc(1, sizeof(*informer));

    fleet_assert(informer != NULL && options->namespace_count <= INFORMER_NAMESPACES_MAX);
    informer->options = *options;
    informer->count = options->namespace_count > 0 ? options->namespace_count : 1;
    informer->reflectors = calloc(informer->count, sizeof(*informer->reflectors));
    fleet_assert(informer->reflectors != NULL);
    informer->store = store_new(options->kind, options->on_change, options->user);
    for (size_t i = 0; i < informer->count; i++)
        informer->reflectors[i] = reflector_new(
            io, informer->store,
            &(struct reflector_options){
                .resource = options->resource,
                .namespace_ = options->namespace_count > 0 ? options->namespaces[i] : NULL,
                .label_selector = options->label_selector,
                .field_selector = options->field_selector,
                .source = (int)i,
                .on_synced = on_one_synced,
                .on_trouble = on_one_trouble,
                .user = informer,
            });
    return informer;
}

void informer_free(struct informer *informer)
{
    if (!informer)
        return;
    for (size_t i = 0; i < informer->count; i++)
        reflector_free(informer->reflectors[i]);
    free(informer->reflectors);
    store_free(informer->store);
    free(informer);
}

const struct store *informer_store(const struct informer *informer)
{
    return informer->store;
}

bool informer_has_synced(const struct informer *informer)
{
    return informer->synced == informer->count;
}

bool informer_is_live(const struct informer *informer)
{
    for (size_t i = 0; i < informer->count; i++)
        if (!reflector_is_live(informer->reflectors[i]))
            return false;
    return true;
}

struct reflector_counts informer_counts(const struct informer *informer)
{
    struct reflector_counts sum = {0};

    for (size_t i = 0; i < informer->count; i++) {
        struct reflector_counts one = reflector_counts(informer->reflectors[i]);
        sum.lists += one.lists;
        sum.watches += one.watches;
        sum.events += one.events;
        sum.troubles += one.troubles;
    }
    return sum;
}

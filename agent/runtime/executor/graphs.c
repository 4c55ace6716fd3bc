/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/executor/graphs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"

struct entry {
    struct graph_key key;
    struct backend_graph *graph; /* NULL: its kernels have run once */
    bool is_refused;             /* it cannot be captured */
};

struct graphs {
    struct backend *backend;
    struct entry *entries; /* [count] */
    int count, room;
};

struct graphs *graphs_new(struct backend *backend)
{
    struct graphs *graphs;

    if (!backend_captures(backend))
        return NULL;
    graphs = calloc(1, sizeof(*graphs));
    fleet_assert(graphs != NULL);
    graphs->backend = backend;
    return graphs;
}

void graphs_forget(struct graphs *graphs)
{
    if (!graphs)
        return;
    for (int i = 0; i < graphs->count; i++)
        backend_graph_free(graphs->backend, graphs->entries[i].graph);
    graphs->count = 0;
}

void graphs_free(struct graphs *graphs)
{
    if (!graphs)
        return;
    graphs_forget(graphs);
    free(graphs->entries);
    free(graphs);
}

int graphs_count(const struct graphs *graphs)
{
    int count = 0;

    for (int i = 0; graphs && i < graphs->count; i++)
        count += graphs->entries[i].graph != NULL;
    return count;
}

static bool is_same(const struct graph_key *a, const struct graph_key *b)
{
    return a->first == b->first && a->end == b->end && a->round == b->round && a->seed == b->seed &&
           a->evaluation == b->evaluation && memcmp(&a->bases, &b->bases, sizeof(a->bases)) == 0 &&
           memcmp(&a->ahead, &b->ahead, sizeof(a->ahead)) == 0;
}

static struct entry *find(const struct graphs *graphs, const struct graph_key *key)
{
    for (int i = 0; i < graphs->count; i++)
        if (is_same(&graphs->entries[i].key, key))
            return &graphs->entries[i];
    return NULL;
}

static void add(struct graphs *graphs, const struct graph_key *key)
{
    if (graphs->count == GRAPHS_MAX)
        return;
    if (graphs->count == graphs->room) {
        graphs->room = graphs->room ? 2 * graphs->room : 16;
        graphs->entries = realloc(graphs->entries, (size_t)graphs->room * sizeof(*graphs->entries));
        fleet_assert(graphs->entries != NULL);
    }
    graphs->entries[graphs->count++] = (struct entry){.key = *key};
}

/* -ENOTSUP: nothing has run. */
static int capture(struct graphs *graphs, struct entry *entry, const struct graphs_part *part,
                   struct fleet_error *err)
{
    int rc = backend_capture_begin(graphs->backend, err);

    if (rc < 0)
        return rc;
    rc = part->capture(part->context, err);
    if (rc < 0) {
        (void)backend_capture_end(graphs->backend, NULL, NULL);
        return rc;
    }
    return backend_capture_end(graphs->backend, &entry->graph, err);
}

/* -ENOTSUP: a rank could not capture the part. */
static int capture_on_all(struct graphs *graphs, struct entry *entry,
                          const struct graphs_part *part, struct fleet_error *err)
{
    int rc = capture(graphs, entry, part, err), agreed;
    bool have_all = false;

    if (!part->agree || (rc < 0 && rc != -ENOTSUP))
        return rc;
    agreed = part->agree(part->context, rc == 0, &have_all, err);
    return agreed < 0 || have_all ? agreed : -ENOTSUP;
}

static void drop(struct graphs *graphs, struct entry *entry)
{
    backend_graph_free(graphs->backend, entry->graph);
    entry->graph = NULL;
}

int graphs_run(struct graphs *graphs, const struct graph_key *key,
               const struct run_scalars *scalars, const struct graphs_part *part,
               struct fleet_error *err)
{
    struct entry *entry = find(graphs, key);
    int rc = 0;

    if (!entry)
        add(graphs, key);
    if (!entry || entry->is_refused)
        return part->run(part->context, err);
    if (!entry->graph)
        rc = capture_on_all(graphs, entry, part, err);
    if (rc == 0)
        rc = backend_replay(graphs->backend, entry->graph, scalars, err);
    if (rc == -ESTALE && part->agree) { /* the other ranks replay theirs */
        drop(graphs, entry);
        rc = capture(graphs, entry, part, err);
        if (rc == 0)
            rc = backend_replay(graphs->backend, entry->graph, scalars, err);
        return rc;
    }
    if (rc != -ENOTSUP && rc != -ESTALE)
        return rc;
    entry->is_refused = rc == -ENOTSUP;
    drop(graphs, entry);
    return part->run(part->context, err);
}

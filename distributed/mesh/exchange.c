/* SPDX-License-Identifier: Apache-2.0 */

#include "distributed/mesh/exchange.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/runtime/comm/engine.h"

/* What goes to and comes from one process. The buffers are owned. */
struct parcel {
    struct rect area;
    void *data;
    int64_t elements;
};

struct parcels {
    struct parcel *in, *out; /* [count] each */
    struct fleet_p2p *messages;
    const void **terms; /* [count], for the reduction */
};

static int parcels_new(int count, struct parcels *out)
{
    *out = (struct parcels){calloc((size_t)count, sizeof(*out->in)),
                            calloc((size_t)count, sizeof(*out->out)),
                            calloc(2 * (size_t)count, sizeof(*out->messages)),
                            calloc((size_t)count, sizeof(*out->terms))};
    return out->in && out->out && out->messages && out->terms ? 0 : -ENOMEM;
}

static void parcels_release(struct parcels *parcels, int count)
{
    for (int i = 0; i < count; i++) {
        if (parcels->in)
            free(parcels->in[i].data);
        if (parcels->out)
            free(parcels->out[i].data);
    }
    free(parcels->in);
    free(parcels->out);
    free(parcels->messages);
    free((void *)parcels->terms);
}

static int parcel_new(const struct exchange *e, int holder, int taker, struct parcel *out)
{
    out->area = rect_overlap(&e->held[holder], &e->wanted[taker], e->dims);
    out->elements = rect_elements(&out->area, e->dims);
    out->data = malloc((size_t)out->elements * comm_type_size(e->type) + 1);
    return out->data ? 0 : -ENOMEM;
}

/* Pack what others want of `data`, and make room for what they send. */
static int pack(const struct exchange *e, const void *data, struct parcels *parcels)
{
    size_t size = comm_type_size(e->type);

    for (int i = 0; i < e->count; i++) {
        struct parcel *in = &parcels->in[i], *out = &parcels->out[i];

        if (parcel_new(e, i, e->own, in) < 0 || parcel_new(e, e->own, i, out) < 0)
            return -ENOMEM;
        if (i == e->own)
            rect_copy(&in->area, e->dims, size, data, &e->held[i], in->data, &in->area);
        else
            rect_copy(&out->area, e->dims, size, data, &e->held[e->own], out->data, &out->area);
    }
    return 0;
}

static int post(const struct exchange *e, struct parcels *parcels, struct fleet_error *err)
{
    int count = 0, rc;

    for (int i = 0; i < e->count; i++)
        for (int receives = 0; receives < 2 && i != e->own; receives++) {
            const struct parcel *parcel = receives ? &parcels->in[i] : &parcels->out[i];

            if (parcel->elements > 0)
                parcels->messages[count++] = (struct fleet_p2p){
                    receives != 0,
                    e->ranks[i],
                    {parcel->data, (enum fleet_type)e->type, 1, {parcel->elements}}};
        }
    rc = count ? fleet_batch_p2p(parcels->messages, count, NULL, NULL, err) : 0;
    return rc < 0 ? fleet_error_wrap(err, "%s", e->what) : 0;
}

/* Put the parcels together. */
static void unpack(const struct exchange *e, struct parcels *parcels, void *to)
{
    size_t size = comm_type_size(e->type);
    const struct rect *wanted = &e->wanted[e->own];

    if (e->reduces) {
        for (int i = 0; i < e->count; i++)
            parcels->terms[i] = parcels->in[i].data;
        comm_fold(e->type, e->reduction, parcels->terms, e->count, rect_elements(wanted, e->dims),
                  to);
        return;
    }
    for (int i = e->count - 1; i >= 0; i--)
        rect_copy(&parcels->in[i].area, e->dims, size, parcels->in[i].data, &parcels->in[i].area,
                  to, wanted);
}

int exchange_run(const struct exchange *e, const void *data, void **out, struct fleet_error *err)
{
    struct parcels parcels;
    size_t size = comm_type_size(e->type);
    void *to = malloc((size_t)rect_elements(&e->wanted[e->own], e->dims) * size + 1);
    int rc = 0;

    if (parcels_new(e->count, &parcels) < 0 || !to || pack(e, data, &parcels) < 0)
        rc = fleet_error(err, -ENOMEM, "%s: out of memory", e->what);
    if (rc == 0)
        rc = post(e, &parcels, err);
    if (rc == 0) {
        unpack(e, &parcels, to);
        *out = to;
        to = NULL;
    }
    free(to);
    parcels_release(&parcels, e->count);
    return rc;
}

int exchange_all_reduce(const struct exchange *exchange, const void *data, int64_t elements,
                        void **out, struct fleet_error *err)
{
    struct exchange flat = *exchange;
    struct rect *whole = calloc((size_t)flat.count, sizeof(*whole)),
                *parts = calloc((size_t)flat.count, sizeof(*parts));
    void *part = NULL;
    int rc;

    flat.dims = 1;
    for (int i = 0; whole && parts && i < flat.count; i++) {
        whole[i].count[0] = elements;
        placement_part(elements, flat.count, i, &parts[i].first[0], &parts[i].count[0]);
    }
    flat.held = whole;
    flat.wanted = parts;
    flat.reduces = true;
    rc = whole && parts ? exchange_run(&flat, data, &part, err)
                        : fleet_error(err, -ENOMEM, "%s: out of memory", flat.what);
    if (rc == 0) {
        flat.held = parts;
        flat.wanted = whole;
        flat.reduces = false;
        rc = exchange_run(&flat, part, out, err);
    }
    free(part);
    free(whole);
    free(parts);
    return rc;
}

/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A bucket gets its number when its first member comes, so numbers follow first members and the
 * launch order is the numbers backwards.
 */
#include "libfleet/program/buckets.h"

#include <errno.h>
#include <stdlib.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"

#define NONE (-1)

/* The bucket that a type fills. */
struct open_bucket {
    int number; /* NONE: the type's next gradient opens one */
    int64_t bytes;
    bool closed_one; /* the small limit has been used */
};

static int check(const struct bucket_gradient *gradients, int count, struct fleet_error *err)
{
    for (int i = 0; i < count; i++) {
        fleet_assert(gradients[i].type >= 0 && gradients[i].type < BUCKET_TYPES);
        if (gradients[i].elements < 1)
            return fleet_error(err, -EINVAL, "gradient %d has no elements", i);
    }
    return 0;
}

/* numbers[i] = the bucket of gradient i; returns how many buckets there are. */
static int number_buckets(const struct bucket_gradient *gradients, int count,
                          const struct bucket_limits *limits, int *numbers)
{
    struct open_bucket open[BUCKET_TYPES];
    int used = 0;

    for (int t = 0; t < BUCKET_TYPES; t++)
        open[t] = (struct open_bucket){.number = NONE};
    for (int i = 0; i < count; i++) {
        struct open_bucket *bucket = &open[gradients[i].type];

        if (gradients[i].sparse) {
            numbers[i] = used++;
            continue;
        }
        if (bucket->number == NONE)
            bucket->number = used++;
        numbers[i] = bucket->number;
        bucket->bytes += gradients[i].elements * gradients[i].type_size;
        if (bucket->bytes >= (bucket->closed_one ? limits->other : limits->first))
            *bucket = (struct open_bucket){.number = NONE, .closed_one = true};
    }
    return used;
}

/* The same by `limits->ends`. */
static int number_by_ends(int count, const struct bucket_limits *limits, int *numbers)
{
    size_t next = 0;
    int used = 0;

    for (int i = 0; i < count; i++) {
        numbers[i] = used;
        while (next < limits->end_count && limits->ends[next] < i)
            next++;
        used += next < limits->end_count && limits->ends[next] == i && i + 1 < count;
    }
    return used + 1;
}

int buckets_assign(const struct bucket_gradient *gradients, int count,
                   const struct bucket_limits *limits, struct buckets *out, struct fleet_error *err)
{
    FLEET_AUTO_FREE int *numbers = calloc((size_t)count + 1, sizeof(*numbers));
    struct buckets buckets = {0};
    int placed = 0;

    fleet_assert(count >= 1 && numbers);
    if (check(gradients, count, err) < 0)
        return -EINVAL;
    buckets.count = limits->end_count > 0 ? number_by_ends(count, limits, numbers)
                                          : number_buckets(gradients, count, limits, numbers);
    buckets.members = calloc((size_t)count, sizeof(*buckets.members));
    buckets.items = calloc((size_t)buckets.count, sizeof(*buckets.items));
    fleet_assert(buckets.members && buckets.items);

    for (int b = 0; b < buckets.count; b++) {
        buckets.items[b].first = placed;
        for (int i = 0; i < count; i++)
            if (numbers[i] == buckets.count - 1 - b)
                buckets.members[placed++] = i;
        buckets.items[b].count = placed - buckets.items[b].first;
    }
    *out = buckets;
    return 0;
}

void buckets_release(struct buckets *buckets)
{
    free(buckets->members);
    free(buckets->items);
    *buckets = (struct buckets){0};
}

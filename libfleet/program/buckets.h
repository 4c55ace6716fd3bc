/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_BUCKETS_H
#define LIBFLEET_PROGRAM_BUCKETS_H

/*
 * Which gradients are summed over the ranks together, by the rules of Paddle's reducer.
 *
 * Gradients come in the order in which the model defines its parameters. Each type fills its own
 * bucket and closes it at a limit: its first bucket at the small one, all others at the large one.
 * The list of buckets is reversed, so the bucket of the last parameters, which are complete first
 * in the backward part, is launched first.
 *
 *  (1) Every gradient is in exactly one bucket; a tensor is never split.
 *  (2) A bucket has one type. A sparse gradient has a bucket for itself.
 *  (3) Members of a bucket ascend.
 *  (4) Every bucket but the last of its type reaches its limit, and would not without its last
 *      member.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fleet_error;

#define BUCKET_TYPES 16

/* Limits in bytes; or, with `ends`, the number of the last gradient of each bucket, ascending. Ends
 * beyond the gradients are passed over; the last bucket takes what is left. All have one type
 * then, and (4) does not hold. */
struct bucket_limits {
    int64_t first; /* of the first bucket of each type, which is exchanged last */
    int64_t other;
    const int64_t *ends; /* [end_count], borrowed; NULL: by size */
    size_t end_count;
};

struct bucket_gradient {
    int64_t elements;
    int type;          /* the caller's number, 0 to BUCKET_TYPES - 1; one size for one type */
    int64_t type_size; /* bytes of an element */
    bool sparse;       /* rows and their numbers, never fused */
};

struct bucket {
    int first, count; /* its members: members[first … first + count) */
};

struct buckets {
    int *members;         /* [number of gradients] gradient numbers, bucket after bucket */
    struct bucket *items; /* [count] in the order of launching */
    int count;
};

/*
 * Assign `count` >= 1 gradients. Release *out.
 * -EINVAL: a gradient without elements.
 */
int buckets_assign(const struct bucket_gradient *gradients, int count,
                   const struct bucket_limits *limits, struct buckets *out,
                   struct fleet_error *err);
void buckets_release(struct buckets *buckets);

#endif

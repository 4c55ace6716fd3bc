/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_DDP_DDP_INTERNAL_H
#define DISTRIBUTED_DDP_DDP_INTERNAL_H

/* What the sources of fleet_ddp.h share, for them alone. The caller's thread runs all of it. */

/* error.h comes first: fleet.h defines the same structure where error.h is absent. */
/* clang-format off */
#include "distributed/distributed.h"
#include "include/fleet/fleet_ddp.h"
/* clang-format on */

struct ddp_rows {
    int64_t *rows; /* [count], heap */
    void *values;  /* [count × width], heap */
    int64_t count;
};

struct ddp_param {
    char *name; /* heap */
    struct fleet_tensor value;
    void *gradient; /* of FLEET_DDP_DENSE */
    enum fleet_ddp_kind kind;
    int first;            /* the first entry with the same memory, which may be this one */
    int64_t elements;     /* of the value */
    int bucket;           /* -1: none */
    bool has;             /* the gradient is present */
    bool is_ready;        /* in this step */
    bool is_unused;       /* takes no part in the loss */
    struct ddp_rows rows; /* the gradient of FLEET_DDP_SPARSE */
};

struct ddp_bucket {
    const int *members; /* [count] numbers of parameters */
    int count;
    int64_t elements;
    int pending; /* members that are not ready */
    void *flat;  /* their gradients one after the other, heap; NULL: a single member, in place */
};

/* A step is open from fleet_ddp_forward() to fleet_ddp_backward_end(). */
struct fleet_ddp {
    struct fleet_group *group;
    struct ddp_param *params; /* [count] */
    int count;
    struct ddp_bucket *buckets; /* [bucket_count] in the order of sending */
    int bucket_count;
    int *members; /* those of all buckets, heap */
    bool find_unused;
    bool is_synchronized; /* what fleet_ddp_set_sync() set */
    bool knows_unused;    /* after the first step */
    bool has_warned;
    bool is_open, has_begun; /* a step; its first gradient came */
    int complete;            /* buckets [0, complete) may be sent */
    int sent;                /* buckets [0, sent) are averages; `task` is that of the next one */
    struct fleet_task *task;
    struct fleet_ddp *next; /* in the list of those not freed */
};

/* Elements and bytes of an element; 0 bytes: gradients cannot have this type. */
int64_t ddp_elements(const struct fleet_tensor *tensor);
size_t ddp_gradient_size(enum fleet_type type);

/* to[0 … count) = from[0 … count) × 1/ranks. They may be the same memory. */
void ddp_scale(enum fleet_type type, void *to, const void *from, int64_t count, int ranks);

/* Send complete buckets as far as that needs no waiting. */
int ddp_progress(struct fleet_ddp *ddp, struct fleet_error *err);

/* Send all buckets and wait for them. All must be complete. */
int ddp_finish(struct fleet_ddp *ddp, struct fleet_error *err);

/* Append rows to `to`. -ENOMEM: nothing changes. */
int ddp_rows_append(struct ddp_rows *to, const int64_t *rows, const void *values, int64_t count,
                    size_t row_bytes, struct fleet_error *err);
void ddp_rows_release(struct ddp_rows *rows);
size_t ddp_row_bytes(const struct ddp_param *param);

/* Replace a sparse gradient by the rows of all ranks, each multiplied by 1/ranks. */
int ddp_exchange_rows(struct fleet_ddp *ddp, struct ddp_param *param, struct fleet_error *err);

/* Compare numbers[0 … count) over the ranks of a group. *out: the first place where two ranks
 * differ, -1 = none. */
int ddp_compare(struct fleet_group *group, const int64_t *numbers, int count, int *out,
                struct fleet_error *err);

__attribute__((format(printf, 1, 2))) void ddp_warn(const char *format, ...);

#endif

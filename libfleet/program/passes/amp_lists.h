/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_PASSES_AMP_LISTS_H
#define LIBFLEET_PROGRAM_PASSES_AMP_LISTS_H

/*
 * Where amp lets each operator run: Paddle's lists (recorded in golden/paddle/amp/op_lists.json),
 * read for our operators. Users name operators in custom_white_list and custom_black_list by
 * Paddle's types or by ours. Several of Paddle's types can be one operator here: mul, matmul and
 * matmul_v2 are linear.
 */

#include <stdbool.h>

#include "libfleet/program/op.h"

struct strategy;
struct strategy_strings;

enum amp_list {
    AMP_WHITE, /* 16 bits */
    AMP_BLACK, /* fp32 */
    AMP_GRAY,  /* as what it reads */
    AMP_NONE,  /* in no list: fp32 */
};

/* The list `kind` is in without custom lists. */
enum amp_list amp_lists_default(enum op_kind kind);

/* With the custom lists of `strategy`; black wins should it be in both. */
enum amp_list amp_lists_effective(enum op_kind kind, const struct strategy *strategy);

/* `name` is one of kind's: Paddle's or ours. */
bool amp_lists_means(const char *name, enum op_kind kind);

/* The first name in `list` that means `kind`, or NULL. */
const char *amp_lists_find(const struct strategy_strings *list, enum op_kind kind);

/* An operator here, or one of Paddle's lists that no model here has. */
bool amp_lists_knows(const char *name);

/* The known name that is closest to the misspelt `name`, or NULL. */
const char *amp_lists_closest(const char *name);

/* Paddle's types that `kind` stands for; ends with NULL. */
const char *const *amp_lists_paddle_types(enum op_kind kind);

#endif

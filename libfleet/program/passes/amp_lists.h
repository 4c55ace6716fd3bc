/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_PASSES_AMP_LISTS_H
#define LIBFLEET_PROGRAM_PASSES_AMP_LISTS_H

/*
 * Where amp lets each operator run: Paddle's lists (recorded in golden/paddle/amp/op_lists.json),
 * read for our operators. Users name operators in custom_white_list and custom_black_list by
 * Paddle's types or by ours; a name of neither changes nothing, as in Paddle.
 */

#include "libfleet/program/op.h"

struct strategy;

enum amp_list {
    AMP_WHITE, /* 16 bits */
    AMP_BLACK, /* fp32 */
    AMP_GRAY,  /* as what it reads */
    AMP_NONE,  /* in no list: fp32 */
};

/* The list `kind` is in without custom lists. */
enum amp_list amp_lists_default(enum op_kind kind);

/* With the custom lists of `strategy`; black wins should a name be in both. */
enum amp_list amp_lists_effective(enum op_kind kind, const struct strategy *strategy);

/* Paddle's types that `kind` stands for; ends with NULL. */
const char *const *amp_lists_paddle_types(enum op_kind kind);

#endif

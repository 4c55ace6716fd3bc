/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_PASSES_FUSE_CASTS_H
#define LIBFLEET_PROGRAM_PASSES_FUSE_CASTS_H

#include <stdbool.h>

struct fleet_error;
struct pass_context;
struct program;

/*
 * Take out casts beside operators that read or write any type: sums, norms, embeddings. They work
 * in fp32 and round when they store, so the bits are those of the separate cast, without its way to
 * memory and back. Never fails.
 */
bool fuse_casts_wanted(const struct pass_context *context);
int fuse_casts_apply(struct program *program, const struct pass_context *context,
                     struct fleet_error *err);

#endif

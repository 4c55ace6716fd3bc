/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_INFERENCE_INFERENCE_FILE_H
#define AGENT_RUNTIME_INFERENCE_INFERENCE_FILE_H

/* Parts of the file format of inference_model.h, for the files that write and read it. */

#include <stdbool.h>

#include "agent/runtime/inference/inference_model.h"

struct fleet_sha256;

/* The lists of a model: what is fed, what is fetched. */
struct inference_names {
    char *feeds[INFERENCE_NAMES_MAX], *fetches[INFERENCE_NAMES_MAX]; /* owned */
    int feed_count, fetch_count;
};

/* Append a name, which is copied. At most INFERENCE_NAMES_MAX a list (asserted). */
void inference_names_add(struct inference_names *names, bool is_feed, const char *name);
void inference_names_release(struct inference_names *names);

/* One of the lists as JSON; heap. And back: -EINVAL says what is wrong. */
char *inference_names_print(const struct inference_names *names, bool is_feed);
int inference_names_parse(const char *text, bool is_feed, struct inference_names *names,
                          struct fleet_error *err);

/* Begin the digest of the file. The bytes of the weights follow. */
void inference_sha256_begin(struct fleet_sha256 *sha, const char *program, const char *feeds,
                            const char *fetches);

#endif

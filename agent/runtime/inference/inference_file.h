/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_INFERENCE_INFERENCE_FILE_H
#define AGENT_RUNTIME_INFERENCE_INFERENCE_FILE_H

/* Parts of the file format of inference_model.h, for the files that write and read it. */

#include <stdbool.h>

#include "agent/runtime/inference/inference_model.h"

struct fleet_sha256;
struct safetensors_file;
struct state;

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

/*
 * Cut from `program` what the fetches of `request` need, at least one; `batch` is not read. The
 * lists of *names are filled. Release *names in any case, *out unless an error is returned.
 * -ENOENT: the program has no variable of a name. -EINVAL: a list is too long, a name appears
 * twice; errors of prune_forward().
 */
int inference_prune(const struct program *program, const struct inference_request *request,
                    struct inference_names *names, struct program *out, struct fleet_error *err);

/* Write the file by a draft: a pruned program, and its weights, which `state` has under the same
 * names. -errno with the path. */
int inference_file_write(const struct state *state, const struct program *program,
                         const struct inference_names *names, const char *path,
                         struct inference_summary *out, struct fleet_error *err);

/* Read lists and program of an open file and check its SHA-256. Release *names in any case,
 * *program unless an error is returned. -EINVAL: it is no such file; -EBADMSG: it is damaged. */
int inference_file_read(const struct safetensors_file *file, struct inference_names *names,
                        struct program *program, struct fleet_error *err);

#endif

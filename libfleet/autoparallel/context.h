/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_AUTOPARALLEL_CONTEXT_H
#define LIBFLEET_AUTOPARALLEL_CONTEXT_H

/*
 * spec.autoParallel: the arguments of MindSpore's set_auto_parallel_context(**kwargs), as JSON,
 * under their own names. Read as MindSpore r2.3 documents them, with these differences: a bool is
 * no number, numbers of dataset_strategy are positive, and what MindSpore finds out later (stages
 * that do not divide the devices, a rank beyond them) is checked here.
 */

#include <stdbool.h>
#include <stddef.h>

#include <cjson/cJSON.h>

struct fleet_errors;

/* parallel_mode */
enum context_mode {
    CONTEXT_STAND_ALONE,
    CONTEXT_DATA_PARALLEL,
    CONTEXT_HYBRID_PARALLEL,
    CONTEXT_SEMI_AUTO_PARALLEL,
    CONTEXT_AUTO_PARALLEL,
    CONTEXT_MODES, /* a word that is none of them, which context_check() refuses */
};

/*
 * Check every key: unknown names with "did you mean", types, ranges, what must fit together. `path`
 * precedes each path ("spec.autoParallel"). Each entry of `warnings` (may be NULL) is a
 * key without an effect: in the parallel mode, or because of the switch that it belongs to. Returns
 * 0, or -EINVAL if errors were appended.
 */
int context_check(const cJSON *json, const char *path, struct fleet_errors *errors,
                  struct fleet_errors *warnings);

/* The parallel mode; stand_alone if the context does not give one, or is NULL. */
enum context_mode context_mode(const cJSON *context);

/* comm_fusion.allreduce.mode: what makes a bucket of gradients. */
enum context_fusion {
    CONTEXT_FUSION_AUTO,  /* 64 MB */
    CONTEXT_FUSION_SIZE,  /* config megabytes */
    CONTEXT_FUSION_INDEX, /* config's list of parameters */
    CONTEXT_FUSION_NONE,  /* not given, or a word that context_check() refuses */
};

enum context_fusion context_fusion(const cJSON *context);

/* Does our own search divide the job? `search: full` in auto_parallel, which is no key of
 * MindSpore. */
bool context_is_full(const cJSON *context);

/* The search of auto_parallel: "full", or search_mode under either name; its default if it is not
 * given. */
const char *context_search(const cJSON *context);

/* The words in the order of their enums; NULL at the end. */
extern const char *const context_mode_words[CONTEXT_MODES + 1];
extern const char *const context_fusion_words[CONTEXT_FUSION_NONE + 1];

/* "stand_alone", …; NULL for CONTEXT_MODES. Static. */
const char *context_mode_text(enum context_mode mode);

#endif

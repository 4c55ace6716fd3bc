/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_AUTOPARALLEL_CONTEXT_FILES_H
#define LIBFLEET_AUTOPARALLEL_CONTEXT_FILES_H

/* The files that spec.autoParallel names. strategy_ckpt_config is the newer way to give what
 * strategy_ckpt_load_file and strategy_ckpt_save_file give. */

#include <stdbool.h>

#include <cjson/cJSON.h>

struct context_file {
    const char *path; /* borrowed from the context; NULL: none, "" counts as none */
    const char *key;  /* that gives it: "strategy_ckpt_config.load_file" */
};

struct context_files {
    struct context_file load, save; /* strategy files (files/strategy_file.h) */
    struct context_file groups;     /* files/group_file.h */
    bool only_trainable;            /* the layouts of trained parameters alone are saved */
};

/* None in modes other than semi_auto_parallel and auto_parallel. */
void context_files_of(const cJSON *context, struct context_files *out);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_KUBE_CONFIG_INTERNAL_H
#define LIBFLEET_KUBE_CONFIG_INTERNAL_H

/* What config.c and kubeconfig.c share, for them alone. */

#include <cjson/cJSON.h>

#include "libfleet/kube/config.h"

#define KUBE_SOURCES_MAX 32

struct kube_source { /* a kubeconfig */
    cJSON *root;
    const char *folder; /* that its paths are relative to */
};

struct kube_sources { /* in the order in which they count */
    struct kube_source items[KUBE_SOURCES_MAX];
    size_t count;
};

/* The configuration of `context`; NULL: the current one of the first file that names one. */
int kube_sources_follow(const struct kube_sources *sources, const char *context,
                        struct kube_config *out, struct fleet_error *err);

/* Keep the file's path, relative to `folder`; its text is read at the next refresh. */
void kube_secret_from_file(struct kube_secret *secret, const char *folder, const char *file);

#endif

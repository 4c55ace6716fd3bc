/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_EXPORT_POD_H
#define CLI_EXPORT_POD_H

/*
 * The short-lived pod that reads a job's checkpoints where they are: the runtime's image, the job's
 * volumes, its security context, on a node that can mount them. Pure; kubectl_export.c makes it.
 */

#include <cjson/cJSON.h>

struct fleet_error;

#define EXPORT_POD_PROGRAM   "/fleetjob/bin/fleetjob" /* in the runtime's image */
#define EXPORT_POD_CONTAINER "export"
#define EXPORT_POD_LABEL     "fleetjob.dev/export-of" /* value: the job's name */
#define EXPORT_POD_SECONDS   3600 /* the longest export; then the pod ends by itself */

struct export_pod_request {
    const cJSON *job;    /* the FleetJob as the API server has it */
    const cJSON *pods;   /* list of its pods: items; NULL or empty = gone */
    const cJSON *claims; /* list of the namespace's PersistentVolumeClaims; NULL = not readable */
    const char *name;    /* of the pod */
    const char *image;   /* NULL: that of the job's agent */
    const char *node;    /* where it must run; NULL: where the volumes demand it */
    const char *checkpoint; /* path to export; NULL: spec.training.checkpoint.path */
};

/*
 * *out_pod is owned by the caller; *out_path is the checkpoint path in it, heap. -EINVAL with the
 * cause and the remedy: an own trainer, no checkpoint asked for or none saved yet, a path that is
 * on no volume or on one that ends with its pod, a hostPath on an unknown node, a claim that only
 * one pod may use and that a worker uses.
 */
int export_pod_build(const struct export_pod_request *request, cJSON **out_pod, char **out_path,
                     struct fleet_error *err);

#endif

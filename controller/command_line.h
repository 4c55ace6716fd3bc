/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_COMMAND_LINE_H
#define CONTROLLER_COMMAND_LINE_H

/* The options of fleetjob-controller; $POD_IP and $POD_NAMESPACE are defaults of two of them. */

#include <stdbool.h>
#include <stddef.h>

#include "controller/machinery/informer.h"

/* Texts are borrowed from argv and the environment, and live as long as they do. NULL: not
 * given. */
struct command_line {
    const char *runtime_image, *cuda_image, *pull_policy; /* of workers' pods */
    const char *hub_service, *hub_address;                /* exactly one of them is given */
    const char *pod_address, *namespace_;                 /* of this replica */
    const char *identity_secret, *lease, *kubeconfig, *context;
    char *watch_list; /* owned: cut into `watched` */
    const char *watched[INFORMER_NAMESPACES_MAX];
    size_t watched_count; /* 0: all namespaces */
    const char *metrics_name,
        *metrics_certificate; /* with has_metrics_auth: one of them is given */
    int hub_port, probe_port, metrics_port;
    bool no_election, has_job_metrics, has_metrics_auth, is_json, is_verbose;
    bool encrypts_data; /* of jobs whose spec does not set it */
};

/*
 * Read the command line. Returns -1 to go on, or the exit code: 0 for --help and --version, 2 for a
 * wrong or missing option, with the error on stderr. The caller releases *out in each case.
 */
int command_line_parse(int argc, char **argv, struct command_line *out);

/* Free what it owns. Fine on a zeroed one. */
void command_line_release(struct command_line *line);

#endif

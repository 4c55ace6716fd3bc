/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_KUBECTL_EXPORT_H
#define CLI_KUBECTL_EXPORT_H

/*
 * `kubectl fleetjob export JOB OUT`: the command `export` when the program is called
 * kubectl-fleetjob. argv[0] is the command's name. Exit codes as cli_export(), 130 when
 * interrupted.
 */
int cli_kubectl_export(int argc, char **argv);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_EXPORT_H
#define CLI_EXPORT_H

/* `fleetjob export`; argv[0] is the command's name. Returns the exit code: 0 success, 1 failure,
 * 2 wrong usage. */
int cli_export(int argc, char **argv);

#endif

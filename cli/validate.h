/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_VALIDATE_H
#define CLI_VALIDATE_H

/* `fleetjob validate`; argv[0] is the command's name. Returns the exit code: 0 good, 1 not, 2
 * usage. */
int cli_validate(int argc, char **argv);

#endif

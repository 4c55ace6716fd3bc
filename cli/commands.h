/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_COMMANDS_H
#define CLI_COMMANDS_H

/* Commands whose file has no other header. argv[0] is the command's name; each returns its exit
 * code: 0 success, 1 failure, 2 wrong usage, 130 interrupted. */

/* `fleetjob run JOB.yaml [OPTIONS]` */
int cli_run(int argc, char **argv);

/* `fleetjob hold` */
int cli_hold(int argc, char **argv);

/* `fleetjob plan JOB.yaml [OPTIONS]` */
int cli_plan(int argc, char **argv);

/* `fleetjob curve RUN… -o FILE [OPTIONS]` */
int cli_curve(int argc, char **argv);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_INFERENCE_COMMANDS_H
#define CLI_INFERENCE_COMMANDS_H

/* The commands that use trained weights; argv[0] is the command's name. Each returns its exit
 * code: 0 success, 1 failure, 2 wrong usage. */

/* `fleetjob eval WEIGHTS DATA [OPTIONS]` */
int cli_eval(int argc, char **argv);

/* `fleetjob generate WEIGHTS --prompt TEXT [OPTIONS]` */
int cli_generate(int argc, char **argv);

#endif

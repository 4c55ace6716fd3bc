/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_STRATEGY_COMMANDS_H
#define CLI_STRATEGY_COMMANDS_H

/*
 * The commands about strategies; argv[0] is the command's name. Each returns its exit code:
 * 0 good, 1 the answer is no, 2 wrong usage.
 */

/* `fleetjob convert FILE --to prototxt|yaml|json [--schema 2.0|2.1] [--world-size N]` */
int cli_convert(int argc, char **argv);

/* `fleetjob select FILE --world-size N [--policy full|paddle] [--optimizer NAME] [--output
 * json]` */
int cli_select(int argc, char **argv);

#endif

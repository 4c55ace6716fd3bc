/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_LAUNCH_VALUE_H
#define CLI_LAUNCH_VALUE_H

/*
 * Values of options of `fleetjob launch`, as Paddle's launcher and torchrun read them. `name` is
 * what the user calls the option, for the error. Each returns 0, or -EINVAL with name, value and
 * what is allowed; then the output is unchanged.
 */

#include <stdbool.h>

struct fleet_error;

int launch_value_number(const char *name, const char *text, int min, int max, int *out,
                        struct fleet_error *err);

/* "N" or "MIN:MAX". */
int launch_value_nodes(const char *name, const char *text, int *out_min, int *out_max,
                       struct fleet_error *err);

/* "N"; "cpu" and "gpu": as many as this machine has; "auto": its GPUs, else its processors. -ENODEV
 * if "gpu" finds none. */
int launch_value_processes(const char *name, const char *text, int *out, struct fleet_error *err);

/* "collective", "rpc" or "ps": the last one sets *has_servers. */
int launch_value_mode(const char *name, const char *text, bool *has_servers,
                      struct fleet_error *err);

/* "host:port,…", each different, which becomes *out. Whether this machine has them is seen when
 * they are used. */
int launch_value_endpoints(const char *name, const char *text, const char **out,
                           struct fleet_error *err);

/* -1 … 1; 0 makes *restarts_max 0. */
int launch_value_level(const char *name, const char *text, int *restarts_max,
                       struct fleet_error *err);

/* True and False, 1 and 0, and the other words of Python's strtobool(), in any case. */
int launch_value_truth(const char *name, const char *text, bool *out, struct fleet_error *err);
bool launch_value_is_truth(const char *text);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_SYSTEM_MACHINE_MEMORY_H
#define CLI_SYSTEM_MACHINE_MEMORY_H

/* How much memory processes on this machine may have. */

#include <stdint.h>

/*
 * The least of the machine's memory and the limits of the control groups we are in, read below
 * `root` ("" = the machine's own /proc and /sys). INT64_MAX if nothing says. *out_what, if not
 * NULL: "the machine" or "the control group".
 */
int64_t machine_memory_limit(const char *root, const char **out_what);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_SYSTEM_PROCESSORS_H
#define CLI_SYSTEM_PROCESSORS_H

/* Processors that this process may use: the least of its affinity and the quota of its control
 * group (rounded down); at least 1. */
int processors_count(void);

/* Compute threads of each of `trainers` on this machine: FLEET_THREADS, else the processors divided
 * by the trainers; at least 1. */
int processors_per_trainer(int trainers);

#endif

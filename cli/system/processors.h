/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_SYSTEM_PROCESSORS_H
#define CLI_SYSTEM_PROCESSORS_H

/* Processors that are ours to use: by affinity and by the quota of our control group (rounded
 * down), whichever is less; at least 1. */
int processors_count(void);

/* Compute threads of each of `trainers` on this machine: FLEET_THREADS, else the processors divided
 * by the trainers; at least 1. */
int processors_per_trainer(int trainers);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_INTEGRATION_COMM_FAULTS_H
#define TESTS_INTEGRATION_COMM_FAULTS_H

/*
 * What suites share in which a call of a device's library fails or hangs in one rank, the n-th one
 * for all n: a folder, the file that such a call leaves in it, and which tests run on a GPU.
 */

#include "tests/integration/comm_processes.h"

static char comm_faults_folder[] = "/tmp/fleet-faults-XXXXXX";
static char comm_fault_file[64]; /* a fake makes it when the call is reached */

/* Ranks that open the device's library themselves (comm_open_device()), so that its first calls
 * fail, too. */
static inline struct comm_way comm_host_way(const char *library)
{
    return (struct comm_way){"host", COMM_NEIGHBOURS_TCP, 1, false, false, library};
}

/* Before a run. */
static inline void comm_fault_forget(void)
{
    (void)unlink(comm_fault_file);
}

/* Has the run made the call that fails? */
static inline bool comm_fault_is_reached(void)
{
    return access(comm_fault_file, F_OK) == 0;
}

static inline int comm_faults_set_up(void **state)
{
    (void)state;
    if (!mkdtemp(comm_faults_folder))
        return -1;
    (void)snprintf(comm_fault_file, sizeof(comm_fault_file), "%s/reached", comm_faults_folder);
    return 0;
}

static inline int comm_faults_tear_down(void **state)
{
    char command[128];

    (void)state;
    (void)snprintf(command, sizeof(command), "rm -rf %s", comm_faults_folder);
    return system(command) == 0 ? 0 : -1;
}

#define comm_faults_group(tests) \
    cmocka_run_group_tests(tests, comm_faults_set_up, comm_faults_tear_down)

/* Run `on_gpu` over a GPU, else `tests`. Without the library of `way` nothing runs. */
#define comm_faults_run(way, tests, on_gpu) \
    (!comm_has_way(way) ? 0 : comm_on_gpu() ? comm_faults_group(on_gpu) : comm_faults_group(tests))

#endif

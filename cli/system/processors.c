/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The control group's quota counts, not the number of the machine's processors: more threads would
 * be throttled.
 */
#include "cli/system/processors.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/variable.h"

/* Read two numbers from a file. A word that is not a number leaves its variable unchanged. */
static void read_two(const char *path, double *first, double *second)
{
    FLEET_AUTO_FCLOSE FILE *file = fopen(path, "re");
    char one[32] = "", two[32] = "";

    if (!file || fscanf(file, "%31s %31s", one, two) < 1)
        return;
    /* NOLINTNEXTLINE(cert-err34-c): a number of the kernel */
    (void)sscanf(one, "%lf", first);
    /* NOLINTNEXTLINE(cert-err34-c): a number of the kernel */
    (void)sscanf(two, "%lf", second);
}

/* Number of processors that the control group may use; 0 = no known limit. */
static double quota(void)
{
    double used = -1.0, period = 0.0, ignored = 0.0;

    read_two("/sys/fs/cgroup/cpu.max", &used, &period); /* "max 100000" or "200000 100000" */
    if (period == 0.0) {
        read_two("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", &used, &ignored);
        read_two("/sys/fs/cgroup/cpu/cpu.cfs_period_us", &period, &ignored);
    }
    return used > 0.0 && period > 0.0 ? used / period : 0.0;
}

int processors_count(void)
{
    cpu_set_t set;
    int count = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
    double limit = quota();

    if (limit > 0.0 && limit < count)
        count = (int)limit;
    return count > 0 ? count : 1;
}

int processors_per_trainer(int trainers)
{
    int threads;

    if (fleet_variable_threads(&threads, NULL) < 0 || threads == 0) /* main.c refuses bad ones */
        threads = processors_count() / trainers;
    return threads > 0 ? threads : 1;
}

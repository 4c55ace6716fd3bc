/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_INTEGRATION_MEMORY_MEASURE_H
#define TESTS_INTEGRATION_MEMORY_MEASURE_H

/*
 * What trainers of a job have in memory, and what a step allocates: watched while the job runs.
 */
#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "tests/preload/allocations.h"
#include "tests/support/job_run.h"

#define PRELOADED    "build/release/tests/preload/allocations.so"
#define LIMIT_S      600.0
#define STEPS        100000 /* never reached: the job is stopped once it has been measured */
#define ARM_AT       4 /* step after which nothing may be allocated; of the second update of two */
#define MEASURE_AT   10
#define TRAINERS_MAX 8
#define TOLERANCE    0.02

/* What is 0 or NULL stands for: AdamW, nothing, 1 worker, batches of 8, micro-batches of 2. */
struct measured_job {
    const char *model, *optimizer, *strategy, *extra;
    bool has_images, has_held_out;
    bool has_groups; /* more connections than those of the world, in shared memory */
    int workers, batch, micro_batch;
};

struct measure {
    char *folder; /* where the counts are */
    struct allocations *counts[TRAINERS_MAX];
    pid_t pids[TRAINERS_MAX];
    int count;
    uint64_t calls_armed[TRAINERS_MAX];
    /* results */
    bool is_done;
    double anonymous; /* bytes, of the trainer that holds most */
    uint64_t calls;   /* between the two steps, of all trainers */
    double planned;
};

/* ---- looking at trainers --------------------------------------------------------------------- */

static inline double anonymous_bytes(pid_t pid)
{
    FLEET_AUTO_FCLOSE FILE *file = NULL;
    char path[64], line[256];
    double kilobytes = -1;

    (void)snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    file = fopen(path, "re");
    while (file && fgets(line, sizeof(line), file))
        if (sscanf(line, "RssAnon: %lf kB", &kilobytes) == 1)
            break;
    if (kilobytes < 0)
        fail_msg("%s says no RssAnon: has the trainer ended?", path);
    return kilobytes * 1024;
}

static inline void map_counts(struct measure *m)
{
    DIR *folder = opendir(m->folder);
    struct dirent *entry;

    assert_non_null(folder);
    while ((entry = readdir(folder))) {
        FLEET_AUTO_FREE char *path = fleet_file_join(m->folder, entry->d_name);
        int fd;
        if (entry->d_name[0] == '.')
            continue;
        assert_true(m->count < TRAINERS_MAX);
        fd = open(path, O_RDWR | O_CLOEXEC);
        assert_true(fd >= 0);
        m->pids[m->count] = (pid_t)atoi(entry->d_name);
        m->counts[m->count] =
            mmap(NULL, sizeof(struct allocations), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        assert_true(m->counts[m->count++] != MAP_FAILED);
        (void)close(fd);
    }
    (void)closedir(folder);
}

static inline void arm(struct measure *m)
{
    map_counts(m);
    for (int i = 0; i < m->count; i++) {
        __atomic_store_n(&m->counts[i]->is_armed, 1, __ATOMIC_SEQ_CST);
        m->calls_armed[i] = __atomic_load_n(&m->counts[i]->calls, __ATOMIC_SEQ_CST);
    }
}

static inline void read_all(struct measure *m)
{
    for (int i = 0; i < m->count; i++) {
        double bytes;
        __atomic_store_n(&m->counts[i]->is_armed, 0,
                         __ATOMIC_SEQ_CST); /* what ends it may allocate */
        bytes = anonymous_bytes(m->pids[i]);
        m->calls += __atomic_load_n(&m->counts[i]->calls, __ATOMIC_SEQ_CST) - m->calls_armed[i];
        m->anonymous = bytes > m->anonymous ? bytes : m->anonymous;
    }
    m->is_done = true;
}

static inline void watch(void *context, struct job_run *run, const cJSON *event)
{
    struct measure *m = context;

    (void)event;
    if (m->is_done || run->step_count == 0)
        return;
    if (m->count == 0 && run->step_count >= ARM_AT)
        arm(m);
    if (run->step_count >= MEASURE_AT) {
        read_all(m);
        (void)kill(run->pid, SIGINT);
    }
}

static inline void print_sites(const struct measure *m)
{
    for (int i = 0; i < m->count; i++)
        for (uint32_t s = 0; s < m->counts[i]->site_count && s < ALLOCATIONS_SITES_MAX; s++) {
            print_error("trainer %d took %llu bytes:\n", i,
                        (unsigned long long)m->counts[i]->sites[s].bytes);
            for (int f = 0; f < ALLOCATIONS_DEPTH && m->counts[i]->sites[s].frames[f][0]; f++)
                print_error("    %s\n", m->counts[i]->sites[s].frames[f]);
        }
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_PRELOAD_ALLOCATIONS_H
#define TESTS_PRELOAD_ALLOCATIONS_H

/*
 * Counts of the memory that a process takes from the allocator, readable from outside while it
 * runs.
 *
 * The library allocations.so is preloaded (LD_PRELOAD) into every process of a run. In those whose
 * program is fleetjob-train it makes a file PID of type struct allocations in the folder that
 * ALLOCATIONS_FOLDER names, maps it, and counts there: calls of malloc, calloc, realloc,
 * reallocarray, the aligned variants, strdup and its kin by way of malloc, and mmap of anonymous
 * memory, from our code and from every library. Once `is_armed`, call sites are recorded, too.
 */

#include <stdint.h>

#define ALLOCATIONS_SITES_MAX 16
#define ALLOCATIONS_DEPTH     12

struct allocations {
    uint64_t calls;    /* that took memory */
    uint64_t mapped;   /* of them: anonymous mmap */
    int64_t live;      /* bytes in use now, as malloc_usable_size() counts them */
    uint32_t is_armed; /* set by the watching test: record where memory is taken */
    uint32_t site_count;
    struct {
        uint64_t bytes;
        char frames[ALLOCATIONS_DEPTH][96]; /* "program(function+0x12)", "" behind the last */
    } sites[ALLOCATIONS_SITES_MAX];
};

#endif

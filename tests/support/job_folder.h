/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SUPPORT_JOB_FOLDER_H
#define TESTS_SUPPORT_JOB_FOLDER_H

/*
 * A fresh folder for each test of a program, with the files that its jobs name:
 *
 *     cmocka_unit_test_setup_teardown(test, job_folder_make, job_folder_remove)
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/file.h"
#include "tests/support/job_run.h"

static char *folder; /* of the test at work */

static inline int job_folder_make(void **state)
{
    (void)state;
    folder = job_run_folder();
    return 0;
}

static inline int job_folder_remove(void **state)
{
    (void)state;
    job_run_remove(folder);
    free(folder);
    return 0;
}

/* A file of that name in the folder. */
static inline void write_file(const char *name, const void *data, size_t size)
{
    FLEET_AUTO_FREE char *path = fleet_file_join(folder, name);

    assert_int_equal(fleet_file_write(path, data, size, NULL), 0);
}

#endif

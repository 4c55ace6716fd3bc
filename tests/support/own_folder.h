/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SUPPORT_OWN_FOLDER_H
#define TESTS_SUPPORT_OWN_FOLDER_H

/* A folder that a group of tests has to itself: set-up and tear-down of the group. */

#include <stdlib.h>

#include "tests/support/job_run.h"

static char *own_folder; /* its path while the group runs */

static inline int own_folder_make(void **state)
{
    (void)state;
    own_folder = job_run_folder();
    return 0;
}

static inline int own_folder_remove(void **state)
{
    (void)state;
    job_run_remove(own_folder);
    free(own_folder);
    return 0;
}

#endif

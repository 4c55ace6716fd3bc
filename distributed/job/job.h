/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_JOB_JOB_H
#define DISTRIBUTED_JOB_JOB_H

/* What a trainer tells its agent, for the sources of fleet_job.h. */

#include "distributed/distributed.h"

/* Write one line to FLEET_PROGRESS_FILE, without its newline. Without an agent it does nothing.
 * -errno. */
int job_report(const char *line, struct fleet_error *err);

#endif

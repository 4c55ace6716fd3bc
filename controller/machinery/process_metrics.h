/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_MACHINERY_PROCESS_METRICS_H
#define CONTROLLER_MACHINERY_PROCESS_METRICS_H

/* What every Prometheus client exports about its process, under the usual names (process_…).
 * Linux. */

#include "controller/machinery/metrics.h"

struct process_metrics {
    struct metric *cpu, *resident, *virtual_, *open_files, *files_max, *start;
};

void process_metrics_init(struct process_metrics *process, struct metrics *metrics);

/* Bring them up to date, before they are printed. What cannot be read stays as it is. */
void process_metrics_collect(struct process_metrics *process);

#endif

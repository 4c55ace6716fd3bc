/* SPDX-License-Identifier: Apache-2.0 */

/* From getrusage(), getrlimit() and /proc/self: see proc(5). */
#include "controller/machinery/process_metrics.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define STAT_FIELD_START 22 /* in /proc/self/stat, counted from 1; the name is number two */

void process_metrics_init(struct process_metrics *process, struct metrics *metrics)
{
    *process = (struct process_metrics){
        .cpu = metrics_counter(metrics, "process_cpu_seconds_total",
                               "Processor time of the process, user and system, in seconds.", ""),
        .resident = metrics_gauge(metrics, "process_resident_memory_bytes",
                                  "Resident memory of the process in bytes.", ""),
        .virtual_ = metrics_gauge(metrics, "process_virtual_memory_bytes",
                                  "Virtual memory of the process in bytes.", ""),
        .open_files =
            metrics_gauge(metrics, "process_open_fds", "Number of open file descriptors.", ""),
        .files_max = metrics_gauge(metrics, "process_max_fds",
                                   "Largest allowed number of open file descriptors.", ""),
        .start = metrics_gauge(metrics, "process_start_time_seconds",
                               "Start of the process, in seconds since 1970-01-01 UTC.", ""),
    };
}

static double seconds(struct timeval time)
{
    return (double)time.tv_sec + (double)time.tv_usec / 1e6;
}

static void collect_memory(struct process_metrics *process)
{
    FILE *file = fopen("/proc/self/statm", "re");
    double page = (double)sysconf(_SC_PAGESIZE);
    unsigned long all, resident;

    if (!file)
        return;
    /* NOLINTNEXTLINE(cert-err34-c): a number of the kernel */
    if (fscanf(file, "%lu %lu", &all, &resident) == 2) {
        metric_set(process->virtual_, (double)all * page);
        metric_set(process->resident, (double)resident * page);
    }
    (void)fclose(file);
}

static void collect_files(struct process_metrics *process)
{
    DIR *folder = opendir("/proc/self/fd");
    struct rlimit limit;
    int count = -3; /* ".", ".." and the folder itself */

    if (folder) {
        while (readdir(folder))
            count++;
        (void)closedir(folder);
        metric_set(process->open_files, count);
    }
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
        metric_set(process->files_max, (double)limit.rlim_cur);
}

/* When this process began, in seconds after the machine's start; -1 = unreadable. */
static double read_start(void)
{
    char text[1024] = "", *field;
    FILE *file = fopen("/proc/self/stat", "re");
    unsigned long long ticks;

    if (!file)
        return -1;
    text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
    (void)fclose(file);
    field = strrchr(text, ')'); /* the end of the second field: the name may contain any
                                 * character */
    for (int i = 2; field && i < STAT_FIELD_START; i++)
        field = strchr(field + 1, ' ');
    /* NOLINTNEXTLINE(cert-err34-c): a number of the kernel */
    if (!field || sscanf(field, " %llu", &ticks) != 1)
        return -1;
    return (double)ticks / (double)sysconf(_SC_CLK_TCK);
}

static double read_boot_time(void)
{
    FILE *file = fopen("/proc/stat", "re");
    char line[256];
    double at = -1;

    if (!file)
        return -1;
    while (at < 0 && fgets(line, sizeof(line), file))
        /* NOLINTNEXTLINE(cert-err34-c): a number of the kernel */
        (void)sscanf(line, "btime %lf", &at);
    (void)fclose(file);
    return at;
}

void process_metrics_collect(struct process_metrics *process)
{
    struct rusage usage;

    if (getrusage(RUSAGE_SELF, &usage) == 0)
        metric_count_to(process->cpu, seconds(usage.ru_utime) + seconds(usage.ru_stime));
    collect_memory(process);
    collect_files(process);
    if (metric_value(process->start) <= 0) {
        double boot = read_boot_time(), start = read_start();
        if (boot >= 0 && start >= 0)
            metric_set(process->start, boot + start);
    }
}

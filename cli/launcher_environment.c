/* SPDX-License-Identifier: Apache-2.0 */

/* Environment and arguments of an agent. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/launcher_internal.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/log.h"
#include "libfleet/base/strbuf.h"

__attribute__((format(printf, 2, 3))) static void add(struct variables *v, const char *format, ...)
{
    struct fleet_strbuf text = {0};
    va_list args;

    va_start(args, format);
    fleet_strbuf_appendv(&text, format, args);
    va_end(args);
    v->items = realloc(v->items, (v->count + 2) * sizeof(*v->items));
    fleet_assert(v->items);
    v->items[v->count++] = fleet_strbuf_take(&text);
    v->items[v->count] = NULL;
}

static bool has_name(const struct variables *v, const char *entry)
{
    size_t size = strcspn(entry, "=") + 1;

    for (size_t i = 0; i < v->count; i++)
        if (strncmp(v->items[i], entry, size) == 0)
            return true;
    return false;
}

/* Is it one of our own FLEET_* variables that are passed on? They are for trainers and not
 * variables of a pod. */
static bool is_handed_on(const char *entry)
{
    static const char *const names[] = {
        "FLEET_BACKEND",
        "FLEET_CUDA_LIBRARY",
        "FLEET_CUDA_TF32",
        "FLEET_CUDA_GRAPH",
        "FLEET_CUDA_COMM",
        "FLEET_CUBLASLT_LIBRARY",
        "FLEET_NCCL_LIBRARY",
        "FLEET_ISA",
        "FLEET_SHARED_MEMORY",
        "FLEET_THREADS",
        FLEET_LOG_FORMAT_ENV,
        "FLEET_SAMPLE_LOG",
        "FLEET_SAVE_PATIENCE_SECONDS",
        "FLEET_LIBRARY",
        "FLEET_CACHE",
        "FLEET_CACHE_BYTES",
    };

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        size_t size = strlen(names[i]);
        if (strncmp(entry, names[i], size) == 0 && entry[size] == '=')
            return true;
    }
    return strncmp(entry, "FLEET_", 6) != 0;
}

struct variables launcher_make_environment(const struct pod *pod)
{
    const struct launcher *l = pod->launcher;
    struct variables v = {0};

    add(&v, "FLEET_JOB_NAME=%s", l->job_name);
    add(&v, "FLEET_JOB_UID=%s", l->job_uid);
    add(&v, "FLEET_POD_NAME=%s", pod->public.name);
    add(&v, "FLEET_POD_UID=%s", pod->public.uid);
    add(&v, "FLEET_INDEX=%d", pod->public.index);
    add(&v, "FLEET_ATTEMPT=%d", pod->public.attempt);
    add(&v, "FLEET_PROCESSES=%d", l->config.processes);
    add(&v, "FLEET_ADDRESS=127.0.0.1");
    add(&v, "FLEET_PEERS_PID=%d", (int)getpid());
    add(&v, "FLEET_HUB=127.0.0.1:%d", l->hub_port);
    add(&v, "FLEET_CA_FILE=%s/ca.pem", l->folder);
    add(&v, "FLEET_TOKEN_FILE=%s/token", l->folder);
    add(&v, "FLEET_JOB_FILE=%s/job.json", l->folder);
    add(&v, "FLEET_GRACE_SECONDS=%.0f", l->config.grace_ms / 1e3);
    for (char **e = l->environment; e && *e; e++)
        if (!has_name(&v, *e))
            add(&v, "%s", *e);
    if (!getenv("FLEET_THREADS") && !has_name(&v, "FLEET_THREADS="))
        add(&v, "FLEET_THREADS=%d", l->config.threads);
    for (char **e = environ; *e; e++)
        if (is_handed_on(*e) && !has_name(&v, *e))
            add(&v, "%s", *e);
    return v;
}

void launcher_free_variables(struct variables *v)
{
    for (size_t i = 0; i < v->count; i++)
        free(v->items[i]);
    free(v->items);
}

char **launcher_make_arguments(const struct launcher *l)
{
    size_t extra = 0, used = 0;
    static char verbose[] = "--verbose", end_of_options[] = "--";
    char **argv;

    while (l->command && l->command[extra])
        extra++;
    argv = calloc(extra + 5, sizeof(*argv));
    fleet_assert(argv);
    argv[used++] = l->agent_path;
    if (l->config.is_verbose)
        argv[used++] = verbose;
    if (l->command)
        argv[used++] = end_of_options;
    for (size_t i = 0; i < extra; i++)
        argv[used++] = l->command[i];
    return argv;
}

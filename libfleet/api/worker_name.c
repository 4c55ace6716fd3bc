/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/api/worker_name.h"

#include <stdlib.h>
#include <string.h>

#include "libfleet/base/strbuf.h"

char *worker_name_build(const char *job, int index, int attempt)
{
    struct fleet_strbuf name = {0};

    fleet_strbuf_appendf(&name, "%s-worker-%d-%d", job, index, attempt);
    return fleet_strbuf_take(&name);
}

char *server_name_build(const char *job, int index)
{
    struct fleet_strbuf name = {0};

    fleet_strbuf_appendf(&name, "%s-server-%d", job, index);
    return fleet_strbuf_take(&name);
}

/*
 * A decimal number without sign and leading zeros; *end is the position after it. -1: there is
 * none.
 */
static int read_number(const char *text, const char **end)
{
    size_t digits = strspn(text, "0123456789");
    long value;

    if (digits == 0 || digits > 10 || (digits > 1 && text[0] == '0'))
        return -1;
    value = strtol(text, NULL, 10);
    *end = text + digits;
    return value > WORKER_NAME_ATTEMPT_MAX ? -1 : (int)value;
}

bool worker_name_parse(const char *pod, const char *job, int *out_index, int *out_attempt)
{
    static const char worker[] = "-worker-";
    size_t length = strlen(job);
    int index, attempt;

    if (strncmp(pod, job, length) != 0 || strncmp(pod + length, worker, sizeof(worker) - 1) != 0)
        return false;
    pod += length + sizeof(worker) - 1;
    if ((index = read_number(pod, &pod)) < 0 || *pod != '-' ||
        (attempt = read_number(pod + 1, &pod)) < 0 || *pod)
        return false;
    *out_index = index;
    *out_attempt = attempt;
    return true;
}

bool server_name_parse(const char *pod, const char *job, int *out_index)
{
    static const char server[] = "-server-";
    size_t length = strlen(job);
    int index;

    if (strncmp(pod, job, length) != 0 || strncmp(pod + length, server, sizeof(server) - 1) != 0)
        return false;
    if ((index = read_number(pod + length + sizeof(server) - 1, &pod)) < 0 || *pod)
        return false;
    *out_index = index;
    return true;
}

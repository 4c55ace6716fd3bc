/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/launch_value.h"

#include <errno.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "cli/system/processors.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/variable.h"

#define NODES_MAX     256
#define PROCESSES_MAX 64

int launch_value_number(const char *name, const char *text, int min, int max, int *out,
                        struct fleet_error *err)
{
    return fleet_variable_parse(name, text, min, max, out, err);
}

int launch_value_nodes(const char *name, const char *text, int *out_min, int *out_max,
                       struct fleet_error *err)
{
    const char *colon = strchr(text, ':');
    FLEET_AUTO_FREE char *first = colon ? strndup(text, (size_t)(colon - text)) : NULL;
    int min, max, rc;

    rc = launch_value_number(name, colon ? first : text, 1, NODES_MAX, &min, err);
    max = min;
    if (rc == 0 && colon)
        rc = launch_value_number(name, colon + 1, 1, NODES_MAX, &max, err);
    if (rc == 0 && max < min)
        rc = fleet_error(err, -EINVAL, "%s is \"%s\": the second number is less than the first",
                         name, text);
    if (rc == 0) {
        *out_min = min;
        *out_max = max;
    }
    return rc;
}

/* The device files of the NVIDIA driver. */
static int count_gpus(void)
{
    glob_t found = {0};
    int count = glob("/dev/nvidia[0-9]*", 0, NULL, &found) == 0 ? (int)found.gl_pathc : 0;

    globfree(&found);
    return count;
}

int launch_value_processes(const char *name, const char *text, int *out, struct fleet_error *err)
{
    bool is_auto = strcmp(text, "auto") == 0, is_gpu = strcmp(text, "gpu") == 0;
    int count = is_auto || is_gpu ? count_gpus() : 0;

    if (is_gpu && count == 0)
        return fleet_error(err, -ENODEV, "%s is \"gpu\": this machine has no NVIDIA GPU", name);
    if (is_auto && count == 0)
        count = processors_count();
    if (strcmp(text, "cpu") == 0)
        count = processors_count();
    if (count == 0)
        return launch_value_number(name, text, 1, PROCESSES_MAX, out, err);
    *out = count < PROCESSES_MAX ? count : PROCESSES_MAX;
    return 0;
}

int launch_value_mode(const char *name, const char *text, bool *has_servers,
                      struct fleet_error *err)
{
    if (strcmp(text, "ps") == 0)
        *has_servers = true;
    else if (strcmp(text, "collective") != 0 && strcmp(text, "rpc") != 0)
        return fleet_error(err, -EINVAL, "%s is \"%s\", allowed: collective, ps, rpc%s", name, text,
                           strcmp(text, "ps-heter") == 0 ? "; all workers of a job are of one kind"
                                                         : "");
    return 0;
}

int launch_value_endpoints(const char *name, const char *text, const char **out,
                           struct fleet_error *err)
{
    FLEET_AUTO_FREE char *copy = strdup(text);
    char *rest = copy, *one;
    int port;

    while ((one = strsep(&rest, ",")) != NULL) {
        const char *colon = strrchr(one, ':'), *other = rest;
        size_t length = strlen(one);
        if (!colon || colon == one ||
            fleet_variable_parse(name, colon + 1, 1, 65535, &port, err) < 0)
            return fleet_error(err, -EINVAL, "%s has \"%s\", needed: host:port", name, one);
        for (; other && *other; other += strcspn(other, ","), other += *other == ',')
            if (strcspn(other, ",") == length && strncmp(other, one, length) == 0)
                return fleet_error(err, -EINVAL, "%s has %s twice", name, one);
    }
    *out = text;
    return 0;
}

int launch_value_level(const char *name, const char *text, int *restarts_max,
                       struct fleet_error *err)
{
    int level, rc = launch_value_number(name, text, -1, 1, &level, err);

    if (rc == 0 && level == 0)
        *restarts_max = 0;
    return rc;
}

/* 1, 0, or -1 for another word. */
static int truth(const char *text)
{
    static const char *const words[][2] = {{"0", "1"},    {"false", "true"}, {"f", "t"},
                                           {"no", "yes"}, {"n", "y"},        {"off", "on"}};

    for (size_t i = 0; i < FLEET_COUNT(words); i++)
        for (int value = 0; value < 2; value++)
            if (strcasecmp(text, words[i][value]) == 0)
                return value;
    return -1;
}

int launch_value_truth(const char *name, const char *text, bool *out, struct fleet_error *err)
{
    int value = truth(text);

    if (value < 0)
        return fleet_error(err, -EINVAL, "%s is \"%s\", allowed: True, False", name, text);
    *out = value == 1;
    return 0;
}

bool launch_value_is_truth(const char *text)
{
    return truth(text) >= 0;
}

/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Environment variables, read and checked here; no other file of the agent reads the environment.
 * Variables of the file go into the environment first, because trainers inherit them. Secrets come
 * by file, because each user with read access to the pod sees its environment.
 */
#include "agent/settings.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libfleet/api/worker_name.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/base/memory.h"
#include "libfleet/base/variable.h"
#include "libfleet/rendezvous/message.h"

#define FILE_SIZE_MAX     65536
#define GRACE_SECONDS     30
#define GRACE_SECONDS_MAX 86400

static int read_text(const char *name, size_t size_max, char **out, struct fleet_error *err)
{
    const char *text = getenv(name);

    if (!text || !text[0])
        return fleet_error(err, -EINVAL, "%s is not set", name);
    if (strlen(text) > size_max)
        return fleet_error(err, -EINVAL, "%s is longer than %zu bytes", name, size_max);
    *out = fleet_dup_text(text);
    return 0;
}

int settings_split_address(const char *what, const char *text, char **out_host, int *out_port,
                           struct fleet_error *err)
{
    const char *colon = strrchr(text, ':');
    const char *start = text, *end = colon;
    int port;

    if (!colon || colon == text)
        return fleet_error(err, -EINVAL, "%s is \"%.80s\", not host:port", what, text);
    if (*start == '[' && end > start + 1 && end[-1] == ']') {
        start++;
        end--;
    }
    if (end == start || fleet_variable_parse(what, colon + 1, 1, 65535, &port, err) < 0)
        return fleet_error(err, -EINVAL, "%s is \"%.80s\", not host:port", what, text);
    *out_host = strndup(start, (size_t)(end - start));
    fleet_assert(*out_host);
    *out_port = port;
    return 0;
}

/* The content of the file that variable `name` names, without white space at its end. */
static int read_secret(const char *name, char **out, struct fleet_error *err)
{
    const char *path = getenv(name);
    size_t size;

    if (!path || !path[0])
        return fleet_error(err, -EINVAL, "%s is not set", name);
    if (fleet_file_read(path, FILE_SIZE_MAX, out, &size, err) < 0)
        return fleet_error_wrap(err, "read %s", name);
    while (size > 0 && strchr(" \t\r\n", (*out)[size - 1]))
        (*out)[--size] = '\0';
    return 0;
}

static int read_address(struct settings_hub *out, struct fleet_error *err)
{
    const char *file = getenv("FLEET_HUB_FILE"), *text = getenv("FLEET_HUB");
    FLEET_AUTO_FREE char *said = NULL;
    int rc;

    if (file && file[0]) {
        out->may_move = true;
        rc = read_secret("FLEET_HUB_FILE", &said, err);
        return rc < 0 ? rc
                      : settings_split_address("FLEET_HUB_FILE", said, &out->host, &out->port, err);
    }
    if (!text || !text[0])
        return fleet_error(err, -EINVAL, "FLEET_HUB is not set");
    return settings_split_address("FLEET_HUB", text, &out->host, &out->port, err);
}

int settings_read_hub(struct settings_hub *out, struct fleet_error *err)
{
    struct settings_hub hub = {0};
    int rc;

    if ((rc = read_address(&hub, err)) < 0 ||
        (rc = read_secret("FLEET_CA_FILE", &hub.ca_pem, err)) < 0 ||
        (rc = read_secret("FLEET_TOKEN_FILE", &hub.token, err)) < 0)
        settings_release_hub(&hub);
    else
        *out = hub;
    return rc;
}

void settings_release_hub(struct settings_hub *hub)
{
    free(hub->host);
    free(hub->ca_pem);
    free(hub->token);
    *hub = (struct settings_hub){0};
}

/* fleetjob-train stands beside this program, wherever both were put. */
static int find_trainer(char **out, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *folder = NULL;
    int rc = fleet_file_own_folder(&folder, err);

    if (rc == 0)
        *out = fleet_file_join(folder, "fleetjob-train");
    return rc;
}

/* Trainers inherit what the name of the pod says. A variable that is set wins. */
static void take_name(const char *pod, const char *job)
{
    char text[16];
    int index, attempt;

    if (!worker_name_parse(pod, job, &index, &attempt))
        return;
    (void)snprintf(text, sizeof(text), "%d", index);
    fleet_assert(setenv("FLEET_INDEX", text, 0) == 0);
    (void)snprintf(text, sizeof(text), "%d", attempt);
    fleet_assert(setenv("FLEET_ATTEMPT", text, 0) == 0);
}

static int read_identity(struct settings *out, struct fleet_error *err)
{
    int rc;

    if ((rc = read_text("FLEET_JOB_NAME", 253, &out->job_name, err)) < 0 ||
        (rc = read_text("FLEET_JOB_UID", MESSAGE_UID_MAX, &out->job_uid, err)) < 0 ||
        (rc = read_text("FLEET_POD_NAME", 253, &out->pod_name, err)) < 0 ||
        (rc = read_text("FLEET_POD_UID", MESSAGE_UID_MAX, &out->pod_uid, err)) < 0)
        return rc;
    take_name(out->pod_name, out->job_name);
    if ((rc = fleet_variable_number("FLEET_INDEX", 0, 1 << 20, -1, &out->index, err)) < 0 ||
        (rc = fleet_variable_number("FLEET_ATTEMPT", 0, 1 << 30, 0, &out->attempt, err)) < 0)
        return rc;
    return fleet_variable_number("FLEET_PROCESSES", 1, MESSAGE_PROCESSES_MAX, 1, &out->processes,
                                 err);
}

static int read_all(char **arguments, struct settings *out, struct fleet_error *err)
{
    const char *address = getenv("FLEET_ADDRESS"), *termination = getenv("FLEET_TERMINATION_FILE");
    const char *job_file = getenv("FLEET_JOB_FILE");
    int grace_s, threads, rc;

    if ((rc = read_identity(out, err)) < 0 || (rc = fleet_variable_threads(&threads, err)) < 0 ||
        (rc = settings_read_hub(&out->hub, err)) < 0 ||
        (rc = fleet_variable_number("FLEET_GRACE_SECONDS", 1, GRACE_SECONDS_MAX, GRACE_SECONDS,
                                    &grace_s, err)) < 0)
        return rc;
    out->grace_ms = grace_s * 1e3;
    out->address = fleet_dup_text(address && address[0] ? address : "127.0.0.1");
    out->termination_file = fleet_dup_text(termination && termination[0] ? termination : NULL);
    out->job_file = fleet_dup_text(job_file && job_file[0] ? job_file : NULL);
    out->command = arguments && arguments[0] ? arguments : NULL;
    if (!out->command && !out->job_file)
        return fleet_error(err, -EINVAL, "FLEET_JOB_FILE is not set and no command was given");
    return find_trainer(&out->trainer_path, err);
}

/* A line of the file, NAME=value, into the environment. */
static int take_line(char *line, int number, struct fleet_error *err)
{
    char *equals = strchr(line, '=');

    if (!line[0])
        return 0;
    if (!equals || strncmp(line, "FLEET_", 6) != 0)
        return fleet_error(err, -EINVAL,
                           "FLEET_ENVIRONMENT_FILE: line %d is \"%.80s\", not FLEET_NAME=value",
                           number, line);
    *equals = '\0';
    fleet_assert(setenv(line, equals + 1, 0) == 0);
    return 0;
}

static int load_variables(struct fleet_error *err)
{
    const char *path = getenv("FLEET_ENVIRONMENT_FILE");
    FLEET_AUTO_FREE char *lines = NULL;
    int number = 0, rc = 0;

    if (!path || !path[0])
        return 0;
    if ((rc = read_secret("FLEET_ENVIRONMENT_FILE", &lines, err)) < 0)
        return rc;
    for (char *line = lines, *next; line && rc == 0; line = next) {
        number++;
        next = strchr(line, '\n');
        if (next)
            *next++ = '\0';
        rc = take_line(line, number, err);
    }
    return rc;
}

int settings_read(char **arguments, struct settings *out, struct fleet_error *err)
{
    struct settings settings = {0};
    int rc = load_variables(err);

    if (rc == 0)
        rc = read_all(arguments, &settings, err);

    if (rc < 0)
        settings_release(&settings);
    else
        *out = settings;
    return rc;
}

void settings_release(struct settings *settings)
{
    char *owned[] = {settings->job_name,     settings->job_uid,         settings->pod_name,
                     settings->pod_uid,      settings->address,         settings->job_file,
                     settings->trainer_path, settings->termination_file};

    for (size_t i = 0; i < FLEET_COUNT(owned); i++)
        free(owned[i]);
    settings_release_hub(&settings->hub);
    *settings = (struct settings){0};
}

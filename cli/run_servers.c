/* SPDX-License-Identifier: Apache-2.0 */

/* `fleetjob run` of a job with spec.server: what `fleetjob launch --server_num` does, with the
 * programs of the job. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/arguments.h"
#include "cli/launch_servers.h"
#include "cli/run_internal.h"
#include "cli/system/private_folder.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/strategy/prototxt.h"

#define TITLE "fleetjob run"

/* Options about losses and agents, which this job does not have. NULL = none is given. */
static const char *find_idle_option(const struct run_arguments *arguments)
{
    return arguments->is_json      ? "--json"
           : arguments->curve      ? "--curve"
           : arguments->state_file ? "--state-file"
                                   : NULL;
}

/* Append "NAME=value" to a list that ends with NULL. */
static void add(char ***list, const char *name, const char *value)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    size_t count = 0;

    while (*list && (*list)[count])
        count++;
    fleet_strbuf_appendf(&text, "%s=%s", name, value);
    *list = realloc(*list, (count + 2) * sizeof(**list));
    fleet_assert(*list);
    (*list)[count] = fleet_strbuf_take(&text);
    (*list)[count + 1] = NULL;
}

/* The strategy as the agent would write it, for FLEET_STRATEGY_FILE. */
static int write_strategy(const struct fleetjob *job, const char *path, struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    int rc = prototxt_print(&job->spec.strategy, STRATEGY_AS_READ, &text, err);

    return rc < 0 ? rc : fleet_file_write(path, text.text ? text.text : "", text.length, err);
}

static int launch(const struct fleetjob *job, const char *strategy_file)
{
    const struct launch_options options = {
        .has_servers = true,
        .job_id = job->metadata.name,
        .servers = (int)job->spec.server.replicas,
        .workers = job_file_world(job),
        .restarts_max = (int)job->spec.run_policy.restart.max_restarts,
    };
    char **server = job_file_server_command(job), **worker = job_file_command(job);
    char **server_environment = job_file_server_environment(job);
    char **worker_environment = job_file_environment(job);
    struct launch_servers what = {.options = &options, .title = TITLE};
    int code;

    if (job->spec.run_policy.data_encryption == FLEETJOB_ENCRYPTION_AES_GCM) {
        add(&server_environment, "FLEET_DATA_ENCRYPTION", "AES-GCM");
        add(&worker_environment, "FLEET_DATA_ENCRYPTION", "AES-GCM");
    }
    add(&worker_environment, "FLEET_STRATEGY_FILE", strategy_file);
    what.server = (struct launch_program){server, server_environment};
    what.worker = (struct launch_program){worker, worker_environment};
    code = launch_servers_run(&what);
    job_file_free_command(server);
    job_file_free_command(worker);
    job_file_free_command(server_environment);
    job_file_free_command(worker_environment);
    return code;
}

int run_servers(const struct run *run)
{
    const char *idle = find_idle_option(&run->arguments);
    FLEET_AUTO_FREE char *folder = NULL;
    FLEET_AUTO_FREE char *file = NULL;
    struct fleet_error err;
    int code = ARGUMENTS_NO;

    if (idle) {
        (void)fprintf(stderr,
                      TITLE ": %s: not for a job with spec.server: its servers and "
                            "workers have no hub, so there is no progress to show\n",
                      idle);
        return ARGUMENTS_USAGE;
    }
    if (private_folder_make(&folder, &err) == 0) {
        file = fleet_file_join(folder, "strategy.prototxt");
        if (write_strategy(&run->job, file, &err) == 0)
            code = launch(&run->job, file);
        else
            (void)fprintf(stderr, TITLE ": %s\n", err.text);
        private_folder_remove(folder);
        return code;
    }
    (void)fprintf(stderr, TITLE ": %s\n", err.text);
    return code;
}

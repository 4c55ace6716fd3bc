/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/launch.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/launch_servers.h"
#include "cli/system/private_folder.h"
#include "cli/yaml_print.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/base/strbuf.h"

/* Write the job where only this user reads it, and run it from here. */
static int run_job(const cJSON *job)
{
    FLEET_AUTO_FREE char *private = NULL, *file = NULL, *text = cJSON_Print(job);
    char *arguments[] = {(char[]){"run"}, NULL, NULL};
    struct fleet_error err;
    int code;

    fleet_assert(text != NULL);
    if (private_folder_make(&private, &err) < 0) {
        (void)fprintf(stderr, "fleetjob launch: %s\n", err.text);
        return ARGUMENTS_NO;
    }
    file = fleet_file_join(private, "job.yaml");
    if (fleet_file_write(file, text, strlen(text), &err) < 0) {
        (void)fprintf(stderr, "fleetjob launch: %s\n", err.text);
        private_folder_remove(private);
        return ARGUMENTS_NO;
    }
    arguments[1] = file;
    code = cli_run(2, arguments);
    private_folder_remove(private);
    return code;
}

/* Is the script there? Otherwise each process would fail, and be started again. A name without a
 * slash may be a program of $PATH. -errno. */
static int check_script(const struct launch_options *launch, const char *script,
                        struct fleet_error *err)
{
    bool is_python = launch_is_python(launch, script);

    if (launch->is_module || (!is_python && !strchr(script, '/')))
        return 0;
    if (access(script, is_python ? R_OK : F_OK) < 0)
        return fleet_error(err, -errno, "script %s: %s", script, strerror(errno));
    if (!is_python && access(script, X_OK) < 0)
        return fleet_error(err, -errno, "script %s is not executable: chmod +x %s", script, script);
    return 0;
}

static int run_servers(const struct launch_options *launch, char **words)
{
    FLEET_AUTO_FREE char **command = launch_command(launch, words);
    const struct launch_servers what = {.options = launch,
                                        .title = "fleetjob launch",
                                        .server = {.command = command},
                                        .worker = {.command = command}};

    return launch_servers_run(&what);
}

int cli_launch(int argc, char **argv)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    FLEET_AUTO_JSON cJSON *job = NULL;
    struct launch_options launch;
    struct fleet_error err;
    int code = launch_read(argc, argv, &launch);

    if (code >= 0)
        return code;
    if (launch.log_folder && fleet_file_make_folder(launch.log_folder, &err) < 0) {
        (void)fprintf(stderr, "fleetjob launch: --log_dir: %s\n", err.text);
        return ARGUMENTS_NO;
    }
    if (!launch.prints_job && check_script(&launch, argv[launch.first], &err) < 0) {
        (void)fprintf(stderr, "fleetjob launch: %s\n", err.text);
        return ARGUMENTS_NO;
    }
    if (launch.has_servers && !launch.prints_job)
        return run_servers(&launch, argv + launch.first);
    job = launch_job(&launch, argv + launch.first);
    if (!launch.prints_job)
        return run_job(job);
    yaml_print(job, &text);
    (void)fputs(fleet_strbuf_text(&text), stdout);
    return ARGUMENTS_GOOD;
}

/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Files for trainers of other frameworks, written into a folder that only this user can enter and
 * that goes with the agent.
 */
#include "agent/own_files.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_build.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/strategy/prototxt.h"
#include "libfleet/training/trainer_file.h"

/* ---- the folder ------------------------------------------------------------------------------ */

static int make_folder(char **out, struct fleet_error *err)
{
    const char *places[] = {getenv("TMPDIR"), "/tmp", "/dev/shm"};

    for (size_t i = 0; i < FLEET_COUNT(places); i++) {
        struct fleet_strbuf name = {0};
        if (!places[i] || !places[i][0])
            continue;
        fleet_strbuf_appendf(&name, "%s/fleetjob-XXXXXX", places[i]);
        *out = fleet_strbuf_take(&name);
        if (mkdtemp(*out))
            return 0;
        free(*out);
        *out = NULL;
    }
    return fleet_error(
        err, -errno,
        "no place for the trainers' files: none of $TMPDIR, /tmp and /dev/shm can be "
        "written to (%s)",
        strerror(errno));
}

static void remove_folder(const char *folder)
{
    DIR *dir = opendir(folder);
    struct dirent *entry;

    while (dir && (entry = readdir(dir))) {
        FLEET_AUTO_FREE char *path = fleet_file_join(folder, entry->d_name);
        (void)unlink(path);
    }
    if (dir)
        (void)closedir(dir);
    (void)rmdir(folder);
}

/*
 * Not durable, because the files end with the agent, and the agent has one thread. On a busy disk
 * (all workers start a framework of gigabytes at the same time) an fsync takes seconds. Meanwhile
 * the hub would get no heartbeat and would give up healthy workers.
 */
static int write_file(const struct own_files *files, const char *name, const char *text,
                      char **out_path, struct fleet_error *err)
{
    char *path = fleet_file_join(files->folder, name);
    int rc = fleet_file_replace(path, text, strlen(text), FLEET_FILE_VOLATILE, err);

    if (rc < 0) {
        free(path);
        return rc;
    }
    *out_path = path;
    return 0;
}

/* ---- the strategy ---------------------------------------------------------------------------- */

static int write_strategy(struct own_files *files, const struct strategy *strategy,
                          struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    if (prototxt_print(strategy, STRATEGY_AS_READ, &text, NULL) < 0)
        return 0; /* the text format has no such value; FLEET_STRATEGY_JSON has it */
    return write_file(files, "strategy.prototxt", fleet_strbuf_text(&text), &files->strategy_file,
                      err);
}

static int read_strategy(struct own_files *files, const char *job_file, const cJSON *root,
                         struct fleet_error *err)
{
    struct fleet_errors errors = {0};
    int rc = 0;

    files->strategy = calloc(1, sizeof(*files->strategy));
    fleet_assert(files->strategy);
    strategy_spec_decode(root, "spec.", files->strategy, &errors);
    if (errors.count > 0) {
        rc = fleet_error(err, -EINVAL, "%s: %s: %s", job_file, errors.items[0].path,
                         errors.items[0].message);
    } else if (fleet_json_at(root, "strategy")) {
        files->strategy_json = fleet_json_print(fleet_json_at(root, "strategy"));
        rc = write_strategy(files, &files->strategy->strategy, err);
    }
    fleet_errors_release(&errors);
    return rc;
}

static int read_job(struct own_files *files, const char *job_file, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *text = NULL;
    struct trainer_file file;
    size_t size;
    int rc = fleet_file_read(job_file, TRAINER_FILE_SIZE_MAX, &text, &size, err);

    if (rc < 0 || (rc = trainer_file_parse(text, size, &file, err)) < 0)
        return rc;
    files->encrypts = file.encrypts;
    if (file.auto_parallel) {
        files->auto_parallel_json = fleet_json_print(file.auto_parallel);
        rc = write_file(files, "auto_parallel.json", files->auto_parallel_json,
                        &files->auto_parallel_file, err);
    }
    if (rc == 0)
        rc = read_strategy(files, job_file, file.root, err);
    trainer_file_release(&file);
    return rc;
}

int own_files_nccl_rings(const struct own_files *files, int world)
{
    const struct strategy_spec *asked = files->strategy;
    struct select_options options = {.policy = asked ? asked->policy : STRATEGY_FULL,
                                     .world_size = world};
    struct fleet_errors errors = {0};
    SELECT_AUTO_RESULT struct select_result result = {0};
    int rings = asked ? asked->strategy.nccl_comm_num : 1;

    /* The degrees of an elastic job may not divide its ranks: then use the number that the user
     * asked for. */
    if (asked &&
        strategy_select(&asked->strategy, &options, "spec.strategy", &result, &errors) == 0)
        rings = result.final.nccl_comm_num;
    fleet_errors_release(&errors);
    return rings;
}

int own_files_open(const char *job_file, struct own_files *out, struct fleet_error *err)
{
    int rc;

    *out = (struct own_files){0};
    rc = make_folder(&out->folder, err);
    if (rc == 0 && job_file)
        rc = read_job(out, job_file, err);
    return rc;
}

void own_files_release(struct own_files *files)
{
    if (files->folder)
        remove_folder(files->folder);
    free(files->folder);
    free(files->strategy_json);
    free(files->strategy_file);
    free(files->auto_parallel_json);
    free(files->auto_parallel_file);
    if (files->strategy)
        strategy_spec_release(files->strategy);
    free(files->strategy);
    *files = (struct own_files){0};
}

/* ---- of a generation ------------------------------------------------------------------------- */

static void add_number_text(cJSON *json, const char *key, int number)
{
    char text[16];

    (void)snprintf(text, sizeof(text), "%d", number);
    fleet_json_set_string(json, key, text);
}

static void add_server(cJSON *servers, const struct message_member *member, int first_rank)
{
    cJSON *server = fleet_json_new_object(), *devices;

    fleet_json_add(servers, server);
    fleet_json_set_string(server, "server_id", member->address);
    devices = fleet_json_set_list(server, "device");
    for (int p = 0; p < member->processes; p++) {
        cJSON *device = fleet_json_add_object(devices);
        add_number_text(device, "device_id", p);
        fleet_json_set_string(device, "device_ip", member->address);
        add_number_text(device, "rank_id", first_rank + p);
    }
    fleet_json_set_string(server, "host_nic_ip", "reserve");
}

char *own_files_format_rank_table(const struct message_assign *assign)
{
    FLEET_AUTO_JSON cJSON *root = fleet_json_new_object();
    cJSON *servers;
    int rank = 0;

    fleet_json_set_string(root, "version", "1.0");
    add_number_text(root, "server_count", (int)assign->member_count);
    servers = fleet_json_set_list(root, "server_list");
    for (size_t m = 0; m < assign->member_count; m++) {
        add_server(servers, &assign->members[m], rank);
        rank += assign->members[m].processes;
    }
    fleet_json_set_string(root, "status", "completed");
    return fleet_json_print(root);
}

int own_files_rank_table(const struct own_files *files, const struct message_assign *assign,
                         char **out_path, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *text = own_files_format_rank_table(assign);

    return write_file(files, "rank_table.json", text, out_path, err);
}

int own_files_backup(const struct own_files *files, int rank, const char *json, char **out_path,
                     struct fleet_error *err)
{
    char name[40];

    (void)snprintf(name, sizeof(name), "backup_env.%d.json", rank);
    return write_file(files, name, json, out_path, err);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/strategy_files.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "agent/runtime/trainer.h"
#include "libfleet/autoparallel/context_files.h"
#include "libfleet/autoparallel/job_strategy.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/base/strbuf.h"

#define MODE 0600 /* as MindSpore's */

static char *path_of(const struct context_file *file, const char *folder)
{
    return file->path ? fleet_file_join(folder, file->path) : NULL;
}

void strategy_files_init(struct strategy_files *files, const cJSON *context, const char *folder)
{
    struct context_files named;

    context_files_of(context, &named);
    *files = (struct strategy_files){.load = path_of(&named.load, folder),
                                     .save = path_of(&named.save, folder),
                                     .groups = path_of(&named.groups, folder),
                                     .only_trainable = named.only_trainable};
}

void strategy_files_release(struct strategy_files *files)
{
    free(files->load);
    free(files->save);
    free(files->groups);
    *files = (struct strategy_files){0};
}

/* Ranks read one file, or copies of it. */
static int check(struct trainer *trainer, struct fleet_error *err)
{
    const char *path = trainer->job.files.load;
    FLEET_AUTO_FREE char *text = NULL;
    struct strategy_file file;
    size_t size, unknown;
    int rc;

    if (fleet_file_read(path, STRATEGY_FILE_SIZE_MAX, &text, &size, err) < 0)
        return err->code;
    rc = strategy_file_decode(text, size, strategy_file_is_json(path), &file, err);
    if (rc < 0)
        return fleet_error_wrap(err, "strategy file %s", path);
    rc = job_strategy_check(&file, &trainer->job.plan, &trainer->job.config, &unknown, err);
    if (rc < 0)
        (void)fleet_error_wrap(err, "strategy file %s", path);
    else if (unknown > 0 && trainer->generation.rank == 0)
        trainer_warn(trainer, "%zu of %zu operators of strategy file %s are none of the model's",
                     unknown, file.operator_count, path);
    strategy_file_release(&file);
    return rc;
}

static int write_file(const char *path, const struct fleet_strbuf *text, struct fleet_error *err)
{
    int rc = fleet_file_prepare(path, err);

    if (rc == 0)
        rc = fleet_file_write(path, fleet_strbuf_text(text), text->length, err);
    if (rc == 0 && chmod(path, MODE) < 0)
        rc = fleet_error(err, -errno, "%s: %s", path, strerror(errno));
    return rc;
}

static int save_strategy(const struct trainer *trainer, struct fleet_error *err)
{
    const struct strategy_files *files = &trainer->job.files;
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    struct strategy_file file;
    int rc = job_strategy_describe(&trainer->job.plan, &trainer->job.config, files->only_trainable,
                                   &file, err);

    if (rc < 0)
        return rc;
    strategy_file_encode(&file, strategy_file_is_json(files->save), &text);
    strategy_file_release(&file);
    return write_file(files->save, &text, err);
}

static int save_groups(const struct trainer *trainer, struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    struct group_file file;

    job_strategy_groups(&trainer->job.plan, trainer->generation.rank, &file);
    group_file_encode(&file, &text);
    group_file_release(&file);
    return write_file(trainer->job.files.groups, &text, err);
}

int strategy_files_use(struct trainer *trainer, struct fleet_error *err)
{
    struct strategy_files *files = &trainer->job.files;
    int rc = 0;

    if (files->is_done)
        return 0;
    if (files->load)
        rc = check(trainer, err);
    if (rc == 0 && files->save && trainer->generation.rank == 0)
        rc = save_strategy(trainer, err);
    if (rc == 0 && files->groups && trainer->generation.rank == 0)
        rc = save_groups(trainer, err);
    files->is_done = rc == 0;
    return rc;
}

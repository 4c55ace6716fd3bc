/* SPDX-License-Identifier: Apache-2.0 */

/* The losses of a run: kept beside its checkpoints, and drawn at the end. */
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "cli/curves/curve.h"
#include "cli/curves/loss_record.h"
#include "cli/curves/picture.h"
#include "cli/plan_table.h"
#include "cli/progress.h"
#include "cli/run_internal.h"
#include "controller/fleetjob/status.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/file.h"
#include "libfleet/base/log.h"

char *run_curve_path(const struct run *run)
{
    if (run->arguments.curve)
        return strdup(run->arguments.curve);
    if (run->job.spec.training.log.curve)
        return fleet_file_join(run->folder, run->job.spec.training.log.curve);
    return NULL;
}

void run_curve_describe(struct run *run)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf about = {0};

    if (run->job.spec.has_training)
        plan_table_summary(&run->job, &run->plan, &about);
    curve_describe(&run->curve, run->job.metadata.name, fleet_strbuf_text(&about));
}

/* The path of the loss record of a job that keeps checkpoints in a folder, heap; NULL = none. */
static char *record_path(const struct run *run)
{
    const struct training_config *training = &run->job.spec.training;
    FLEET_AUTO_FREE char *folder = NULL;

    if (!run->job.spec.has_training || !training->has_checkpoint ||
        fleet_path_is_remote(training->checkpoint.path))
        return NULL;
    folder = fleet_file_join(run->folder, training->checkpoint.path);
    return loss_record_path(folder, run->job.metadata.name);
}

/* Keep an unreadable record, and write the losses of this run to a new one. */
static void set_aside(struct run *run, const char *record, const struct fleet_error *why)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf other = {0};

    fleet_strbuf_appendf(&other, "%s.damaged", record);
    progress_note(run->progress, "warning: the curve starts again: %s; %s %s", why->text,
                  rename(record, other.text) == 0 ? "the file is now"
                                                  : "it could not be renamed to",
                  other.text);
}

void run_curve_take_earlier(struct run *run, int64_t step)
{
    FLEET_AUTO_FREE char *record = record_path(run);
    struct curve earlier = {0};
    struct fleet_error err;
    int rc;

    if (!record || run->has_earlier || step < 1)
        return;
    run->has_earlier = true;
    if ((rc = loss_record_read(record, &earlier, &err)) < 0) {
        if (rc != -ENOENT)
            set_aside(run, record, &err);
        return;
    }
    curve_cut(&earlier, step + 1);
    for (size_t i = 0; i < run->curve.mark_count; i++) /* a restart before the first step */
        curve_add_mark(&earlier, run->curve.marks[i].kind, -1);
    curve_describe(&earlier, run->curve.name, run->curve.about);
    curve_release(&run->curve);
    run->curve = earlier;
    if (run->curve.losses.count == 0)
        return;
    progress_began(run->progress, run->curve.losses.points[0].loss,
                   run->curve.losses.points[run->curve.losses.count - 1].loss);
}

void run_curve_note_step(struct run *run, const struct message_step *step)
{
    if (!run->has_stepped && step->step > 1 && run->job.spec.training.has_checkpoint) {
        run_curve_take_earlier(run, step->step - 1);
        curve_add_mark(&run->curve, CURVE_RESUME, step->step - 1);
    }
    run->has_stepped = true;
    curve_add(&run->curve, step->step, step->loss);
}

void run_curve_keep(struct run *run)
{
    FLEET_AUTO_FREE char *record = record_path(run);
    struct fleet_error err;

    if (record && run->curve.losses.count > 0 && loss_record_write(record, &run->curve, &err) < 0 &&
        !run->has_told_record) {
        progress_note(run->progress, "warning: %s", err.text);
        run->has_told_record = true;
    }
    run->recorded_ms = fleet_monotonic_ms();
}

bool run_curve_draw(struct run *run, const char *path)
{
    struct picture picture = {.runs = {{.curve = &run->curve, .label = run->job.metadata.name}},
                              .count = 1};
    enum canvas_format format;
    struct fleet_error err;

    if (!path || run->curve.losses.count == 0)
        return false;
    if (picture_format(path, &format, &err) == 0 &&
        picture_write(&picture, format, path, &err) == 0)
        return true;
    progress_note(run->progress, "warning: %s", err.text);
    return false;
}

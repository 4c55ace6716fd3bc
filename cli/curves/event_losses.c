/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/curves/event_losses.h"

#include <dirent.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "cli/curves/curve.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/tensorboard/event.h"

#define SIZE_MAX_READ ((size_t)1 << 30)
#define HEADER_SIZE   12 /* of a frame, before the payload */
#define FILES_MAX     100000
#define PREFIX        "events.out.tfevents."
#define SUFFIX        ".fleetjob"

static bool is_tag(const struct event_scalar *scalar, const char *tag)
{
    return scalar->tag_size == strlen(tag) && memcmp(scalar->tag, tag, scalar->tag_size) == 0;
}

/* The two kinds of points may be interleaved; each goes into its own series. */
static void add_event(const struct event *event, struct curve *losses, struct curve *evaluations)
{
    if (event->step < 0 || event->step > CURVE_STEP_MAX)
        return; /* not a step that our trainer writes */
    if (event->kind == EVENT_START && event->step > 0) {
        curve_cut(losses, event->step);
        curve_cut(evaluations, event->step);
        if (losses->losses.count + evaluations->evaluations.count > 0)
            curve_add_mark(losses, CURVE_RESUME, event->step - 1);
    }
    for (int i = 0; i < event->scalar_count; i++)
        if (is_tag(&event->scalars[i], "loss"))
            curve_add(losses, event->step, event->scalars[i].value);
        else if (is_tag(&event->scalars[i], "evaluation/loss"))
            curve_add_evaluation(evaluations, event->step, event->scalars[i].value);
}

bool event_losses_begin(const char *bytes, size_t size)
{
    size_t payload;

    /* the checksum of the length comes first; no text matches it by chance */
    return size >= HEADER_SIZE &&
           event_frame((const uint8_t *)bytes, size, &payload, NULL) != -EBADMSG;
}

static int decode(const char *bytes, size_t size, struct curve *losses, struct curve *evaluations,
                  struct fleet_error *err)
{
    size_t at = 0, payload;
    struct event event;
    int rc;

    while (at < size) {
        const uint8_t *frame = (const uint8_t *)bytes + at;
        if ((rc = event_frame(frame, size - at, &payload, err)) == -EAGAIN)
            return 0;
        if (rc == 0)
            rc = event_decode(frame + HEADER_SIZE, payload, &event, err);
        if (rc < 0)
            return fleet_error_wrap(err, "damaged at byte %zu of %zu", at, size);
        add_event(&event, losses, evaluations);
        at += payload + EVENT_FRAME_SIZE;
    }
    return 0;
}

/* Move the evaluations of `from` to those of `to`. */
static void move_evaluations(struct curve *from, struct curve *to)
{
    for (size_t i = 0; i < from->evaluations.count; i++)
        curve_add_evaluation(to, from->evaluations.points[i].step,
                             from->evaluations.points[i].loss);
    curve_release(from);
}

int event_losses_decode(const char *bytes, size_t size, struct curve *out, struct fleet_error *err)
{
    struct curve evaluations = {0};
    int rc = decode(bytes, size, out, &evaluations, err);

    move_evaluations(&evaluations, out);
    return rc;
}

/* ---- a folder -------------------------------------------------------------------------------- */

static int is_event_file(const struct dirent *entry)
{
    return strstr(entry->d_name, "tfevents") != NULL;
}

/* The job's name in the name of an event file, heap; NULL: another program wrote the file. */
static char *job_of(const char *name)
{
    size_t size = strlen(name), suffix = strlen(SUFFIX);
    const char *job, *end;

    if (strncmp(name, PREFIX, strlen(PREFIX)) != 0 || size < suffix ||
        strcmp(name + size - suffix, SUFFIX) != 0 || !(job = strchr(name + strlen(PREFIX), '.')) ||
        !(end = strchr(job + 1, '.')))
        return NULL;
    return strndup(job + 1, (size_t)(end - job - 1));
}

/* The name of the only job in the files, heap, or NULL. -EINVAL if there are two. */
static int find_job(struct dirent *const *files, int count, char **out, struct fleet_error *err)
{
    *out = NULL;
    for (int i = 0; i < count; i++) {
        FLEET_AUTO_FREE char *job = job_of(files[i]->d_name);
        if (job && *out && strcmp(job, *out) != 0)
            return fleet_error(err, -EINVAL,
                               "event files of several jobs (%s, %s); name the files of one, or "
                               "give each job its own log.tensorboard",
                               *out, job);
        if (job && !*out) {
            *out = job;
            job = NULL;
        }
    }
    return 0;
}

static int read_file(const char *folder, const char *name, struct curve *losses,
                     struct curve *evaluations, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *path = fleet_file_join(folder, name), *bytes = NULL;
    size_t size;
    int rc = fleet_file_read(path, SIZE_MAX_READ, &bytes, &size, err);

    if (rc < 0)
        return rc;
    if (decode(bytes, size, losses, evaluations, err) < 0)
        return fleet_error_wrap(err, "%s", name);
    return 0;
}

int event_losses_read(const char *folder, struct curve *out, struct fleet_error *err)
{
    struct curve losses = {0}, evaluations = {0};
    FLEET_AUTO_FREE char *job = NULL;
    struct dirent **files = NULL;
    int count = scandir(folder, &files, is_event_file, alphasort), rc;

    if (count < 0)
        return fleet_error(err, -errno, "%s", strerror(errno));
    rc = count == 0 ? fleet_error(err, -ENOENT, "no event files") : 0;
    if (rc == 0)
        rc = find_job(files, count, &job, err);
    for (int i = 0; i < count && rc == 0; i++)
        rc = read_file(folder, files[i]->d_name, &losses, &evaluations, err);
    for (int i = 0; i < count; i++)
        free(files[i]);
    free(files);
    move_evaluations(&evaluations, &losses);
    curve_describe(&losses, job, NULL);
    if (rc < 0)
        curve_release(&losses);
    else
        *out = losses;
    return rc;
}

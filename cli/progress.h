/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_PROGRESS_H
#define CLI_PROGRESS_H

/*
 * What `fleetjob run` prints while a job runs: one JSON object a line (docs/reference/run.md), or
 * text for people, with a line that rewrites itself on a terminal and plain lines elsewhere.
 *
 * Its callers report everything that happens; it decides what to show. It reads no clock.
 */

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <cjson/cJSON.h>

#include "libfleet/rendezvous/hub.h"

struct progress;

struct progress_config {
    bool is_json;
    bool is_terminal;    /* text: `out` is one, rewrite the progress line */
    int columns;         /* text, terminal: cut the progress line so that it fits; 0 = not known */
    FILE *out;           /* borrowed */
    FILE *notes;         /* warnings and errors; borrowed */
    bool own_trainer;    /* the user's own trainer: only its reports are known */
    int64_t steps;       /* of the job, 0 = not known */
    int64_t every_steps; /* text: a line for every so many steps, >= 1 */
};

struct progress_end {
    const char *state; /* "Succeeded", "Failed", "Suspended" */
    bool has_succeeded;
    const char *message;        /* why, "" = nothing to say */
    const char *weights_sha256; /* "" = none */
    const char *curve_path;     /* the drawing that was written, "" = none */
    int restarts;               /* that counted */
    double seconds;             /* since the start */
};

/* Never NULL; `config` is copied. */
struct progress *progress_new(const struct progress_config *config);
void progress_free(struct progress *progress); /* NULL is fine */

/* The plan: `json` is status.plan, `text` the same for people, several lines. */
void progress_plan(struct progress *progress, const cJSON *json, const char *text);

/* Earlier runs of the job have made steps, with these losses first and last. */
void progress_began(struct progress *progress, double first_loss, double last_loss);

/* Something happened at the hub; `now_ms` is monotonic. */
void progress_event(struct progress *progress, const struct hub_event *event, double now_ms);

/* A line for `notes` that leaves the progress line whole. */
void progress_note(struct progress *progress, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* A line of an own trainer: to `notes` if it is an error or `out` holds JSON, else to `out`. */
void progress_output(struct progress *progress, bool is_error, const char *text);

/* The summary: the end and its reason, the losses, the restarts, what was written. */
void progress_finish(struct progress *progress, const struct progress_end *end);

/* Newest committed step; 0 = none. */
int64_t progress_step(const struct progress *progress);

/* False once `out` could not be written, e.g. because the pipe is not read any more. */
bool progress_is_heard(const struct progress *progress);

#endif

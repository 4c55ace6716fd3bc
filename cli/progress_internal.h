/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_PROGRESS_INTERNAL_H
#define CLI_PROGRESS_INTERNAL_H

/* What the files of progress.h share, for them alone. */

#include <stdbool.h>

#include "cli/progress.h"
#include "libfleet/base/step_times.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/rendezvous/hub.h"

struct progress {
    struct progress_config config;
    int64_t step;
    double first_loss, last_loss;
    double step_ms;               /* mean time of a step, NaN = not known */
    double stepped_ms;            /* when the last step came, NaN = none since the last restart */
    double shown_ms;              /* when a line of steps was last shown */
    struct fleet_strbuf line;     /* terminal: the progress line that is on the screen */
    struct fleet_strbuf restarts; /* text: the first few, for the end */
    int restart_count;
    struct fleet_step_times times; /* of all steps that were measured */
    double total_s;                /* the whole time of these */
    bool is_heard;
};

/* ---- progress.c: `config.out` ---------------------------------------------------------------- */

void progress_write(struct progress *progress, const char *text);

/* The line that rewrites itself, on a terminal: take it away, put it back. */
void progress_erase_line(struct progress *progress);
void progress_redraw_line(struct progress *progress);

/* A whole line of text above the progress line; `text` gets its newline. */
void progress_say(struct progress *progress, struct fleet_strbuf *text);

/* ---- progress_json.c ------------------------------------------------------------------------- */

void progress_plan_json(struct progress *progress, const cJSON *plan);
void progress_event_json(struct progress *progress, const struct hub_event *event);
void progress_end_json(struct progress *progress, const struct progress_end *end);

/* ---- progress_text.c ------------------------------------------------------------------------- */

void progress_event_text(struct progress *progress, const struct hub_event *event, double now_ms);
void progress_end_text(struct progress *progress, const struct progress_end *end);

#endif

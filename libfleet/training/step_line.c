/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/training/step_line.h"

#include <math.h>

#define LARGE 1e5 /* from here on a number shows its exponent */

void step_line_append_duration(double seconds, struct fleet_strbuf *out)
{
    long whole = lround(fmax(seconds, 0.0));

    if (whole < 60)
        fleet_strbuf_appendf(out, "%lds", whole);
    else if (whole < 3600)
        fleet_strbuf_appendf(out, "%ldm%02lds", whole / 60, whole % 60);
    else
        fleet_strbuf_appendf(out, "%ldh%02ldm", whole / 3600, whole / 60 % 60);
}

static void append_rate(double per_second, struct fleet_strbuf *out)
{
    if (per_second >= 1e6)
        fleet_strbuf_appendf(out, "%.2fM tok/s", per_second / 1e6);
    else if (per_second >= 1e3)
        fleet_strbuf_appendf(out, "%.1fk tok/s", per_second / 1e3);
    else
        fleet_strbuf_appendf(out, "%.0f tok/s", per_second);
}

void step_line_append_loss(double loss, struct fleet_strbuf *out)
{
    fleet_strbuf_appendf(out, fabs(loss) < LARGE ? "%.4f" : "%.2e", loss);
}

static void append_norm(double norm, struct fleet_strbuf *out)
{
    fleet_strbuf_appendf(out, fabs(norm) < LARGE ? "  norm %.2f" : "  norm %.2e", norm);
}

static void append_reported(const struct step_line *line, struct fleet_strbuf *out)
{
    if (!isnan(line->loss)) {
        fleet_strbuf_append(out, "  loss ");
        step_line_append_loss(line->loss, out);
    }
    if (!isnan(line->norm))
        append_norm(line->norm, out);
    if (!isnan(line->learning_rate))
        fleet_strbuf_appendf(out, "  lr %.1e", line->learning_rate);
    if (isnan(line->tokens_per_second))
        return;
    fleet_strbuf_append(out, "  ");
    append_rate(line->tokens_per_second, out);
}

void step_line_append(const struct step_line *line, struct fleet_strbuf *out)
{
    fleet_strbuf_appendf(out, "step %lld", (long long)line->step);
    if (line->steps > 0)
        fleet_strbuf_appendf(out, "/%lld", (long long)line->steps);
    if (line->is_reported) {
        append_reported(line, out);
    } else {
        fleet_strbuf_append(out, "  loss ");
        step_line_append_loss(line->loss, out);
        if (!isnan(line->learning_rate)) {
            append_norm(line->norm, out);
            fleet_strbuf_appendf(out, "  lr %.1e ", line->learning_rate);
        } else {
            fleet_strbuf_append(out, line->is_skipped ? "  update skipped  " : "  ");
        }
        append_rate(line->tokens_per_second, out);
    }
    if (!isnan(line->eta_s)) {
        fleet_strbuf_append(out, "  eta ");
        step_line_append_duration(line->eta_s, out);
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/curves/loss_record.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"

#define COLUMNS  4
#define SHOWN    40 /* number of bytes of a bad line that a message quotes */
#define HEAD_MAX ((size_t)1 << 16)

static const char *const events[] = {[CURVE_RESTART] = "restart", [CURVE_RESUME] = "resume"};

static const char titles[] = "step\tloss\theldOutLoss\tevents";

char *loss_record_path(const char *folder, const char *name)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf file = {0};

    fleet_strbuf_appendf(&file, LOSS_RECORD_PREFIX "%s" LOSS_RECORD_SUFFIX, name);
    return fleet_file_join(folder, file.text);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* A piece of the text; not NUL-terminated. */
struct piece {
    const char *text;
    size_t size;
};

static struct piece take(const char **at, const char *end, char separator)
{
    const char *found = memchr(*at, separator, (size_t)(end - *at));
    struct piece piece = {*at, (size_t)((found ? found : end) - *at)};

    *at = found ? found + 1 : end;
    return piece;
}

static bool is_text(struct piece piece, const char *text)
{
    return piece.size == strlen(text) && memcmp(piece.text, text, piece.size) == 0;
}

static bool read_step(struct piece piece, int64_t *out)
{
    char *end;

    errno = 0;
    *out = strtoll(piece.text, &end, 10);
    return !errno && *out <= CURVE_STEP_MAX && piece.size > 0 && piece.text[0] >= '0' &&
           piece.text[0] <= '9' && end == piece.text + piece.size;
}

static bool read_loss(struct piece piece, double *out)
{
    char *end;

    *out = strtod(piece.text, &end);
    return piece.size > 0 && (unsigned char)piece.text[0] > ' ' && end == piece.text + piece.size;
}

static bool read_events(struct piece piece, int64_t step, struct curve *out)
{
    const char *at = piece.text, *end = at + piece.size;

    while (at < end) {
        struct piece event = take(&at, end, ',');
        if (is_text(event, events[CURVE_RESTART]))
            curve_add_mark(out, CURVE_RESTART, step);
        else if (is_text(event, events[CURVE_RESUME]))
            curve_add_mark(out, CURVE_RESUME, step);
        else
            return false;
    }
    return true;
}

static bool read_line(struct piece line, int64_t *last, struct curve *out)
{
    const char *at = line.text, *end = at + line.size;
    struct piece columns[COLUMNS];
    int64_t step;
    double loss;

    for (int i = 0; i < COLUMNS; i++)
        columns[i] = take(&at, end, '\t');
    if (at < end || !read_step(columns[0], &step) || step <= *last)
        return false;
    *last = step;
    if (columns[1].size > 0) {
        if (!read_loss(columns[1], &loss))
            return false;
        curve_add(out, step, loss);
    }
    if (columns[2].size > 0) {
        if (!read_loss(columns[2], &loss))
            return false;
        curve_add_evaluation(out, step, loss);
    }
    return read_events(columns[3], step, out);
}

/* Read the first line. Unknown fields are ignored. */
static void read_head(struct piece line, struct curve *out)
{
    size_t skip = strlen(LOSS_RECORD_HEAD);
    const char *name = NULL, *about = NULL;
    FLEET_AUTO_JSON cJSON *json = NULL;

    if (fleet_json_parse(line.text + skip, line.size - skip, HEAD_MAX, &json, NULL) < 0)
        return;
    (void)fleet_json_opt_string(json, "job", &name, NULL);
    (void)fleet_json_opt_string(json, "about", &about, NULL);
    curve_describe(out, name, about);
}

static int read_lines(const char *text, struct curve *out, struct fleet_error *err)
{
    const char *at = text, *end = text + strlen(text);
    int64_t last = -1; /* step */

    for (int number = 1; at < end; number++) {
        struct piece line = take(&at, end, '\n');
        int64_t before = last;
        if (line.size > 0 && line.text[line.size - 1] == '\r')
            line.size--;
        if (line.size > strlen(LOSS_RECORD_HEAD) &&
            memcmp(line.text, LOSS_RECORD_HEAD, strlen(LOSS_RECORD_HEAD)) == 0)
            read_head(line, out);
        else if (line.size > 0 && line.text[0] != '#' && !is_text(line, titles) &&
                 !read_line(line, &last, out))
            return fleet_error(err, -EBADMSG,
                               "line %d: expected a step greater than %lld, its loss, and perhaps "
                               "a held-out loss and events, separated by tabs, not \"%.*s\"%s",
                               number, (long long)before,
                               (int)(line.size < SHOWN ? line.size : SHOWN), line.text,
                               line.size > SHOWN ? " …" : "");
    }
    return 0;
}

int loss_record_decode(const char *text, struct curve *out, struct fleet_error *err)
{
    struct curve curve = {0};
    int rc = read_lines(text, &curve, err);

    if (rc < 0)
        curve_release(&curve);
    else
        *out = curve;
    return rc;
}

int loss_record_read(const char *path, struct curve *out, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *text = NULL;
    size_t size;
    int rc = fleet_file_read(path, LOSS_RECORD_SIZE_MAX, &text, &size, err);

    if (rc < 0)
        return rc;
    if (strlen(text) != size)
        return fleet_error(err, -EBADMSG, "%s: not a record of losses: byte %zu is NUL", path,
                           strlen(text));
    if (loss_record_decode(text, out, err) < 0)
        return fleet_error_wrap(err, "%s", path);
    return 0;
}

/* ---- writing --------------------------------------------------------------------------------- */

static void write_head(const struct curve *curve, struct fleet_strbuf *out)
{
    fleet_strbuf_append(out, LOSS_RECORD_HEAD "{\"job\":");
    fleet_json_append_string(out, curve->name ? curve->name : "");
    fleet_strbuf_append(out, ",\"about\":");
    fleet_json_append_string(out, curve->about ? curve->about : "");
    fleet_strbuf_appendf(out, "}\n%s\n", titles);
}

/* The marks of `step`, in the order they were added; they need not ascend. */
static void write_events(const struct curve *curve, int64_t step, struct fleet_strbuf *out)
{
    bool is_first = true;

    for (size_t i = 0; i < curve->mark_count; i++)
        if (curve->marks[i].step == step) {
            fleet_strbuf_appendf(out, "%s%s", is_first ? "" : ",", events[curve->marks[i].kind]);
            is_first = false;
        }
}

/* The smallest step >= `step` with an entry; INT64_MAX: none. */
static int64_t next_step(const struct curve *curve, size_t loss, size_t evaluation, int64_t step)
{
    int64_t next = INT64_MAX;

    if (loss < curve->losses.count)
        next = curve->losses.points[loss].step;
    if (evaluation < curve->evaluations.count && curve->evaluations.points[evaluation].step < next)
        next = curve->evaluations.points[evaluation].step;
    for (size_t i = 0; i < curve->mark_count; i++)
        if (curve->marks[i].step >= step && curve->marks[i].step < next)
            next = curve->marks[i].step;
    return next;
}

/* Remove the tabs of empty columns at the end of the line, and end it. */
static void end_line(struct fleet_strbuf *out)
{
    while (out->text[out->length - 1] == '\t')
        out->text[--out->length] = '\0';
    fleet_strbuf_append_char(out, '\n');
}

void loss_record_encode(const struct curve *curve, struct fleet_strbuf *out)
{
    const struct curve_series *losses = &curve->losses, *evaluations = &curve->evaluations;
    size_t loss = 0, evaluation = 0;
    int64_t step = 0;

    write_head(curve, out);
    while ((step = next_step(curve, loss, evaluation, step)) < INT64_MAX) {
        fleet_strbuf_appendf(out, "%lld\t", (long long)step);
        if (loss < losses->count && losses->points[loss].step == step)
            fleet_strbuf_appendf(out, "%.9g", losses->points[loss++].loss);
        fleet_strbuf_append_char(out, '\t');
        if (evaluation < evaluations->count && evaluations->points[evaluation].step == step)
            fleet_strbuf_appendf(out, "%.9g", evaluations->points[evaluation++].loss);
        fleet_strbuf_append_char(out, '\t');
        write_events(curve, step, out);
        end_line(out);
        step++;
    }
}

int loss_record_write(const char *path, const struct curve *curve, struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    loss_record_encode(curve, &text);
    return fleet_file_write(path, text.text, text.length, err);
}

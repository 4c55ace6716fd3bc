/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/loss_record.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/file.h"
#include "libfleet/base/strbuf.h"

char *loss_record_path(const char *folder, const char *name)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf file = {0};

    fleet_strbuf_appendf(&file, "losses-%s.tsv", name);
    return fleet_file_join(folder, file.text);
}

/* One line; false at the end and at what is no line of ours. */
static bool read_line(const char **at, int64_t after, struct curve_point *out)
{
    char *end;

    errno = 0;
    out->step = strtoll(*at, &end, 10);
    if (end == *at || *end != '\t' || errno || out->step <= after)
        return false;
    *at = end + 1;
    out->loss = strtod(*at, &end);
    if (end == *at || *end != '\n')
        return false;
    *at = end + 1;
    return true;
}

void loss_record_read(const char *path, int64_t step, struct curve *curve)
{
    FLEET_AUTO_FREE char *text = NULL;
    struct curve all = {0};
    struct curve_point point;
    const char *at;
    int64_t last = 0;
    size_t size;

    if (fleet_file_read(path, LOSS_RECORD_SIZE_MAX, &text, &size, NULL) < 0)
        return;
    at = text;
    while (read_line(&at, last, &point) && point.step < step) {
        curve_add(&all, point.step, point.loss);
        last = point.step;
    }
    for (size_t i = 0; i < curve->count; i++)
        curve_add(&all, curve->points[i].step, curve->points[i].loss);
    for (size_t i = 0; i < curve->restart_count; i++)
        curve_add_restart(&all, curve->restarts[i]);
    curve_release(curve);
    *curve = all;
}

int loss_record_write(const char *path, const struct curve *curve, struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    for (size_t i = 0; i < curve->count; i++)
        fleet_strbuf_appendf(&text, "%lld\t%.9g\n", (long long)curve->points[i].step,
                             curve->points[i].loss);
    return fleet_file_write(path, fleet_strbuf_text(&text), text.length, err);
}

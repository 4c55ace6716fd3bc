/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/search_print.h"

#include "cli/links_file.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/json_build.h"
#include "libfleet/base/strbuf.h"

void search_print_seconds(struct fleet_strbuf *out, double seconds)
{
    if (seconds >= 10)
        fleet_strbuf_appendf(out, "%.1f s", seconds);
    else if (seconds >= 1)
        fleet_strbuf_appendf(out, "%.2f s", seconds);
    else
        fleet_strbuf_appendf(out, "%.3g ms", seconds * 1e3);
}

void search_print_rival(struct fleet_strbuf *out, const struct full_rival *rival)
{
    search_print_seconds(out, rival->time.total);
    fleet_strbuf_append(out, ", ");
    fleet_strbuf_append_size(out, rival->bytes);
    fleet_strbuf_append(out, " a rank, sends ");
    fleet_strbuf_append_size(out, rival->sent_bytes);
    fleet_strbuf_append(out, ": ");
    full_describe(&rival->choice, out);
}

void search_print_parts(struct fleet_strbuf *out, const struct step_time *time)
{
    for (int part = 0, shown = 0; part < STEP_PARTS; part++) {
        if (time->seconds[part] <= 0)
            continue;
        fleet_strbuf_appendf(out, "%s%s ", shown++ ? ", " : "",
                             step_part_name((enum step_part)part));
        search_print_seconds(out, time->seconds[part]);
    }
    fleet_strbuf_append(out, "\n");
}

void search_print_rates(struct fleet_strbuf *out, const char *file)
{
    FLEET_AUTO_FREE char *place = NULL;

    if (file)
        fleet_strbuf_appendf(out, "rates of %s\n", file);
    else if (links_file_place(&place, NULL) == 0)
        fleet_strbuf_appendf(out, "rates of %s, measured on this machine\n", place);
}

cJSON *search_print_encode(const struct step_time *time)
{
    cJSON *parts = fleet_json_new_object();

    for (int part = 0; part < STEP_PARTS; part++)
        fleet_json_set_number(parts, step_part_name((enum step_part)part), time->seconds[part]);
    return parts;
}

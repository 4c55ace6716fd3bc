/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_SEARCH_PRINT_H
#define CLI_SEARCH_PRINT_H

/* Words of the searches of `fleetjob plan`. */

#include <cjson/cJSON.h>

#include "libfleet/autoparallel/search/full_search.h"

struct fleet_strbuf;

/* Append "1.23 s", "45.6 ms". */
void search_print_seconds(struct fleet_strbuf *out, double seconds);

/* Append the time of a division, its memory, what it sends, and its degrees. */
void search_print_rival(struct fleet_strbuf *out, const struct full_rival *rival);

/* Append a line with the parts of a step that take time. */
void search_print_parts(struct fleet_strbuf *out, const struct step_time *time);

/* Append a line: whose rates were used. `file`: that of --links, or NULL. */
void search_print_rates(struct fleet_strbuf *out, const char *file);

/* The parts of a step as JSON, owned by the caller. */
cJSON *search_print_encode(const struct step_time *time);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TOOLS_STRATEGY_PAGE_H
#define TOOLS_STRATEGY_PAGE_H

/* The reference page of one field of the strategy. generate_strategy.c says where facts come
 * from. */

#include <stdbool.h>

#include "libfleet/base/strbuf.h"
#include "libfleet/strategy/knobs.h"

/* Append the page of the field at `path`, which belongs to the message at `parent` (NULL: the
 * root). */
void strategy_page_build(struct fleet_strbuf *out, const char *path, const char *parent,
                         const struct knob_field *field);

/* Its type and its default, as tables show them. */
const char *strategy_page_type(const struct knob_field *field);
void strategy_page_default(struct fleet_strbuf *out, const struct knob_field *field);

/* The built-in runtime cannot run it yet. */
bool strategy_page_is_gap(const char *path);

/* Print what is wrong with a page, and end the program. */
__attribute__((noreturn)) void strategy_page_fail(const char *page, const char *what);

#endif

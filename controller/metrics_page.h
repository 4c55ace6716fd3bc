/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_METRICS_PAGE_H
#define CONTROLLER_METRICS_PAGE_H

/* What the program exports as metrics: it gathers them from its parts before they are printed. */

#include "controller/hub_metrics.h"
#include "controller/machinery/process_metrics.h"

struct reconciler;

struct metrics_page {
    struct metrics *metrics;
    struct metric *requests; /* to the API server */
    struct metric *scrapes;  /* of /metrics over HTTPS, by "code" */
    struct hub_metrics hub;
    struct process_metrics process;
};

/* The parts that there are just now; NULL: none. */
struct metrics_page_parts {
    struct reconciler *reconciler;
    const struct hub_server *hub_server;
    const char *certificate_pem, *ca_pem; /* of the hub, of the installation */
};

void metrics_page_init(struct metrics_page *page);
void metrics_page_release(struct metrics_page *page); /* fine on a zeroed one */

/* An answer of the API server; `status` 0: none came. */
void metrics_page_count(struct metrics_page *page, const char *verb, int status);

/* All of them, as text of METRICS_CONTENT_TYPE. */
void metrics_page_print(struct metrics_page *page, const struct metrics_page_parts *parts,
                        struct fleet_strbuf *out);

#endif

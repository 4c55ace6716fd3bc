/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/metrics_page.h"

#include <stdio.h>

#include "controller/fleetjob/reconciler.h"
#include "controller/machinery/metrics.h"
#include "libfleet/rendezvous/tls_identity.h"

void metrics_page_init(struct metrics_page *page)
{
    struct metrics *metrics = metrics_new();

    page->metrics = metrics;
    page->requests =
        metrics_counter(metrics, "fleetjob_requests_total",
                        "Number of requests to the API server, by verb and status.", "verb,code");
    page->scrapes =
        metrics_counter(metrics, "fleetjob_metrics_requests_total",
                        "Number of requests of /metrics over HTTPS, by status.", "code");
    metric_set(metrics_gauge(metrics, "fleetjob_build_info",
                             "Always 1; the label has the version of the controller.", "version"),
               1, FLEET_VERSION);
    hub_metrics_init(&page->hub, metrics);
    process_metrics_init(&page->process, metrics);
}

void metrics_page_release(struct metrics_page *page)
{
    metrics_free(page->metrics);
    page->metrics = NULL;
}

void metrics_page_count(struct metrics_page *page, const char *verb, int status)
{
    char code[16];

    (void)snprintf(code, sizeof(code), "%d", status);
    metric_add(page->requests, 1, verb, status > 0 ? code : "none");
}

static double expiry_s(const char *pem)
{
    return pem ? tls_identity_expiry_s(pem) : 0;
}

void metrics_page_print(struct metrics_page *page, const struct metrics_page_parts *parts,
                        struct fleet_strbuf *out)
{
    if (parts->reconciler)
        reconciler_collect(parts->reconciler);
    hub_metrics_collect(&page->hub, parts->hub_server, expiry_s(parts->certificate_pem),
                        expiry_s(parts->ca_pem));
    process_metrics_collect(&page->process);
    metrics_print(page->metrics, out);
}

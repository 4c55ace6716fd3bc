/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/refusal_log.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/log.h"
#include "libfleet/base/strbuf.h"

void refusal_log_print_counts(const struct refusal_log *log, struct fleet_strbuf *out)
{
    bool is_printed[HUB_REFUSALS] = {false};

    for (;;) {
        int most = -1;
        for (int i = 0; i < HUB_REFUSALS; i++)
            if (log->counts[i] > 0 && !is_printed[i] &&
                (most < 0 || log->counts[i] > log->counts[most]))
                most = i;
        if (most < 0)
            return;
        is_printed[most] = true;
        fleet_strbuf_appendf(out, "%s%s=%" PRIu64, out->length > 0 ? " " : "",
                             hub_refusal_name((enum hub_refusal)most), log->counts[most]);
    }
}

static void write_to_log(const struct refusal_log *log)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf counts = {0};

    refusal_log_print_counts(log, &counts);
    fleet_log_warning("Refused connections to the hub", FLEET_INT("count", log->total),
                      FLEET_STR("reasons", fleet_strbuf_text(&counts)),
                      FLEET_STR("lastReason", log->last_reason), FLEET_STR("peer", log->last_peer),
                      FLEET_STR("job", log->last_job), FLEET_STR("jobUid", log->last_uid));
}

static void write_line(struct refusal_log *log)
{
    log->write(log);
    log->total = 0;
    memset(log->counts, 0, sizeof(log->counts));
}

static void on_period_over(uv_timer_t *timer)
{
    struct refusal_log *log = timer->data;

    if (log->total == 0) {
        uv_timer_stop(timer);
        return;
    }
    write_line(log);
}

void refusal_log_init(struct refusal_log *log, uv_loop_t *loop,
                      void (*write)(const struct refusal_log *log))
{
    *log = (struct refusal_log){.write = write ? write : write_to_log};
    uv_timer_init(loop, &log->timer);
    uv_unref((uv_handle_t *)&log->timer);
    log->timer.data = log;
}

void refusal_log_close(struct refusal_log *log)
{
    if (log->total > 0)
        write_line(log);
    uv_close((uv_handle_t *)&log->timer, NULL);
}

void refusal_log_add(struct refusal_log *log, const struct hub_server_refusal *refusal)
{
    log->total++;
    log->counts[refusal->kind]++;
    (void)snprintf(log->last_job, sizeof(log->last_job), "%s", refusal->job);
    (void)snprintf(log->last_uid, sizeof(log->last_uid), "%s", refusal->job_uid);
    (void)snprintf(log->last_peer, sizeof(log->last_peer), "%s", refusal->peer);
    (void)snprintf(log->last_reason, sizeof(log->last_reason), "%s", refusal->reason);
    if (uv_is_active((uv_handle_t *)&log->timer))
        return;
    uv_timer_start(&log->timer, on_period_over, REFUSAL_LOG_MS, REFUSAL_LOG_MS);
    write_line(log);
}

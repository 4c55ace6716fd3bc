/* SPDX-License-Identifier: Apache-2.0 */

/*
 * runPolicy.restart.maxRestarts for servers: how often the kubelet may start the container of one
 * pod again. A server that ends at once, because its command is wrong, would otherwise be started
 * without end while the workers wait for it. A new pod counts from zero.
 */
#include "controller/fleetjob/policy.h"
#include "controller/fleetjob/status.h"
#include "libfleet/api/wellknown.h"

void server_restarts_apply(struct pass *pass)
{
    int64_t max = pass->spec->run_policy.restart.max_restarts;

    for (size_t i = 0; i < pass->in->server_count; i++) {
        const struct observed_pod *pod = &pass->in->servers[i];
        if (pod->restarts <= max || pod->is_deleting)
            continue;
        status_fail(pass, WELLKNOWN_REASON_RESTARTS_EXCEEDED,
                    "server %d was started again %d times, more than runPolicy.restart.maxRestarts "
                    "(%lld); it ended with exit code %d last%s%s%s%s",
                    pod->index, pod->restarts, (long long)max, pod->exit_code,
                    pod->reason[0] ? ", " : "", pod->reason, pod->message[0] ? ": " : "",
                    pod->message);
        return;
    }
}

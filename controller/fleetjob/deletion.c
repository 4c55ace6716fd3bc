/* SPDX-License-Identifier: Apache-2.0 */

/*
 * metadata.deletionTimestamp: the controller makes no new object, orders the members to leave, and
 * deletes the pods. The garbage collector would also delete them, but later and without that order.
 */
#include "controller/fleetjob/policy.h"

bool deletion_apply(struct pass *pass)
{
    if (pass->in->job->metadata.deleted_wall_ms == 0)
        return false;
    for (size_t i = 0; i < pass->in->pod_count; i++)
        pass_delete(pass, &pass->in->pods[i], "JobDeleted");
    servers_delete(pass, "JobDeleted", false);
    pass->out->hub =
        (struct action_hub){.is_wanted = pass->living > 0, .is_over = true, .reason = "Deleted"};
    return true;
}

/* SPDX-License-Identifier: Apache-2.0 */

/* UtilBase over the world of fleet_env_init(). */
#include <errno.h>
#include <string.h>

#include "distributed/role/role.h"

static int world_check(const char *what, const char *comm_world, struct fleet_error *err)
{
    if (comm_world && strcmp(comm_world, "worker") == 0)
        return 0;
    if (comm_world && (strcmp(comm_world, "server") == 0 || strcmp(comm_world, "all") == 0))
        return fleet_error(err, -ENOTSUP,
                           "%s: comm_world is \"%s\", but only workers are connected to each "
                           "other, allowed: worker",
                           what, comm_world);
    return fleet_error(err, -EINVAL, "%s: comm_world is \"%.40s\", allowed: worker, server, all",
                       what, comm_world ? comm_world : "(NULL)");
}

int fleet_util_all_reduce(const struct fleet_tensor *tensor, const char *mode,
                          const char *comm_world, struct fleet_error *err)
{
    static const struct {
        const char *mode;
        enum fleet_reduce_op op;
    } modes[] = {{"sum", FLEET_SUM}, {"min", FLEET_MIN}, {"max", FLEET_MAX}};
    int rc = world_check("fleet_util_all_reduce", comm_world, err);

    if (rc < 0)
        return rc;
    for (size_t i = 0; mode && i < sizeof(modes) / sizeof(modes[0]); i++)
        if (strcmp(modes[i].mode, mode) == 0)
            return fleet_all_reduce(tensor, modes[i].op, NULL, NULL, err);
    return fleet_error(err, -EINVAL,
                       "fleet_util_all_reduce: mode is \"%.40s\", allowed: sum, min, max",
                       mode ? mode : "(NULL)");
}

int fleet_util_all_gather(const struct fleet_tensor *out, const struct fleet_tensor *in,
                          const char *comm_world, struct fleet_error *err)
{
    int rc = world_check("fleet_util_all_gather", comm_world, err);
    return rc < 0 ? rc : fleet_all_gather(out, in, NULL, NULL, err);
}

int fleet_util_barrier(const char *comm_world, struct fleet_error *err)
{
    int rc = world_check("fleet_util_barrier", comm_world, err);
    return rc < 0 ? rc : fleet_barrier(NULL, err);
}

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_ROLE_ROLE_H
#define DISTRIBUTED_ROLE_ROLE_H

#include "distributed/distributed.h"
#include "include/fleet/fleet_role.h"

struct endpoints {
    char *text; /* the list, cut at its commas */
    const char **list;
    int count;
};

struct fleet_role {
    bool is_collective, is_local;
    enum fleet_role_kind kind;
    int index, worker_num;
    struct endpoints workers, servers;
};

/* A role of `description`, with its checks. `id_name`, `workers_name`, `servers_name` are what
 * errors call its members. */
int role_build(const struct fleet_role_description *description, const char *id_name,
               const char *workers_name, const char *servers_name, struct fleet_role **out,
               struct fleet_error *err);

#endif

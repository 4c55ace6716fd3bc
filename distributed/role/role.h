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

/* Check `description` and make a role of it. Errors call its members by the given names. */
int role_build(const struct fleet_role_description *description, const char *id_name,
               const char *workers_name, const char *servers_name, struct fleet_role **out,
               struct fleet_error *err);

#endif

/* SPDX-License-Identifier: Apache-2.0 */

/* A role from the variables of a launcher. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "distributed/role/role.h"
#include "libfleet/base/variable.h"

#define NUMBER_MAX 65536

static const char workers_name[] = "PADDLE_TRAINER_ENDPOINTS";
static const char servers_name[] = "PADDLE_PSERVERS_IP_PORT_LIST";

/* Text of a variable that must be set. */
static int need(const char *name, const char **out, struct fleet_error *err)
{
    *out = getenv(name);
    return *out && (*out)[0] ? 0 : fleet_error(err, -EINVAL, "%s: required", name);
}

static int collective(struct fleet_role **out, struct fleet_error *err)
{
    struct fleet_role_description role = {.is_collective = true,
                                          .worker_endpoints = getenv(workers_name)};
    int rc = fleet_variable_number("PADDLE_TRAINERS_NUM", 1, NUMBER_MAX, 1, &role.worker_num, err);

    if (rc == 0)
        rc = fleet_variable_number("PADDLE_TRAINER_ID", 0, NUMBER_MAX, 0, &role.current_id, err);
    if (rc < 0)
        return rc;
    if (!role.worker_endpoints && role.worker_num == 1)
        role.worker_endpoints = "127.0.0.1:6170";
    return role_build(&role, "PADDLE_TRAINER_ID", workers_name, servers_name, out, err);
}

/* TRAINING_ROLE. */
static int read_kind(enum fleet_role_kind *out, struct fleet_error *err)
{
    static const struct {
        const char *name;
        enum fleet_role_kind kind;
    } kinds[] = {{"TRAINER", FLEET_WORKER},
                 {"PSERVER", FLEET_SERVER},
                 {"HETER_TRAINER", FLEET_HETER_WORKER},
                 {"COORDINATOR", FLEET_COORDINATOR}};
    const char *text;
    int rc = need("TRAINING_ROLE", &text, err);

    if (rc < 0)
        return rc;
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (strcmp(kinds[i].name, text) == 0) {
            *out = kinds[i].kind;
            return 0;
        }
    return fleet_error(err, -EINVAL,
                       "TRAINING_ROLE is \"%.40s\", allowed: TRAINER, PSERVER, HETER_TRAINER, "
                       "COORDINATOR",
                       text);
}

/* The place of POD_IP:PADDLE_PORT in the servers' list. */
static int server_place(const char *servers, int *out, struct fleet_error *err)
{
    const char *ip, *port = "";
    char own[300];
    size_t length;
    int place = 0, rc = need("POD_IP", &ip, err);

    if (rc == 0)
        rc = need("PADDLE_PORT", &port, err);
    if (rc < 0)
        return rc;
    length = (size_t)snprintf(own, sizeof(own), "%.255s:%.32s", ip, port);
    for (const char *at = servers; *at; place++) {
        size_t one = strcspn(at, ",");
        if (one == length && strncmp(at, own, length) == 0) {
            *out = place;
            return 0;
        }
        at += one + (at[one] == ',');
    }
    return fleet_error(err, -EINVAL, "POD_IP:PADDLE_PORT is %s, which %s does not have", own,
                       servers_name);
}

static int with_servers(struct fleet_role **out, struct fleet_error *err)
{
    struct fleet_role_description role = {.worker_endpoints = getenv(workers_name),
                                          .server_endpoints = getenv(servers_name)};
    const char *text;
    int rc;

    if (!role.server_endpoints || !role.server_endpoints[0]) { /* a local run */
        role = (struct fleet_role_description){.is_collective = true, .worker_num = 1};
        rc = role_build(&role, "PADDLE_TRAINER_ID", workers_name, servers_name, out, err);
        if (rc == 0) {
            (*out)->is_collective = false;
            (*out)->is_local = true;
        }
        return rc;
    }
    rc = need("PADDLE_TRAINERS_NUM", &text, err);
    if (rc == 0)
        rc = fleet_variable_number("PADDLE_TRAINERS_NUM", 1, NUMBER_MAX, 1, &role.worker_num, err);
    if (rc == 0)
        rc = read_kind(&role.kind, err);
    if (rc == 0 && role.kind == FLEET_SERVER)
        rc = server_place(role.server_endpoints, &role.current_id, err);
    else if (rc == 0 &&
             (role.kind != FLEET_WORKER || (rc = need("PADDLE_TRAINER_ID", &text, err)) == 0))
        rc = fleet_variable_number("PADDLE_TRAINER_ID", 0, NUMBER_MAX, 0, &role.current_id, err);
    if (rc < 0)
        return rc;
    return role_build(&role, "PADDLE_TRAINER_ID", workers_name, servers_name, out, err);
}

int fleet_role_from_env(bool is_collective, struct fleet_role **out, struct fleet_error *err)
{
    int rc;

    if (argument_check(out, "fleet_role_from_env", "out", err) < 0)
        return -EINVAL;
    rc = is_collective ? collective(out, err) : with_servers(out, err);
    return rc < 0 ? fleet_error_wrap(err, "fleet_role_from_env") : 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FAKE_HUB_NETWORK_H
#define TESTS_FAKE_HUB_NETWORK_H

/*
 * Hubs in memory: the table of hub_host.h without sockets. The records and events of a hub go to
 * its handlers, as in hub_server.h. A test sees every action through a hook, and plays the members
 * with hub_receive() and fake_hub_apply().
 */
#include <stdbool.h>
#include <stdint.h>

#include "controller/fleetjob/hub_host.h"

#define FAKE_HUBS_MAX 128

struct fake_hub {
    struct fake_hub_network *network;
    struct hub *hub; /* NULL = free place */
    struct hub_server_handlers handlers;
    char job_uid[64];
};

struct fake_hub_network {
    double (*now_ms)(void *user);
    int64_t (*wall_ms)(void *user);
    /* Hooks; each may be NULL. */
    void (*added)(void *user, struct fake_hub *hub);
    void (*removing)(void *user, struct fake_hub *hub); /* the hub still exists */
    /* For each action; for a record or an event, before its handler is called. */
    void (*action)(void *user, struct fake_hub *hub, const struct hub_action *action);
    /* Before the hub gets the result of its record. */
    void (*answering)(void *user, struct fake_hub *hub, struct fleet_generation generation,
                      bool is_done);
    void *user;
    struct fake_hub hubs[FAKE_HUBS_MAX]; /* the first free place is taken */
};

/* The table; `network` is borrowed. */
struct hub_network fake_hub_network_table(struct fake_hub_network *network);

/* Carry out the hub's actions, and release the list. */
void fake_hub_apply(struct fake_hub *hub, struct hub_output *out);

#endif

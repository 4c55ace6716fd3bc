/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_RENDEZVOUS_HUB_SHARE_H
#define LIBFLEET_RENDEZVOUS_HUB_SHARE_H

/*
 * What one job, and one namespace, may use of a hub's server: connections, bytes that are held for
 * its peers, and frames a second. Pure, time is an argument.
 */

#include <stdbool.h>
#include <stddef.h>

struct hub_share {
    size_t connections, connections_max;
    size_t held_bytes, held_bytes_max; /* hub_held.c */
    double rate, burst;                /* frames a second, and at once */
    double spent;                      /* of the burst */
    double at_ms;                      /* of `spent` */
};

/* Account for a frame. False if the burst is used up; the frame is not counted then. */
bool hub_share_spend(struct hub_share *share, double now_ms);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_RENDEZVOUS_HUB_ADMISSION_H
#define LIBFLEET_RENDEZVOUS_HUB_ADMISSION_H

/*
 * Which connections may begin a handshake: pure, time is an argument.
 *
 * An open handshake (from accept until the token is checked) costs the server tens of kilobytes,
 * and any client may open one. So their number is bounded, in all and for each source address, and
 * so is the rate at which one source begins them. A full table does not shut out new clients: a new
 * handshake replaces the oldest one of its own source, or of the source that has most. An honest
 * handshake is over within milliseconds; an abandoned one only gets older.
 *
 *  (1) At most `handshakes_max` are open, at most `source_handshakes_max` of one source.
 *  (2) A handshake younger than `grace_ms` is not given up for a newcomer, unless its source has
 *      more open handshakes than the newcomer's.
 *  (3) Memory does not depend on the number of sources. Sources share HUB_ADMISSION_BINS bins by
 *      a keyed hash; two sources in one bin share its limits.
 *  (4) In a crowd, when more handshakes begin than the server has time for, sources are refused
 *      that have begun many lately. A source that connects rarely is not refused.
 *
 * A source is an IPv4 address or the first 64 bits of an IPv6 address.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libfleet/rendezvous/hub_refusal.h"

struct hub_admission;
struct sockaddr_storage;

#define HUB_ADMISSION_BINS 8192

struct hub_admission_limits {
    size_t handshakes_max;        /* open in all */
    size_t source_handshakes_max; /* open of one source */
    double source_rate;           /* handshakes a second that one source may begin … */
    double source_burst;          /* … and this many at once */
    double crowd_rate;            /* handshakes a second in all … */
    double crowd_burst;           /* … and at once. Above it there is a crowd (4) */
    double crowd_source_max;      /* handshakes that a source may have begun lately, in a crowd */
    double grace_ms;
    double timeout_ms; /* a handshake that is open for so long is overdue */
};

/* An open handshake. `user` is the caller's. */
struct hub_handshake {
    struct hub_handshake *next, *previous; /* by age */
    size_t bin;
    double begun_ms;
    void *user;
};

/* Empty. `seed` is unpredictable: others must not be able to choose addresses that share a bin. */
struct hub_admission *hub_admission_new(const struct hub_admission_limits *limits, uint64_t seed);
/* Ends what is open. NULL is fine. */
void hub_admission_free(struct hub_admission *admission);

/*
 * May a connection from `source` begin its handshake? If not, NULL and the cause in *out_why.
 * Otherwise the handshake, and in *out_victim the one that the caller must end for it, or NULL.
 */
struct hub_handshake *hub_admission_begin(struct hub_admission *admission,
                                          const struct sockaddr_storage *source, double now_ms,
                                          struct hub_handshake **out_victim,
                                          enum hub_refusal *out_why);

/* The handshake is complete, or its connection is being closed. Frees it. */
void hub_admission_end(struct hub_admission *admission, struct hub_handshake *handshake);

/* The oldest; NULL if there is none. */
struct hub_handshake *hub_admission_oldest(const struct hub_admission *admission);

/* The oldest if it is overdue, otherwise NULL. */
struct hub_handshake *hub_admission_overdue(const struct hub_admission *admission, double now_ms);

/* How many are open. */
size_t hub_admission_count(const struct hub_admission *admission);

#endif

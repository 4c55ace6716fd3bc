/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_RENDEZVOUS_HUB_REFUSAL_H
#define LIBFLEET_RENDEZVOUS_HUB_REFUSAL_H

/* Why a hub's server refuses or closes a connection. One table: the names are label values of a
 * metric. */

enum hub_refusal {
    HUB_REFUSED_TOKEN,           /* the token is not the job's */
    HUB_REFUSED_JOB,             /* the token is right, the job is not hosted here */
    HUB_REFUSED_REQUEST,         /* not an upgrade to our subprotocol on our path */
    HUB_REFUSED_HANDSHAKE_TIME,  /* TLS and upgrade were not complete in time */
    HUB_REFUSED_HANDSHAKES,      /* too many open handshakes in all */
    HUB_REFUSED_SOURCE,          /* too many open handshakes of one source address */
    HUB_REFUSED_SOURCE_RATE,     /* one source address begins too many handshakes a second */
    HUB_REFUSED_CONNECTIONS,     /* the server has as many members as it may */
    HUB_REFUSED_JOB_SHARE,       /* the job has its share of connections or of memory */
    HUB_REFUSED_NAMESPACE_SHARE, /* the namespace has its share */
    HUB_REFUSED_MESSAGE,         /* a message too large, or not a message */
    HUB_REFUSED_SILENT,          /* no hello in time */
    HUB_REFUSED_SLOW,            /* a member that does not read what it is sent */
    HUB_REFUSED_MEMORY,          /* the server holds as much for all members as it may */
    HUB_REFUSALS                 /* their number */
};

/* In lower_snake_case, a constant. */
const char *hub_refusal_name(enum hub_refusal refusal);

#endif

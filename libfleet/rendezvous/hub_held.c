/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Bytes that the server holds for its peers: messages whose end has not arrived, and texts that a
 * peer has not read yet. They are counted for the job, for its namespace and in all
 * (libfleet/base/limits.h).
 *
 *  (1) What is counted is memory: a text that waits for a thousand members of a job is one text.
 *  (2) Above a limit the sessions that hold most are closed, one after the other. A peer that reads
 *      its messages holds almost nothing. Above the limit in all, they belong to the namespace that
 *      holds most, so no namespace pays for another.
 *  (3) A session that is being closed no longer counts for its job. The texts that it still gets
 *      count in all.
 */
#include "libfleet/base/assert.h"
#include "libfleet/rendezvous/hub_server_internal.h"

static size_t text_bytes(const struct message_text *text)
{
    return sizeof(*text) + text->size;
}

/* A decrease is a large number, modulo 2^64. */
static void add_to_job(struct hub_server_job *job, size_t bytes)
{
    job->share.held_bytes += bytes;
    if (job->tenant)
        job->tenant->share.held_bytes += bytes;
}

void hub_held_message(struct session *session, size_t size)
{
    size_t change = size - session->counted_bytes;

    session->counted_bytes = size;
    session->server->held_bytes += change;
    add_to_job(session->job, change);
}

void hub_held_push(struct session *session, struct message_text *text)
{
    size_t entry = sizeof(struct queued);

    session->server->held_bytes += entry + (text->queues++ == 0 ? text_bytes(text) : 0);
    add_to_job(session->job, entry + (text->job_queues++ == 0 ? text_bytes(text) : 0));
}

static void leave_text(struct session *session, struct message_text *text)
{
    fleet_assert(text->job_queues > 0);
    add_to_job(session->job,
               0 - sizeof(struct queued) - (--text->job_queues == 0 ? text_bytes(text) : 0));
}

void hub_held_pop(struct session *session, struct message_text *text)
{
    if (session->job)
        leave_text(session, text);
    fleet_assert(text->queues > 0);
    session->server->held_bytes -=
        sizeof(struct queued) + (--text->queues == 0 ? text_bytes(text) : 0);
}

void hub_held_leave(struct session *session)
{
    hub_held_message(session, 0);
    for (struct queued *queued = session->first; queued; queued = queued->next)
        leave_text(session, queued->text);
}

/* ---- who goes -------------------------------------------------------------------------------- */

static size_t weight(const struct session *session)
{
    return session->queued_bytes + session->counted_bytes;
}

static const struct hub_share *payer(const struct hub_server_job *job)
{
    return job->tenant ? &job->tenant->share : &job->share;
}

/*
 * The session that holds most: of the job, else of the tenant, else of the payer that holds most.
 */
static struct session *find_heaviest(const struct hub_server *server,
                                     const struct hub_server_job *job,
                                     const struct hub_tenant *tenant)
{
    struct session *heaviest = NULL;

    for (size_t slot = 0; slot < server->connections_max; slot++) {
        struct session *session = server->slots[slot];
        if (!session || !session->job || weight(session) == 0 || (job && session->job != job) ||
            (tenant && session->job->tenant != tenant))
            continue;
        if (!heaviest || payer(session->job)->held_bytes > payer(heaviest->job)->held_bytes ||
            (payer(session->job) == payer(heaviest->job) && weight(session) > weight(heaviest)))
            heaviest = session;
    }
    return heaviest;
}

static bool has_too_much(const struct hub_share *share)
{
    return share->held_bytes > share->held_bytes_max;
}

void hub_held_relieve(struct hub_server *server, struct hub_server_job *job)
{
    struct hub_tenant *tenant = job->tenant;
    struct session *session;

    while (has_too_much(&job->share) && (session = find_heaviest(server, job, NULL)) != NULL)
        hub_session_refuse(session, HUB_REFUSED_JOB_SHARE,
                           "too much is held for the job's members, most of it for this one");
    while (tenant && has_too_much(&tenant->share) &&
           (session = find_heaviest(server, NULL, tenant)) != NULL)
        hub_session_refuse(session, HUB_REFUSED_NAMESPACE_SHARE,
                           "too much is held for the namespace's members, most of it for this one");
    while (server->held_bytes > server->held_bytes_max &&
           (session = find_heaviest(server, NULL, NULL)) != NULL)
        hub_session_refuse(session, HUB_REFUSED_MEMORY,
                           "too much is held for members, most of it for this one's namespace");
}

/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Operations of one round: every rank sends what it has for each other rank, all at once. That is
 * what small messages want, and it loses nothing for large ones where every rank needs different
 * bytes.
 */
#include <string.h>

#include "agent/runtime/comm/engine.h"

/* What we send to ourselves. */
static void copy(void *to, const void *from, size_t bytes)
{
    if (bytes > 0 && to != from)
        memmove(to, from, bytes);
}

static size_t bytes_of(const struct comm_request *run, const int64_t *counts, int rank)
{
    return (size_t)(counts ? counts[rank] : run->call.count) * comm_type_size(run->call.type);
}

bool comm_all_gather_next(struct comm_request *run)
{
    const struct comm_call *call = &run->call;
    int own = run->comm->rank;
    size_t mine = bytes_of(run, call->receive_counts, own);
    char *to = call->receive;

    if (run->round > 0)
        return false;
    for (int r = 0; r < run->comm->world; r++) {
        size_t bytes = bytes_of(run, call->receive_counts, r);
        if (r == own) {
            copy(to, call->send, bytes);
        } else {
            comm_post_send(run, r, call->send, mine);
            comm_post_receive(run, r, to, bytes);
        }
        to += bytes;
    }
    return true;
}

bool comm_all_to_all_next(struct comm_request *run)
{
    const struct comm_call *call = &run->call;
    const char *from = call->send;
    char *to = call->receive;

    if (run->round > 0)
        return false;
    for (int r = 0; r < run->comm->world; r++) {
        size_t out = bytes_of(run, call->send_counts, r);
        size_t in = bytes_of(run, call->receive_counts, r);
        if (r == run->comm->rank) {
            copy(to, from, out < in ? out : in);
        } else {
            comm_post_send(run, r, from, out);
            comm_post_receive(run, r, to, in);
        }
        from += out;
        to += in;
    }
    return true;
}

bool comm_scatter_next(struct comm_request *run)
{
    const struct comm_call *call = &run->call;
    size_t bytes = bytes_of(run, NULL, 0);
    int own = run->comm->rank;

    if (run->round > 0)
        return false;
    if (own != call->root) {
        comm_post_receive(run, call->root, call->receive, bytes);
        return true;
    }
    for (int r = 0; r < run->comm->world; r++) {
        const char *part = (const char *)call->send + (size_t)r * bytes;
        if (r == own)
            copy(call->receive, part, bytes);
        else
            comm_post_send(run, r, part, bytes);
    }
    return true;
}

bool comm_exchange_next(struct comm_request *run)
{
    const struct comm_call *call = &run->call;
    int own = run->comm->rank;

    if (run->round > 0)
        return false;
    copy(call->receives[own], call->sends[own], call->receive_bytes[own]);
    for (int r = 0; r < run->comm->world; r++) {
        if (r != own && call->send_bytes[r] > 0)
            comm_post_send(run, r, call->sends[r], call->send_bytes[r]);
        if (r != own && call->receive_bytes[r] > 0)
            comm_post_receive(run, r, call->receives[r], call->receive_bytes[r]);
    }
    return true;
}

bool comm_barrier_next(struct comm_request *run)
{
    if (run->round > 0)
        return false;
    for (int r = 0; r < run->comm->world; r++)
        if (r != run->comm->rank) {
            comm_post_send(run, r, NULL, 0);
            comm_post_receive(run, r, NULL, 0);
        }
    return true;
}

/* ---- messages -------------------------------------------------------------------------------- */

struct comm_signature comm_messages_signature(const struct comm_message *message)
{
    return (struct comm_signature){.operation = COMM_MESSAGES,
                                   .type = (uint8_t)message->type,
                                   .root = -1,
                                   .count = message->count};
}

/* Start the first message from number `from` on that goes this way. */
static void start_message(struct comm_request *run, int peer, bool is_out, int from)
{
    struct comm_pair *pair = &run->comm->pairs[peer];

    for (int i = from; i < run->call.message_count; i++) {
        const struct comm_message *message = &run->call.messages[i];
        struct comm_signature signature = comm_messages_signature(message);
        if (message->peer != peer || message->is_receive == is_out)
            continue;
        (is_out ? &pair->out : &pair->in)->message = i;
        frame_start(run, peer, is_out, run->call.queue ? NULL : message->data,
                    run->call.queue ? 0 : (size_t)message->count * comm_type_size(message->type),
                    &signature);
        return;
    }
}

void comm_messages_continue(struct comm_request *run, int peer, bool is_out)
{
    const struct comm_pair *pair = &run->comm->pairs[peer];

    start_message(run, peer, is_out, (is_out ? &pair->out : &pair->in)->message + 1);
}

void comm_messages_start(struct comm_request *run, bool is_out)
{
    for (int i = 0; i < run->call.message_count; i++) {
        const struct comm_message *message = &run->call.messages[i];
        const struct comm_pair *pair = &run->comm->pairs[message->peer];
        if (message->is_receive == is_out || (is_out ? &pair->out : &pair->in)->is_pending)
            continue;
        start_message(run, message->peer, is_out, i);
    }
}

bool comm_messages_next(struct comm_request *run)
{
    if (run->round > 0)
        return false;
    comm_messages_start(run, true);
    comm_messages_start(run, false);
    return true;
}

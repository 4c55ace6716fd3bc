/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_LOOP_H
#define AGENT_LOOP_H

/*
 * Descriptors and one timer on libwebsockets' loop. The agent uses that loop because the member's
 * connection to the hub runs on it.
 *
 * A watched descriptor stays its owner's: libwebsockets closes what it watches, so it gets a
 * duplicate.
 */

#include <stdbool.h>

struct fleet_error;
struct loop;
struct loop_watch;
struct lws_context;

/* The context serves TLS clients, too (member_client.h). -EIO if libwebsockets refuses. */
int loop_new(struct loop **out, struct fleet_error *err);
void loop_free(struct loop *loop); /* all watches must have been removed */

/* Borrowed: for what lives on libwebsockets' loop by itself (member_client.h). */
struct lws_context *loop_context(const struct loop *loop);

/* Call back when `fd` can be read, was hung up or, if asked for, can be written. Level-triggered:
 * `ready` reads until nothing is left. It may remove any watch, its own too. -errno if `fd` cannot
 * be duplicated, -EIO if libwebsockets refuses it. */
int loop_watch_new(struct loop *loop, int fd, void (*ready)(void *user), void *user,
                   struct loop_watch **out, struct fleet_error *err);
void loop_watch_free(struct loop_watch *watch); /* NULL is fine */

/* Call back once when it can be written. */
void loop_watch_want_write(struct loop_watch *watch);

/* Call `due` at this time (monotonic ms; INFINITY: never), instead of the time set before. */
void loop_set_timer(struct loop *loop, double at_ms, void (*due)(void *user), void *user);

/* Wait for something and handle it; returns after the timer was due, too, so that it can be set
 * again. */
void loop_turn(struct loop *loop);

#endif

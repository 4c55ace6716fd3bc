/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_RENDEZVOUS_HUB_INTERNAL_H
#define LIBFLEET_RENDEZVOUS_HUB_INTERNAL_H

/*
 * What the files that make a hub call of each other: hub_entry.c (calls, guarded), hub.c (the
 * whole, time), hub_peer.c (members), hub_hello.c, hub_status.c and hub_message.c (what they say),
 * hub_claim.c (an index has one pod),
 * hub_form.c (making generations), hub_choose.c (their members), hub_restart.c (what a failure
 * costs), hub_assign.c (giving them out), hub_accuse.c (peers that lose each other),
 * hub_timeline.c (how long a restart took), hub_finish.c (the end), hub_output.c (what goes out).
 * No other file includes this. hub_state.h has their common state.
 */

#include <stdio.h>

#include "libfleet/rendezvous/hub_state.h"

/* ---- hub_output.c ---------------------------------------------------------------------------- */

/* Send a text that is encoded already (one more use of it); nothing if the peer is not
 * connected. */
void hub_output_send(struct hub_output *out, const struct hub_peer *peer,
                     struct message_text *text);
/* Encodes once for one peer; nothing if it is not connected. */
void hub_output_message(struct hub_output *out, const struct hub_peer *peer,
                        const struct message *message);
void hub_output_reply(struct hub_output *out, uint64_t connection, const struct message *message);
void hub_output_close(struct hub_output *out, uint64_t connection, bool is_refusal,
                      const char *reason);
void hub_output_record(struct hub_output *out, struct hub *hub, struct fleet_generation generation,
                       int64_t first_step);
/* Borrowed until the output is released; the caller may fill in more. `peer` may be NULL. */
struct hub_event *hub_output_event(struct hub_output *out, const struct hub *hub,
                                   enum hub_event_type type, const struct hub_peer *peer);
/* HUB_EVENT_STALLED or _SUPERSEDED with its cause; the caller fills in the message. */
struct hub_event *hub_output_stall(struct hub_output *out, const struct hub *hub,
                                   enum hub_event_type type, enum hub_stall stall);
/* HUB_EVENT_DEFECT in these words, of a hub that is not looked into. */
void hub_output_defect(struct hub_output *out, const char *text, double at_ms);
/* printf into a fixed array, cut if too long. */
#define hub_output_text(array, ...) ((void)snprintf((array), sizeof(array), __VA_ARGS__))

/* ---- hub_form.c ------------------------------------------------------------------------------ */

/* What ended the newest generation, for hub_form_break(). */
struct hub_cause {
    const char *cause;
    const struct hub_peer *peer;           /* NULL = none, … */
    const struct hub_departure *departure; /* … or this one, that was never a peer; NULL = none */
    bool is_failure, is_explained;
    int exit_code, signal;
    double fault_ms;
    const char *message, *lines; /* shown if the job fails of it; NULL = none */
};

/* End the newest generation (or note one more cause): abort at all members, gather again. */
void hub_form_break(struct hub *hub, const struct hub_cause *cause, struct hub_output *out);
/* Make a generation if one can be made now; else see to it that hub_tick() tries again. */
void hub_form_try(struct hub *hub, struct hub_output *out);
void hub_form_abort(struct hub *hub, struct hub_peer *peer, struct hub_output *out);
/* Stop waiting for a record if `peer` (about to go) is part of the proposal. */
void hub_form_give_up(struct hub *hub, const struct hub_peer *peer);
/* Connected, and not on its way out. */
bool hub_form_is_present(const struct hub_peer *peer);
/* Present, waits for an assign, and none is on its way to it: may be chosen. */
bool hub_form_is_candidate(const struct hub *hub, const struct hub_peer *peer);
/* Are its trainers up with state that may be continued? */
bool hub_form_has_state(const struct hub *hub, const struct hub_peer *peer);

/* ---- hub_choose.c ---------------------------------------------------------------------------- */

/* Take the members of the next generation from the candidates: hub->chosen by rank, and the step
 * that they go on from. */
void hub_choose(struct hub *hub);

/* ---- hub_cells.c: generations of jobs whose ranks share a model ------------------------------ */

bool hub_cells_are_used(const struct hub *hub);

/* Of `members`, those that make whole replicas; without cells all. */
int hub_cells_seats(const struct hub *hub, int members);

/* So many members have to be ready for a generation. With cells some of them may be spares. */
int hub_cells_least(const struct hub *hub);

/* The candidates have the state of each cell. True without cells. */
bool hub_cells_are_whole(const struct hub *hub);

/* They would have it together with those that are not ready or out of reach. */
bool hub_cells_may_become_whole(const struct hub *hub);

/* A ready member that holds the state that counts: the newest one that they hold as a whole, else
 * the newest one. NULL: they hold none. */
const struct hub_peer *hub_cells_state(const struct hub *hub);

/* Does the member hold a part of the state that `state` holds? False without one. */
bool hub_cells_hold(const struct hub *hub, const struct hub_peer *peer,
                    const struct hub_peer *state);

/* What the member holds, with the ranks that it had. */
struct fleet_part hub_cells_part(const struct hub *hub, const struct hub_peer *peer);

/* list[count] take these seats: the lowest cell whose state they do not keep as a whole; -1: they
 * keep it all. *shard as cell_lines_lost(). */
int hub_cells_kept(const struct hub *hub, struct hub_peer *const *list, const int *seats,
                   size_t count, int *shard);

/* Seat `seats` of list[count], which come in order of preference. Those that got a seat come first
 * in the list then, with their seats in `places`; returns how many. */
size_t hub_cells_choose(const struct hub *hub, struct hub_peer **list, size_t count, int seats,
                        int *places);

/* ---- hub_wait.c ------------------------------------------------------------------------------ */

/* hub_form.c calls it: the job waits for this now. */
void hub_wait_note(struct hub *hub, enum hub_wait_cause cause, double until_ms);
/* Report it if it has changed. */
void hub_wait_report(struct hub *hub, struct hub_output *out);

/* ---- hub_restart.c --------------------------------------------------------------------------- */

/* Does the restart count against maxRestarts; is it one that a rule says does not count? */
bool hub_restart_counts(const struct hub *hub, const struct hub_incident *incident);
bool hub_restart_is_ignored(const struct hub *hub, const struct hub_incident *incident);
/* True if a rule calls the failure final: the job has failed, and no restart was counted. */
bool hub_restart_ends_by_rule(struct hub *hub, const struct hub_cause *cause,
                              struct hub_output *out);
/* An own trainer's command is missing: the job fails at once. */
bool hub_restart_is_hopeless(const struct hub *hub, const struct hub_cause *cause);
/* The incident is a failure; is_first: it was none before. False if the restarts are used up: the
 * job has failed. */
bool hub_restart_is_allowed(struct hub *hub, const struct hub_cause *cause, bool is_first,
                            struct hub_output *out);
/* What hub_restart_is_allowed() has left open. False if the job has failed. */
bool hub_restart_judge(struct hub *hub, struct hub_output *out);

/* ---- hub_assign.c ---------------------------------------------------------------------------- */

/* Assign the proposed generation: it is the newest from now on. */
void hub_assign_send(struct hub *hub, struct hub_output *out);

/* The same assign once more, to a member that says it does not have it. */
void hub_assign_repeat(struct hub *hub, struct hub_peer *peer, struct hub_output *out);

/* ---- hub_leave.c ----------------------------------------------------------------------------- */

/* A member of the newest generation that is on its way out, NULL = none. */
const struct hub_peer *hub_leave_find(const struct hub *hub);
/* What a generation ends of that it leaves. */
struct hub_cause hub_leave_cause(const struct hub *hub, const struct hub_peer *peer);
/* Is the end of a generation that a hub before us has made the work of pods that are taken away?
 * `missing`: so many of its members did not come. If so, `cause` says it. */
bool hub_leave_explains(const struct hub *hub, int missing, struct hub_cause *cause);
/* A member of the newest generation says goodbye, and a later pod of its index is here already. */
void hub_leave_hear_refused(struct hub *hub, const struct message_hello *hello,
                            struct hub_output *out);
/* What is known of a pod before its member comes goes over to the member. */
void hub_leave_join(struct hub *hub, struct hub_peer *peer);
/* The newest generation is ours: every member of it is known. */
void hub_leave_forget(struct hub *hub);
/* A status of the member has come: is it leaving? That ends a generation of own trainers. */
void hub_leave_note(struct hub *hub, struct hub_peer *peer, struct hub_output *out);

/* ---- hub_holder.c ---------------------------------------------------------------------------- */

/* The member is out of reach and about to be forgotten; its state may be needed. */
void hub_holder_miss(struct hub *hub, const struct hub_peer *peer);
/* The member is back, or known to be dead. */
void hub_holder_forget(struct hub *hub, const char *pod_uid);
/* The member with the newest state on the lineage, if that is better than the checkpoint: among
 * those that wait for an assign, or among all that are not lost. */
const struct hub_peer *hub_holder_best(const struct hub *hub, bool only_ready);
/* Divided state: a shard that no ready member holds; that none of list[count] holds. -1: none is
 * known to be missing. */
int hub_holder_missing_shard(const struct hub *hub);
int hub_holder_lost_shard(const struct hub *hub, struct hub_peer *const *list, size_t count);
/* No ready member holds the state, or all of them lack a shard of it: should all wait for one that
 * has it? */
bool hub_holder_is_awaited(struct hub *hub, struct hub_output *out);
/* Does the member hold a state, or a shard of one, that is newer than the last checkpoint and that
 * no other connected member has? True for any such state if ranks share a model: then each member
 * may hold a part that no other has. */
bool hub_holder_is_alone(const struct hub *hub, const struct hub_peer *peer);
/* Has a member come since the proposal that holds more than all that it chose? */
bool hub_holder_has_come(const struct hub *hub);

/* ---- hub.c ----------------------------------------------------------------------------------- */

/* The machine without its guard: as the functions of hub.h, which hub_entry.c makes of these. */
void hub_machine_init(struct hub *hub, const struct hub_start *start,
                      const struct hub_policy *policy, double now_ms);
void hub_machine_free(struct hub *hub);
bool hub_machine_has_policy(const struct hub *hub, const struct hub_policy *policy);
void hub_machine_configure(struct hub *hub, const struct hub_policy *policy, double now_ms,
                           struct hub_output *out);
void hub_machine_connected(struct hub *hub, uint64_t connection, double now_ms,
                           struct hub_output *out);
void hub_machine_receive(struct hub *hub, uint64_t connection, const struct message *message,
                         double now_ms, struct hub_output *out);
void hub_machine_disconnected(struct hub *hub, uint64_t connection, double now_ms,
                              struct hub_output *out);
void hub_machine_record_done(struct hub *hub, struct fleet_generation generation, double now_ms,
                             struct hub_output *out);
void hub_machine_record_failed(struct hub *hub, struct fleet_generation generation, double now_ms,
                               struct hub_output *out);
void hub_machine_member_gone(struct hub *hub, const char *pod_uid, enum fleet_cause cause,
                             double now_ms, struct hub_output *out);
void hub_machine_member_departs(struct hub *hub, const char *pod_uid, int index, int attempt,
                                enum fleet_cause cause, bool explains); /* hub_leave.c */
void hub_machine_order(struct hub *hub, const char *const *pod_uids, size_t count);
void hub_machine_checkpoint(struct hub *hub, double now_ms, struct hub_output *out);
void hub_machine_end(struct hub *hub, bool succeeded, const char *reason, double now_ms,
                     struct hub_output *out);
double hub_machine_deadline(const struct hub *hub);
void hub_machine_tick(struct hub *hub, double now_ms, struct hub_output *out);

/* See to it that hub_tick() comes at `at_ms` at the latest. */
void hub_wake_at(struct hub *hub, double at_ms);

/* Milliseconds between heartbeats, which grow with the members; and of silence after which a member
 * is lost. */
double hub_heartbeat_interval(const struct hub *hub);
double hub_silence_max(const struct hub *hub);

/* ---- hub_places.c ---------------------------------------------------------------------------- */

bool hub_places_add(struct hub_places *places, int place); /* false: it was there */
void hub_places_remove(struct hub_places *places, int place);
void hub_places_clear(struct hub_places *places); /* frees what it holds */

/* ---- hub_peer.c ------------------------------------------------------------------------------ */

/* A new member, not connected, in no generation. */
struct hub_peer *hub_peer_add(struct hub *hub, const char *pod_uid);

/* Whose connection it is; NULL = no member's. */
struct hub_peer *hub_peer_of(const struct hub *hub, uint64_t connection);

/* The member is reached by this connection from now on; by none. */
void hub_peer_bind(struct hub *hub, struct hub_peer *peer, uint64_t connection);
void hub_peer_unbind(struct hub *hub, struct hub_peer *peer);
/* It no longer counts, and is freed; no message follows. */
void hub_peer_remove(struct hub *hub, struct hub_peer *peer, const char *reason,
                     struct hub_output *out);
/* The same with an event, and the generation that needs it ends. `is_failure`: the generation that
 * loses it is a counted restart. */
void hub_peer_lose(struct hub *hub, struct hub_peer *peer, const char *cause, const char *message,
                   bool is_failure, double fault_ms, struct hub_output *out);

/* ---- hub_claim.c ----------------------------------------------------------------------------- */

/* A member says hello: it takes the place of an earlier attempt, or waits beside it or behind it.
 * False: it was refused, since a later attempt is known, or another pod of the same attempt. */
bool hub_claim_index(struct hub *hub, const struct message_hello *hello, uint64_t connection,
                     bool *is_behind, struct hub_output *out);
/* Those that wait behind an earlier attempt take its place if that is no longer the only holder. */
void hub_claim_again(struct hub *hub, struct hub_output *out);

/* ---- hub_hello.c, hub_status.c, hub_message.c ------------------------------------------------ */

/* A hello has come: a new member, or one that is back; it is answered, or refused and its
 * connection closed. */
void hub_hello_receive(struct hub *hub, uint64_t connection, const struct message *message,
                       struct hub_output *out);
struct message hub_hello_greeting(const struct hub *hub); /* the hub's heartbeat */
void hub_hello_refuse(uint64_t connection, const char *reason, struct hub_output *out);
/* A worker that another pod has replaced says hello, and is refused. It may be the only one that
 * knows how many members the newest generation had, and why it ended: by a failure, which the
 * deletion of its pod is not, or by a resize. */
void hub_status_hear_refused(struct hub *hub, const struct message_hello *hello,
                             struct hub_output *out);
/* The newest generation has committed a step. */
void hub_status_running(struct hub *hub, struct hub_output *out);
void hub_status_take(struct hub *hub, struct hub_peer *peer, const struct message_status *status,
                     double age_ms, bool is_hello, struct hub_output *out);
void hub_message_take(struct hub *hub, struct hub_peer *peer, const struct message *message,
                      struct hub_output *out);
/* A step was committed: reported, if it is new. */
void hub_message_step(struct hub *hub, const struct message_step *step, struct hub_output *out);

/* ---- hub_finish.c ---------------------------------------------------------------------------- */

/* The job has ended, one way or the other: nothing is assigned any more. */
bool hub_finish_is_over(const struct hub *hub);
/* Tell all members that the job is over. */
void hub_finish_end(struct hub *hub, bool succeeded, const char *reason, struct hub_output *out);
void hub_finish_fail(struct hub *hub, const struct hub_cause *cause, struct hub_output *out);
void hub_finish_take(struct hub *hub, struct hub_peer *peer, const struct message_finished *m,
                     struct hub_output *out);
/* The job is over: what members say as they leave, and nothing else. */
void hub_finish_take_late(struct hub *hub, struct hub_peer *peer, const struct message *message,
                          struct hub_output *out);
/* End the job if a member has finished and no other can any more; own trainers: if all have. */
void hub_finish_try(struct hub *hub, struct hub_output *out);
/* A member has finished, and that decides how the job ends: with the built-in trainer all members
 * hold the final weights, so nothing that fails later matters. Never true for own trainers. */
bool hub_finish_is_decided(const struct hub *hub);
/* The generation has ended before all own trainers of it had finished: those that had run again. */
void hub_finish_forget(struct hub *hub);
/* A finished own trainer's member is gone: its rank stays finished. */
void hub_finish_keep(struct hub *hub, int place, struct hub_output *out);

/* ---- hub_accuse.c ---------------------------------------------------------------------------- */

/* A member says that it lost its connection to another, with neither seen to fail (7). */
void hub_accuse_note(struct hub *hub, const struct hub_peer *accuser,
                     const struct hub_peer *accused);
/* Before a generation is chosen: judge the open accusation; evicts at most one member. */
void hub_accuse_judge(struct hub *hub, struct hub_output *out);
void hub_accuse_forget(struct hub *hub, const char *pod_uid); /* NULL = all */

/* ---- hub_timeline.c -------------------------------------------------------------------------- */

/* The newest generation has just been assigned; a member has reached a phase; its first step was
 * committed at `at_ms`. */
void hub_timeline_begin(struct hub *hub);
void hub_timeline_phase(struct hub *hub);
void hub_timeline_step(struct hub *hub, double at_ms);
/* Report the restart once its first step is done; with `is_over`, as far as it came. */
void hub_timeline_report(struct hub *hub, bool is_over, struct hub_output *out);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_RENDEZVOUS_HUB_STATE_H
#define LIBFLEET_RENDEZVOUS_HUB_STATE_H

/*
 * What a hub remembers: its members, the newest generation, the one that is being made, why the
 * last one ended, and what the job waits for. Only the files of the hub include this.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libfleet/base/cause.h"
#include "libfleet/base/map.h"
#include "libfleet/rendezvous/hub.h"

struct kv;

#define HUB_QUIET_MS        10000.0 /* a new hub declares no member lost in this time … */
#define HUB_QUIET_MEMBER_MS 1.0     /* … plus this time for each member */
#define HUB_UNHEARD_MS \
    20000.0 /* a member that a new hub has never heard from may still dial the former one:    \
             * DIAL_MS_MAX and the longest back-off of member.c, and a little */
#define HUB_HEARTBEAT_MS      500.0 /* of a job of up to HUB_HEARTBEAT_MEMBERS */
#define HUB_HEARTBEAT_MEMBERS 64
#define HUB_HEARTBEATS_MISSED 5       /* 2.5 s for small jobs */
#define HUB_ABORT_MS_MAX      30000.0 /* longest time for a survivor to leave a generation */
#define HUB_GAP_BEATS         3     /* time for members to say that they can report missing steps */
#define HUB_SETTLE_MS         200.0 /* newcomers that come within this time join together */
#define HUB_RECORD_RETRY_MS   1000.0
#define HUB_STALL_FACTOR      10.0    /* a step this much longer than the mean … */
#define HUB_STALL_MS_MIN      30000.0 /* … and longer than this is reported */
/* What a status or a member says is counted up to here: sums of two such numbers fit an int. */
#define HUB_RESTARTS_MAX 1000000000

/* A member: a pod with its agent. */
struct hub_peer {
    char pod_uid[MESSAGE_UID_MAX + 1];
    int index, attempt;
    size_t order; /* the order of ranks in a first generation; equal ones by index */
    char address[MESSAGE_ADDRESS_MAX + 1];
    int ports[MESSAGE_PROCESSES_MAX];
    int processes;
    enum fleet_isa level;

    bool is_connected;
    uint64_t connection;    /* while connected */
    int64_t sequence;       /* of the last message accepted on it */
    double heard_ms;        /* when */
    double connected_ms;    /* when it opened its connection */
    double disconnected_ms; /* while not connected: since when */

    struct message_status status;         /* as it said last */
    int place;                            /* in hub->newest, -1 = not in it */
    char backend[MESSAGE_CAUSE_MAX + 1];  /* of its trainers; "" = not known */
    char left_for[MESSAGE_CAUSE_MAX + 1]; /* why a hub before us ended it; "" = not known */
    double phase_ms[FLEET_PHASE_COUNT];   /* when it reached each phase of hub->newest */
    double abort_sent_ms;                 /* when it was last ordered to abort; -INFINITY = never */
    double assign_sent_ms;                /* when it was last sent the newest assign */
    double ready_ms;                      /* when it last became WAITING */
    double down_ms;                       /* when it last became STARTING */

    int failures; /* of its trainers, in a row without a step of the job */
    char departs_for[MESSAGE_CAUSE_MAX +
                     1]; /* Kubernetes takes its pod away: why; "" = it does not */
    bool is_departing;   /* its pod is being deleted, also without such a word */
    bool is_replaced;    /* it leaves, and a later attempt of its index is there */
    bool is_behind;      /* an earlier attempt of its index alone holds the state: in no generation
                            yet */
    bool is_dropped;     /* ordered to leave, or says that it does: in no further generation */
    bool holds;          /* chosen: its state counts in the generation that is being made */
    bool is_finished;
    char weights_sha256[65];
};

/* Why the newest generation ended: the first cause, kept until the next one is assigned. */
struct hub_incident {
    bool is_open;
    bool is_failure;   /* counts against maxRestarts */
    bool is_explained; /* a member was seen to fail: accusations need no guilty one */
    char cause[MESSAGE_CAUSE_MAX + 1];
    int member, attempt; /* index, attempt; -1 = none */
    int exit_code, signal;
    double fault_ms, aborted_ms;
    int64_t progress_step; /* last step reported then */
};

/* The restart that made the newest generation, until its first step. */
struct hub_restart {
    bool is_open;
    struct hub_incident incident;
    double assigned_ms, connected_ms, restored_ms, first_step_ms; /* NAN = not yet */
    int64_t step;                                                 /* the members held, -1 = none */
    int64_t restored_step; /* where training went on, -1 = not known yet */
};

/* Places of a generation, each once. */
struct hub_places {
    int *items; /* [count], heap */
    size_t count;
};

/* Two members: one lost the other, and the hub has seen neither fail. */
struct hub_pair {
    char accuser[MESSAGE_UID_MAX + 1], accused[MESSAGE_UID_MAX + 1];
    int count;
};

/* A member that is out of reach, not known to be dead, and holds a state worth waiting for. */
struct hub_absent {
    char pod_uid[MESSAGE_UID_MAX + 1];
    int index;
    struct fleet_generation generation;
    int64_t step;
    struct fleet_part part;
    double since_ms;
};

/* A pod that is being taken away, of a worker that this hub has not heard from. */
struct hub_departure {
    char pod_uid[MESSAGE_UID_MAX + 1];
    int index, attempt;
    enum fleet_cause cause; /* NONE: the hub has heard from the worker, which explains nothing */
    bool explains;          /* it may be why the last generation ended */
};

/* What a generation that cannot be made yet waits for. */
enum hub_wait_cause {
    HUB_WAIT_NONE,
    HUB_WAIT_BACK_OFF,
    HUB_WAIT_FEW,
    HUB_WAIT_START,
    HUB_WAIT_REPLACEMENT,
    HUB_WAIT_TRAINERS,
    HUB_WAIT_LEAVING,
    HUB_WAIT_HOLDER,
    HUB_WAIT_CAUSES
};

struct hub_wait {
    enum hub_wait_cause cause;
    char message[MESSAGE_REASON_MAX + 1];
    double until_ms; /* INFINITY = not known */
};

struct hub {
    char defect[HUB_DEFECT_MAX]; /* the assertion that failed, "" = none (hub_entry.c) */
    bool is_defect_told;
    char job_uid[MESSAGE_UID_MAX + 1];
    char *plan_digest;
    struct hub_policy policy;
    uint8_t secret[MESSAGE_SECRET_SIZE];
    int64_t epoch;

    enum hub_phase phase;
    bool is_superseded; /* a member holds a greater epoch: nothing is done any more */
    bool is_dirty;      /* something changed that may let a generation be made */
    double now_ms;      /* of the last call */
    double wake_ms;     /* when to tick */

    struct hub_peer **peers; /* [peer_count], in order of arrival */
    size_t peer_count, peer_capacity;
    struct fleet_map by_uid;        /* pod UID -> struct hub_peer */
    struct fleet_map by_connection; /* decimal number -> struct hub_peer */

    /* The newest generation that any member may obey. */
    struct fleet_generation newest;
    int newest_members;   /* 0 = not known (a new hub) */
    int recorded_members; /* of the generation that this hub found recorded; 0 = not known */
    int newest_heard;     /* of them were ever heard from; the others are unknown, not lost … */
    struct hub_places heard_places;   /* … and, where this hub has not assigned them, which */
    struct message_text *newest_text; /* its assign; NULL = not ours */
    bool is_broken;                   /* it was aborted, or never was whole */
    bool has_trained;                 /* under a hub before us: see struct hub_start */
    struct fleet_generation live;     /* the newest that has committed a step */
    double unheard_ms;                /* patience with members that it never heard from */
    double quiet_until_ms;            /* a new hub: no member is lost before */

    int64_t counter;                  /* of the newest generation proposed */
    struct fleet_generation proposed; /* RECORDING … */
    double proposed_ms;               /* … since */
    struct hub_peer **chosen;         /* [chosen_count], in rank order; RECORDING */
    size_t chosen_count;
    int64_t chosen_step; /* newest state among them, -1 = none */
    int64_t chosen_first_step;
    int lost_cell;    /* a part of its state is lost; -1 = none, or the job has no cells */
    int lost_shard;   /* of the newest state, with all members that held it; -1 = none is known */
    double record_ms; /* when to ask for the record again, INFINITY = asked */
    struct fleet_generation unrecorded; /* assigned with a majority, record still to be done */
    int64_t unrecorded_first_step;
    double unrecorded_ms; /* when to ask for it again, INFINITY = asked */

    struct fleet_lineage lineage;

    struct hub_incident incident;
    struct hub_restart restart;
    int restarts, restarts_total, restarts_ignored;
    int written_failures; /* counted and ignored, with the last record that was written … */
    struct fleet_generation asked; /* … the newest record that was asked for, … */
    int asked_failures;            /* … and these with it */
    int64_t steps_since_restart;
    int failures;        /* own trainers: restarts in a row without progress */
    int64_t failed_step; /* the progress at the last of them */
    double begun_ms;     /* when the newest generation was assigned, or this hub learnt of it */
    bool must_judge;     /* the last restart is used up, unless a member says that it left */
    double restart_ms;   /* no generation before; -INFINITY = no matter */
    double failed_ms;    /* when that was decided */

    double gather_ms;                    /* GATHERING since */
    double changed_ms;                   /* the members last changed */
    bool is_stalled;                     /* and said so */
    struct hub_wait wait, wait_reported; /* now, and as people know it */
    enum hub_wait_cause wait_cause;      /* what was waited for last, reported or not, … */
    double wait_since_ms;                /* … and since when */
    double heartbeat_ms;                 /* when to send the next */
    double progress_ms;                  /* of the last progress, or of assign */
    double step_ms_mean;                 /* between progresses, 0 = not known */
    int64_t progress_step;
    int64_t progress_floor; /* the newest generation began from a checkpoint of this step */
    double progress_gap_ms; /* since when steps in between are missing, INFINITY = none are */
    int64_t evaluation_step;
    int64_t checkpoint_step;
    int64_t checkpoint_due_step; /* of a checkpoint whose steps are not all reported yet, … */
    char *checkpoint_path;       /* … NULL = none */
    /* Own trainers get the last checkpoint that they reported: its path, NULL = not known,
     * and the generation that reported it, none = a hub before us knew. */
    char *resume_path;
    struct fleet_generation resume_generation;

    bool is_finishing; /* a member has done all steps */
    /* Own trainers: places in the newest generation whose members are gone, but had finished. One
     * of them may come back. */
    struct hub_places finished_gone;
    int64_t finished_steps;
    double finished_loss;
    char end_reason[MESSAGE_REASON_MAX + 1];
    bool has_ended_well;

    struct hub_pair *pairs; /* [pair_count] */
    size_t pair_count;
    struct hub_pair accusation; /* of the newest generation; accuser "" = none */

    struct fleet_map order; /* pod UID -> its number, from 1, as (void *) */

    struct hub_absent *absent; /* [absent_count] */
    size_t absent_count;

    struct hub_departure *departures; /* [departure_count]; until this hub has made a generation */
    size_t departure_count;

    struct kv *kv;
};

#endif

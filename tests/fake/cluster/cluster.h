/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FAKE_CLUSTER_CLUSTER_H
#define TESTS_FAKE_CLUSTER_CLUSTER_H

/*
 * A whole cluster in one process under one clock and one seed.
 *
 * Real: the controllers (election, caches, queue, observe, reconcile, apply, hub), the members and
 * the supervisors of the agents. Played, each a small state machine: API server
 * (tests/fake/apiserver.h), scheduler, kubelets, garbage collector, the network, and trainers that
 * vote before every step.
 *
 *   events.c      the clock, deadlines, random numbers, the last lines of the history
 *   controller.c  replicas of the controller: started, killed, frozen
 *   hubs.c        their hubs, and the network of these
 *   door.c        the hub's address for agents, and whether they trust its certificate
 *   kube.c        scheduler, kubelets, garbage collector, jobs as users make and change them
 *   agent.c       the pod's process 1: supervisor and member, its connection to a hub
 *   train.c       trainers and the generations they train in
 *   checkpoints.c what trainers have saved
 *   own.c         own trainers
 *   cells.c       jobs whose ranks share a model, and the rules for them
 *   cells_train.c what their trainers do together
 *   check.c       the rules for what the API server holds, after every step
 *   check_generations.c  the rules for generations and their steps
 *   restarts.c    the rules for the number of restarts
 *   excuses.c     what these rules cannot ask for
 *   faults.c      faults and changes by users, by seed
 *
 * All fields of the struct are open: the tests set them and read them.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "agent/supervisor.h"
#include "controller/fleetjob/reconciler.h"
#include "libfleet/kube/io.h"
#include "libfleet/rendezvous/hub.h"
#include "libfleet/rendezvous/member.h"
#include "libfleet/strategy/topology.h"
#include "tests/fake/hub_network.h"

struct fake_apiserver;
struct fake_io;
struct leaf_certificate;
struct installation;

#define CLUSTER_REPLICAS    2
#define CLUSTER_NODES       3
#define CLUSTER_JOBS        16 /* by UID, those of the past included */
#define CLUSTER_AGENTS      512
#define CLUSTER_RUNS        512
#define CLUSTER_CONNECTIONS 8192
#define CLUSTER_WORKERS     12 /* of a job */
#define CLUSTER_PROCESSES   2  /* of a worker */
#define CLUSTER_PODS        1024
#define CLUSTER_CHECKPOINTS 64
#define CLUSTER_RECORDS     256          /* of a job */
#define CLUSTER_RULES_FIRST 1000000000ul /* seeds below this one keep their old histories */
/* Seeds from here on also have certificates, the objects of the hub, hubs that break */
#define CLUSTER_WHOLE_FIRST 2000000000ul
/* Seeds from here on have pods that Kubernetes takes away, but not the faults of the two groups
 * above: with those almost every restart would have several possible causes */
#define CLUSTER_DRAIN_FIRST 3000000000ul
/* Seeds from here on have jobs whose ranks share a model; some of them have drains, too */
#define CLUSTER_CELLS_FIRST 4000000000ul
#define CLUSTER_GRACE_MS \
    30000.0                     /* of a worker's pod, with drains: longer than a new leader takes */
#define CLUSTER_EVERY_STEPS 10  /* a checkpoint */
#define CLUSTER_LINES       120 /* of the history that are kept */
#define CLUSTER_NAMESPACE   "team"

#define CLUSTER_FLEETJOBS "/apis/fleetjob.dev/v1alpha1/namespaces/team/fleetjobs"
#define CLUSTER_PODS_PATH "/api/v1/namespaces/team/pods"
#define CLUSTER_LEASE     "/apis/coordination.k8s.io/v1/namespaces/system/leases/fleetjob"

/* ---- what happens ---------------------------------------------------------------------------- */

enum cluster_event_type {
    CLUSTER_TO_HUB,
    CLUSTER_TO_MEMBER,
    CLUSTER_CUT_HUB,
    CLUSTER_CUT_MEMBER,
    CLUSTER_DIAL,
    CLUSTER_DIAL_FAILED,
    CLUSTER_TRAINER_HELLO,
    CLUSTER_TRAINER_EXIT, /* step: the status of waitpid() */
    CLUSTER_TRAINER_WAITING,
    CLUSTER_TRAINER_CONNECT,
    CLUSTER_TRAINER_RESTORE,
    CLUSTER_TRAINER_APPLY,
    CLUSTER_TRAINER_BROKEN, /* step: the rank that is lost */
    CLUSTER_TRAINER_SAVE,
    CLUSTER_STEP, /* of a run */
    CLUSTER_SCHEDULER,
    CLUSTER_KUBELET, /* process: the node */
    CLUSTER_COLLECTOR,
    CLUSTER_NODE_LOST,  /* process: the node; step 1: its machine is gone */
    CLUSTER_NODE_EVICT, /* … its pods are deleted */
    CLUSTER_NODE_BACK,
    CLUSTER_ENDPOINT, /* replica, life: agents find it from now on */
    CLUSTER_REPLICA_START,
    CLUSTER_REPLICA_LOST,
    CLUSTER_REPLICA_THAW,
    CLUSTER_REPLICA_REACHABLE,
    CLUSTER_RECREATE, /* process: the job's number */
    CLUSTER_FAULT,
    CLUSTER_OWN_WORK, /* an own trainer is about to make a step, … */
    CLUSTER_OWN_END,  /* … or ends, because it was asked to */
    CLUSTER_PROXY,    /* the nodes follow the hub's EndpointSlice */
};

struct cluster_event {
    double at_ms;
    uint64_t order;
    enum cluster_event_type type;
    int agent, process, life, tries, replica, run;
    uint64_t connection;
    int64_t step;
    struct message_text *text;
};

/* ---- who is there ---------------------------------------------------------------------------- */

struct cluster;

struct cluster_hosted { /* a hub of a replica */
    struct cluster *cluster;
    int replica;
    struct hub *hub; /* NULL = free place */
    int job;
    int64_t told;         /* newest STEP event */
    bool has_assigned;    /* a generation of its own */
    bool is_record_stuck; /* a record has failed: a majority may do */
};

struct cluster_spy { /* the replica's way to the API server, watched */
    struct kube_io io;
    struct kube_io *inner;
    struct cluster *cluster;
    int replica;
};

struct cluster_replica {
    bool is_alive, is_over;
    bool is_silent; /* its machine is lost: its peers do not see its connections end */
    int life;
    double frozen_until_ms;
    int64_t wall_skew_ms; /* offset of its wall clock to the others' */
    char identity[40];
    struct fake_io *io;
    struct cluster_spy spy;
    struct metrics *metrics;
    struct event_recorder *events;
    struct leader_election_options election;
    struct reconciler *reconciler;
    struct fake_hub_network network;
    struct cluster_hosted hubs[CLUSTER_JOBS];  /* by their place in the network */
    char address[24];                          /* in the EndpointSlice, once it has led */
    struct leaf_certificate *certificate;      /* while it leads, … */
    struct installation *installation;         /* … in a whole world */
    int64_t trusted_from_ms, trusted_until_ms; /* its certificate, by the wall */
};

struct cluster_trainer {
    bool is_alive, is_leaving, is_finished;
    bool is_unheard;                    /* has ended, and its agent does not know yet */
    int life;                           /* counts its processes */
    struct fleet_generation generation; /* it is in, none = waits */
    int run;                            /* the same, -1 = none */
    int rank;
    struct fleet_generation left;    /* the last one it was in */
    int64_t step;                    /* state, -1 = none */
    struct fleet_generation held_in; /* in which that state was last complete */
    enum fleet_phase phase;
    bool wants_checkpoint;
    /* where ranks share a model: the step whose gradient it holds, what it holds of its state, … */
    int64_t voted;
    struct fleet_part part;
    bool keeps_state;           /* … the order of the assign, and whether it was followed; … */
    bool is_prepared, has_come; /* … it is about to restore the agreed state */
    int64_t own_step; /* of an own trainer, which holds no state that counts; -1 = none yet */
};

struct cluster_agent {
    struct cluster *cluster;
    bool is_alive;
    int number, node, job, index, attempt;
    char pod[64], uid[48], address[24];
    struct supervisor *supervisor;
    struct member *member;
    struct cluster_trainer trainers[CLUSTER_PROCESSES];
    uint64_t connection;       /* 0 = none */
    double cut_until_ms;       /* its network */
    double stopped_until_ms;   /* its process */
    double kill_at_ms;         /* the grace of its pod is over */
    bool is_taken;             /* Kubernetes takes its pod away, … */
    bool is_termed;            /* … SIGTERM was sent */
    int left_to;               /* the leader that has heard its goodbye, counted from 1; 0 = none */
    double left_ms, ended_ms;  /* when that was; when it ended */
    bool is_unheard;           /* it has ended while nobody led, without a goodbye */
    int killed_in;             /* the generation whose trainer was killed here last, by its run */
    int heard_by;              /* the leader whose hub has last heard from it, counted from 1 */
    int exit_code;             /* when it has ended */
    double last_arrival_ms[2]; /* of its messages: to the hub, from the hub */
    int last_place;            /* in the last generation that was assigned, -1 = not in it */
    double hurt_ms;            /* until when something was wrong with it */
    double down_ms;            /* when one of its trainers ended last */
};

struct cluster_node {
    bool is_lost;
    double lost_until_ms;
    bool is_pending; /* a look of its kubelet is due */
};

struct cluster_checkpoint {
    int64_t step;
    struct fleet_generation generation;
};

struct cluster_record { /* of a generation, assigned or not */
    struct fleet_generation generation;
    int64_t first_step;
    int restarts; /* written with it */
};

struct cluster_job { /* what is true of a job, even if its status differs */
    char name[32], uid[48];
    bool is_gone; /* deleted */
    int workers_min, workers_max, desired, processes, restarts_max, elastic_s;
    struct topology
        grid; /* ranks share a model: of one replica, of so many members; else world 0 */
    int unit;
    bool resets;   /* the count of restarts */
    bool is_own;   /* its trainers are its own (own.c), … */
    bool reports;  /* … and the first rank says how far it is */
    int64_t saved; /* the newest checkpoint of these */
    int64_t steps;
    bool is_suspended;

    int64_t committed_most; /* newest step that any trainer has ever applied */
    struct fleet_generation last_committer;
    struct fleet_generation newest_assigned;
    int newest_run;    /* its run, -1 = none */
    bool has_finished; /* a trainer has applied the last step */
    struct cluster_checkpoint checkpoints[CLUSTER_CHECKPOINTS];
    int checkpoint_count;
    bool was_suspended; /* since the newest generation was assigned */
    /* a user has removed the status once: restarts are not counted exactly any more */
    bool is_status_lost;

    double unhosted_ms; /* when its last hub ended */

    /* as last seen on the server */
    bool is_terminal;
    double over_ms; /* when */
    char verdict[16], reason[64];
    int64_t progress, history, trained;
    struct fleet_generation recorded;
    struct cluster_record records[CLUSTER_RECORDS]; /* [record_count] */
    int record_count;
};

struct cluster_run { /* a generation */
    int job;
    struct fleet_generation generation;
    int agents[CLUSTER_WORKERS], count; /* by place */
    bool is_started;                    /* restored everywhere */
    int64_t base;                       /* step it started from */
    int64_t agreed;                     /* … that it was to start from */
    int64_t voted;                      /* newest step whose vote is complete */
    bool has_committed;
    bool is_sound; /* with cells: the hub knew what its members hold */
    int64_t saved; /* … the step that all have saved together */
    double assigned_ms;
    int leaders;     /* that there were when it was assigned */
    int restarts;    /* of the job when it was made, as in the assign to its members */
    bool is_restart; /* one more than the generation before, … */
    int64_t before;  /* … which was this one; those in between were recorded only */
    bool is_recorded, was_recorded;
    bool is_cause_lost;    /* see cluster_excuse_unled() */
    bool is_cause_unknown; /* only its members could tell the leader that recorded it */
    uint32_t own_finished; /* own trainers: bit i: rank i has exited with 0 */
    bool must_count;       /* a trainer was killed while its hub knew it to run, … */
    int killed_under;      /* … this leader's, counted from 1, … */
    double killed_ms;      /* … then */
};

struct cluster_pod { /* every pod there ever was */
    char uid[48], name[64];
    int job, index, attempt;
    double deleted_ms; /* when a fault deleted it; 0 = none did */
};

struct cluster_create { /* of a pod, as a replica that leads has sent it */
    char name[64];
    int replica;
    double at_ms;
};

enum cluster_excuse {
    CLUSTER_EXCUSE_UNWRITTEN = 1, /* the leader was lost before it could write why all had left */
    CLUSTER_EXCUSE_UNHEARD = 2,   /* nobody led when a worker left */
    CLUSTER_EXCUSE_DELETION = 4,  /* a deleted pod explains why no member is left */
    CLUSTER_EXCUSE_UNKNOWN = 8,   /* no leader knew the cause of a restart */
    CLUSTER_EXCUSE_UNREACHED = 16 /* no leader reached the only worker that knew */
};

struct cluster_world { /* by seed */
    double loss, latency_max_ms, step_ms, fault_interval_ms, faults_end_ms;
    bool has_api_faults, has_leader_faults, has_node_faults, has_user;
    /* quota, admission, deletions by hand, clocks: seeds from CLUSTER_RULES_FIRST */
    bool has_rule_faults;
    bool is_whole;   /* seeds from CLUSTER_WHOLE_FIRST */
    bool has_drains; /* seeds from CLUSTER_DRAIN_FIRST */
    bool has_cells;  /* seeds from CLUSTER_CELLS_FIRST */
    int job_count;
    double lease_ms;
};

struct cluster {
    unsigned long seed;
    uint64_t random;
    double now_ms;
    struct cluster_event *events; /* heap */
    size_t event_count, event_capacity;
    uint64_t order;
    bool is_trace;
    char lines[CLUSTER_LINES][200];
    size_t line_count;
    uint64_t digest; /* of all that happened */

    struct cluster_world world;
    struct fake_apiserver *server;
    bool is_scheduler_pending, is_collector_pending, is_fault_over;
    struct cluster_replica replicas[CLUSTER_REPLICAS];
    int endpoint, endpoint_life; /* replica that agents find, -1 = none */
    char door[24];               /* whole world: the address that they find next, "" = none */
    cJSON *service;              /* of the hub, as it was read last */
    int64_t passed_ms;           /* jumps of all wall clocks so far */
    struct cluster_node nodes[CLUSTER_NODES];
    struct cluster_agent agents[CLUSTER_AGENTS];
    int agent_count;
    struct cluster_job jobs[CLUSTER_JOBS];
    int job_count;
    struct cluster_run runs[CLUSTER_RUNS];
    int run_count;
    struct cluster_pod pods[CLUSTER_PODS];
    int pod_count;
    struct cluster_create creates[2 * CLUSTER_PODS]; /* in the order in which they were sent */
    int create_count;
    unsigned excuses; /* that were used: bits of enum cluster_excuse */
    double unled_ms;  /* when the last leader was lost */
    double thawed_ms; /* when a replica that was frozen goes on: its members may have left it */
    struct {
        int agent, replica, hosted;
        bool is_open; /* at the hub */
    } connections[CLUSTER_CONNECTIONS];
    uint64_t connection_count;

    int recreates; /* jobs that will be made again */
    int faults, leaders, runs_made, records_stuck, finished, failed;
    void (*broken)(struct cluster *cluster, const char *text); /* does not return */
};

/* ---- events.c -------------------------------------------------------------------------------- */

struct cluster *cluster_new(unsigned long seed, bool is_trace,
                            void (*broken)(struct cluster *cluster, const char *text));
void cluster_free(struct cluster *c);
void cluster_turn(struct cluster *c); /* the next thing that is due */

void cluster_push(struct cluster *c, double at_ms, struct cluster_event event);
double cluster_uniform(struct cluster *c, double low, double high);
bool cluster_chance(struct cluster *c, double probability);
int cluster_below(struct cluster *c, int limit);
uint64_t cluster_random(struct cluster *c);
void cluster_trace(struct cluster *c, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* An invariant does not hold. */
void cluster_broken(struct cluster *c, const char *format, ...)
    __attribute__((format(printf, 2, 3), noreturn));

/* ---- controller.c ---------------------------------------------------------------------------- */

void cluster_replica_start(struct cluster *c, int replica);
void cluster_replica_kill(struct cluster *c, int replica);
void cluster_replica_freeze(struct cluster *c, int replica, double duration_ms);
void cluster_replica_cut(struct cluster *c, int replica, double duration_ms); /* from the API */
void cluster_replicas_calm(struct cluster *c); /* what is left of the weather is latency */
bool cluster_replica_runs(const struct cluster *c, int replica); /* alive, not frozen */
void cluster_replica_event(struct cluster *c, const struct cluster_event *event);
int cluster_leader(const struct cluster *c);  /* -1 = none */
void cluster_clocks_right(struct cluster *c); /* of all replicas */
double cluster_controllers_next(struct cluster *c);
void cluster_controllers_turn(struct cluster *c);

/* ---- hubs.c ---------------------------------------------------------------------------------- */

/* The network of a leader's hubs (hub_network.h); `user` is its struct cluster_spy. */
int cluster_network_open(void *user, struct hub_network *out, struct fleet_error *err);
struct cluster_hosted *cluster_hub_of(struct cluster *c, uint64_t connection); /* NULL = closed */
int cluster_hub_find(const struct cluster *c, int replica, int job);           /* -1 = none */
void cluster_hub_apply(struct cluster_hosted *hosted, struct hub_output *out);
void cluster_hubs_tick(struct cluster *c, struct cluster_replica *replica);
/* An assertion fails in the hub of this job that the leader hosts, if it does. */
void cluster_hub_break(struct cluster *c, int job);
int64_t cluster_wall_ms(const struct cluster *c); /* as good clocks show it */

/* ---- door.c, in a whole world ---------------------------------------------------------------- */

void cluster_door_make(struct cluster *c); /* the hub's Service, as the chart makes it */
void cluster_door_open(struct cluster *c, int replica);
void cluster_door_close(struct cluster_replica *replica);
void cluster_door_changed(struct cluster *c);
void cluster_door_follow(struct cluster *c);
bool cluster_door_is_trusted(const struct cluster *c, int replica); /* by agents */
void cluster_door_disturb(struct cluster *c);
void cluster_door_pass_time(struct cluster *c);

/* ---- kube.c ---------------------------------------------------------------------------------- */

/* All objects of a collection, sorted; the caller frees the array. */
void cluster_kube_changed(void *user);
void cluster_kube_event(struct cluster *c, const struct cluster_event *event);
void cluster_kubelet_soon(struct cluster *c, int node);
int cluster_job_create(struct cluster *c, const char *name); /* its number */
int cluster_job_find(const struct cluster *c, const char *uid);
void cluster_job_patch(struct cluster *c, int job, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void cluster_job_delete(struct cluster *c, int job);
void cluster_pod_delete(struct cluster *c, const char *pod, bool at_once);

/* ---- agent.c --------------------------------------------------------------------------------- */

void cluster_agent_start(struct cluster *c, int node, const cJSON *pod);
struct cluster_agent *cluster_agent_find(struct cluster *c, const char *pod_uid);
void cluster_agent_kill(struct cluster *c, struct cluster_agent *a, int exit_code, bool is_silent);
void cluster_agent_event(struct cluster *c, const struct cluster_event *event);
double cluster_agent_next(const struct cluster_agent *a);
void cluster_agent_tick(struct cluster *c, struct cluster_agent *a);
void cluster_agent_term(struct cluster *c, struct cluster_agent *a, double grace_ms);
void cluster_agent_settle(struct cluster *c, struct cluster_agent *a); /* has it ended? */
void cluster_agent_say(struct cluster_agent *a, int process, const struct link_message *message);
void cluster_transmit(struct cluster *c, struct cluster_agent *a, enum cluster_event_type type,
                      uint64_t connection, struct message_text *text);

/* ---- train.c --------------------------------------------------------------------------------- */

void cluster_trainer_start(struct cluster *c, struct cluster_agent *a, int process);
void cluster_trainer_die(struct cluster *c, struct cluster_agent *a, int process, int wait_status);
void cluster_trainer_told(struct cluster *c, struct cluster_agent *a, int process,
                          const struct link_message *message);
void cluster_trainer_event(struct cluster *c, const struct cluster_event *event);
/* An event of the trainer in its present life and run. */
struct cluster_event cluster_trainer_event_of(const struct cluster_agent *a, int process,
                                              enum cluster_event_type type);
void cluster_trainer_lose(struct cluster *c, struct cluster_agent *a, int process, int rank);
void cluster_step(struct cluster *c, const struct cluster_event *event);
void cluster_trainer_leave(struct cluster *c, struct cluster_agent *a, int process); /* its run */
int cluster_run_find(const struct cluster *c, int job, struct fleet_generation generation); /* -1 */

/* ---- checkpoints.c --------------------------------------------------------------------------- */

/* What the trainer holds goes to disk, as in one with the order to leave. */
void cluster_trainer_save(struct cluster *c, struct cluster_agent *a, int process);
/* The newest checkpoint on the lineage that the members know. */
int64_t cluster_checkpoint_newest(const struct cluster *c, const struct cluster_run *r,
                                  const struct message_assign *assign);

/* ---- own.c ----------------------------------------------------------------------------------- */

void cluster_own_start(struct cluster *c, struct cluster_agent *a, int process,
                       const struct supervisor_place *place);
void cluster_own_signal(struct cluster *c, struct cluster_agent *a, int process, int number);
void cluster_own_event(struct cluster *c, const struct cluster_event *event);

/* ---- faults.c -------------------------------------------------------------------------------- */

void cluster_world_choose(struct cluster *c);
void cluster_fault(struct cluster *c);

#endif

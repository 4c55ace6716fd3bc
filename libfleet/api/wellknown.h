/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_API_WELLKNOWN_H
#define LIBFLEET_API_WELLKNOWN_H

/*
 * Every name that one program writes and another reads: group, labels, annotations, condition types
 * and reasons, event reasons. Each has its writer and its reader. All of them are part of the
 * API.
 */

/* ---- group ----------------------------------------------------------------------------------- */

#define WELLKNOWN_GROUP       "fleetjob.dev"
#define WELLKNOWN_VERSION     "v1alpha1"
#define WELLKNOWN_API_VERSION WELLKNOWN_GROUP "/" WELLKNOWN_VERSION
#define WELLKNOWN_KIND        "FleetJob"
#define WELLKNOWN_PLURAL      "fleetjobs"

/* Field manager of everything the controller writes. */
#define WELLKNOWN_FIELD_MANAGER "fleetjob"

/* The numeric user of workers' pods: neither root nor an account of the node. Written by the
 * controller; named where a folder cannot be written. */
#define WELLKNOWN_WORKER_USER 65532

/* ---- variables ------------------------------------------------------------------------------- */

/* A worker's container. Written by the controller; read by the agent and by the preloaded library
 * (agent/entrypoint/entrypoint.h). Trainers do not get them. */

/* Path of the agent that is to take the place of the image's ENTRYPOINT. Absent: the agent is the
 * container's command. */
#define WELLKNOWN_ENV_AGENT "FLEET_ENTRYPOINT_AGENT"

/* LD_PRELOAD of the template; the agent gives it to the trainers. Absent: the template has none. */
#define WELLKNOWN_ENV_PRELOAD "FLEET_ENTRYPOINT_PRELOAD"

/* In the folder lib of the agent's closure. */
#define WELLKNOWN_PRELOAD_LIBRARY "fleetjob-preload.so"

/* ---- labels ---------------------------------------------------------------------------------- */

/* Pods, Secret, Service. Written by the controller; read by the Service's selector,
 * status.workers.selector and people. Value: the job's name. */
#define WELLKNOWN_LABEL_JOB WELLKNOWN_GROUP "/job-name"

/* Pods. Written by the controller: the job's UID. Its watch selects the pods that have this label,
 * with any value; a pod that loses it gets it back (pod_labels.c). */
#define WELLKNOWN_LABEL_JOB_UID WELLKNOWN_GROUP "/job-uid"

/* Pods. Written by the controller for people; it reads the pod's name. Value: 0 … maxReplicas-1. */
#define WELLKNOWN_LABEL_INDEX WELLKNOWN_GROUP "/worker-index"

/* Pods. Written by the controller for people; it reads the pod's name. Value: 0, 1, 2 …: how often
 * this index was remade. */
#define WELLKNOWN_LABEL_ATTEMPT WELLKNOWN_GROUP "/worker-attempt"

/* Pods of servers. Written by the controller; read by the selector of their Service. */
#define WELLKNOWN_LABEL_ROLE  WELLKNOWN_GROUP "/role"
#define WELLKNOWN_ROLE_SERVER "server"

/* Pods of servers. Written by the controller for people. Value: 0 … replicas-1. */
#define WELLKNOWN_LABEL_SERVER WELLKNOWN_GROUP "/server-index"

/* Pods. Written by the API server, which copies it from the node (or by the pod's template); read
 * by the controller: the workers of one zone get neighbouring ranks. */
#define WELLKNOWN_LABEL_TOPOLOGY "topology.kubernetes.io/zone"

/* Pods, for tools of the ecosystem (app.kubernetes.io/managed-by: fleetjob). Nothing here
 * reads. */
#define WELLKNOWN_LABEL_MANAGED_BY "app.kubernetes.io/managed-by"

/* ---- containers ------------------------------------------------------------------------------ */

/* Init container that copies the agent into a pod of another image. Written by the controller,
 * which reads which image it had. */
#define WELLKNOWN_AGENT_CONTAINER "fleetjob-agent"

/* Resource of NVIDIA's device plug-in, in the limits of a worker. Read by the controller. */
#define WELLKNOWN_NVIDIA_GPU "nvidia.com/gpu"

/* ---- annotations ----------------------------------------------------------------------------- */

/* Pods. Written and read by the controller: digest of the template a pod was made from. After an
 * answer 409 to a create it distinguishes our pod from another program's. */
#define WELLKNOWN_ANNOTATION_TEMPLATE WELLKNOWN_GROUP "/template-hash"

/* ---- conditions (status.conditions[].type) --------------------------------------------------- */
/* Written by the controller; read by people, `kubectl wait` and the reasons below. */

#define WELLKNOWN_CONDITION_ACCEPTED  "Accepted"  /* the spec makes sense; False lists all errors */
#define WELLKNOWN_CONDITION_SCHEDULED "Scheduled" /* every wanted pod has a node */
#define WELLKNOWN_CONDITION_RUNNING   "Running"   /* a generation is committing steps */
#define WELLKNOWN_CONDITION_RESTARTING \
    "Restarting" /* a generation ended, the next has no step yet */
/* A defect of the controller: the job is left as it is until the next try. */
#define WELLKNOWN_CONDITION_INTERNAL_ERROR "InternalError"
#define WELLKNOWN_CONDITION_SUSPENDED      "Suspended" /* runPolicy.suspend took effect: no pods */
#define WELLKNOWN_CONDITION_SUCCEEDED      "Succeeded" /* terminal */
#define WELLKNOWN_CONDITION_FAILED         "Failed"    /* terminal; the reason says why */
#define WELLKNOWN_CONDITION_CHECKPOINT_FAILED \
    "CheckpointFailed" /* the newest save failed and is tried again; the message says why */
#define WELLKNOWN_CONDITION_KEY_IGNORED \
    "KeyIgnored" /* keys of spec.autoParallel have no effect; the message lists them */
#define WELLKNOWN_CONDITION_BLOCKED \
    "Blocked" /* something keeps a worker from starting; the reason says what (pod_cause.h) */
#define WELLKNOWN_CONDITION_STALLED "Stalled" /* no progress; the message says what is awaited */

/* ---- reasons of conditions ------------------------------------------------------------------- */

#define WELLKNOWN_REASON_VALID             "Valid"       /* Accepted=True */
#define WELLKNOWN_REASON_INVALID_SPEC      "InvalidSpec" /* Accepted=False: paths and messages */
#define WELLKNOWN_REASON_PODS_PENDING      "PodsPending" /* Scheduled=False */
#define WELLKNOWN_REASON_INVARIANT_BROKEN  "InvariantBroken" /* InternalError=True */
#define WELLKNOWN_REASON_RECOVERED         "Recovered"       /* InternalError=False */
#define WELLKNOWN_REASON_CREATE_REFUSED    "CreateRefused"   /* Scheduled=False: quota, admission */
#define WELLKNOWN_REASON_UNBLOCKED         "Unblocked"       /* Blocked=False */
#define WELLKNOWN_REASON_PODS_SCHEDULED    "PodsScheduled"   /* Scheduled=True */
#define WELLKNOWN_REASON_TRAINING          "Training"        /* Running=True */
#define WELLKNOWN_REASON_NOT_STARTED       "NotStarted"      /* Running=False */
#define WELLKNOWN_REASON_SUSPENDED         "SuspendedByUser" /* Suspended=True */
#define WELLKNOWN_REASON_SUSPENDING        "Suspending"      /* Suspended=False, soon True */
#define WELLKNOWN_REASON_STRATEGY_CHANGES  "StrategyChanges" /* Suspended=True, soon False */
#define WELLKNOWN_REASON_RESUMED           "Resumed"         /* Suspended=False */
#define WELLKNOWN_REASON_COMPLETED         "Completed"       /* Succeeded=True */
#define WELLKNOWN_REASON_RESTARTS_EXCEEDED "RestartsExceeded" /* Failed=True: runPolicy.restart */
#define WELLKNOWN_REASON_FAILURE_POLICY    "FailurePolicy"    /* Failed=True: a rule said so */
#define WELLKNOWN_REASON_DEADLINE_EXCEEDED \
    "DeadlineExceeded" /* Failed=True: activeDeadlineSeconds */
#define WELLKNOWN_REASON_PROGRESS_DEADLINE "ProgressDeadlineExceeded" /* Failed=True */
#define WELLKNOWN_REASON_SERVERS_ENDED \
    "ServersEnded" /* Failed=True: workers started again without a parameter server */
#define WELLKNOWN_REASON_CHECKPOINT_FAILED \
    "CheckpointFailed" /* Failed=True: the last checkpoint could not be written */
#define WELLKNOWN_REASON_SERVER_NOT_GONE \
    "ServerNotGone" /* Blocked=True: its deleted pod is on a node that does not answer */
#define WELLKNOWN_REASON_SAVE_FAILED     "SaveFailed"    /* CheckpointFailed=True */
#define WELLKNOWN_REASON_SAVED           "Saved"         /* CheckpointFailed=False */
#define WELLKNOWN_REASON_NO_EFFECT       "NoEffect"      /* KeyIgnored=True */
#define WELLKNOWN_REASON_ALL_ACT         "AllAct"        /* KeyIgnored=False, after an edit */
#define WELLKNOWN_REASON_TOO_FEW_WORKERS "TooFewWorkers" /* Stalled=True: below minReplicas */
#define WELLKNOWN_REASON_NO_PROGRESS     "NoProgress"    /* Stalled=True: a step takes too long */
#define WELLKNOWN_REASON_HUB_SUPERSEDED \
    "HubSuperseded" /* Stalled=True: a member holds a greater epoch than status and Lease give */

/* status.reason, beside reasons of conditions: */
#define WELLKNOWN_REASON_QUOTA_EXCEEDED "QuotaExceeded" /* the API server makes no more pods */
#define WELLKNOWN_REASON_WORKER_FAILED  "WorkerFailed"  /* a pod ended before the first step */
#define WELLKNOWN_REASON_WAITING_FOR_WORKERS \
    "WaitingForWorkers"                      /* some are ready, others are not */
#define WELLKNOWN_REASON_STARTING "Starting" /* pods are being made and started */
#define WELLKNOWN_REASON_SEARCHING \
    "SearchingStrategy" /* no pods are made before the strategy is found */

/* ---- reasons of events ----------------------------------------------------------------------- */
/* Written by the controller on the FleetJob; read by people (`kubectl describe`). What keeps a
 * worker from starting has the words of pod_cause.h. */

#define WELLKNOWN_EVENT_ACCEPTED        "Accepted"
#define WELLKNOWN_EVENT_INVALID         "InvalidSpec"    /* Warning */
#define WELLKNOWN_EVENT_SPEC_WARNING    "SpecWarning"    /* Warning: valid, but unlikely */
#define WELLKNOWN_EVENT_AUTO_IGNORED    "AutoIgnored"    /* strategy.auto beside other knobs */
#define WELLKNOWN_EVENT_SETTING_DROPPED "SettingDropped" /* strategyPolicy Paddle */
#define WELLKNOWN_EVENT_STRATEGY_CHOSEN "StrategyChosen" /* by a search of auto_parallel */
#define WELLKNOWN_EVENT_CREATED_PODS    "CreatedPods"    /* one event, however many */
#define WELLKNOWN_EVENT_DELETED_PODS    "DeletedPods"
#define WELLKNOWN_EVENT_REPLACED_POD    "ReplacedPod" /* index, cause */
#define WELLKNOWN_EVENT_SERVER_LOST     "ServerLost"  /* Warning: index, cause, and what follows */
#define WELLKNOWN_EVENT_STARTED         "Started"     /* the first generation runs */
#define WELLKNOWN_EVENT_RESTARTED       "Restarted"   /* Warning when it counts: cause, times */
#define WELLKNOWN_EVENT_RESIZED         "Resized"     /* a generation of another size */
#define WELLKNOWN_EVENT_STATE_LOST      "StateLost"   /* Warning: committed steps are made again */
#define WELLKNOWN_EVENT_STALLED         "Stalled"     /* Warning */
#define WELLKNOWN_EVENT_SAVE_FAILED     "CheckpointFailed" /* Warning, for each save that failed */
#define WELLKNOWN_EVENT_SUSPENDED       "Suspended"
#define WELLKNOWN_EVENT_RESUMED         "Resumed"
#define WELLKNOWN_EVENT_SUCCEEDED       "Succeeded"
#define WELLKNOWN_EVENT_FAILED          "Failed"        /* Warning */
#define WELLKNOWN_EVENT_INTERNAL_ERROR  "InternalError" /* Warning: a defect of the controller */
#define WELLKNOWN_EVENT_CREATE_REFUSED  "CreateRefused" /* Warning: quota, admission */
#define WELLKNOWN_EVENT_LABELS_REMOVED  "LabelsRemoved" /* Warning: a pod's, and not put back */

#endif

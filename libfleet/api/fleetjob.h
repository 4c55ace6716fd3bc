/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_API_FLEETJOB_H
#define LIBFLEET_API_FLEETJOB_H

/*
 * The FleetJob resource, fleetjob.dev/v1alpha1, as C types.
 *
 *     struct fleetjob job;
 *     struct fleet_errors errors = {0};
 *     if (fleetjob_decode(json, &job, &errors) == 0)
 *         validation_check(&job, &(struct validation_options){.in_cluster = true}, &errors, NULL);
 *     … job.spec.worker.replicas …
 *     fleetjob_release(&job);
 *
 * Decoding reads the fields that it knows. A program that changes an object changes the raw JSON,
 * so that fields of a newer version of the resource survive.
 *
 * Fields are described in the tables of fleetjob_fields.c and fleetjob_status.c, from which the CRD
 * and the reference pages are generated; the comments here add what a C reader needs.
 */

#include <stdbool.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "libfleet/base/errors.h"
#include "libfleet/base/field.h"
#include "libfleet/base/limits.h"
#include "libfleet/base/lineage.h"
#include "libfleet/strategy/strategy.h"
#include "libfleet/strategy/strategy_spec.h"
#include "libfleet/training/training.h"

struct fleet_error;
struct full_choice;

/* Pods are <name>-worker-<index>-<attempt> and must fit a label of 63 bytes. */
#define FLEETJOB_NAME_MAX     46
#define FLEETJOB_REPLICAS_MAX FLEET_WORKERS_MAX
#define FLEETJOB_SERVERS_MAX  FLEET_SERVERS_MAX
#define FLEETJOB_HISTORY_MAX  20 /* status.restarts.history, status.rendezvous.lineage */

/* ---- spec ------------------------------------------------------------------------------------ */

struct fleetjob_metadata {
    char *name, *namespace_;      /* namespace "default" unless given */
    char *uid, *resource_version; /* NULL before the object was created */
    int64_t generation;
    int64_t created_wall_ms, deleted_wall_ms; /* 0 = not */
    struct fleet_string_map labels, annotations;
};

/* Exactly one of claim, config_map, empty_dir, host_path is given. */
struct fleetjob_volume {
    char *name;
    char *mount_path; /* absolute */
    bool read_only;
    char *claim;      /* name of a PersistentVolumeClaim, or NULL */
    char *config_map; /* name of a ConfigMap, or NULL */
    cJSON *empty_dir; /* an EmptyDirVolumeSource, {} for the defaults, or NULL */
    char *host_path;  /* folder of the node, or NULL */
};

struct fleetjob_worker {
    int64_t replicas;                   /* pods */
    int64_t min_replicas, max_replicas; /* = replicas when absent */
    bool max_given;                     /* the resource has maxReplicas */
    bool elastic;                       /* min_replicas < max_replicas */
    bool hostnames;                     /* a headless Service gives the workers DNS names */
    int64_t processes_per_pod;          /* >= 1: the GPUs asked for, else 1, when absent */
    char *image;                        /* "": the runtime's own */
    cJSON *resources;                   /* ResourceRequirements, or NULL */
    struct {
        struct fleetjob_volume *items;
        size_t count;
    } volumes;
    cJSON *template_; /* PodTemplateSpec, or NULL */
};

/* Pods that run the servers of a parameter server. Pods are called <name>-server-<index>. */
struct fleetjob_server {
    int64_t replicas;
    cJSON *template_; /* PodTemplateSpec, or NULL: the workers' */
};

enum fleetjob_clean_pods {
    FLEETJOB_CLEAN_NONE,
    FLEETJOB_CLEAN_RUNNING,
    FLEETJOB_CLEAN_ALL,
};

enum fleetjob_data_encryption {
    FLEETJOB_ENCRYPTION_AUTO, /* as the installation says */
    FLEETJOB_ENCRYPTION_NONE,
    FLEETJOB_ENCRYPTION_AES_GCM,
};

enum fleetjob_action {
    FLEETJOB_ACTION_RESTART, /* start again, counted against maxRestarts */
    FLEETJOB_ACTION_IGNORE,  /* start again, not counted */
    FLEETJOB_ACTION_FAIL,    /* the job fails at once */
};

/* Matches a failure whose exit code and reason are both listed; an absent list matches any. */
struct fleetjob_failure_rule {
    char *name; /* for events, or NULL */
    enum fleetjob_action action;
    struct training_int_list exit_codes; /* 128 + signal if ended by one */
    struct training_string_list reasons; /* MemberLost, OOMKilled, … (docs/failures.md) */
};

enum fleetjob_gang {
    FLEETJOB_GANG_AUTO, /* whichever gang scheduler the cluster has */
    FLEETJOB_GANG_NONE,
    FLEETJOB_GANG_VOLCANO,
    FLEETJOB_GANG_SCHEDULER_PLUGINS,
};

struct fleetjob_run_policy {
    bool suspend;
    enum fleetjob_data_encryption data_encryption;
    enum fleetjob_clean_pods clean_pod_policy;
    int64_t ttl_seconds_after_finished; /* -1 = never */
    int64_t active_deadline_seconds;    /* 0 = none */
    int64_t progress_deadline_seconds;  /* 0 = none */
    struct fleetjob_restart_policy {
        int64_t max_restarts;
        int64_t reset_after_steps; /* steps without failure that set the count to 0; 0 = never */
    } restart;
    struct fleetjob_elastic_policy {
        int64_t rejoin_grace_ms;
        int64_t timeout_seconds;
        int64_t wait_for_replacement_seconds; /* -1 = as fits the trainer */
        int64_t replicas;                     /* buddies of sharded state: 0 or 1 */
    } elastic;
    struct fleetjob_failure_policy {
        struct {
            struct fleetjob_failure_rule *items;
            size_t count;
        } rules; /* the first that matches decides; none: Restart */
    } failure_policy;
    struct fleetjob_scheduling {
        enum fleetjob_gang gang;
        char *queue; /* Kueue's LocalQueue, "" = none */
    } scheduling;
};

struct fleetjob_spec {
    struct fleetjob_worker worker;
    bool has_server;
    struct fleetjob_server server;
    cJSON *strategy_json;     /* spec.strategy as given, or NULL */
    char *strategy_text;      /* spec.strategyText, or NULL */
    struct strategy strategy; /* what one of the two says; all defaults without either */
    enum strategy_policy strategy_policy;
    struct strategy_options strategy_options;
    cJSON *auto_parallel; /* set_auto_parallel_context's arguments, or NULL */
    cJSON *training_json; /* spec.training as given, or NULL */
    bool has_training;    /* false: the template's own command is run */
    struct training_config training;
    struct fleetjob_run_policy run_policy;
};

/* ---- status ---------------------------------------------------------------------------------- */

struct fleetjob_condition {
    char *type, *status, *reason, *message; /* status "True", "False" or "Unknown" */
    int64_t last_transition_wall_ms;
    int64_t observed_generation;
};

struct fleetjob_restart {
    int64_t generation; /* that was made */
    int64_t at_wall_ms;
    char *cause;                                                   /* CamelCase */
    char *message;                                                 /* what else is known, or NULL */
    int64_t member;                                                /* pod index, -1 = none */
    int64_t exit_code;                                             /* -1 = unknown */
    double detect_ms, agree_ms, connect_ms, restore_ms, resume_ms; /* NaN = not reached */
    double first_step_ms;
    int64_t lost_steps; /* -1 = unknown */
};

struct fleetjob_status {
    char *state;  /* one word for the STATE column: the newest true condition; or NULL */
    char *reason; /* one word for the REASON column; NULL = all is well */
    struct {
        struct fleetjob_condition *items;
        size_t count;
    } conditions;
    int64_t observed_generation;
    int64_t started_wall_ms, finished_wall_ms; /* 0 = not yet */
    struct fleetjob_rendezvous {
        struct fleet_generation newest; /* that was recorded */
        int64_t members;                /* its workers; 0 = not known */
        int64_t trained; /* generation that made a step last; 0 = none, or suspended since */
        struct {
            struct fleet_lineage_entry *items; /* epoch 0 = not given: the newest entry's */
            size_t count;
        } lineage;
    } rendezvous;
    char *waiting;                 /* what the next generation waits for, and until when; or NULL */
    char *image;                   /* frozen at the first start, or NULL */
    char *image_id;                /* of its contents, as the kubelet knows them, or NULL */
    char *agent_image;             /* frozen with it: where the agent is from, or NULL */
    char *secret_digest;           /* of the content of the job's Secret, or NULL */
    struct fleet_int_map attempts; /* by index, zero left out */
    bool has_workers;
    struct fleetjob_workers {
        int64_t desired, active, ready, spares, succeeded, failed;
        char *selector;
    } workers;
    bool has_servers;
    struct fleetjob_servers {
        int64_t desired, ready;
        char *address;                 /* of the Service in front of them, or NULL */
        int64_t ended_generation;      /* in which all had ended with 0; 0 = not */
        struct fleet_int_map pods;     /* made so far, by index */
        struct fleet_int_map restarts; /* of the present pod's container */
    } servers;
    bool has_progress;
    struct fleetjob_progress {
        int64_t step, steps;
        char *text;                              /* "801/2000", or "801"; or NULL */
        double loss, tokens_per_second, goodput; /* NaN = not known */
        double held_out_loss;                    /* NaN = not known */
        int64_t held_out_step;                   /* after which it was measured; 0 = never */
        int64_t at_wall_ms;
    } progress;
    bool has_checkpoint;
    struct fleetjob_checkpoint {
        int64_t step;
        char *path;
        int64_t at_wall_ms;
    } checkpoint;
    struct fleetjob_restarts {
        int64_t count;       /* caused by failures, ever; -1 = not written yet */
        int64_t since_reset; /* of these, counted against maxRestarts */
        int64_t ignored;     /* caused by failures that a rule ignores, ever; not in `count` */
        struct {
            struct fleetjob_restart *items;
            size_t count;
        } history; /* newest last */
        bool has_begun;
        struct fleetjob_restart begun; /* led to the recorded generation; as known then */
    } restarts;
    bool has_result;
    struct fleetjob_result {
        int64_t steps;
        double loss;
        char *weights_sha256;
    } result;
    cJSON *plan; /* libfleet/plan/plan_json.c writes it; or NULL */
};

/* ---- the resource ---------------------------------------------------------------------------- */

struct fleetjob {
    struct fleetjob_metadata metadata;
    struct fleetjob_spec spec;
    bool has_status;
    struct fleetjob_status status;
    struct fleet_errors unread; /* of the last decode: values that are not what they should be */
    bool lacks_division;        /* fleetjob_decode_found() left out a search: degrees are missing */
};

/* The tables. */
extern const struct fleet_object fleetjob_spec_type;
extern const struct fleet_object fleetjob_status_type;

/*
 * Read a FleetJob and fill in its defaults (defaults.h). Types, ranges, names and unknown fields
 * are checked; all errors are reported at once. validation_check() checks what must fit together.
 * It may be called after a failure, too, and skips what depends on values in `unread`. Release
 * `out` after success and failure. Returns 0, or -EINVAL if errors were appended.
 */
int fleetjob_decode(const cJSON *json, struct fleetjob *out, struct fleet_errors *errors);

/*
 * The same without the search that finds the strategy of a job (divisions.h): a search may take
 * seconds. `found` is what one has found for this job; NULL: if the job needs a search,
 * out->lacks_division is set, and *out is good for nothing but its other fields.
 */
int fleetjob_decode_found(const cJSON *json, const struct full_choice *found, struct fleetjob *out,
                          struct fleet_errors *errors);

/*
 * The same from YAML or JSON text. A text that is neither is one error with line and column in its
 * message and an empty path.
 */
int fleetjob_read(const char *text, size_t size, struct fleetjob *out, struct fleet_errors *errors);

/* Free what it holds. Fine on a zeroed job. */
void fleetjob_release(struct fleetjob *job);

/* Status alone: what the controller reads back and writes. Decode is lenient towards unknown
 * fields; encode leaves out what is not known yet. */
int fleetjob_status_decode(const cJSON *json, struct fleetjob_status *out,
                           struct fleet_errors *errors);
cJSON *fleetjob_status_encode(const struct fleetjob_status *status);
void fleetjob_status_release(struct fleetjob_status *status);
void fleetjob_status_copy(const struct fleetjob_status *from, struct fleetjob_status *to);
bool fleetjob_status_equal(const struct fleetjob_status *a, const struct fleetjob_status *b);

/* Pods times processes: ranks of the job with `replicas` workers. */
int64_t fleetjob_world_size(const struct fleetjob *job, int64_t replicas);

/* The template of a server's pod: the server's own, else the workers'. Borrowed; NULL = none. */
const cJSON *fleetjob_server_template(const struct fleetjob *job);

/* "spec.strategyText" if the job gives its strategy so, else "spec.strategy". Static. */
const char *fleetjob_strategy_path(const struct fleetjob *job);

/* Batches of an update: select_merge_steps(). */
int64_t fleetjob_gradient_merge_k(const struct fleetjob *job);

#endif

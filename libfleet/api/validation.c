/* SPDX-License-Identifier: Apache-2.0 */

/* One check a function; validation_check() at the end lists them in the order of the resource. */
#include "libfleet/api/validation.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "libfleet/api/fleetjob.h"
#include "libfleet/api/idle_fields.h"
#include "libfleet/api/odd_fields.h"
#include "libfleet/api/wellknown.h"
#include "libfleet/api/worker_resources.h"
#include "libfleet/autoparallel/context.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/kube/meta.h"
#include "libfleet/strategy/select.h"
#include "libfleet/strategy/topology.h"

#define WORLD_MAX TOPOLOGY_WORLD_MAX

/* What every check reads. */
struct check {
    const struct fleetjob *job;
    const struct validation_options *options;
    struct fleet_errors *errors, *warnings;
};

/* Is the value of that field what the user wrote, and of the right kind? */
static bool is_known(const struct check *c, const char *path)
{
    return !fleet_errors_touch(&c->job->unread, path);
}

/* Could the block be read, whatever is wrong with a field in it? */
static bool is_readable(const struct check *c, const char *block)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf inside = {0};

    fleet_strbuf_appendf(&inside, "%s.", block);
    return !fleet_errors_touch(&c->job->unread, inside.text);
}

/* ---- metadata and worker --------------------------------------------------------------------- */

static void check_namespace(const struct check *c)
{
    const char *name = c->job->metadata.namespace_;

    if (name && is_known(c, "metadata.namespace") && !kube_name_is_label(name))
        fleet_errors_add(c->errors, "metadata.namespace",
                         "\"%.100s\" must be at most 63 lower-case letters, digits and '-', with a "
                         "letter or digit at both ends",
                         name);
}

static void check_name(const struct check *c)
{
    const char *name = c->job->metadata.name;

    if (!name || !is_known(c, "metadata.name"))
        return;
    if (strlen(name) > FLEETJOB_NAME_MAX)
        fleet_errors_add(c->errors, "metadata.name",
                         "has %zu bytes; at most %d fit, because pods are called "
                         "<name>-worker-<index>-<attempt> within 63",
                         strlen(name), FLEETJOB_NAME_MAX);
    else if (!kube_name_is_label(name))
        fleet_errors_add(c->errors, "metadata.name",
                         "\"%s\" must be lower-case letters, digits and '-', with a letter or "
                         "digit at both ends",
                         name);
    else if (name[0] >= '0' && name[0] <= '9')
        fleet_errors_add(
            c->errors, "metadata.name",
            "\"%s\" begins with a digit; it must begin with a letter, because the job's "
            "Service has this name: call it \"job-%s\", for instance",
            name, name);
}

/* A bound that is not given follows the others, so only what is given is named. */
static void refuse_replicas(const struct check *c)
{
    const struct fleetjob_worker *worker = &c->job->spec.worker;

    if (worker->replicas < worker->min_replicas && worker->max_given)
        fleet_errors_add(c->errors, "spec.worker.replicas",
                         "%" PRId64 " is not between minReplicas (%" PRId64
                         ") and maxReplicas (%" PRId64 ")",
                         worker->replicas, worker->min_replicas, worker->max_replicas);
    else if (worker->replicas < worker->min_replicas)
        fleet_errors_add(c->errors, "spec.worker.replicas",
                         "%" PRId64 " is less than minReplicas (%" PRId64 ")", worker->replicas,
                         worker->min_replicas);
    else if (worker->replicas > worker->max_replicas)
        fleet_errors_add(c->errors, "spec.worker.replicas",
                         "%" PRId64 " is more than maxReplicas (%" PRId64 ")", worker->replicas,
                         worker->max_replicas);
}

static void check_replicas(const struct check *c)
{
    const struct fleetjob_worker *worker = &c->job->spec.worker;

    if (!is_known(c, "spec.worker.replicas") || !is_known(c, "spec.worker.minReplicas") ||
        !is_known(c, "spec.worker.maxReplicas"))
        return;
    if (worker->min_replicas > worker->max_replicas)
        fleet_errors_add(c->errors, "spec.worker.minReplicas",
                         "%" PRId64 " is more than maxReplicas (%" PRId64 ")", worker->min_replicas,
                         worker->max_replicas);
    else
        refuse_replicas(c);
    if (is_known(c, "spec.worker.processesPerPod") &&
        fleetjob_world_size(c->job, worker->max_replicas) > WORLD_MAX)
        fleet_errors_add(c->errors, "spec.worker.processesPerPod",
                         "%" PRId64 " processes in each of %" PRId64
                         " workers are more than the limit of %d ranks",
                         worker->processes_per_pod, worker->max_replicas, WORLD_MAX);
}

static void check_volume(const struct check *c, size_t index)
{
    const struct fleetjob_volume *volumes = c->job->spec.worker.volumes.items;
    const struct fleetjob_volume *volume = &volumes[index];
    FLEET_AUTO_STRBUF struct fleet_strbuf path = {0};
    int sources =
        !!volume->claim + !!volume->config_map + !!volume->empty_dir + !!volume->host_path;

    fleet_strbuf_appendf(&path, "spec.worker.volumes[%zu]", index);
    if (!is_known(c, path.text))
        return;
    if (sources != 1)
        fleet_errors_add(c->errors, path.text,
                         "must have exactly one of claim, configMap, emptyDir, hostPath, not %d",
                         sources);
    for (size_t i = 0; i < index; i++) {
        if (volumes[i].name && strcmp(volumes[i].name, volume->name) == 0)
            fleet_errors_add(c->errors, path.text, "the name \"%s\" is taken by volumes[%zu]",
                             volume->name, i);
        if (volumes[i].mount_path && strcmp(volumes[i].mount_path, volume->mount_path) == 0)
            fleet_errors_add(c->errors, path.text, "the mountPath \"%s\" is taken by volumes[%zu]",
                             volume->mount_path, i);
    }
}

/* A worker's pod ends with its trainers; another one takes its place. */
static void check_restart_policy(const struct check *c)
{
    const char *policy =
        cJSON_GetStringValue(fleet_json_at(c->job->spec.worker.template_, "spec.restartPolicy"));

    if (policy && strcmp(policy, "Never") != 0 && c->warnings)
        fleet_errors_add(c->warnings, "spec.worker.template.spec.restartPolicy",
                         "\"%s\" has no effect, the pods of workers have \"Never\": the agent "
                         "restarts trainers, spec.runPolicy.restart says how often",
                         policy);
}

/* A program would start without its words or its variables. */
static void check_lists(const struct check *c, const cJSON *container)
{
    static const struct {
        const char *name, *example;
    } lists[] = {{"command", "[python, train.py]"},
                 {"args", "[--epochs, \"3\"]"},
                 {"env", "[{name: LEVEL, value: \"3\"}]"}};

    for (size_t i = 0; i < FLEET_COUNT(lists); i++) {
        const cJSON *list = cJSON_GetObjectItemCaseSensitive(container, lists[i].name);
        FLEET_AUTO_STRBUF struct fleet_strbuf path = {0};

        if (!list || cJSON_IsNull(list) || cJSON_IsArray(list))
            continue;
        fleet_strbuf_appendf(&path, "spec.worker.template.spec.containers[0].%s", lists[i].name);
        fleet_errors_add(c->errors, path.text, "must be a list, as %s, not %s", lists[i].example,
                         cJSON_IsObject(list) ? "an object" : "one value");
    }
}

static void check_template(const struct check *c)
{
    const struct fleetjob_worker *worker = &c->job->spec.worker;
    const cJSON *containers;

    if (!worker->template_)
        return;
    if (worker->image && worker->image[0])
        fleet_errors_add(c->errors, "spec.worker.image",
                         "image and template cannot both be given: set the image in "
                         "template.spec.containers[0].image");
    if (worker->resources)
        fleet_errors_add(c->errors, "spec.worker.resources",
                         "resources and template cannot both be given: set them in "
                         "template.spec.containers[0].resources");
    if (worker->volumes.count > 0)
        fleet_errors_add(c->errors, "spec.worker.volumes",
                         "volumes and template cannot both be given: set them in "
                         "template.spec.volumes and template.spec.containers[0].volumeMounts");
    containers = fleet_json_at(worker->template_, "spec.containers");
    if (!cJSON_IsArray(containers) || cJSON_GetArraySize(containers) == 0)
        fleet_errors_add(c->errors, "spec.worker.template.spec.containers",
                         "must be a list of at least one container; the first is the worker's");
    check_lists(c, cJSON_GetArrayItem(containers, 0));
    check_restart_policy(c);
}

#define FIRST_CONTAINER "spec.worker.template.spec.containers[0]"

/* `fleetjob run` starts processes of this machine. */
static void refuse_entrypoint_locally(const struct check *c, const cJSON *container)
{
    const cJSON *image = cJSON_GetObjectItemCaseSensitive(container, "image");

    fleet_errors_add(
        c->errors, FIRST_CONTAINER ".command",
        "required on this machine, where the image's ENTRYPOINT is not known (in a cluster the "
        "agent takes its place); put it here, as \"docker inspect -f '{{json "
        ".Config.Entrypoint}} {{json .Config.Cmd}}' %s\" or \"crane config\" show it%s",
        cJSON_IsString(image) ? image->valuestring : "IMAGE",
        cJSON_HasObjectItem(container, "args") ? "; args stay as they are" : "");
}

/* Without a command the image's ENTRYPOINT starts; the agent takes its place (agent/entrypoint). */
static void check_entrypoint(const struct check *c, const cJSON *container)
{
    const cJSON *spec = fleet_json_at(c->job->spec.worker.template_, "spec");
    const cJSON *image = cJSON_GetObjectItemCaseSensitive(container, "image");

    if (c->options->without_image) {
        refuse_entrypoint_locally(c, container);
        return;
    }
    if (!cJSON_IsString(image) || !image->valuestring[0])
        fleet_errors_add(c->errors, FIRST_CONTAINER ".command",
                         "required, because without an image there is no ENTRYPOINT either");
    if (fleet_json_at(container, "lifecycle.postStart"))
        fleet_errors_add(c->errors, FIRST_CONTAINER ".lifecycle.postStart",
                         "needs command: without it the agent has this hook, to see that it runs "
                         "in place of the image's ENTRYPOINT; set command, or drop the hook");
    if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(spec, "hostPID")))
        fleet_errors_add(c->errors, "spec.worker.template.spec.hostPID",
                         "true needs command: among the node's processes the agent cannot tell "
                         "which one is the image's ENTRYPOINT; set command, or drop hostPID");
}

static void check_command(const struct check *c)
{
    const cJSON *containers = fleet_json_at(c->job->spec.worker.template_, "spec.containers");
    const cJSON *container = cJSON_GetArrayItem(containers, 0);
    const cJSON *command = cJSON_GetObjectItemCaseSensitive(container, "command");

    if (!c->job->spec.has_training && is_known(c, "spec.training") && cJSON_IsObject(container) &&
        (!command || cJSON_IsArray(command)) && cJSON_GetArraySize(command) == 0)
        check_entrypoint(c, container);
}

static void check_worker(const struct check *c)
{
    check_replicas(c);
    for (size_t i = 0; i < c->job->spec.worker.volumes.count; i++)
        check_volume(c, i);
    check_template(c);
    check_command(c);
    if (!c->job->spec.has_training && !c->job->spec.worker.template_ &&
        is_known(c, "spec.training") && is_known(c, "spec.worker.template"))
        fleet_errors_add(c->errors, "spec.training",
                         "required, unless worker.template has a program of its own to run");
}

/* ---- strategy and training ------------------------------------------------------------------- */

static const char *strategy_path(const struct check *c)
{
    return c->job->spec.strategy_text ? "spec.strategyText" : "spec.strategy";
}

static int64_t nominal_world(const struct check *c)
{
    if (c->options->world_size > 0)
        return c->options->world_size;
    return fleetjob_world_size(c->job, c->job->spec.worker.replicas);
}

/*
 * Ranks that share the batch: those that differ in data or sharding. 0 where it is not known:
 * the degrees fit no grid, or could not be read.
 */
static int64_t data_parallel_degree(const struct check *c, int64_t world)
{
    const struct strategy *strategy = &c->job->spec.strategy;
    struct fleet_errors ignored = {0}; /* strategy_select() has reported them */
    struct topology topology;
    int rc;

    if (world < 1 || world > WORLD_MAX || !select_knows_grid(&c->job->unread, strategy_path(c)))
        return 0;
    rc = topology_build(strategy, (int)world, "", &topology, &ignored);
    fleet_errors_release(&ignored);
    if (rc < 0)
        return 0;
    return (int64_t)topology.degree[TOPOLOGY_DATA] * topology.degree[TOPOLOGY_SHARDING];
}

/* globalBatchSize = data-parallel degree × micro_batch × microBatchSize. */
static void check_pipeline(const struct check *c, int64_t degree)
{
    const struct strategy *strategy = &c->job->spec.strategy;
    const struct training_config *training = &c->job->spec.training;
    const char *name = strategy->pipeline_configs.has_micro_batch == KNOB_BY_ALIAS
                           ? "accumulate_steps"
                           : "micro_batch";
    const char *form = c->job->spec.strategy_text ? "strategyText" : "strategy";
    char path[80];

    if (!strategy->pipeline || !is_known(c, "spec.training.globalBatchSize") ||
        !is_known(c, "spec.training.microBatchSize") || training->micro_batch_size < 1)
        return;
    (void)snprintf(path, sizeof(path), "spec.%s.pipeline_configs.%s", form, name);
    if (strategy->pipeline_configs.has_micro_batch_size &&
        strategy->pipeline_configs.micro_batch_size != training->micro_batch_size)
        fleet_errors_add(c->errors,
                         c->job->spec.strategy_text
                             ? "spec.strategyText.pipeline_configs.micro_batch_size"
                             : "spec.strategy.pipeline_configs.micro_batch_size",
                         "%d differs from training.microBatchSize (%" PRId64 ")",
                         strategy->pipeline_configs.micro_batch_size, training->micro_batch_size);
    if (!strategy->pipeline_configs.has_micro_batch ||
        degree * strategy->pipeline_configs.micro_batch == training_micro_batches(training))
        return;
    if (training_micro_batches(training) % degree == 0)
        fleet_errors_add(c->errors, path,
                         "%d does not fit globalBatchSize %" PRId64 " = %" PRId64
                         " data-parallel × %s × microBatchSize %" PRId64 "; %" PRId64 " would",
                         strategy->pipeline_configs.micro_batch, training->global_batch_size,
                         degree, name, training->micro_batch_size,
                         training_micro_batches(training) / degree);
    else
        fleet_errors_add(c->errors, path,
                         "globalBatchSize %" PRId64 " / microBatchSize %" PRId64
                         " is not a multiple of the %" PRId64
                         " data-parallel pipelines; leave %s out",
                         training->global_batch_size, training->micro_batch_size, degree, name);
}

/* 1, the least, where it is not known. */
static int64_t merge_steps(const struct check *c)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf path = {0};

    fleet_strbuf_appendf(&path, "%s.gradient_merge_configs", strategy_path(c));
    return is_known(c, path.text) ? fleetjob_gradient_merge_k(c->job) : 1;
}

/* Is there a micro-batch for everybody? `field` says how many workers there are. */
static void check_size(const struct check *c, int64_t world, const char *field)
{
    const struct training_config *training = &c->job->spec.training;
    struct training_surroundings surroundings = {
        .world_size = data_parallel_degree(c, world),
        .world_path = field,
        .gradient_merge_k = merge_steps(c),
        .amp = c->job->spec.strategy.amp,
        .unread = &c->job->unread,
    };

    (void)training_config_check(training, "spec.training", &surroundings, c->errors);
    if (surroundings.world_size > 0)
        check_pipeline(c, surroundings.world_size);
}

/* The largest world of an elastic job must have work for everybody too. */
static void check_largest(const struct check *c)
{
    const struct fleetjob_worker *worker = &c->job->spec.worker;
    struct training_surroundings surroundings = {
        .world_path = "spec.worker.maxReplicas",
        .gradient_merge_k = merge_steps(c),
        .unread = &c->job->unread,
    };

    if (c->options->world_size > 0 || worker->max_replicas <= worker->replicas ||
        !is_known(c, "spec.worker.maxReplicas"))
        return;
    surroundings.world_size =
        data_parallel_degree(c, fleetjob_world_size(c->job, worker->max_replicas));
    (void)training_config_check(&c->job->spec.training, "spec.training", &surroundings, c->errors);
}

/* The first number of workers that degrees refuse, below the field that is blamed. */
static void refuse_size(const struct check *c, const struct fleet_errors *refused)
{
    const struct fleetjob_worker *worker = &c->job->spec.worker;

    fleet_errors_add(c->errors, refused->items[0].path,
                     "%s; minReplicas (%" PRId64 ") to maxReplicas (%" PRId64
                     ") allow that number of workers: leave the degree out, or make both equal",
                     refused->items[0].message, worker->min_replicas, worker->max_replicas);
}

/* An elastic job trains with any number of workers between its bounds: degrees must fit each. */
static void check_each_size(const struct check *c)
{
    const struct fleetjob_worker *worker = &c->job->spec.worker;
    struct fleet_errors refused = {0};
    struct topology topology;

    if (!c->job->spec.has_training || !worker->elastic || c->options->world_size > 0 ||
        fleetjob_world_size(c->job, worker->max_replicas) > WORLD_MAX)
        return;
    for (int64_t replicas = worker->min_replicas;
         replicas <= worker->max_replicas && refused.count == 0; replicas++)
        (void)topology_build(&c->job->spec.strategy, (int)fleetjob_world_size(c->job, replicas),
                             strategy_path(c), &topology, &refused);
    if (refused.count > 0)
        refuse_size(c, &refused);
    fleet_errors_release(&refused);
}

/* The strategy's elastic states what the resource has to allow. */
static void check_elastic(const struct check *c)
{
    const struct fleetjob_spec *spec = &c->job->spec;

    if (spec->strategy.elastic && !spec->worker.elastic && is_known(c, "spec.worker.minReplicas") &&
        is_known(c, "spec.worker.maxReplicas") && is_known(c, "spec.worker.replicas"))
        fleet_errors_add(
            c->errors, spec->strategy_json ? "spec.strategy.elastic" : "spec.strategyText",
            "elastic: true needs minReplicas < maxReplicas, not %lld and %lld",
            (long long)spec->worker.min_replicas, (long long)spec->worker.max_replicas);
}

static void report_selection(const struct check *c, const struct select_result *selected)
{
    if (!c->warnings)
        return;
    select_warn(selected, strategy_path(c), c->warnings);
    idle_fields_warn(&c->job->spec, &selected->final, c->options->in_cluster, c->warnings);
}

/* The number of ranks, which degrees and batches are held against, is known. */
static bool knows_world(const struct check *c)
{
    return c->options->world_size > 0 ||
           (is_known(c, "spec.worker.replicas") && is_known(c, "spec.worker.processesPerPod"));
}

static void check_strategy(const struct check *c)
{
    const struct fleetjob_spec *spec = &c->job->spec;
    bool knows_optimizer = spec->has_training && is_known(c, "spec.training.optimizer.name");
    struct select_options options = {
        .policy = c->options->policy ? *c->options->policy : spec->strategy_policy,
        .world_size = knows_world(c) ? (int)nominal_world(c) : SELECT_UNKNOWN_WORLD,
        .optimizer =
            knows_optimizer ? training_optimizer_text(spec->training.optimizer.name) : NULL,
        .has_decay = spec->has_training && spec->training.optimizer.weight_decay > 0,
        .steps = spec->has_training ? spec->training.steps : 0,
        .unread = &c->job->unread,
    };
    struct select_result selected = {0};
    struct fleet_errors found = {0};

    if (strategy_select(&spec->strategy, &options, strategy_path(c), &selected, &found) == 0) {
        report_selection(c, &selected);
        select_result_release(&selected);
        if (knows_world(c))
            check_each_size(c);
    }
    fleet_errors_merge(c->errors, &found);
    fleet_errors_release(&found);
}

static void check_batches(const struct check *c)
{
    if (!c->job->spec.has_training || !is_readable(c, "spec.training"))
        return;
    check_size(c, knows_world(c) ? nominal_world(c) : 0,
               c->options->world_size > 0 ? "spec.training.globalBatchSize"
                                          : "spec.worker.replicas");
    if (knows_world(c))
        check_largest(c);
}

/* The images that the tokenizers make: 3 planes of 32 × 32. */
#define IMAGE_VALUES 3072

/* resnet and the text models are judged with the block itself (training.h). */
static void check_samples(const struct check *c)
{
    const struct training_config *training = &c->job->spec.training;
    const struct training_int_list *sizes = &training->model.sizes;
    bool is_100 = training->data.tokenizer == TRAINING_TOKENIZER_CIFAR100;
    int64_t classes = is_100 ? 100 : 10;

    if (!c->job->spec.has_training || !is_known(c, "spec.training.model.name") ||
        !is_known(c, "spec.training.data.tokenizer") || training->model.name != TRAINING_MODEL_MLP)
        return;
    if (!is_100 && training->data.tokenizer != TRAINING_TOKENIZER_CIFAR10) {
        fleet_errors_add(c->errors, "spec.training.data.tokenizer",
                         "model mlp reads images: must be cifar10 or cifar100");
        return;
    }
    if (!is_known(c, "spec.training.model.sizes") || sizes->count < 2)
        return;
    if (sizes->items[0] != IMAGE_VALUES)
        fleet_errors_add(c->errors, "spec.training.model.sizes[0]",
                         "%" PRId64 " values, but an image of the data has %d (3 × 32 × 32)",
                         sizes->items[0], IMAGE_VALUES);
    if (sizes->items[sizes->count - 1] < classes) {
        FLEET_AUTO_STRBUF struct fleet_strbuf path = {0};

        fleet_strbuf_appendf(&path, "spec.training.model.sizes[%zu]", sizes->count - 1);
        fleet_errors_add(c->errors, path.text,
                         "%" PRId64 " is less than the %" PRId64 " classes of the data",
                         sizes->items[sizes->count - 1], classes);
    }
}

static void check_auto_parallel(const struct check *c)
{
    const cJSON *context = c->job->spec.auto_parallel;

    if (!context)
        return;
    if (c->warnings && context->child)
        fleet_errors_add(c->warnings, "spec.autoParallel", "is checked; nothing acts on it yet");
    (void)context_check(context, "spec.autoParallel", c->errors, c->warnings);
}

/* ---- paths ----------------------------------------------------------------------------------- */

static bool is_below(const char *path, const char *folder)
{
    size_t length = strlen(folder);

    while (length > 1 && folder[length - 1] == '/')
        length--;
    return strncmp(path, folder, length) == 0 &&
           (length == 1 || path[length] == '/' || path[length] == '\0');
}

static bool climbs(const char *path)
{
    for (const char *p = strstr(path, ".."); p; p = strstr(p + 1, ".."))
        if ((p == path || p[-1] == '/') && (p[2] == '/' || p[2] == '\0'))
            return true;
    return false;
}

/* The deepest volume that holds the path, or NULL. */
static const struct fleetjob_volume *volume_of(const struct fleetjob_worker *worker,
                                               const char *path)
{
    const struct fleetjob_volume *best = NULL;

    for (size_t i = 0; i < worker->volumes.count; i++) {
        const struct fleetjob_volume *volume = &worker->volumes.items[i];
        if (volume->mount_path && is_below(path, volume->mount_path) &&
            (!best || strlen(volume->mount_path) > strlen(best->mount_path)))
            best = volume;
    }
    return best;
}

/* What a shell or a library would make of the text, and we do not; NULL if it is a path. */
static const char *why_no_path(const char *text)
{
    if (strstr(text, "://"))
        return "is an address: files are read and written by path; use a volume, or copy them";
    if (text[0] == '~' || text[0] == '$' || strstr(text, "/$") || strstr(text, "${"))
        return "is taken as it stands, ~ and variables are not expanded: write the whole path";
    return NULL;
}

static void check_path(void *context, const char *name, char **value)
{
    const struct check *c = context;
    const char *why = why_no_path(*value);

    if (why)
        fleet_errors_add(c->errors, name, "\"%.200s\" %s", *value, why);
    if (why || !c->options->in_cluster)
        return;
    if ((*value)[0] != '/')
        fleet_errors_add(c->errors, name,
                         "\"%.200s\" must be absolute in a cluster, where no job file is near",
                         *value);
    else if (climbs(*value))
        fleet_errors_add(c->errors, name, "\"%.200s\" must not contain \"..\"", *value);
}

/* What is written must outlive the pod. */
static void check_written(const struct check *c, const char *name, const char *path)
{
    const struct fleetjob_worker *worker = &c->job->spec.worker;
    const struct fleetjob_volume *volume = volume_of(worker, path);

    if (!c->options->in_cluster || worker->template_ || path[0] != '/')
        return;
    if (!volume)
        fleet_errors_add(c->errors, name,
                         "\"%.200s\" lies on no volume of spec.worker.volumes, so it would be lost "
                         "with the pod",
                         path);
    else if (volume->read_only || volume->config_map)
        fleet_errors_add(c->errors, name, "\"%.200s\" lies on volume %s, which cannot be written",
                         path, volume->name);
    else if (volume->host_path && c->warnings)
        fleet_errors_add(
            c->warnings, name,
            "\"%.200s\" lies on volume %s, the folder %s of a node: workers run as user "
            "%d, who must be able to write there. If it belongs to root, run \"chown -R "
            "%d:%d %s\" on the node",
            path, volume->name, volume->host_path, WELLKNOWN_WORKER_USER, WELLKNOWN_WORKER_USER,
            WELLKNOWN_WORKER_USER, volume->host_path);
    else if (volume->empty_dir && c->warnings)
        fleet_errors_add(c->warnings, name,
                         "\"%.200s\" lies on volume %s, an emptyDir that is lost with its pod",
                         path, volume->name);
}

static void check_paths(const struct check *c)
{
    const struct training_config *training = &c->job->spec.training;

    if (!c->job->spec.has_training || !is_readable(c, "spec.training"))
        return;
    /* The visitor only reads, so the job stays as it is. */
    fleet_object_paths(&training_type, (void *)training, "spec.training", check_path, (void *)c);
    if (training->has_checkpoint && is_known(c, "spec.training.checkpoint.path"))
        check_written(c, "spec.training.checkpoint.path", training->checkpoint.path);
    if (c->options->in_cluster && c->warnings && training_lacks_vocabulary(training))
        fleet_errors_add(c->warnings, "spec.training.model.vocabulary",
                         "is not given; the trainers read it from spec.training.data.vocabulary, "
                         "which cannot be read here: memory is not planned, nor checked against "
                         "the limits");
}

int validation_check(const struct fleetjob *job, const struct validation_options *options,
                     struct fleet_errors *errors, struct fleet_errors *warnings)
{
    size_t before = errors->count;
    struct check check = {.job = job, .options = options, .errors = errors, .warnings = warnings};

    check_name(&check);
    check_namespace(&check);
    check_worker(&check);
    worker_resources_check(job, errors);
    if (is_readable(&check, strategy_path(&check)) && nominal_world(&check) <= WORLD_MAX) {
        check_strategy(&check);
        check_elastic(&check);
        check_batches(&check);
    }
    check_samples(&check);
    check_auto_parallel(&check);
    check_paths(&check);
    if (warnings && is_readable(&check, "spec.training"))
        odd_fields_warn(job, warnings);
    return errors->count > before ? -EINVAL : 0;
}

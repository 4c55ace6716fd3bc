/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Weights out of a cluster. Only a pod can read the volumes of a job, and the job's own pods are
 * gone when it is over. So:
 *
 *     get job, pods, claims ─▶ build the pod ─▶ create ─▶ wait until it is ready
 *          ─▶ exec `fleetjob export PATH -` in it, its standard output into OUT ─▶ delete the pod
 *
 * The pod is always deleted, also after an error or Ctrl-C. If this process is killed, the pod ends
 * by its own deadline, and is deleted with the job.
 */
#include "cli/kubectl_export.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/arguments.h"
#include "cli/export_pod.h"
#include "cli/kubectl.h"
#include "cli/untar.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/digest.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/checkpoint/export_folder.h"
#include "libfleet/checkpoint/safetensors.h"

static const char usage[] =
    "Usage: kubectl fleetjob export JOB OUT [-n NAMESPACE] [--context NAME]\n"
    "                               [--kubeconfig FILE] [--checkpoint PATH] [--node NAME]\n"
    "                               [--image IMAGE] [--timeout SECONDS]\n"
    "\n"
    "Brings the weights of a FleetJob's newest sound checkpoint to this machine, while the job\n"
    "runs or when it is over. A short-lived pod of the runtime's image mounts the job's volumes\n"
    "read-only and is deleted at the end, also after Ctrl-C. OUT is as for `fleetjob export`:\n"
    "\n"
    "  FOLDER            what transformers' from_pretrained() reads\n"
    "  NAME.safetensors  the weights alone\n"
    "  -                 the weights alone to standard output\n"
    "\n"
    "  -n, --namespace NAMESPACE  of the job; default: kubectl's\n"
    "  --context NAME             as of kubectl\n"
    "  --kubeconfig FILE          as of kubectl\n"
    "  --checkpoint PATH          export this path of the volume, a checkpoint or a folder of\n"
    "                             them, instead of spec.training.checkpoint.path\n"
    "  --node NAME                where the pod must run: the node of a hostPath\n"
    "  --image IMAGE              the runtime's image; default: what the job's status names\n"
    "  --timeout SECONDS          how long the pod may take to start (default 120)\n"
    "\n"
    "You need the rights to get fleetjobs, pods and persistentvolumeclaims, to create and\n"
    "delete pods, and to create pods/exec.\n";

#define TIMEOUT_DEFAULT  120
#define TIMEOUT_MAX      3600
#define POLL_MS          500
#define EXIT_INTERRUPTED 130

struct request {
    const char *files[2]; /* JOB, OUT */
    struct kubectl kubectl;
    const char *checkpoint, *node, *image;
    long long timeout_s;
};

static bool ends_with(const char *text, const char *suffix)
{
    size_t length = strlen(text), n = strlen(suffix);

    return length > n && strcmp(text + length - n, suffix) == 0;
}

static bool is_stdout(const struct request *request)
{
    return strcmp(request->files[1], "-") == 0;
}

static bool is_folder(const struct request *request)
{
    return !is_stdout(request) && !ends_with(request->files[1], ".safetensors");
}

static const char *text_of(const cJSON *object, const char *path)
{
    const char *text = cJSON_GetStringValue(fleet_json_at(object, path));

    return text ? text : "";
}

/* ---- what there is --------------------------------------------------------------------------- */

static int get_job(const struct request *request, cJSON **out, struct fleet_error *err)
{
    const char *const arguments[] = {
        "get", "fleetjobs.fleetjob.dev", request->files[0], "-o", "json", NULL};
    int rc;

    if (strchr(request->files[0], '/'))
        return fleet_error(err, -EINVAL,
                           "%s is no name of a FleetJob; `fleetjob export` exports a checkpoint of "
                           "this machine",
                           request->files[0]);
    rc = kubectl_json(&request->kubectl, arguments, NULL, out, err);
    if (rc < 0 && strstr(err->text, "(NotFound)"))
        return fleet_error(
            err, -ENOENT,
            "there is no FleetJob %s in %s%s; `kubectl get fj -A` lists them all, -n "
            "names another namespace",
            request->files[0], request->kubectl.namespace_ ? "namespace " : "the current namespace",
            request->kubectl.namespace_ ? request->kubectl.namespace_ : "");
    return rc;
}

static int get_pods(const struct request *request, cJSON **out, struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf selector = {0};
    const char *arguments[] = {"get", "pods", "-o", "json", "-l", NULL, NULL};

    fleet_strbuf_appendf(&selector, "fleetjob.dev/job-name=%s", request->files[0]);
    arguments[5] = selector.text;
    return kubectl_json(&request->kubectl, arguments, NULL, out, err);
}

/* NULL if the user may not list pods: then the scheduler decides. */
static cJSON *get_claims(const struct request *request)
{
    const char *const arguments[] = {"get", "persistentvolumeclaims", "-o", "json", NULL};
    struct fleet_error ignored;
    cJSON *claims = NULL;

    return kubectl_json(&request->kubectl, arguments, NULL, &claims, &ignored) < 0 ? NULL : claims;
}

/* JOB-export-<random>, within the 63 bytes of a label. */
static void make_name(const char *job, char out[64])
{
    uint8_t random[3];
    char hex[2 * sizeof(random) + 1];

    fleet_random_bytes(random, sizeof(random));
    fleet_hex_encode(random, sizeof(random), hex);
    (void)snprintf(out, 64, "%.48s-export-%s", job, hex);
}

static int build_pod(const struct request *request, const char *name, cJSON **out_pod,
                     char **out_path, struct fleet_error *err)
{
    FLEET_AUTO_JSON cJSON *job = NULL;
    FLEET_AUTO_JSON cJSON *pods = NULL;
    FLEET_AUTO_JSON cJSON *claims = NULL;
    struct export_pod_request build = {.name = name,
                                       .image = request->image,
                                       .node = request->node,
                                       .checkpoint = request->checkpoint};

    if (get_job(request, &job, err) < 0 || get_pods(request, &pods, err) < 0)
        return err->code;
    claims = get_claims(request);
    build.job = job;
    build.pods = pods;
    build.claims = claims;
    return export_pod_build(&build, out_pod, out_path, err);
}

/* ---- the pod --------------------------------------------------------------------------------- */

/* Waiting reasons of a container that do not go away by themselves. */
static bool is_hopeless(const char *reason)
{
    static const char *const reasons[] = {"ImagePullBackOff",  "InvalidImageName",
                                          "ErrImageNeverPull", "CreateContainerConfigError",
                                          "RunContainerError", "CreateContainerError"};

    for (size_t i = 0; i < FLEET_COUNT(reasons); i++)
        if (strcmp(reason, reasons[i]) == 0)
            return true;
    return false;
}

static const char *unscheduled(const cJSON *pod)
{
    const cJSON *condition;

    cJSON_ArrayForEach(
        condition, fleet_json_at(pod, "status.conditions")) if (strcmp(text_of(condition, "type"),
                                                                       "PodScheduled") == 0 &&
                                                                strcmp(text_of(condition, "status"),
                                                                       "False") ==
                                                                    0) return text_of(condition,
                                                                                      "message");
    return NULL;
}

/* 1: it runs; 0: not yet; -EIO: it will not start. */
static int judge(const char *name, const cJSON *pod, struct fleet_error *err)
{
    const cJSON *container = fleet_json_at(pod, "status.containerStatuses[0]");
    const char *phase = text_of(pod, "status.phase");
    const char *reason = text_of(container, "state.waiting.reason");

    if (cJSON_IsTrue(fleet_json_at(container, "ready")))
        return 1;
    if (strcmp(phase, "Failed") == 0 || strcmp(phase, "Succeeded") == 0)
        return fleet_error(err, -EIO,
                           "pod %s ended before the export began: %s %s; its image is %s, whose "
                           "fleetjob may be too old for this: name another with --image",
                           name, text_of(container, "state.terminated.reason"),
                           text_of(container, "state.terminated.message"),
                           text_of(pod, "spec.containers[0].image"));
    if (is_hopeless(reason))
        return fleet_error(
            err, -EIO, "pod %s cannot start: %s: %s; --image names another image of the runtime",
            name, reason, text_of(container, "state.waiting.message"));
    return 0;
}

/* The newest event of the kubelet or the attach controller about the pod, as text; heap, NULL =
 * none. */
static char *newest_event(const struct request *request, const char *name)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf selector = {0};
    FLEET_AUTO_JSON cJSON *events = NULL;
    const char *arguments[] = {"get", "events", "-o", "json", "--field-selector", NULL, NULL};
    struct fleet_error ignored;
    const cJSON *items;
    const char *message;

    fleet_strbuf_appendf(&selector, "involvedObject.name=%s,type=Warning", name);
    arguments[5] = selector.text;
    if (kubectl_json(&request->kubectl, arguments, NULL, &events, &ignored) < 0)
        return NULL;
    items = fleet_json_at(events, "items");
    if (cJSON_GetArraySize(items) == 0)
        return NULL;
    message = text_of(cJSON_GetArrayItem(items, cJSON_GetArraySize(items) - 1), "message");
    return strdup(message);
}

static int refuse_late(const struct request *request, const char *name, const cJSON *pod,
                       struct fleet_error *err)
{
    const char *why = unscheduled(pod);
    FLEET_AUTO_FREE char *event = why ? NULL : newest_event(request, name);

    if (why)
        return fleet_error(err, -ETIMEDOUT,
                           "pod %s cannot be scheduled: %s; make room, or name a node that has the "
                           "volume with --node; --timeout waits longer",
                           name, why);
    return fleet_error(err, -ETIMEDOUT, "pod %s has not started after %lld s: %s%s", name,
                       request->timeout_s, event ? event : text_of(pod, "status.phase"),
                       "; --timeout waits longer");
}

static int await(const struct request *request, const char *name, struct fleet_error *err)
{
    const char *const arguments[] = {"get", "pod", name, "-o", "json", NULL};
    double deadline_ms = fleet_monotonic_ms() + 1e3 * (double)request->timeout_s;

    for (;;) {
        struct timespec nap = {.tv_nsec = POLL_MS * 1000000L};
        FLEET_AUTO_JSON cJSON *pod = NULL;
        int rc = kubectl_json(&request->kubectl, arguments, NULL, &pod, err);
        if (rc < 0)
            return rc;
        rc = judge(name, pod, err);
        if (rc != 0)
            return rc < 0 ? rc : 0;
        if (fleet_monotonic_ms() > deadline_ms)
            return refuse_late(request, name, pod, err);
        (void)nanosleep(&nap, NULL);
        if (kubectl_is_interrupted())
            return fleet_error(err, -EINTR, "interrupted");
    }
}

static int create(const struct request *request, const cJSON *pod, struct fleet_error *err)
{
    const char *const arguments[] = {"create", "-f", "-", "-o", "json", NULL};
    FLEET_AUTO_FREE char *text = fleet_json_print(pod);
    FLEET_AUTO_JSON cJSON *made = NULL;

    return kubectl_json(&request->kubectl, arguments, text, &made, err);
}

/* Delete it in any case: the server may have carried out an interrupted create. */
static void delete_pod(const struct request *request, const char *name)
{
    const char *const arguments[] = {"delete",       "pod", name, "--ignore-not-found",
                                     "--wait=false", NULL};
    struct fleet_error err;

    if (kubectl_cleanup(&request->kubectl, arguments, &err) < 0)
        (void)fprintf(stderr,
                      "kubectl fleetjob export: pod %s is left: %s; it ends by itself after %d s\n",
                      name, err.text, EXPORT_POD_SECONDS);
}

/* ---- the stream ------------------------------------------------------------------------------ */

static int unpack(void *context, int fd, struct fleet_error *err)
{
    const struct request *request = context;
    struct untar_result result;

    return untar(fd, request->files[1], &result, err);
}

static int stream_to_file(const struct request *request, const char *const *arguments,
                          struct fleet_error *err)
{
    struct kubectl_reader reader = {0};
    struct safetensors_file check;
    struct fleet_file_draft draft;
    int rc = fleet_file_draft_open(request->files[1], &draft, err);

    if (rc < 0)
        return rc;
    reader.out_fd = draft.fd;
    rc = kubectl_stream(&request->kubectl, arguments, &reader, err);
    if (rc == 0) /* the stream was cut off */
        rc = safetensors_open(draft.temporary, &check, err);
    if (rc == 0) {
        safetensors_release(&check);
        return fleet_file_draft_commit(&draft, FLEET_FILE_DURABLE, err);
    }
    fleet_file_draft_discard(&draft);
    return rc;
}

static int stream(const struct request *request, const char *name, const char *path,
                  struct fleet_error *err)
{
    const char *arguments[] = {
        "exec", name, "-c", EXPORT_POD_CONTAINER, "--", EXPORT_POD_PROGRAM, "export", path,
        "-",    NULL, NULL};
    struct kubectl_reader reader = {.read = unpack, .context = (void *)request};

    if (is_folder(request)) {
        arguments[9] = "--tar";
        return kubectl_stream(&request->kubectl, arguments, &reader, err);
    }
    if (!is_stdout(request))
        return stream_to_file(request, arguments, err);
    reader = (struct kubectl_reader){.out_fd = STDOUT_FILENO};
    return kubectl_stream(&request->kubectl, arguments, &reader, err);
}

/* ---- the whole ------------------------------------------------------------------------------- */

static int prepare(const struct request *request, struct fleet_error *err)
{
    if (is_stdout(request))
        return 0;
    return is_folder(request)
               ? export_folder_prepare(request->files[1], &(struct export_files){0}, err)
               : fleet_file_prepare(request->files[1], err);
}

static int bring(const struct request *request, struct fleet_error *err)
{
    FLEET_AUTO_JSON cJSON *pod = NULL;
    FLEET_AUTO_FREE char *path = NULL;
    char name[64];
    int rc = prepare(request, err);

    make_name(request->files[0], name);
    if (rc == 0)
        rc = build_pod(request, name, &pod, &path, err);
    if (rc < 0)
        return rc;
    (void)fprintf(stderr, "pod %s reads %s\n", name, path);
    rc = create(request, pod, err);
    if (rc == 0)
        rc = await(request, name, err);
    if (rc == 0)
        rc = stream(request, name, path, err);
    delete_pod(request, name);
    if (rc == 0 && !is_stdout(request))
        (void)fprintf(stderr, "written to %s\n", request->files[1]);
    return rc;
}

int cli_kubectl_export(int argc, char **argv)
{
    struct request request = {.timeout_s = TIMEOUT_DEFAULT};
    struct kubectl *kubectl = &request.kubectl;
    const struct arguments_option options[] = {
        {.name = "namespace", .kind = ARGUMENTS_TEXT, .out = &kubectl->namespace_, .letter = 'n'},
        {.name = "context", .kind = ARGUMENTS_TEXT, .out = &kubectl->context},
        {.name = "kubeconfig", .kind = ARGUMENTS_TEXT, .out = &kubectl->kubeconfig},
        {.name = "checkpoint", .kind = ARGUMENTS_TEXT, .out = &request.checkpoint},
        {.name = "node", .kind = ARGUMENTS_TEXT, .out = &request.node},
        {.name = "image", .kind = ARGUMENTS_TEXT, .out = &request.image},
        {.name = "timeout",
         .kind = ARGUMENTS_NUMBER,
         .out = &request.timeout_s,
         .min = 1,
         .max = TIMEOUT_MAX},
        {0}};
    struct fleet_error err;
    int code = arguments_parse(argc, argv, usage, options, 2, request.files);

    if (code >= 0)
        return code;
    if (is_stdout(&request) && isatty(STDOUT_FILENO)) {
        (void)fputs("kubectl fleetjob export: \"-\" writes binary data, and standard output is a "
                    "terminal: redirect it to a file or a pipe\n",
                    stderr);
        return ARGUMENTS_NO;
    }
    kubectl_catch_signals();
    if (bring(&request, &err) == 0)
        return ARGUMENTS_GOOD;
    (void)fprintf(stderr, "kubectl fleetjob export: %s\n", err.text);
    return kubectl_is_interrupted() ? EXIT_INTERRUPTED : ARGUMENTS_NO;
}

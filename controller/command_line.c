/* SPDX-License-Identifier: Apache-2.0 */

/* One table of options: name, kind of value, and the member that stores it. */
#include "controller/command_line.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/memory.h"

static const char usage[] =
    "Usage: fleetjob-controller --runtime-image IMAGE (--hub-service NAME | --hub-address H:P)\n"
    "\n"
    "  --runtime-image IMAGE      image with agent and trainer below /fleetjob\n"
    "  --cuda-image IMAGE         the same with CUDA's libraries, for workers of the built-in\n"
    "                             trainer with nvidia.com/gpu in their limits (--runtime-image)\n"
    "  --image-pull-policy P      of worker pods: Always, IfNotPresent, Never\n"
    "  --hub-service NAME         Service (without selector) that agents dial; its EndpointSlice "
    "is\n"
    "                             written by the replica that leads\n"
    "  --hub-address HOST:PORT    what agents dial instead, for a controller outside the cluster\n"
    "  --hub-port PORT            where the hub listens (7443)\n"
    "  --pod-address IP           of this replica, for the EndpointSlice ($POD_IP)\n"
    "  --namespace NAME           of Lease, Service and Secret of the installation "
    "($POD_NAMESPACE)\n"
    "  --watch-namespaces A,B,…   namespaces of the FleetJobs (all)\n"
    "  --identity-secret NAME     Secret with CA and install key (fleetjob-identity)\n"
    "  --lease NAME               Lease for the election of a leader (fleetjob-controller)\n"
    "  --no-election              there is one replica; for tests\n"
    "  --probe-port PORT          /healthz, /readyz, /metrics (8080)\n"
    "  --job-metrics              series of each job in /metrics: step, restarts, ready workers\n"
    "  --metrics-auth             /metrics needs a bearer token whose holder may get it, and is\n"
    "                             served by HTTPS on --metrics-port\n"
    "  --metrics-port PORT        of HTTPS (8443)\n"
    "  --metrics-name NAME        DNS name in its certificate, which the installation's CA signs\n"
    "  --metrics-certificate DIR  folder with tls.crt and tls.key instead\n"
    "  --kubeconfig FILE          instead of $KUBECONFIG, the pod's account, ~/.kube/config\n"
    "  --context NAME             of the kubeconfig\n"
    "  --data-encryption          encrypt the data of jobs whose dataEncryption is Auto\n"
    "  --log-format FORM          text or json (text)\n"
    "  -v, --verbose              log decisions, too\n"
    "      --version              print the version\n"
    "  -h, --help                 this text\n";

static int parse_port(const char *option, const char *text, int *out)
{
    char *end;
    long value = strtol(text, &end, 10);

    if (end == text || *end || value < 0 || value > 65535) {
        (void)fprintf(stderr, "fleetjob-controller: --%s is \"%s\", not a port\n", option, text);
        return -EINVAL;
    }
    *out = (int)value;
    return 0;
}

/* A list "a, b"; spaces and repetitions are ignored. "" means all, as if the option were absent. */
static int split_namespaces(struct command_line *a, const char *text)
{
    char *rest = NULL;

    fleet_set_text(&a->watch_list, text);
    a->watched_count = 0;
    for (char *name = strtok_r(a->watch_list, ", ", &rest); name;
         name = strtok_r(NULL, ", ", &rest)) {
        size_t i = 0;
        while (i < a->watched_count && strcmp(a->watched[i], name) != 0)
            i++;
        if (i == INFORMER_NAMESPACES_MAX) {
            (void)fprintf(stderr,
                          "fleetjob-controller: more than %d namespaces; leave out "
                          "--watch-namespaces to watch all\n",
                          INFORMER_NAMESPACES_MAX);
            return -EINVAL;
        }
        a->watched[i] = name;
        a->watched_count += i == a->watched_count;
    }
    if (*text && a->watched_count == 0) { /* an empty name must not mean the whole cluster */
        (void)fprintf(stderr, "fleetjob-controller: --watch-namespaces names no namespace\n");
        return -EINVAL;
    }
    return 0;
}

/* Kinds of values. */
enum option_kind {
    OPTION_TEXT,
    OPTION_PORT,
    OPTION_FLAG,
    OPTION_NAMESPACES,
    OPTION_LOG_FORMAT,
    OPTION_VERSION,
    OPTION_HELP,
};

static const struct {
    const char *name;
    char letter; /* 0: none */
    enum option_kind kind;
    size_t offset; /* TEXT, PORT, FLAG: offset of the member */
} rows[] = {
    {"runtime-image", 0, OPTION_TEXT, offsetof(struct command_line, runtime_image)},
    {"cuda-image", 0, OPTION_TEXT, offsetof(struct command_line, cuda_image)},
    {"image-pull-policy", 0, OPTION_TEXT, offsetof(struct command_line, pull_policy)},
    {"hub-service", 0, OPTION_TEXT, offsetof(struct command_line, hub_service)},
    {"hub-address", 0, OPTION_TEXT, offsetof(struct command_line, hub_address)},
    {"hub-port", 0, OPTION_PORT, offsetof(struct command_line, hub_port)},
    {"pod-address", 0, OPTION_TEXT, offsetof(struct command_line, pod_address)},
    {"namespace", 0, OPTION_TEXT, offsetof(struct command_line, namespace_)},
    {"watch-namespaces", 0, OPTION_NAMESPACES, 0},
    {"identity-secret", 0, OPTION_TEXT, offsetof(struct command_line, identity_secret)},
    {"lease", 0, OPTION_TEXT, offsetof(struct command_line, lease)},
    {"no-election", 0, OPTION_FLAG, offsetof(struct command_line, no_election)},
    {"probe-port", 0, OPTION_PORT, offsetof(struct command_line, probe_port)},
    {"job-metrics", 0, OPTION_FLAG, offsetof(struct command_line, has_job_metrics)},
    {"metrics-auth", 0, OPTION_FLAG, offsetof(struct command_line, has_metrics_auth)},
    {"metrics-port", 0, OPTION_PORT, offsetof(struct command_line, metrics_port)},
    {"metrics-name", 0, OPTION_TEXT, offsetof(struct command_line, metrics_name)},
    {"metrics-certificate", 0, OPTION_TEXT, offsetof(struct command_line, metrics_certificate)},
    {"kubeconfig", 0, OPTION_TEXT, offsetof(struct command_line, kubeconfig)},
    {"context", 0, OPTION_TEXT, offsetof(struct command_line, context)},
    {"data-encryption", 0, OPTION_FLAG, offsetof(struct command_line, encrypts_data)},
    {"log-format", 0, OPTION_LOG_FORMAT, 0},
    {"verbose", 'v', OPTION_FLAG, offsetof(struct command_line, is_verbose)},
    {"version", 0, OPTION_VERSION, 0},
    {"help", 'h', OPTION_HELP, 0},
};

#define ROW_BASE 256 /* getopt_long returns this plus the number of the row */

/* Store the value of option `i`. Returns -1 to continue, or the exit code. */
static int take_option(struct command_line *a, size_t i, const char *text)
{
    char *member = (char *)a + rows[i].offset;

    switch (rows[i].kind) {
    case OPTION_TEXT:
        *(const char **)(void *)member = text;
        return -1;
    case OPTION_PORT:
        return parse_port(rows[i].name, text, (int *)(void *)member) < 0 ? 2 : -1;
    case OPTION_FLAG:
        *(bool *)member = true;
        return -1;
    case OPTION_NAMESPACES:
        return split_namespaces(a, text) < 0 ? 2 : -1;
    case OPTION_LOG_FORMAT:
        a->is_json = strcmp(text, "json") == 0;
        if (a->is_json || strcmp(text, "text") == 0)
            return -1;
        (void)fprintf(stderr, "fleetjob-controller: --log-format is \"%s\", not text or json\n",
                      text);
        return 2;
    case OPTION_VERSION:
        (void)puts("fleetjob-controller " FLEET_VERSION);
        return 0;
    case OPTION_HELP:
        (void)fputs(usage, stdout);
        return 0;
    }
    return 2;
}

/* The row that getopt_long has found; FLEET_COUNT(rows) if none. */
static size_t find_row(int option)
{
    size_t i = 0;

    if (option >= ROW_BASE)
        return (size_t)(option - ROW_BASE);
    while (i < FLEET_COUNT(rows) && rows[i].letter != option)
        i++;
    return i;
}

static void build_options(struct option options[FLEET_COUNT(rows) + 1])
{
    for (size_t i = 0; i < FLEET_COUNT(rows); i++)
        options[i] = (struct option){.name = rows[i].name,
                                     .has_arg = rows[i].kind == OPTION_FLAG ||
                                                        rows[i].kind == OPTION_VERSION ||
                                                        rows[i].kind == OPTION_HELP
                                                    ? no_argument
                                                    : required_argument,
                                     .val = ROW_BASE + (int)i};
    options[FLEET_COUNT(rows)] = (struct option){0};
}

/* False: the error is already printed. */
static bool is_complete(const struct command_line *a)
{
    const char *missing = NULL;

    if (!a->runtime_image || !a->hub_service == !a->hub_address)
        missing = "--runtime-image and one of --hub-service and --hub-address are needed";
    else if (a->hub_service && (!a->pod_address || !a->pod_address[0]))
        missing = "--hub-service needs --pod-address or $POD_IP";
    else if (a->has_metrics_auth && !a->metrics_name == !a->metrics_certificate)
        missing = "--metrics-auth needs one of --metrics-name and --metrics-certificate";
    else if (!a->has_metrics_auth && (a->metrics_name || a->metrics_certificate))
        missing = "--metrics-name and --metrics-certificate need --metrics-auth";
    if (missing)
        (void)fprintf(stderr, "fleetjob-controller: %s\n", missing);
    return !missing;
}

int command_line_parse(int argc, char **argv, struct command_line *out)
{
    struct option options[FLEET_COUNT(rows) + 1];
    int option, code;

    *out = (struct command_line){.hub_port = 7443,
                                 .probe_port = 8080,
                                 .metrics_port = 8443,
                                 .identity_secret = "fleetjob-identity",
                                 .lease = "fleetjob-controller",
                                 .pod_address = getenv("POD_IP"),
                                 .namespace_ = getenv("POD_NAMESPACE")};
    build_options(options);
    optind = 0; /* restart getopt: tests read several command lines */
    while ((option = getopt_long(argc, argv, "hv", options, NULL)) != -1) {
        size_t row = find_row(option);
        if (row == FLEET_COUNT(rows)) {
            (void)fputs(usage, stderr);
            return 2;
        }
        if ((code = take_option(out, row, optarg)) >= 0)
            return code;
    }
    if (optind < argc) {
        (void)fprintf(stderr, "fleetjob-controller: \"%s\" is no option\n", argv[optind]);
        return 2;
    }
    if (!is_complete(out))
        return 2;
    return -1;
}

void command_line_release(struct command_line *line)
{
    free(line->watch_list);
    line->watch_list = NULL;
}

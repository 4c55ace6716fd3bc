/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Options as rows of one table. Those that are a text alone go where text_option() says.
 */
#include "controller/command_line.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"

static const char usage[] =
    "Usage: fleetjob-controller --runtime-image IMAGE (--hub-service NAME | --hub-address H:P)\n"
    "\n"
    "  --runtime-image IMAGE      image with agent and trainer below /fleetjob\n"
    "  --image-pull-policy P      of worker pods: Always, IfNotPresent, Never\n"
    "  --hub-service NAME         Service (without selector) that agents dial; its EndpointSlice is\n"
    "                             written by the replica that leads\n"
    "  --hub-address HOST:PORT    what agents dial instead, for a controller outside the cluster\n"
    "  --hub-port PORT            where the hub listens (7443)\n"
    "  --pod-address IP           of this replica, for the EndpointSlice ($POD_IP)\n"
    "  --namespace NAME           of Lease, Service and Secret of the installation ($POD_NAMESPACE)\n"
    "  --watch-namespaces A,B,…   where FleetJobs are looked after (all)\n"
    "  --identity-secret NAME     Secret with CA and install key (fleetjob-identity)\n"
    "  --lease NAME               Lease by which replicas elect (fleetjob-controller)\n"
    "  --no-election              there is one replica; for tests\n"
    "  --probe-port PORT          /healthz, /readyz, /metrics (8080)\n"
    "  --kubeconfig FILE          instead of $KUBECONFIG, the pod's account, ~/.kube/config\n"
    "  --context NAME             of the kubeconfig\n"
    "  --log-format FORM          text or json (text)\n"
    "  -v, --verbose              log decisions, too\n"
    "      --version              print the version\n"
    "  -h, --help                 this text\n";

static int parse_port(const char *option, const char *text, int *out)
{
    char *end;
    long value = strtol(text, &end, 10);

    if (end == text || *end || value < 0 || value > 65535) {
        (void)fprintf(stderr, "fleetjob-controller: %s is \"%s\", not a port\n", option, text);
        return -EINVAL;
    }
    *out = (int)value;
    return 0;
}

static int split_namespaces(struct command_line *a, const char *text)
{
    char *rest = NULL;

    free(a->watch_list);
    a->watch_list = strdup(text);
    fleet_assert(a->watch_list);
    a->watched_count = 0;
    for (char *name = strtok_r(a->watch_list, ",", &rest); name;
         name = strtok_r(NULL, ",", &rest)) {
        if (a->watched_count == INFORMER_NAMESPACES_MAX) {
            (void)fprintf(stderr,
                          "fleetjob-controller: more than %d namespaces; leave out "
                          "--watch-namespaces to watch all\n",
                          INFORMER_NAMESPACES_MAX);
            return -EINVAL;
        }
        a->watched[a->watched_count++] = name;
    }
    return 0;
}

enum option_letter {
    OPTION_IMAGE = 256,
    OPTION_PULL,
    OPTION_SERVICE,
    OPTION_ADDRESS,
    OPTION_PORT,
    OPTION_POD,
    OPTION_NAMESPACE,
    OPTION_WATCH,
    OPTION_IDENTITY,
    OPTION_LEASE,
    OPTION_NO_ELECTION,
    OPTION_PROBE,
    OPTION_KUBECONFIG,
    OPTION_CONTEXT,
    OPTION_FORM,
    OPTION_VERSION,
};

static const struct option options[] = {
    {"runtime-image", required_argument, NULL, OPTION_IMAGE},
    {"image-pull-policy", required_argument, NULL, OPTION_PULL},
    {"hub-service", required_argument, NULL, OPTION_SERVICE},
    {"hub-address", required_argument, NULL, OPTION_ADDRESS},
    {"hub-port", required_argument, NULL, OPTION_PORT},
    {"pod-address", required_argument, NULL, OPTION_POD},
    {"namespace", required_argument, NULL, OPTION_NAMESPACE},
    {"watch-namespaces", required_argument, NULL, OPTION_WATCH},
    {"identity-secret", required_argument, NULL, OPTION_IDENTITY},
    {"lease", required_argument, NULL, OPTION_LEASE},
    {"no-election", no_argument, NULL, OPTION_NO_ELECTION},
    {"probe-port", required_argument, NULL, OPTION_PROBE},
    {"kubeconfig", required_argument, NULL, OPTION_KUBECONFIG},
    {"context", required_argument, NULL, OPTION_CONTEXT},
    {"log-format", required_argument, NULL, OPTION_FORM},
    {"version", no_argument, NULL, OPTION_VERSION},
    {"verbose", no_argument, NULL, 'v'},
    {"help", no_argument, NULL, 'h'},
    {0},
};

/* Where the text of an option goes; NULL for those that are more than a text. */
static const char **text_option(struct command_line *a, int option)
{
    switch (option) {
    case OPTION_IMAGE:
        return &a->runtime_image;
    case OPTION_PULL:
        return &a->pull_policy;
    case OPTION_SERVICE:
        return &a->hub_service;
    case OPTION_ADDRESS:
        return &a->hub_address;
    case OPTION_POD:
        return &a->pod_address;
    case OPTION_NAMESPACE:
        return &a->namespace_;
    case OPTION_IDENTITY:
        return &a->identity_secret;
    case OPTION_LEASE:
        return &a->lease;
    case OPTION_KUBECONFIG:
        return &a->kubeconfig;
    case OPTION_CONTEXT:
        return &a->context;
    default:
        return NULL;
    }
}

static int take_option(struct command_line *a, int option)
{
    const char **text = text_option(a, option);

    if (text) {
        *text = optarg;
        return 0;
    }
    switch (option) {
    case OPTION_PORT:
        return parse_port("--hub-port", optarg, &a->hub_port);
    case OPTION_PROBE:
        return parse_port("--probe-port", optarg, &a->probe_port);
    case OPTION_WATCH:
        return split_namespaces(a, optarg);
    case OPTION_NO_ELECTION:
        a->no_election = true;
        return 0;
    case OPTION_FORM:
        a->is_json = strcmp(optarg, "json") == 0;
        return a->is_json || strcmp(optarg, "text") == 0 ? 0 : -EINVAL;
    case 'v':
        a->is_verbose = true;
        return 0;
    default:
        return -EINVAL;
    }
}

int command_line_parse(int argc, char **argv, struct command_line *a)
{
    int option;

    *a = (struct command_line){.hub_port = 7443,
                               .probe_port = 8080,
                               .identity_secret = "fleetjob-identity",
                               .lease = "fleetjob-controller",
                               .pod_address = getenv("POD_IP"),
                               .namespace_ = getenv("POD_NAMESPACE")};
    while ((option = getopt_long(argc, argv, "hv", options, NULL)) != -1) {
        if (option == 'h') {
            (void)fputs(usage, stdout);
            return 0;
        }
        if (option == OPTION_VERSION) {
            (void)puts("fleetjob-controller " FLEET_VERSION);
            return 0;
        }
        if (take_option(a, option) < 0) {
            (void)fputs(usage, stderr);
            return 2;
        }
    }
    if (optind < argc || !a->runtime_image || !a->hub_service == !a->hub_address) {
        (void)fprintf(stderr, "fleetjob-controller: --runtime-image and one of --hub-service and "
                              "--hub-address are needed\n");
        return 2;
    }
    if (a->hub_service && (!a->pod_address || !a->pod_address[0])) {
        (void)fprintf(stderr,
                      "fleetjob-controller: --hub-service needs --pod-address or $POD_IP\n");
        return 2;
    }
    return -1;
}

void command_line_release(struct command_line *line)
{
    free(line->watch_list);
    line->watch_list = NULL;
}

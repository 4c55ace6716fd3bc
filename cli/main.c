/* SPDX-License-Identifier: Apache-2.0 */

/* fleetjob: the commands of the user's shell, one file each. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/export.h"
#include "cli/inference_commands.h"
#include "cli/kubectl_export.h"
#include "cli/launch.h"
#include "cli/strategy_commands.h"
#include "cli/validate.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/variable.h"

#define EXIT_GOOD  0
#define EXIT_NO    1
#define EXIT_USAGE 2

static int cli_version(int argc, char **argv);
static int cli_help(int argc, char **argv);

static const struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *words;
} commands[] = {
    {"run", cli_run, "train a job on this machine, without Kubernetes"},
    {"launch", cli_launch, "run a script with the options of Paddle's launcher or torchrun"},
    {"plan", cli_plan, "show what each rank runs, its memory and its traffic"},
    {"validate", cli_validate, "check a job or a strategy file; print every error"},
    {"select", cli_select, "show which strategy settings take effect, and why others do not"},
    {"convert", cli_convert, "convert a strategy between prototxt, YAML and JSON"},
    {"export", cli_export, "write the weights of a checkpoint, for transformers or as one file"},
    {"eval", cli_eval, "print the loss and perplexity of trained weights on data"},
    {"generate", cli_generate, "let a trained gpt or llama go on with a text"},
    {"curve", cli_curve, "draw the losses of one or several runs"},
    {"hold", cli_hold, "keep a pod up in which kubectl exec runs fleetjob export"},
    {"version", cli_version, "print the version"},
    {"help", cli_help, "print this text, or the help of a command"},
};

/* As a plug-in of kubectl (`kubectl fleetjob …`) the program is called kubectl-fleetjob. Its
 * command `export` then takes the name of a job in the cluster. The other commands are the same. */
static const struct command cluster_export = {
    "export", cli_kubectl_export, "bring the weights of a job in the cluster to this machine"};
static bool is_plug_in;

static bool is_called_as_plug_in(const char *path)
{
    const char *slash = strrchr(path, '/');

    return strcmp(slash ? slash + 1 : path, "kubectl-fleetjob") == 0;
}

static const struct command *find(const char *name)
{
    if (is_plug_in && strcmp(name, cluster_export.name) == 0)
        return &cluster_export;
    for (size_t i = 0; i < FLEET_COUNT(commands); i++)
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    return NULL;
}

static void print_help(FILE *out)
{
    (void)fprintf(out, "Usage: %s COMMAND [ARGUMENTS…]\n\nCommands:\n",
                  is_plug_in ? "kubectl fleetjob" : "fleetjob");
    for (size_t i = 0; i < FLEET_COUNT(commands); i++)
        (void)fprintf(out, "  %-10s %s\n", commands[i].name, find(commands[i].name)->words);
    (void)fputs("\nfleetjob COMMAND --help says more. Exit codes: 0 success, 1 failure,\n"
                "2 wrong usage, 130 interrupted.\n",
                out);
}

static int refuse_unknown(const char *name)
{
    const char *names[FLEET_COUNT(commands)], *closest;

    for (size_t i = 0; i < FLEET_COUNT(commands); i++)
        names[i] = commands[i].name;
    closest = fleet_closest_word(name, names, FLEET_COUNT(names));
    if (closest)
        (void)fprintf(stderr, "fleetjob: there is no command \"%s\", did you mean \"%s\"?\n", name,
                      closest);
    else
        (void)fprintf(stderr, "fleetjob: there is no command \"%s\"; try: fleetjob help\n", name);
    return EXIT_USAGE;
}

static int cli_version(int argc, char **argv)
{
    (void)argv;
    if (argc > 1) {
        (void)fputs("Usage: fleetjob version\n", strcmp(argv[1], "--help") ? stderr : stdout);
        return strcmp(argv[1], "--help") ? EXIT_USAGE : EXIT_GOOD;
    }
    (void)puts("fleetjob " FLEET_VERSION);
    return EXIT_GOOD;
}

static int cli_help(int argc, char **argv)
{
    static char help_option[] = "--help";
    char *arguments[] = {argc > 1 ? argv[1] : NULL, help_option, NULL};
    const struct command *command = argc > 1 ? find(argv[1]) : NULL;

    if (argc > 1 && argv[1][0] != '-' && !command)
        return refuse_unknown(argv[1]);
    if (command && command->run != cli_help)
        return command->run(2, arguments);
    print_help(stdout);
    return EXIT_GOOD;
}

/* The command fails if the output cannot be written, for example on a full disk. */
static int check_output(const char *name, int code)
{
    bool is_written = fflush(stdout) == 0 && !ferror(stdout);

    if (is_written || code != EXIT_GOOD)
        return code;
    (void)fprintf(stderr, "fleetjob %s: standard output: cannot be written\n", name);
    return EXIT_NO;
}

int main(int argc, char **argv)
{
    const struct command *command;
    struct fleet_error err;
    int threads;

    is_plug_in = argc > 0 && is_called_as_plug_in(argv[0]);
    if (argc < 2) {
        print_help(stderr);
        return EXIT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)
        return cli_help(1, argv);
    if (strcmp(argv[1], "--version") == 0)
        return cli_version(1, argv);
    if (fleet_variable_threads(&threads, &err) < 0) {
        (void)fprintf(stderr, "fleetjob: %s\n", err.text);
        return EXIT_NO;
    }
    command = find(argv[1]);
    if (!command)
        return refuse_unknown(argv[1]);
    return check_output(argv[1], command->run(argc - 1, argv + 1));
}

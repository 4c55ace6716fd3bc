/* SPDX-License-Identifier: Apache-2.0 */

/* `fleetjob hold`: wait for SIGTERM. The runtime image has no shell and no sleep. So this command
 * keeps a pod running in which `kubectl exec` runs `fleetjob export`. */
#include <signal.h>
#include <stddef.h>

#include "cli/arguments.h"
#include "cli/commands.h"

static const char usage[] =
    "Usage: fleetjob hold\n"
    "\n"
    "Does nothing until it is asked to end (SIGTERM, SIGINT). It keeps a pod of the runtime's\n"
    "image up, so that `kubectl exec` can run `fleetjob export` in it: `kubectl fleetjob\n"
    "export` uses it.\n";

int cli_hold(int argc, char **argv)
{
    const struct arguments_option options[] = {{0}};
    sigset_t signals;
    int signal, code = arguments_parse(argc, argv, usage, options, 0, NULL);

    if (code >= 0)
        return code;
    (void)sigemptyset(&signals);
    (void)sigaddset(&signals, SIGTERM);
    (void)sigaddset(&signals, SIGINT);
    (void)sigprocmask(SIG_BLOCK, &signals, NULL);
    (void)sigwait(&signals, &signal);
    return ARGUMENTS_GOOD;
}

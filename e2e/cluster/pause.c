/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The process that holds namespaces open until a signal stops it: as the sandbox of a pod, and as
 * process 1 of a node, where orphans become its children. It waits for nobody: with SIGCHLD ignored
 * the kernel reaps them.
 */
#include <signal.h>
#include <unistd.h>

static void on_signal(int number)
{
    (void)number;
    _exit(0);
}

int main(void)
{
    signal(SIGCHLD, SIG_IGN);
    signal(SIGTERM, on_signal);
    signal(SIGINT, on_signal);
    for (;;)
        pause();
}

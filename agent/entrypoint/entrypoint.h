/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_ENTRYPOINT_ENTRYPOINT_H
#define AGENT_ENTRYPOINT_ENTRYPOINT_H

/*
 * A container whose template has no `command` runs the ENTRYPOINT of its image, which no API shows.
 * The agent takes its place at the moment when it has been started:
 *
 *   container runtime ─▶ execve(ENTRYPOINT, args) ─▶ its loader reads LD_PRELOAD
 *      ─▶ preload.c, before anything else ─▶ execve(agent, "--", ENTRYPOINT, args) ─▶ trainers
 *
 * User, working directory, descriptors and environment stay, because the process stays. A script is
 * its interpreter by then (`/bin/sh /entrypoint.sh …`), and that is what the agent starts. A
 * program without a loader (a static one), or whose loader ignores LD_PRELOAD, goes on by itself.
 * The container's postStart hook (check.h) finds that out.
 *
 * The pod has two variables for it (wellknown.h); the agent, its trainers and their children do not
 * keep them.
 */

/* Where a failure to hand over ends: as a shell says that a command could not be run. */
#define ENTRYPOINT_EXIT_CODE 126

#endif

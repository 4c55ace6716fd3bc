/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_CLOSURE_H
#define AGENT_CLOSURE_H

/*
 * How the agent comes into any image: an init container of the runtime's image copies the closure
 * (bin/ and lib/: agent, trainer, loader, libraries) to a volume that the worker's container has at
 * /fleetjob. The images have no shell and no cp.
 */

struct fleet_error;

#define CLOSURE_FILES_MAX 256 /* in each of the two folders */

/*
 * Copy bin/ and lib/ of the folder `source` below `target`, with their modes; existing files
 * are replaced one by one, so that a second run completes one that was interrupted. Anything but a
 * plain file in the folders is -EINVAL. -errno names the path; -E2BIG if there are too many
 * files.
 */
int closure_install(const char *source, const char *target, struct fleet_error *err);

/* The folder this program's closure is in, <it>/bin/<program>; heap. -errno; -ENOENT: not in a
 * bin/. */
int closure_folder(char **out_folder, struct fleet_error *err);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_LINKS_FILE_H
#define CLI_LINKS_FILE_H

/* The file with the rates of devices and links (libfleet/autoparallel/search/links.h): written by
 * `fleetjob plan --calibrate`, or by hand. */

#include "libfleet/autoparallel/search/links.h"

struct fleet_error;
struct fleet_errors;

/* The place of rates that were measured on this machine, heap: fleetjob/links.yaml below
 * XDG_CACHE_HOME, else below .cache of HOME. -EINVAL: neither is set. */
int links_file_place(char **out_path, struct fleet_error *err);

/* Read a file of at most 64 KiB. -EINVAL with errors appended, each with the file's name. */
int links_file_read(const char *path, struct links *out, struct fleet_errors *errors);

/* Write it, with its folder, and `comment`, lines that each begin with "# ", in front. Errors of
 * fleet_file_write(). */
int links_file_write(const char *path, const struct links *links, const char *comment,
                     struct fleet_error *err);

#endif

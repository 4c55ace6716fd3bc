/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_BASE_VARIABLE_H
#define LIBFLEET_BASE_VARIABLE_H

/* Numbers from environment variables. A value that is no number is an error, never a default. */

struct fleet_error;

#define FLEET_THREADS_ENV "FLEET_THREADS" /* compute threads of a trainer */
#define FLEET_THREADS_MAX 1024

/* Decimal, all of `text`, min … max; `what` names it in the error. -EINVAL with the value and the
 * range. */
int fleet_variable_parse(const char *what, const char *text, int min, int max, int *out,
                         struct fleet_error *err);

/* The variable `name`, likewise; `missing` if it is not set or empty, and -EINVAL if that is below
 * `min`. */
int fleet_variable_number(const char *name, int min, int max, int missing, int *out,
                          struct fleet_error *err);

/* FLEET_THREADS; 0 if it is not set. */
int fleet_variable_threads(int *out, struct fleet_error *err);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_KUBE_SLIM_H
#define LIBFLEET_KUBE_SLIM_H

/*
 * JSON text of the API server without metadata.managedFields.
 *
 * managedFields record the manager of each field. They are more than half of a pod, and no program
 * here reads them. To remove them from the text costs a few microseconds for each object; to decode
 * them costs as much as the rest of the object.
 */

#include <stddef.h>

#include "libfleet/base/strbuf.h"

/*
 * Append `text` to *out without members `"managedFields":[…]` of its objects, at any depth, in
 * the compact form in which the API server writes them; in another form they stay. Valid JSON stays
 * valid JSON. What is not valid stays invalid outside of these lists, and is not looked at inside
 * them.
 *
 * Returns how many bytes it has looked at, some of them twice: at most 2 * size for any text.
 */
size_t kube_slim(const char *text, size_t size, struct fleet_strbuf *out);

#endif

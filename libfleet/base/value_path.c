/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/base/value_path.h"

#include "libfleet/base/strbuf.h"

#define NAME_SHOWN 128 /* bytes of a name */

size_t fleet_value_path_enter(struct fleet_strbuf *path, const char *name)
{
    size_t length = path->length;

    fleet_strbuf_appendf(path, "%s%.*s", length ? "." : "", NAME_SHOWN, name);
    return length;
}

size_t fleet_value_path_enter_element(struct fleet_strbuf *path, size_t index)
{
    size_t length = path->length;

    fleet_strbuf_appendf(path, "[%zu]", index);
    return length;
}

void fleet_value_path_leave(struct fleet_strbuf *path, size_t length)
{
    path->length = length;
    path->text[length] = '\0';
}

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TOOLS_CRD_REFERENCE_H
#define TOOLS_CRD_REFERENCE_H

/*
 * Reference pages from the tables: every field with type, default, what is allowed and what it
 * means. docs/reference holds them as files, which `make generate` writes and a unit test compares.
 */

struct fleet_object;
struct fleet_strbuf;

/*
 * Append a section for the object at `path` ("spec.training") and one for each object below it.
 * Markdown; headings of level two.
 */
void reference_append(const struct fleet_object *type, const char *path, struct fleet_strbuf *out);

/*
 * Append the whole page of a file of docs/reference: "fleetjob.md", "training.md" or "status.md".
 * Returns 0, or -ENOENT if there is no such page.
 */
int reference_page(const char *file, struct fleet_strbuf *out);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_BASE_YAML_H
#define LIBFLEET_BASE_YAML_H

/*
 * YAML as Kubernetes reads it, into the same JSON tree.
 *
 * kubectl turns YAML into JSON by the rules of YAML 1.1, and so does this module, so that a file
 * means the same locally and in a cluster:
 *  - plain y, yes, on, true and n, no, off, false (also Yes, YES, …) are booleans
 *  - plain ~, null and nothing at all are null
 *  - plain 12, 0x1f, 0o17, 017, 0b11, 1_000 are integers; 1.5, .5, 1e-3 are numbers; times and
 *    dates stay strings
 *  - quoted and block scalars are strings; !!str makes one of anything
 *  - keys are taken as the text in the file (kubectl would write y: as "true":)
 *  - anchors, aliases and << merges are resolved
 * JSON is YAML; it is accepted too.
 */

#include <stddef.h>

#include <cjson/cJSON.h>

struct fleet_error;
struct fleet_errors;

#define FLEET_YAML_SIZE_MAX     (1024 * 1024) /* bytes of text */
#define FLEET_YAML_DEPTH_MAX    64            /* nesting */
#define FLEET_YAML_NODE_MAX     100000        /* values, with those that aliases repeat */
#define FLEET_YAML_KEY_MAX      4096          /* keys of one mapping */
#define FLEET_YAML_DOCUMENT_MAX 1000          /* documents of one file */

/*
 * Read every document of a file into the list *out, owned by the caller; those without a value are
 * left out. Errors as below; -EINVAL, too, for a file without any document or with more than
 * FLEET_YAML_DOCUMENT_MAX.
 */
int fleet_yaml_documents(const char *text, size_t size, cJSON **out, struct fleet_error *err);

/*
 * The same, but reading goes on behind a wrong value: .inf and .nan, a duplicate key (the first one
 * counts), an alias without an anchor, an unknown tag or one that does not fit, an anchor on a key,
 * a NUL character, a << that names no mapping. The tree gets a number there that is not finite,
 * which no decoder accepts. Such faults of document `number` (from 0) are appended to `faults`: the
 * path of the value ("" where it is not known), "line L, column C: …". Errors are the others.
 */
int fleet_yaml_tolerate(const char *text, size_t size, int number, cJSON **out,
                        struct fleet_errors *faults, struct fleet_error *err);

/*
 * Read exactly one document. *out is owned by the caller. -EINVAL with "line L, column C: …": not
 * YAML, UTF-16, no document or more than one, a duplicate key, a key that is no scalar, an alias
 * without an anchor or inside its own anchor, .inf or .nan (JSON has neither), an unknown tag, a
 * limit above; -EFBIG: larger than FLEET_YAML_SIZE_MAX.
 */
int fleet_yaml_to_json(const char *text, size_t size, cJSON **out, struct fleet_error *err);

#endif

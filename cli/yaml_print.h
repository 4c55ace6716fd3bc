/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_YAML_PRINT_H
#define CLI_YAML_PRINT_H

/*
 * A JSON tree as YAML in block style: two spaces a level, lists below their key, every string in
 * double quotes unless it is a plain word, so that no reader takes it for something else.
 */

#include <cjson/cJSON.h>

struct fleet_strbuf;

/* Append the tree, the last line with its newline. */
void yaml_print(const cJSON *root, struct fleet_strbuf *out);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_BASE_YAML_INTERNAL_H
#define LIBFLEET_BASE_YAML_INTERNAL_H

/* What the files of yaml.h share, for them alone. */

#include <stdbool.h>
#include <stddef.h>
#include <yaml.h>

#include <cjson/cJSON.h>

#include "libfleet/base/map.h"
#include "libfleet/base/yaml.h"

/* A mapping or sequence whose end has not come yet. */
struct fleet_yaml_open {
    cJSON *node;            /* owned by its parent, the root by the reader */
    char *key;              /* mapping: read and waiting for its value, else NULL */
    int key_count;          /* mapping */
    struct fleet_map lines; /* mapping: key → the line that it stands on, as a pointer */
    char *anchor;           /* its own, usable once it is complete, or NULL */
    bool is_duplicate;      /* mapping: `key` is a duplicate, so its value goes to reader.aside */
};

struct fleet_yaml_reader {
    yaml_parser_t parser;
    cJSON *root;      /* of the document that is being read */
    cJSON *documents; /* list of those that were read */
    cJSON *aside;     /* list of values of << and of duplicate keys: anchors may be in them */
    struct fleet_yaml_open stack[FLEET_YAML_DEPTH_MAX];
    int depth;
    size_t node_count;
    bool is_single; /* a second document is an error */
    struct fleet_errors
        *faults; /* of document number `faulty`, from 0; NULL: the first is an error */
    int faulty;
    yaml_mark_t document;     /* where the one that is being read begins */
    struct fleet_map anchors; /* name → cJSON * in the tree */
};

/* ---- yaml_problem.c: -EINVAL with line and column -------------------------------------------- */

/* `what`, and `word` in quotes unless it is NULL. */
int fleet_yaml_refuse_at(yaml_mark_t mark, struct fleet_error *err, const char *what,
                         const char *word);

/* The reason why libyaml refused the text. */
int fleet_yaml_refuse_parser(const yaml_parser_t *parser, const char *text, size_t size,
                             struct fleet_error *err);

/* ---- yaml_scalar.c --------------------------------------------------------------------------- */

/* The value of a scalar without quotes, owned by the caller; NULL if JSON has no such value. */
cJSON *fleet_yaml_plain(const char *text);

/* ---- yaml_tree.c ----------------------------------------------------------------------------- */

/* Put what `event` says into the reader's tree. -EINVAL: the text is refused. */
int fleet_yaml_take_event(struct fleet_yaml_reader *reader, const yaml_event_t *event,
                          struct fleet_error *err);

/* Free a container that was not closed. */
void fleet_yaml_release_open(struct fleet_yaml_open *open);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_API_DOCUMENT_H
#define LIBFLEET_API_DOCUMENT_H

/*
 * A file that a user hands to `fleetjob`: a whole FleetJob, or a strategy alone. Its kind
 * follows from its content, never from its name:
 *
 *   YAML or JSON object with apiVersion, kind, metadata or spec    a FleetJob
 *   any other YAML or JSON object                                  a strategy, also as the value of
 *                                                                  a single key "strategy"
 *   any other text                                                 a strategy in text format
 */

#include <stdbool.h>
#include <stddef.h>

#include "libfleet/api/fleetjob.h"

struct fleet_errors;
struct fleet_strbuf;

enum document_kind {
    DOCUMENT_JOB,
    DOCUMENT_STRATEGY_JSON, /* YAML or JSON */
    DOCUMENT_STRATEGY_TEXT, /* prototxt */
};

struct document {
    enum document_kind kind;
    cJSON *json;              /* as read; NULL for text */
    bool is_broken;           /* neither YAML nor text format: no value was read */
    struct fleetjob job;      /* DOCUMENT_JOB */
    struct strategy strategy; /* the strategy alone; a job's is job.spec.strategy */
};

/*
 * Read `text`. `name` is the file's, for errors of the text format. `out` can be released after any
 * result. Paths of a job start with "spec.", those of a strategy with its knob. Returns 0, or
 * -EINVAL if errors were appended.
 */
int document_read(const char *name, const char *text, size_t size, struct document *out,
                  struct fleet_errors *errors);

/*
 * The same for a file with several YAML documents, as kubectl accepts them. document_jobs() counts
 * the FleetJobs. document_read_number() reads the FleetJob with that number, from 0, and skips
 * documents of other kinds. If the file has one document, it reads that one. document_read()
 * refuses a file with several FleetJobs.
 */
int document_jobs(const char *text, size_t size);
int document_read_number(const char *name, const char *text, size_t size, int number,
                         struct document *out, struct fleet_errors *errors);

/* The only FleetJob of a file, or its only document, as JSON; owned by the caller. `faults` gets
 * the errors of single values (fleet_yaml_tolerate()). -EINVAL: not YAML, none, several. */
int document_pick(const char *text, size_t size, cJSON **out, struct fleet_errors *faults,
                  struct fleet_error *err);

/* Add the faults of document_pick() to the errors of decoding, as "NAME: line L, …". No value is
 * reported twice. */
void document_report_faults(const char *name, const struct fleet_errors *faults,
                            struct fleet_errors *errors);

/* Append the documents of the file that are no FleetJobs, as "ConfigMap text, Secret key"; nothing
 * if there are none. */
void document_others(const char *text, size_t size, struct fleet_strbuf *out);

/* Nothing but white space and comments? */
bool document_is_blank(const char *text, size_t size);

/* Free what it holds, for every kind. */
void document_release(struct document *document);

/* The strategy of either kind. Borrowed. */
const struct strategy *document_strategy(const struct document *document);

#endif

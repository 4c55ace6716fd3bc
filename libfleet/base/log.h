/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_BASE_LOG_H
#define LIBFLEET_BASE_LOG_H

/*
 * Structured logs: a constant message and typed pairs.
 *
 *     fleet_log_info("Created pod", FLEET_STR("pod", name), FLEET_INT("rank", rank));
 *     I1121 04:41:07.123456 Created pod pod="gpt-worker-0-0" rank=0
 *
 * Message: a constant; capital first letter, past tense, no full stop. Keys: lowerCamelCase, the
 * same key for the same thing everywhere. Each line of the controller that is about a job has the
 * key job ("namespace/name"); each line of agent and trainer has pod, and rank and generation from
 * the first generation on (fleet_log_set_context). Others: peerRank, localRank, step, err. libfleet
 * and agent/runtime return errors instead of logging; programs log where an error stops travelling.
 *
 * Lines go to stderr in one write each, so processes that share it do not mix within a line. Any
 * thread may log. A process that must not wait for the reader of stderr calls fleet_log_to().
 */

#include <stdint.h>

struct fleet_error;

enum fleet_log_level {
    FLEET_LOG_ERROR, /* someone may have to act */
    FLEET_LOG_WARNING,
    FLEET_LOG_INFO,  /* facts of a life cycle */
    FLEET_LOG_DEBUG, /* decisions; shown with verbosity >= 2 */
};

enum fleet_log_form {
    FLEET_LOG_TEXT,
    FLEET_LOG_JSON
};

struct fleet_log_pair {
    const char *key; /* NULL ends the list */
    enum {
        FLEET_LOG_STRING,
        FLEET_LOG_INTEGER,
        FLEET_LOG_NUMBER
    } kind;
    const char *text; /* NULL prints as "" */
    int64_t integer;
    double number;
};

#define FLEET_STR(k, v) ((struct fleet_log_pair){.key = (k), .kind = FLEET_LOG_STRING, .text = (v)})
#define FLEET_INT(k, v) \
    ((struct fleet_log_pair){.key = (k), .kind = FLEET_LOG_INTEGER, .integer = (int64_t)(v)})
#define FLEET_NUM(k, v) \
    ((struct fleet_log_pair){.key = (k), .kind = FLEET_LOG_NUMBER, .number = (double)(v)})

#define FLEET_LOG_FORMAT_ENV "FLEET_LOG_FORMAT" /* text or json: of agent and trainer */

/* "text" or "json". -EINVAL: something else; the error names both. */
int fleet_log_form_parse(const char *text, enum fleet_log_form *out, struct fleet_error *err);

/* The form that $FLEET_LOG_FORMAT asks for, text if it is not set. -EINVAL as above, with its
 * name. */
int fleet_log_form_read(enum fleet_log_form *out, struct fleet_error *err);

/* Process-wide settings; call before other threads start. */
void fleet_log_setup(enum fleet_log_form form, int verbosity);
enum fleet_log_form fleet_log_get_form(void);

#define FLEET_LOG_CONTEXT_MAX 4

/*
 * Each line has these pairs from now on, before its own; a line's own pair of the same key replaces
 * the context's. `pairs` ends with key NULL, has at most FLEET_LOG_CONTEXT_MAX and is copied; keys
 * are static, texts are cut at 255 bytes. Any thread.
 */
void fleet_log_set_context(const struct fleet_log_pair *pairs);

struct fleet_line_writer;

/* Lines go through `writer` (borrowed) from now on, so that no log call waits for a reader of
 * stderr; NULL: to stderr directly again. Call it while no other thread logs. */
void fleet_log_to(struct fleet_line_writer *writer);

/* One line; `pairs` ends with key NULL. Called through the macros below, which make the list. If
 * stderr does not take a line, the line is lost. */
void fleet_log_write(enum fleet_log_level level, const char *message,
                     const struct fleet_log_pair *pairs);

/* What fleet_log_write() writes, appended, with the newline. */
struct fleet_strbuf;
void fleet_log_append(struct fleet_strbuf *out, enum fleet_log_level level, const char *message,
                      const struct fleet_log_pair *pairs);

#define FLEET_LOG_(level, message, ...) \
    fleet_log_write((level), (message), \
                    (const struct fleet_log_pair[]){__VA_ARGS__ __VA_OPT__(, ){.key = 0}})

#define fleet_log_error(message, ...)   FLEET_LOG_(FLEET_LOG_ERROR, message, __VA_ARGS__)
#define fleet_log_warning(message, ...) FLEET_LOG_(FLEET_LOG_WARNING, message, __VA_ARGS__)
#define fleet_log_info(message, ...)    FLEET_LOG_(FLEET_LOG_INFO, message, __VA_ARGS__)
#define fleet_log_debug(message, ...)   FLEET_LOG_(FLEET_LOG_DEBUG, message, __VA_ARGS__)

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_CUDA_FAKE_ITEMS_H
#define TESTS_CUDA_FAKE_ITEMS_H

/*
 * What streams.c, work.c and graphs.c share: a stream is a list of items, and so is a graph. The
 * caller of each function holds the lock (fake.h), if it does not say otherwise.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "tests/cuda_emulator/emulator.h"
#include "tests/cuda_fake/external.h"

enum item_kind {
    ITEM_KERNEL,
    ITEM_COPY,
    ITEM_FILL,
    ITEM_RECORD,
    ITEM_WAIT,
    ITEM_EXTERNAL,
};

struct item {
    enum item_kind kind;
    struct item *next;
    int branch;                    /* of a graph */
    uint64_t number;               /* in the order of putting */
    struct CUgraphExec_st *origin; /* that it is a part of, or NULL */
    union {
        struct {
            const char *name;
            emulator_body body;
            void *arguments;
            size_t argument_bytes;
            struct emulator_index grid, block;
            size_t dynamic_bytes;
        } kernel;
        struct {
            void *to;
            const void *from;
            size_t bytes;
            int value;
            int way; /* enum cudaMemcpyKind */
        } copy;
        struct {
            struct CUevent_st *event;
            uint64_t record;
        } event;
        struct {
            const struct external_work *work;
            void *context; /* gone once it has ended */
            bool has_ended;
        } external;
    };
};

struct CUstream_st {
    struct external_stream external; /* first */
    struct item *first, **last;
    uint64_t put;             /* number of its newest item */
    struct CUgraph_st *graph; /* that captures what is put; NULL: none */
    int branch;               /* of that graph: 0 is the stream that it began in */
    bool is_joined;           /* branch 0 waits for all of it so far */
};

/* A stream that only graphs use; the events of one, which a graph has a copy of. */
struct CUstream_st *fake_stream_new(void);
void fake_stream_free(struct CUstream_st *stream);

/* Freed when neither the program nor an item needs it. */
struct CUevent_st {
    uint64_t recorded, happened; /* records that were put; that have run */
    struct timespec at;          /* when the newest one ran */
    bool has_time;
    int users;
    struct CUgraph_st *graph; /* its newest record is in this capture; NULL: in none */
    int branch;
};

struct CUevent_st *fake_event_new(bool has_time);
void fake_event_drop(struct CUevent_st *event);

/* Put a record of the event, or a wait for its newest record. */
struct item *fake_put_record(struct CUstream_st *stream, struct CUevent_st *event);
struct item *fake_put_wait(struct CUstream_st *stream, struct CUevent_st *event);

/* A new item at the end of the stream, or of the graph that it captures. */
struct item *fake_put(struct CUstream_st *stream, enum item_kind kind);

/* Now and then the device does something by itself. */
void fake_let_run(void);

/* ---- work.c ---------------------------------------------------------------------------------- */

/* A kernel for the emulator; the arguments are copied. The error of fake_call(). Takes the lock. */
int fake_put_kernel(void *stream, const char *kernel, emulator_body body, const void *arguments,
                    size_t bytes, struct emulator_index grid, struct emulator_index block,
                    size_t dynamic_bytes);

/* Work of another library (external.h). Takes the lock. */
void fake_put_external(struct CUstream_st *stream, const struct external_work *work, void *context);

/* Ends the process unless both sides of a copy, or the side of a fill, are memory that it may use.
 */
void fake_check_item(const struct item *item);

/* ---- graphs.c -------------------------------------------------------------------------------- */

/* The item joins the graph of a stream. */
void fake_graph_add(struct CUstream_st *stream, struct item *item);

/* A stream waits for an event that a capture has recorded: it joins that capture. */
void fake_graph_wait(struct CUstream_st *stream, struct CUevent_st *event);

/* An item of the graph has run. */
void fake_graph_ran(struct CUgraphExec_st *executable);

/* The error of a call that a thread must not make while it captures, or no thread if it is a wait
 * for the captured stream; else 0. The capture is lost then. `stream` NULL: none. */
int fake_graph_forbids(const struct CUstream_st *stream);
int fake_graphs_held(void);

#endif

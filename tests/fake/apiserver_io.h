/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FAKE_APISERVER_IO_H
#define TESTS_FAKE_APISERVER_IO_H

/*
 * The outside world in virtual time: `struct kube_io` connected to the fake API server.
 *
 * Time stands still while anything runs, and then jumps to the next deadline. Latencies and faults
 * come from one seed, so a history can be replayed. Several of these (one per controller) may share
 * one server if the caller turns them in step; see fake_io_next_ms() and fake_io_turn().
 */

#include <stdbool.h>
#include <stdint.h>

#include "libfleet/kube/io.h"

struct fake_apiserver;
struct fake_io;

struct fake_io *fake_io_new(struct fake_apiserver *server, uint64_t seed);
void fake_io_free(struct fake_io *io);

struct kube_io *fake_io_kube(struct fake_io *io);

/* ---- what is odd about the network; may be changed at any time ------------------------------- */

struct fake_weather {
    double latency_min_ms, latency_max_ms; /* each way; 1 and 1 at the start */
    double lost_request; /* probability that a request does not arrive, and times out */
    double lost_answer;  /* … that it arrives, and its answer does not */
    double cut_stream;   /* … per piece of a stream, that the stream breaks there */
    bool unreachable;    /* nothing arrives; streams are silent */
    size_t answer_max; /* bytes of an answer that are taken, as KUBE_RESPONSE_MAX; 0: any number */
};

struct fake_weather *fake_io_weather(struct fake_io *io);

/* How often an open stream is polled; every 2 ms at the start. */
void fake_io_set_stream_pause(struct fake_io *io, double pause_ms);

/* ---- time ------------------------------------------------------------------------------------ */

double fake_io_now_ms(const struct fake_io *io);

/* Until when a fault of the network or of the server has held up one of the calls: a request or an
 * answer that was lost, a failure that was ordered, a stream that ended. -1: never. */
double fake_io_hindered_ms(const struct fake_io *io);

/* The time of the next deadline; HUGE_VAL: none. The first function does not count polls of streams
 * that have nothing new, the second does. */
double fake_io_next_ms(const struct fake_io *io);
double fake_io_next_look_ms(const struct fake_io *io);

/* Record that open streams were polled until `now_ms` without result. For a caller that turns
 * several of these: before one of them may change something at that time. */
void fake_io_pass_looks(struct fake_io *io, double now_ms);

/* Set the time to `now_ms` (not earlier than it was) and run what is due by then. */
void fake_io_turn(struct fake_io *io, double now_ms);

/* Turn until `duration_ms` from now. */
void fake_io_run(struct fake_io *io, double duration_ms);

/* Turn until *flag is at least `value`, at most `limit_ms`; false if it is not. */
bool fake_io_run_until(struct fake_io *io, const int *flag, int value, double limit_ms);

/* A process that was stopped: time passes, nothing runs, and then everything that was due does. */
void fake_io_freeze(struct fake_io *io, double duration_ms);

#endif

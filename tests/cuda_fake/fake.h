/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_CUDA_FAKE_FAKE_H
#define TESTS_CUDA_FAKE_FAKE_H

/*
 * A libcudart without a GPU, for the host's half of cuda/: one device per process, whose kernels
 * the emulator runs (tests/cuda_emulator). README.md says what it finds.
 *
 *  - Device memory is PROT_NONE while nothing of the device runs, so an access by the host ends the
 *    process. It is filled with NaNs when it is new.
 *  - Nothing that is put into a stream runs before the host waits for something or looks at an
 *    event. Then a seeded generator picks the stream that goes on, one item at a time.
 *  - While a stream is captured, calls that CUDA forbids then fail (graphs.c).
 *  - A copy must stay inside one allocation; its host side must be pinned.
 *  - An error of a kernel is sticky: every later call returns it.
 *
 * The environment of a program that opens the fake library sets:
 *   FAKE_CUDA_SEED      the order of streams (1)
 *   FAKE_CUDA_FAIL      N:CODE[:FILE]: call number N of a process, from 1, returns CODE, as do all
 *                       after it if the code is sticky; with a FILE only in the process that makes
 *                       this file
 *   FAKE_CUDA_GRAPHED   a file that the first launch of a graph makes
 *   FAKE_CUDA_GRAPHED_OTHER  a file that gets a byte from each launch of a graph with another
 *                       library's work
 *   FAKE_CUDA_REPORT    a file that gets a line at the end of each process: the most bytes of the
 *                       device that it held at once, and the number of its allocations there
 *   FAKE_CUDA_MEMORY    bytes of the device (1 GiB)
 *   FAKE_CUDA_DEVICES   their number (1)
 *   FAKE_CUDA_CAPABILITY  major · 10 + minor (90)
 *   FAKE_CUDA_DRIVER    the driver's version as CUDA counts (13000); 0: there is none
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a test in the same process sets in place of the environment; the next call counts as 1. */
void fake_cuda_reset(uint64_t seed);
void fake_cuda_fail(long call, int code); /* 0: none fails */
long fake_cuda_calls(void);               /* since fake_cuda_reset() */

/* Allocations, streams, events and graphs that are not freed. */
int fake_cuda_held(void);

long fake_cuda_graph_launches(void); /* since the process began */
long fake_cuda_waits(void);          /* of the host for a stream or an event, since then */

/* Items that ran in another order than they were put, over all streams. */
long fake_cuda_overtakings(void);

/* ---- between memory.c and streams.c of this folder ------------------------------------------- */

/* Open and close all device memory for what the device does. */
void fake_memory_open(void);
void fake_memory_close(void);

/* memset(); of zeros the system gives new pages, which cost nothing to open and close. */
void fake_memory_fill(void *memory, int value, size_t bytes);

/* Does [memory, + bytes) lie in one allocation of the device, or of pinned memory? */
bool fake_memory_is_device(const void *memory, size_t bytes);
bool fake_memory_is_pinned(const void *memory, size_t bytes);
int fake_memory_held(void);

void fake_lock(void);
void fake_unlock(void);

/* Count a call; the error that it is to return, or 0. The caller holds the lock. */
int fake_call(const char *name);
void fake_calls_reset(void);
void fake_calls_break(int code); /* all calls from now on return it */
int fake_calls_broken(void);
long fake_setting(const char *name, long otherwise);

/* Run all that is in all streams. The caller holds the lock. */
void fake_run_all(void);

/* End the process: the program has done what CUDA does not allow. */
void fake_die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

#endif

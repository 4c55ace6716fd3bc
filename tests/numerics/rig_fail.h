/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_NUMERICS_RIG_FAIL_H
#define TESTS_NUMERICS_RIG_FAIL_H

/* How a rig gives up: it fails the case of a recording (where runner.h was included before it), the
 * cmocka test (where cmocka.h was), or ends the program (a benchmark). */
#if defined(TESTS_GOLDEN_RUNNER_H)
#define rig_fail golden_fail
#elif defined(CMOCKA_H_)
#define rig_fail fail_msg
#else
#include <stdio.h>
#include <stdlib.h>
#define rig_fail(...) ((void)fprintf(stderr, __VA_ARGS__), (void)fputc('\n', stderr), exit(1))
#endif

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SUPPORT_PROGRAM_TEXT_H
#define TESTS_SUPPORT_PROGRAM_TEXT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "libfleet/base/error.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/program/print.h"

/* The text of a program, read and printed again, must be the same text; else the test fails. */
static inline void program_text_reads_back(const struct program *program)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0}, again = {0};
    struct fleet_error err = {.text = ""};
    struct program read;

    print_program(program, &text);
    if (print_parse(text.text, text.length, &read, &err) < 0)
        fail_msg("%s", err.text);
    print_program(&read, &again);
    assert_string_equal(text.text, again.text);
    program_release(&read);
}

#endif

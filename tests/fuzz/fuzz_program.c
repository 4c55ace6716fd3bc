/* SPDX-License-Identifier: Apache-2.0 */

/* Any text: an error or a program that prints to a text that reads back to the same text; if it
 * verifies, its memory can be planned. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/plan/memory_plan.h"
#include "libfleet/program/print.h"
#include "libfleet/program/verify.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf first = {0}, second = {0};
    struct program program, again;
    struct memory_plan plan;

    if (print_parse((const char *)data, size, &program, NULL) < 0)
        return 0;
    print_program(&program, &first);
    fleet_assert(print_parse(first.text, first.length, &again, NULL) == 0);
    print_program(&again, &second);
    fleet_assert(strcmp(first.text, second.text) == 0);
    program_release(&again);

    if (verify_program(&program, VERIFY_FORWARD, NULL) == 0 &&
        memory_plan_build(&program, NULL, 0, &plan, NULL) == 0)
        memory_plan_release(&plan);
    program_release(&program);
    return 0;
}

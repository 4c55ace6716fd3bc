/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_DATA_UNICODE_CLASSES_H
#define AGENT_RUNTIME_DATA_UNICODE_CLASSES_H

/* Kinds of characters that GPT-2's rule for splitting text distinguishes. */

#include <stdint.h>

enum unicode_class {
    UNICODE_OTHER,
    UNICODE_LETTER,
    UNICODE_NUMBER,
    UNICODE_SPACE,
};

/* Any number is fine; what is no code point is OTHER. */
enum unicode_class unicode_class_of(uint32_t code);

#endif

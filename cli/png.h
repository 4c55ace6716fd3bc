/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_PNG_H
#define CLI_PNG_H

/*
 * Pixels as a PNG (W3C Portable Network Graphics, second edition): 8 bits of red, green and blue, each
 * row as its difference to the one above, deflate with the fixed codes of RFC 1951 and matches of
 * distance 1 only. Drawings are mostly ground, so that is small enough.
 */

#include <stdint.h>

#include "libfleet/base/strbuf.h"

/* Append the file of pixels[height][width][3]. */
void png_append(struct fleet_strbuf *out, const uint8_t *pixels, uint32_t width, uint32_t height);

#endif

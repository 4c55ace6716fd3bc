/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_BASE_ISA_H
#define LIBFLEET_BASE_ISA_H

/*
 * Instruction-set levels of a processor, lowest first. Equal bits are promised per level; a
 * generation runs at the lowest level of its members, and a checkpoint says at which it was
 * computed. What this machine has: agent/runtime/backend/cpu/backend_level.h.
 */

enum fleet_isa {
    FLEET_ISA_PLAIN,      /* plain C loops, no library: the reference, and for thread sanitizer */
    FLEET_ISA_AVX2,       /* AVX2 + FMA + F16C */
    FLEET_ISA_AVX512,     /* AVX-512 F, BW, DQ, VL */
    FLEET_ISA_AVX512BF16, /* and BF16 */
    FLEET_ISA_AMX,        /* and AMX tiles with BF16 */
    FLEET_ISA_COUNT,
};

/* "plain", "avx2", "avx512", "avx512bf16", "amx": as in the variable FLEET_ISA, in messages and in
 * checkpoints. NULL behind the last. */
extern const char *const fleet_isa_names[FLEET_ISA_COUNT + 1];

/* FLEET_ISA_COUNT if `name` is none of them. */
enum fleet_isa fleet_isa_parse(const char *name);

#endif

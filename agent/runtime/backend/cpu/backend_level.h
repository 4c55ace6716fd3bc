/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_BACKEND_CPU_BACKEND_LEVEL_H
#define AGENT_RUNTIME_BACKEND_CPU_BACKEND_LEVEL_H

/* Instruction-set levels of x86 processors: which there are, and which this machine has. */

struct fleet_error;

/* Instruction-set levels of the CPU back end, ascending; equal bits are promised per level. */
enum backend_level {
    BACKEND_LEVEL_PLAIN,  /* plain C loops, no library: the reference, and for thread sanitizer */
    BACKEND_LEVEL_AVX2,   /* AVX2 + FMA + F16C */
    BACKEND_LEVEL_AVX512, /* AVX-512 F, BW, DQ, VL */
    BACKEND_LEVEL_AVX512BF16, /* and BF16 */
    BACKEND_LEVEL_AMX,        /* and AMX tiles with BF16 */
    BACKEND_LEVEL_COUNT,
};

/* "plain", "avx2", "avx512", …: as in FLEET_ISA, messages and checkpoints. */
const char *backend_level_name(enum backend_level level);

/* BACKEND_LEVEL_COUNT if `name` is none of them. */
enum backend_level backend_level_parse(const char *name);

/* The highest level this machine has (CPUID and what the kernel lets us use, which for AMX is
 * asked for here). */
enum backend_level backend_level_of_machine(void);

/* -EINVAL with the names of all levels if the environment variable FLEET_ISA is none of them. */
int backend_level_check(struct fleet_error *err);

/* The machine's, lowered by FLEET_ISA if that is set to a lower one. */
enum backend_level backend_level_detect(void);

#endif

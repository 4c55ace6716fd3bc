/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Which instruction-set level this machine has. CPUID says what the processor can, XCR0 what the
 * kernel saves at a context switch, arch_prctl whether we may use AMX tiles (Intel SDM volume 1,
 * 13.1 to 13.3; Linux Documentation/arch/x86/xstate.rst).
 */
#include "agent/runtime/backend/cpu/backend_level.h"

#include <cpuid.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/base/strbuf.h"

#define LEVEL_ENV           "FLEET_ISA"
#define XCR0_AVX            0x6u     /* SSE and AVX state */
#define XCR0_AVX512         0xe6u    /* and mask registers, upper halves, upper registers */
#define XCR0_AMX            0x60000u /* tile configuration and data */
#define ARCH_REQ_XCOMP_PERM 0x1023
#define XFEATURE_TILE_DATA  18
#define CPUID_AMX_BF16      (1u << 22) /* leaf 7, edx; older <cpuid.h> have no names for these */
#define CPUID_AMX_TILE      (1u << 24)

struct cpuid {
    unsigned int a, b, c, d;
};

static struct cpuid cpuid(unsigned int leaf, unsigned int subleaf)
{
    struct cpuid r = {0};

    if (!__get_cpuid_count(leaf, subleaf, &r.a, &r.b, &r.c, &r.d))
        return (struct cpuid){0};
    return r;
}

static bool has_bits(uint64_t value, uint64_t wanted)
{
    return (value & wanted) == wanted;
}

/* The registers that the kernel saves at a context switch; 0 if that is not known. */
static uint64_t state_kept(struct cpuid features)
{
    uint32_t low, high;

    if (!has_bits(features.c, bit_OSXSAVE))
        return 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static bool can_use_tiles(void)
{
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_TILE_DATA) == 0;
}

enum fleet_isa backend_level_of_machine(void)
{
    struct cpuid one = cpuid(1, 0), seven = cpuid(7, 0), seven1 = cpuid(7, 1);
    uint64_t kept = state_kept(one);

    if (!has_bits(kept, XCR0_AVX) || !has_bits(one.c, bit_FMA | bit_F16C | bit_AVX) ||
        !has_bits(seven.b, bit_AVX2))
        return FLEET_ISA_PLAIN;
    if (!has_bits(kept, XCR0_AVX512) ||
        !has_bits(seven.b, bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL))
        return FLEET_ISA_AVX2;
    if (!has_bits(seven1.a, bit_AVX512BF16))
        return FLEET_ISA_AVX512;
    if (!has_bits(kept, XCR0_AMX) || !has_bits(seven.d, CPUID_AMX_TILE | CPUID_AMX_BF16) ||
        !can_use_tiles())
        return FLEET_ISA_AVX512BF16;
    return FLEET_ISA_AMX;
}

int backend_level_check(struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf names = {0};
    const char *wanted = getenv(LEVEL_ENV);

    if (!wanted || !wanted[0] || fleet_isa_parse(wanted) < FLEET_ISA_COUNT)
        return 0;
    for (int i = 0; i < FLEET_ISA_COUNT; i++)
        fleet_strbuf_appendf(&names, "%s%s", i ? ", " : "", fleet_isa_names[i]);
    return fleet_error(err, -EINVAL, LEVEL_ENV " is \"%.40s\", not one of %s", wanted, names.text);
}

enum fleet_isa backend_level_detect(void)
{
    enum fleet_isa level = backend_level_of_machine();
    const char *wanted = getenv(LEVEL_ENV);

    if (wanted && fleet_isa_parse(wanted) < level)
        return fleet_isa_parse(wanted);
    return level;
}

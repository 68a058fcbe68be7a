// tables.cpp: which kernel tables this machine runs, and the kernel of an op in one of them.
#include "isa/amx.h"

#include "refuse.h"
#include "vm.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace gradloom {
namespace {

// Tiles of bf16, and the system's permission to use them, which holds for all threads of the process.
[[maybe_unused]] bool amx_usable() {
#if defined(__x86_64__) && defined(__linux__)
  unsigned a, b, c, d;
  constexpr unsigned tiles_and_bf16 = 1u << 24 | 1u << 22;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & tiles_and_bf16) != tiles_and_bf16) return false;
  constexpr long ask_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, ask_permission, tile_data) == 0;
#else
  return false;
#endif
}

#if defined(__x86_64__)
// What the processor has and the system saves, asked by CPUID itself: __builtin_cpu_supports needs a run-time library that
// not every compiler comes with.
struct Features {
  bool avx2 = false, avx512 = false, bf16 = false, intel = false;  // avx2 with FMA and F16C; avx512: F, BW, DQ and VL

  Features() {
    unsigned a, b, c, d;
    if (!__get_cpuid(0, &a, &b, &c, &d)) return;
    intel = b == signature_INTEL_ebx;
    constexpr unsigned fma = 1u << 12, saves = 1u << 27, avx = 1u << 28, f16c = 1u << 29, first = fma | saves | avx | f16c;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & first) != first) return;
    unsigned low, high;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    constexpr unsigned ymm = 0x6, zmm = 0xe6;  // of XCR0
    if ((low & ymm) != ymm || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return;
    avx2 = b & 1u << 5;
    constexpr unsigned f = 1u << 16, dq = 1u << 17, bw = 1u << 30, vl = 1u << 31, second = f | dq | bw | vl;
    avx512 = avx2 && (low & zmm) == zmm && (b & second) == second;
    bf16 = avx512 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 5);
  }
};
#endif

}  // namespace

std::vector<const KernelTable*> tables() {
  std::vector<const KernelTable*> usable;
#if defined(__x86_64__)
  static const Features cpu;
#ifdef GL_HAVE_AVX512
  const bool avx512 = cpu.avx512;
#ifdef GL_HAVE_AVX512BF16
  const bool bf16 = cpu.bf16;
#ifdef GL_HAVE_AMX
  static const bool amx = bf16 && amx_usable();
  if (amx) usable.push_back(&kTable_amx);
#endif
  // VDPBF16PS does twice what multiply-adds do on AMD's processors (Zen 5: 537 beside 268 GFLOP/s of a core), and half of
  // it on Intel's (Emerald Rapids: 85 beside 167), where the f32 product of the rounded numbers is the faster one.
  const bool slow = cpu.intel;
  if (bf16 && !slow) usable.push_back(&kTable_avx512bf16);
#endif
  if (avx512) usable.push_back(&kTable_avx512);
#ifdef GL_HAVE_AVX512BF16
  if (bf16 && slow) usable.push_back(&kTable_avx512bf16);
#endif
#endif
#ifdef GL_HAVE_AVX2
  if (cpu.avx2) usable.push_back(&kTable_avx2);
#endif
#endif
  usable.push_back(&kTable_scalar);
#ifdef GL_HAVE_AVX512
  if (avx512) {
    usable.push_back(&kTable_amx_twin);
    usable.push_back(&kTable_avx512bf16_twin);
  }
#endif
  return usable;
}

const KernelTable& find_table(const std::string& isa) {
  std::string have;
  for (const KernelTable* t : tables()) {
    if (isa == t->isa) return *t;
    have += have.empty() ? "" : ", ";
    have += t->isa;
  }
  refuse("isa %s: this machine runs %s", isa.c_str(), have.c_str());
}

const KernelRow& find_kernel(const KernelTable& table, const std::string& name, const std::string& signature) {
  std::string have;
  for (const KernelTable* t = &table; t; t = t->below)
    for (size_t i = 0; i < t->count; i++) {
      const KernelRow& row = t->rows[i];
      if (name != row.name) continue;
      if (signature == row.signature) return row;
      have += have.empty() ? "" : ", ";
      have += row.signature;
    }
  if (have.empty()) refuse("kernel %s %s: isa %s has no %s", name.c_str(), signature.c_str(), table.isa, name.c_str());
  refuse("kernel %s %s: isa %s has %s for %s", name.c_str(), signature.c_str(), table.isa, name.c_str(), have.c_str());
}

}  // namespace gradloom

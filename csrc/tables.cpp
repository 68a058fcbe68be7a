// tables.cpp: which kernel tables this machine runs, and the kernel of an op in one of them.
#include "isa/tables.h"

#include "refuse.h"
#include "vm.h"

namespace gradloom {

std::vector<const KernelTable*> tables() {
  std::vector<const KernelTable*> usable;
#if defined(__x86_64__)
  __builtin_cpu_init();
#ifdef GL_HAVE_AVX512
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2");
#ifdef GL_HAVE_AVX512BF16
  if (avx512 && __builtin_cpu_supports("avx512bf16")) usable.push_back(&kTable_avx512bf16);
#endif
  if (avx512) usable.push_back(&kTable_avx512);
#endif
#ifdef GL_HAVE_AVX2
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) usable.push_back(&kTable_avx2);
#endif
#endif
  usable.push_back(&kTable_scalar);
#ifdef GL_HAVE_AVX512
  if (avx512) usable.push_back(&kTable_avx512bf16_twin);
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

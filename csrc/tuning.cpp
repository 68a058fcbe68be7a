// tuning.cpp: the table, and the row of this processor.
#include "tuning.h"

#include <atomic>

#include "processor.h"
#include "refuse.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace gradloom {
namespace {

// What was measured (bench/gemm.py, f32, large shapes, % of the FMA peak):
//   Zen 4, 1 MB of L2: 91-97 with the last row.
//   Zen 5 (family 26), 1 MB of L2: 89 with the last row, 93 with the second (2048x2048x2048: 78 and 92); with groups of
//   96 columns and rows fetched 91, with 192 93 and, on two threads, 90. Products of bf16: no difference.
//   Emerald Rapids, 2 MB of L2 and a slow third level: 78 with the last row, 82 with the first (means over shapes and
//   forms, beside other work; 2048x2048x2048: 74 and 83). What costs there are rows of A that come from the third level
//   and that nobody asked for in time; groups of 192 columns halve how often they come.
// The first row that fits is taken; the last fits every processor.
constexpr Tuning kTable[] = {
    {"intel-l2-2m", "GenuineIntel", 6, 2 << 20, 192, true},
    {"amd-family-26", "AuthenticAMD", 26, 1 << 20, 160, true},
    {"default", "", 0, 0, 96, false},
};

const Tuning* row_of_this_processor() {
  const Processor cpu = processor();
  const Tuning* row = kTable;
  while (row->vendor[0] && (cpu.vendor != row->vendor || cpu.family != row->family || cpu.l2 < row->least_l2)) row++;
  return row;
}

std::atomic<const Tuning*> chosen{nullptr};

}  // namespace

const Tuning& tuning() {
  const Tuning* row = chosen.load(std::memory_order_acquire);
  if (!row) {
    const Tuning* mine = row_of_this_processor();
    row = chosen.compare_exchange_strong(row, mine, std::memory_order_acq_rel) ? mine : row;
  }
  return *row;
}

std::vector<std::string> tunings() {
  std::vector<std::string> names;
  for (const Tuning& t : kTable) names.emplace_back(t.name);
  return names;
}

void use_tuning(const std::string& name) {
  std::string have;
  for (const Tuning& t : kTable) {
    if (name == t.name) {
      const Tuning* none = nullptr;
      if (chosen.compare_exchange_strong(none, &t, std::memory_order_acq_rel)) return;
      refuse("use_tuning %s: this process uses %s already", name.c_str(), none->name);
    }
    have += have.empty() ? "" : ", ";
    have += t.name;
  }
  refuse("use_tuning %s: there are %s", name.c_str(), have.c_str());
}

Processor processor() {
  Processor cpu{"", 0, 0, 0, 0};
#if defined(__x86_64__)
  unsigned a, b, c, d;
  if (!__get_cpuid(0, &a, &b, &c, &d)) return cpu;
  for (unsigned word : {b, d, c})
    for (int i = 0; i < 4; i++) cpu.vendor += static_cast<char>(word >> 8 * i & 0xff);
  if (__get_cpuid(1, &a, &b, &c, &d)) {
    cpu.family = static_cast<int>(a >> 8 & 0xf);
    cpu.model = static_cast<int>(a >> 4 & 0xf);
    if (cpu.family == 6 || cpu.family == 15) cpu.model += static_cast<int>(a >> 16 & 0xf) << 4;
    if (cpu.family == 15) cpu.family += static_cast<int>(a >> 20 & 0xff);
  }
  // Leaf 4 (Intel) and its twin (AMD) list the caches: kind and level, then ways, partitions, length of a line, sets.
  const unsigned leaf = cpu.vendor == "AuthenticAMD" ? 0x8000001du : 4u;
  for (unsigned i = 0; i < 16 && __get_cpuid_count(leaf, i, &a, &b, &c, &d) && a & 0x1f; i++) {
    constexpr unsigned code = 2;
    const int64_t bytes = int64_t{(b >> 22) + 1} * ((b >> 12 & 0x3ff) + 1) * ((b & 0xfff) + 1) * (int64_t{c} + 1);
    if ((a & 0x1f) == code) continue;
    if ((a >> 5 & 7) == 1) cpu.l1 = bytes;
    if ((a >> 5 & 7) == 2) cpu.l2 = bytes;
  }
#endif
  return cpu;
}

}  // namespace gradloom

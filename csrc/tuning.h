// tuning.h: what matrix products are told of the processor's caches. A row changes which memory is near when it is
// needed, and nothing else: blocks of k, the order of sums, parts and memory are one per instruction set.
// No standard containers: kernels include this.
#pragma once
#include <cstdint>

namespace gradloom {

struct Tuning {
  const char* name;
  const char* vendor;  // as CPUID says it; of these processors, those whose ...
  int family;
  int64_t least_l2;    // ... second-level cache has so many bytes
  int64_t group;       // columns of packed B that stay in the second-level cache; at most kGroupMost
  bool fetch_rows;     // while the tiles of some rows of A run, the rows that follow are fetched, not B's columns alone
};
constexpr int64_t kGroupMost = 192;

const Tuning& tuning();  // the row that this process uses, chosen by the first call

}  // namespace gradloom

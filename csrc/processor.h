// processor.h: the processor, as CPUID tells of it, and the rows of tuning.h.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace gradloom {

struct Processor {
  std::string vendor;  // "" and zeros: unknown
  int family, model;
  int64_t l1, l2;      // bytes of a core's data caches
};
Processor processor();

std::vector<std::string> tunings();        // names of the rows
void use_tuning(const std::string& name);  // for tests; refused once the process has chosen

}  // namespace gradloom

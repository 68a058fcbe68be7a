// refuse.h: how the core refuses what it is given.
#pragma once
#include <cstdarg>
#include <cstdio>
#include <stdexcept>

namespace gradloom {

// Throws std::invalid_argument with a text of printf's form.
[[noreturn]] inline __attribute__((format(printf, 1, 2))) void refuse(const char* format, ...) {
  char text[512];
  va_list list;
  va_start(list, format);
  std::vsnprintf(text, sizeof text, format, list);
  va_end(list);
  throw std::invalid_argument(text);
}

using ull = unsigned long long;  // what %llu takes

}  // namespace gradloom

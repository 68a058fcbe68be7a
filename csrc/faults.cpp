// faults.cpp: operator new of a build for fault injection. The linker sends the core's calls here (--wrap), and no others.
#include "faults.h"

#include <cstddef>
#include <new>

namespace {

constexpr size_t kCounted = 1024;  // bytes: bytecode, teams; what is smaller is the allocator's own business

bool refused(size_t bytes) { return bytes >= kCounted && gradloom::fault("new"); }

}  // namespace

extern "C" {

void* __real__Znwm(size_t bytes);
void* __real__ZnwmSt11align_val_t(size_t bytes, std::align_val_t alignment);
void* __real__ZnwmRKSt9nothrow_t(size_t bytes, const std::nothrow_t& tag) noexcept;
void* __real__ZnwmSt11align_val_tRKSt9nothrow_t(size_t bytes, std::align_val_t alignment,
                                                const std::nothrow_t& tag) noexcept;

void* __wrap__Znwm(size_t bytes) {
  if (refused(bytes)) throw std::bad_alloc();
  return __real__Znwm(bytes);
}
void* __wrap__ZnwmSt11align_val_t(size_t bytes, std::align_val_t alignment) {
  if (refused(bytes)) throw std::bad_alloc();
  return __real__ZnwmSt11align_val_t(bytes, alignment);
}
void* __wrap__ZnwmRKSt9nothrow_t(size_t bytes, const std::nothrow_t& tag) noexcept {
  return refused(bytes) ? nullptr : __real__ZnwmRKSt9nothrow_t(bytes, tag);
}
void* __wrap__ZnwmSt11align_val_tRKSt9nothrow_t(size_t bytes, std::align_val_t alignment,
                                                const std::nothrow_t& tag) noexcept {
  return refused(bytes) ? nullptr : __real__ZnwmSt11align_val_tRKSt9nothrow_t(bytes, alignment, tag);
}

}  // extern "C"

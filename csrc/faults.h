// faults.h: which allocations fail in a build for fault injection (GRADLOOM_FAULTS; tests/faults.sh). There the core asks
// the library that the tests preload (tests/faults/faults.cpp). In any other build nothing of this is compiled.
#pragma once

namespace gradloom {

#ifdef GL_FAULTS
constexpr bool kFaults = true;
extern "C" __attribute__((weak, visibility("default"))) int gl_fault(const char* call);
inline bool fault(const char* call) { return gl_fault && gl_fault(call); }  // count this call; true: it is to fail
#else
constexpr bool kFaults = false;
constexpr bool fault(const char*) { return false; }
#endif

}  // namespace gradloom

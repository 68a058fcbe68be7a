// threads_check.cpp: teams of changing width, with short sleeps at random after the loads whose order matters: as if the
// core were taken away there. A run that hangs is ended by alarm().
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <random>
#include <system_error>
#include <thread>

#include <sched.h>
#include <unistd.h>

static int sleep_at_times(std::memory_order order) {  // always 0
  static std::atomic<unsigned> threads{0};
  static thread_local std::minstd_rand random(++threads);
  if (order == std::memory_order_seq_cst && random() % 4 == 0) usleep(1 + random() % 300);
  return 0;
}
#define load(order) load(order) + sleep_at_times(order)
#include "../../csrc/threads.cpp"
#undef load

int main(int, char** argv) {
  gradloom::set_cores(4);
  constexpr int kParts = 8;
  for (int i = 0; i < std::atoi(argv[1]); i++) {
    alarm(30);
    std::atomic<int> done{0};
    gradloom::Team team(2 + i / 2 % 2);
    team.run([](void* count, int, int n, int) { *static_cast<std::atomic<int>*>(count) += n; }, &done, kParts);
    if (done != kParts) {
      std::printf("run %d: %d of %d parts\n", i, done.load(), kParts);
      return 1;
    }
  }
}

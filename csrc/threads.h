// threads.h: the process's pool of threads. They spin briefly for the next job, then sleep.
#pragma once

namespace gradloom {

int cores();              // CPUs that this process may use, or what set_cores said
void set_cores(int n);    // 0: ask the system again. More than there are is for tests: nothing spins well then.
int pool_threads();       // threads that the pool has started so far, the caller not counted

using Job = void (*)(void* context, int part, int thread);
constexpr int kMaxParts = 65535;

// The caller (thread 0) and its helpers, for one run. One team exists at a time; a second one waits for the first.
class Team {
 public:
  explicit Team(int threads);  // at most cores()
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;
  int threads() const { return threads_; }
  void run(Job job, void* context, int parts);  // job(context, part, thread) for every part; returns when all have ended

 private:
  int threads_;
};

}  // namespace gradloom

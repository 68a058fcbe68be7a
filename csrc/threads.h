// threads.h: the process's threads, in pools: one per team. They spin briefly for the next job, then sleep.
#pragma once

namespace gradloom {

int cores();              // CPUs that this process may use, or what set_cores said
void set_cores(int n);    // 0: ask the system again. More than there are is for tests: nothing spins well then.
int pool_threads();       // threads that the pools have started so far, the callers not counted

using Job = void (*)(void* context, int begin, int count, int thread);  // parts begin .. begin + count - 1
constexpr int kMaxParts = 65535;

struct Pool;

// The caller (thread 0) and its helpers, for one run. Several teams may exist at once, each for a thread of its own;
// together they have at most cores() threads, teams of one not counted: nobody waits for another team to end.
class Team {
 public:
  explicit Team(int threads);  // at most cores(), and at most what the other teams leave; at least 1
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;
  int threads() const { return threads_; }
  // Calls the job for every part and returns when all have ended. A call has one part; with `joins` it may have several
  // neighbours, whose count divides the first one's number and that of all parts.
  void run(Job job, void* context, int parts, bool joins = false);

 private:
  int threads_;
  Pool* pool_ = nullptr;  // none for a team of one
};

}  // namespace gradloom

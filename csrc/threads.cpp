// How a job reaches the helpers: the board is one cache line with a counter (phase), the job and its context. The
// caller writes the job and bumps the counter; every helper of the team waits for the counter, runs, and copies it
// into a line of its own (done), which the caller watches. A job costs two passages of a cache line.
//
// Helpers stay with the board between runs, so that a run of the same width starts at once. A team of another width
// sends them home first (a job of nullptr): at home each helper waits on a word of its own.
#include "threads.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#ifdef __linux__
#include <sched.h>
#endif
#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#define GL_FORK 1
#endif

namespace gradloom {
namespace {

constexpr auto kSpin = std::chrono::microseconds(50);

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Looks at the word until it differs from `seen` or kSpin is over.
inline bool spin_while(const std::atomic<uint32_t>& word, uint32_t seen) {
  for (int i = 0; i < 64; i++) {
    if (word.load(std::memory_order_acquire) != seen) return true;
    pause();
  }
  const auto until = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 64; i++) {
      if (word.load(std::memory_order_acquire) != seen) return true;
      pause();
    }
  } while (std::chrono::steady_clock::now() < until);
  return false;
}

// A word that one side bumps and others wait for. The sequentially consistent order of (store word, load asleep)
// against (add asleep, load word) makes sure that no sleeper is missed.
struct Bell {
  alignas(64) std::atomic<uint32_t> word{0};
  alignas(64) std::atomic<uint32_t> asleep{0};

  void ring(uint32_t value) {
    word.store(value, std::memory_order_seq_cst);
    if (asleep.load(std::memory_order_seq_cst)) word.notify_all();
  }
  uint32_t wait(uint32_t seen) {
    if (!spin_while(word, seen)) {
      asleep.fetch_add(1, std::memory_order_seq_cst);
      while (word.load(std::memory_order_seq_cst) == seen) word.wait(seen, std::memory_order_seq_cst);
      asleep.fetch_sub(1, std::memory_order_seq_cst);
    }
    return word.load(std::memory_order_acquire);
  }
};

struct Board {
  Bell phase;
  alignas(64) Job job = nullptr;
  void* context = nullptr;
  int threads = 1;
};

struct Helper {
  Bell home;          // bumped to call the helper to the board
  uint32_t from = 0;  // the phase that it has seen when it arrives there
  alignas(64) std::atomic<uint32_t> done{0};
};

struct Pool {
  std::mutex one_team;
  Board board;
  std::vector<Helper*> helpers;  // helper i is thread i + 1
  int engaged = 1;               // threads at the board, the caller counted
  std::atomic<int> started{0};

  static void work(Board* board, Helper* self, int thread) {
    uint32_t home = 0;
    for (;;) {
      home = self->home.wait(home);
      uint32_t seen = self->from;
      for (;;) {
        seen = board->phase.wait(seen);
        const Job job = board->job;
        if (job) job(board->context, thread, board->threads);
        self->done.store(seen, std::memory_order_release);
        if (!job) break;
      }
    }
  }

  uint32_t post(Job job, void* context) {
    board.job = job;
    board.context = context;
    board.threads = engaged;
    const uint32_t now = board.phase.word.load(std::memory_order_relaxed) + 1;
    board.phase.ring(now);
    return now;
  }

  void join(uint32_t now) {
    for (int i = 0; i + 1 < engaged; i++) {
      int looks = 0;
      while (helpers[i]->done.load(std::memory_order_acquire) != now) {
        if (++looks < 4096) pause();
        else std::this_thread::yield();  // more threads than free cores: let the helper have this one
      }
    }
  }

  // Returns the width of the team: less than asked for where the system gives no more threads.
  int engage(int threads) {
    if (threads == engaged) return threads;
    if (engaged > 1) join(post(nullptr, nullptr));
    engaged = 1;
    while (static_cast<int>(helpers.size()) < threads - 1) {
      Helper* helper = new Helper;
      try {
        std::thread(work, &board, helper, static_cast<int>(helpers.size()) + 1).detach();
      } catch (const std::system_error&) {
        delete helper;
        threads = static_cast<int>(helpers.size()) + 1;
        break;
      }
      helpers.push_back(helper);
      started.store(static_cast<int>(helpers.size()), std::memory_order_relaxed);
    }
    const uint32_t now = board.phase.word.load(std::memory_order_relaxed);
    for (int i = 0; i + 1 < threads; i++) {
      helpers[i]->from = now;
      helpers[i]->home.ring(helpers[i]->home.word.load(std::memory_order_relaxed) + 1);
    }
    return engaged = threads;
  }
};

// Never destroyed: helpers may outlive static destructors. A forked child has none of the helpers: it drops the pool.
std::atomic<Pool*> the_pool{nullptr};
std::mutex making;
std::atomic<int> pretended{0};

#ifdef GL_FORK
void before_fork() { making.lock(); }
void after_fork_parent() { making.unlock(); }
void after_fork_child() {
  the_pool.store(nullptr);
  making.unlock();
}
#endif

Pool& pool() {
  Pool* found = the_pool.load(std::memory_order_acquire);
  if (found) return *found;
  std::lock_guard<std::mutex> hold(making);
  if (!the_pool.load()) {
#ifdef GL_FORK
    static const int registered = pthread_atfork(before_fork, after_fork_parent, after_fork_child);
    (void)registered;
#endif
    the_pool.store(new Pool, std::memory_order_release);
  }
  return *the_pool.load();
}

int system_cores() {
#ifdef __linux__
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
  const unsigned n = std::thread::hardware_concurrency();
  return n ? static_cast<int>(n) : 1;
}

}  // namespace

int cores() {
  const int n = pretended.load(std::memory_order_relaxed);
  return n > 0 ? n : system_cores();
}

void set_cores(int n) { pretended.store(n, std::memory_order_relaxed); }

int pool_threads() {
  Pool* found = the_pool.load();
  return found ? found->started.load() : 0;
}

Team::Team(int threads) : threads_(threads < 1 ? 1 : threads) {
  const int most = cores();
  if (threads_ > most) threads_ = most;
  if (threads_ == 1) return;
  Pool& p = pool();
  p.one_team.lock();
  threads_ = p.engage(threads_);
  if (threads_ == 1) p.one_team.unlock();
}

Team::~Team() {
  if (threads_ > 1) pool().one_team.unlock();
}

void Team::run(Job job, void* context) {
  if (threads_ == 1) return job(context, 0, 1);
  Pool& p = pool();
  const uint32_t now = p.post(job, context);
  job(context, 0, threads_);
  p.join(now);
}

}  // namespace gradloom

// How a job reaches the helpers. A job has parts; thread t owns the t-th stretch of them. Each stretch is one word
// (phase, begin, end) in a cache line of its own: its owner takes parts from the front, and who has finished his own
// takes from the back of the others'. Where neighbours may come in one call, he takes up to half of what is left of his own:
// large calls first, small ones to share at the end. The caller writes the job and the stretches, then bumps the counter (phase) that
// the helpers watch. It goes on when all parts have ended, not when all helpers have come: one that sleeps or has lost
// its core is not waited for, its parts are done by others. When it comes late, the phase in the words has changed,
// and it finds nothing to take.
//
// Helpers stay with the board between runs, so that a run of the same width starts at once. A team of another width
// sends them home first: there each helper waits on a word of its own.
//
// A pool serves one team at a time. Teams that run at the same time have a pool each, and are never wider together than
// there are cores: who comes late gets what is left, at worst one thread. Who is alone gets what he asks for.
#include "threads.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

#include "faults.h"

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
constexpr int kMaxHelpers = 1023;

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
// against (count asleep, load word) makes sure that no sleeper is missed. Only a sleeper takes itself out of `asleep`:
// cleared by who rings, the mark of one that slept again meanwhile would be lost, and with it each later ring.
struct Bell {
  alignas(64) std::atomic<uint32_t> word{0};
  alignas(64) std::atomic<uint32_t> asleep{0};  // threads in word.wait, or about to be

  void ring(uint32_t value) {
    word.store(value, std::memory_order_seq_cst);
    if (asleep.load(std::memory_order_seq_cst)) word.notify_all();
  }
  uint32_t wait(uint32_t seen) {
    if (!spin_while(word, seen)) {
      asleep.fetch_add(1, std::memory_order_seq_cst);
      while (word.load(std::memory_order_seq_cst) == seen) word.wait(seen, std::memory_order_seq_cst);
      asleep.fetch_sub(1, std::memory_order_relaxed);
    }
    return word.load(std::memory_order_acquire);
  }
};

struct Stretch {
  alignas(64) std::atomic<uint64_t> word{0};  // phase << 32 | begin << 16 | end

  static uint64_t pack(uint32_t phase, int begin, int end) {
    return uint64_t{phase} << 32 | static_cast<uint64_t>(begin) << 16 | static_cast<uint64_t>(end);
  }
  struct Parts { int begin, count; };  // count 0: none is left
  // A part of this phase, from the back; from the front as many as may come in one call. `joint`: parts of the job where
  // several may, else 0. Whoever takes something has read the present job's: the next begins when all parts have ended.
  Parts take(uint32_t phase, bool front, const std::atomic<int>& joint) {
    uint64_t seen = word.load(std::memory_order_acquire);
    for (;;) {
      const int begin = static_cast<int>(seen >> 16 & 0xffff), end = static_cast<int>(seen & 0xffff);
      if (static_cast<uint32_t>(seen >> 32) != phase || begin >= end) return {0, 0};
      const int all = front ? joint.load(std::memory_order_relaxed) : 0;
      int count = 1;
      while (4 * count <= end - begin && all && all % (2 * count) == 0 && begin % (2 * count) == 0) count *= 2;
      const uint64_t next = front ? pack(phase, begin + count, end) : pack(phase, begin, end - 1);
      if (word.compare_exchange_weak(seen, next, std::memory_order_acq_rel, std::memory_order_acquire))
        return {front ? begin : end - 1, count};
    }
  }
};

struct Board {
  Bell phase;
  alignas(64) Job job = nullptr;  // these are read by who has taken a part, or when leaving
  void* context = nullptr;
  int threads = 1;
  std::atomic<int> joint{0};  // see Stretch::take
  std::atomic<bool> leave{false};
  alignas(64) std::atomic<int> ended{0};  // parts
};

struct Helper {
  Bell home;          // bumped to call the helper to the board
  uint32_t from = 0;  // the phase that it has seen when it arrives there
  Stretch stretch;
  uint32_t called = 0;  // times that it has been called to the board
  alignas(64) std::atomic<uint32_t> left{0};  // times that it has gone home
};

}  // namespace

struct Pool {
  Pool* next = nullptr;  // of all pools; this and `taken` belong to who holds `choosing`
  int taken = 0;         // threads of the team that has it; 0: free
  Board board;
  Stretch own;                    // the caller's
  Helper* helpers[kMaxHelpers];  // helper i is thread i + 1
  std::atomic<int> started{0};
  int engaged = 1;  // threads at the board, the caller counted

  // The array is read while others are started; an entry is there before its thread takes part in any phase.
  Stretch& stretch(int thread) { return thread == 0 ? own : helpers[thread - 1]->stretch; }

  void take_parts(uint32_t phase, int thread, int threads) {
    int ended = 0;
    for (int k = 0; k < threads; k++) {
      const int victim = thread + k < threads ? thread + k : thread + k - threads;
      for (;;) {
        const Stretch::Parts parts = stretch(victim).take(phase, k == 0, board.joint);
        if (parts.count == 0) break;
        board.job(board.context, parts.begin, parts.count, thread);
        ended += parts.count;
      }
    }
    if (ended) board.ended.fetch_add(ended, std::memory_order_release);
  }

  static void work(Pool* pool, Helper* self, int thread) {
    uint32_t home = 0, times = 0;
    for (;;) {
      home = self->home.wait(home);
      uint32_t seen = self->from;
      const int threads = pool->board.threads;
      for (;;) {
        seen = pool->board.phase.wait(seen);
        if (pool->board.leave.load(std::memory_order_acquire)) break;
        pool->take_parts(seen, thread, threads);
      }
      self->left.store(++times, std::memory_order_release);
    }
  }

  void wait_for(const std::atomic<int>& count, int until) {
    int looks = 0;
    while (count.load(std::memory_order_acquire) != until) {
      if (++looks < 4096) pause();
      else std::this_thread::yield();  // more threads than free cores: let the others have this one
    }
  }

  void run(Job job, void* context, int parts, bool joins) {
    const uint32_t phase = board.phase.word.load(std::memory_order_relaxed) + 1;
    board.job = job;
    board.context = context;
    board.joint.store(joins ? parts : 0, std::memory_order_relaxed);
    board.ended.store(0, std::memory_order_relaxed);
    for (int64_t t = 0; t < engaged; t++)
      stretch(static_cast<int>(t))
          .word.store(Stretch::pack(phase, static_cast<int>(parts * t / engaged),
                                    static_cast<int>(parts * (t + 1) / engaged)),
                      std::memory_order_release);
    board.phase.ring(phase);
    take_parts(phase, 0, engaged);
    wait_for(board.ended, parts);
  }

  void send_home() {
    if (engaged == 1) return;
    board.leave.store(true, std::memory_order_release);
    const uint32_t phase = board.phase.word.load(std::memory_order_relaxed) + 1;
    board.phase.ring(phase);
    for (int i = 0; i + 1 < engaged; i++) {
      int looks = 0;
      while (helpers[i]->left.load(std::memory_order_acquire) != helpers[i]->called) {
        if (++looks < 4096) pause();
        else std::this_thread::yield();
      }
    }
    board.leave.store(false, std::memory_order_relaxed);
    engaged = 1;
  }

  // Returns the width of the team: less than asked for where the system gives no more threads or memory for them.
  int engage(int threads) {
    if (threads == engaged) return threads;
    send_home();
    int have = started.load(std::memory_order_relaxed);
    while (have < threads - 1) {
      try {
        auto helper = std::make_unique<Helper>();
        if (fault("thread")) throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
        std::thread(work, this, helpers[have] = helper.get(), have + 1).detach();
        helper.release();
      } catch (const std::exception&) {  // system_error, bad_alloc
        threads = have + 1;
        break;
      }
      started.store(++have, std::memory_order_relaxed);
    }
    board.threads = threads;
    const uint32_t now = board.phase.word.load(std::memory_order_relaxed);
    for (int i = 0; i + 1 < threads; i++) {
      helpers[i]->from = now;
      helpers[i]->called++;
      helpers[i]->home.ring(helpers[i]->home.word.load(std::memory_order_relaxed) + 1);
    }
    return engaged = threads;
  }
};

namespace {

// Never destroyed: helpers may outlive static destructors. A forked child has none of the helpers: it drops the pools.
Pool* pools = nullptr;
std::mutex choosing;              // guards the list, and who has which pool; held for a moment
std::atomic<int> known_cores{0};  // 0: not asked yet

#ifdef GL_FORK
void before_fork() { choosing.lock(); }
void after_fork_parent() { choosing.unlock(); }
void after_fork_child() {
  pools = nullptr;
  choosing.unlock();
}
#endif

// A free pool for a team of so many threads, or of as many as the other teams leave; nullptr for one thread, and where
// there is no memory for a pool.
Pool* take_pool(int& threads, int most) {
  std::lock_guard<std::mutex> hold(choosing);
#ifdef GL_FORK
  static const int registered = pthread_atfork(before_fork, after_fork_parent, after_fork_child);
  (void)registered;
#endif
  for (Pool* p = pools; p; p = p->next) most -= p->taken;
  if (threads > most) threads = most;
  if (threads <= 1) {
    threads = 1;
    return nullptr;
  }
  Pool* pool = nullptr;  // one that stands ready, else the one with the most helpers
  for (Pool* p = pools; p; p = p->next) {
    if (p->taken) continue;
    if (!pool || p->started.load(std::memory_order_relaxed) > pool->started.load(std::memory_order_relaxed))
      pool = p;
    if (p->engaged == threads) {
      pool = p;
      break;
    }
  }
  if (!pool) {
    pool = new (std::nothrow) Pool;
    if (!pool) {
      threads = 1;
      return nullptr;
    }
    pool->next = pools;
    pools = pool;
  }
  pool->taken = threads;
  return pool;
}

void give_back(Pool* pool) {
  std::lock_guard<std::mutex> hold(choosing);
  pool->taken = 0;
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
  int n = known_cores.load(std::memory_order_relaxed);
  if (n == 0) {
    n = system_cores();
    if (n > kMaxHelpers + 1) n = kMaxHelpers + 1;
    known_cores.store(n, std::memory_order_relaxed);
  }
  return n;
}

void set_cores(int n) { known_cores.store(n < 0 ? 0 : n > kMaxHelpers + 1 ? kMaxHelpers + 1 : n); }

int pool_threads() {
  std::lock_guard<std::mutex> hold(choosing);
  int total = 0;
  for (Pool* p = pools; p; p = p->next) total += p->started.load(std::memory_order_relaxed);
  return total;
}

Team::Team(int threads) : threads_(threads) {
  const int most = threads > 1 ? cores() : 1;
  if (threads_ > most) threads_ = most;
  if (threads_ <= 1) {
    threads_ = 1;
    return;
  }
  pool_ = take_pool(threads_, most);
  if (!pool_) return;
  threads_ = pool_->engage(threads_);
  if (threads_ > 1) return;
  give_back(pool_);
  pool_ = nullptr;
}

Team::~Team() {
  if (pool_) give_back(pool_);
}

void Team::run(Job job, void* context, int parts, bool joins) {
  if (pool_) return pool_->run(job, context, parts, joins);
  if (joins) return job(context, 0, parts, 0);
  for (int part = 0; part < parts; part++) job(context, part, 1, 0);
}

}  // namespace gradloom

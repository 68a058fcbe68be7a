// vm.cpp: running a program: for each step, for each instruction, for each phase, for each part.
#include "vm.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <stdexcept>

#include "threads.h"

#ifdef GL_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace gradloom {
namespace {

void fill_nan(void* to, size_t bytes) { std::memset(to, 0xff, bytes); }

// Position of the first inf or NaN, or -1.
int64_t first_nonfinite(const Tensor& t, int64_t& bits) {
  const int64_t n = t.size();
  for (int64_t i = 0; i < n; i++) {
    if (t.dtype == DType::f32) {
      uint32_t b;
      std::memcpy(&b, t.as<uint8_t>() + 4 * i, 4);
      if ((b & 0x7f800000u) == 0x7f800000u) { bits = b; return i; }
    } else if (t.dtype == DType::f64) {
      uint64_t b;
      std::memcpy(&b, t.as<uint8_t>() + 8 * i, 8);
      if ((b & 0x7ff0000000000000u) == 0x7ff0000000000000u) { bits = static_cast<int64_t>(b); return i; }
    } else if (t.dtype == DType::f16 || t.dtype == DType::bf16) {
      uint16_t b;
      std::memcpy(&b, t.as<uint8_t>() + 2 * i, 2);
      const uint16_t exponent = t.dtype == DType::f16 ? 0x7c00 : 0x7f80;
      if ((b & exponent) == exponent) { bits = b; return i; }
    } else {
      return -1;
    }
  }
  return -1;
}

constexpr uint8_t kGuardByte = 0xa5;

}  // namespace

void Program::profile(bool on) {
  profiling_ = false;
  if (!on) return;
  profile_min_.assign(ops_.size(), 0);
  profile_total_.assign(ops_.size(), 0);
  profile_denormal_.assign(ops_.size(), 0);
  profile_steps_ = 0;
  profiling_ = true;
}

// ---- running -------------------------------------------------------------------------------------------

struct Program::Phase {
  const Op* op;
  int phase;
  uint8_t* scratch;
  size_t stride;
  size_t poison;  // bytes of scratch to fill before each part
  FloatWord word;
  std::atomic<bool>* met_denormal;  // while profiling: set by a part that had a denormal operand
};

void Program::run_parts(void* context, int begin, int count, int thread) {
  const Phase& p = *static_cast<const Phase*>(context);
  uint8_t* scratch = p.scratch ? p.scratch + p.stride * static_cast<size_t>(thread) : nullptr;
  if (p.poison) fill_nan(scratch, p.poison);
  const FloatMode mode(p.word);
  p.op->run(p.op->call, p.phase, begin / count, static_cast<int>(p.op->parts[p.phase]) / count, scratch);
  if (p.met_denormal && met_denormal()) p.met_denormal->store(true, std::memory_order_relaxed);
}

// Whether the step is to be given up before instruction i. Asked only where that is cheap: before instructions of
// several parts, and while nothing has been written that outlives this call: a step that is given up raises, and a
// caller that gets no number of steps takes it that none was done.
bool Program::given_up(size_t i, const RunOptions& options) {
  using Clock = std::chrono::steady_clock;
  if (!options.poll || i > state_first_ || steps_done_) return false;
  const auto now = Clock::now();
  if (now < poll_next_) return false;
  bool stop;
  {
    const FloatMode mode(callers_word_);  // handlers of signals are not ours
    stop = options.poll();
  }
  poll_next_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(kPollSeconds));
  if (stop) status_.stop = kStopRequested;
  return stop;
}

template <bool several>
bool Program::step_plain(Team* team, const RunOptions& options, size_t last) {
  uint8_t* const scratch = scratch_ ? scratch_->data() : nullptr;
  for (size_t i = options.first; i < last; i++) {
    const Op& op = ops_[i];
    if (op.several && given_up(i, options)) return false;
    for (uint32_t phase = 0; phase < op.phases; phase++) {
      const int parts = static_cast<int>(op.parts[phase]);
      if (several && parts > 1) {
        Phase job{&op, static_cast<int>(phase), scratch, scratch_stride_, 0, word_, nullptr};
        team->run(run_parts, &job, parts, op.joins);
      } else {
        const int calls = op.joins ? 1 : parts;
        for (int part = 0; part < calls; part++) op.run(op.call, static_cast<int>(phase), part, calls, scratch);
      }
    }
    if (__builtin_expect(status_.stop != 0, 0)) {
      status_.node = op.node;
      return false;
    }
  }
  return true;
}

// The same step with everything that helps to find a fault.
bool Program::step_debug(Team& team, const RunOptions& options, size_t last) {
  auto dead = [&](size_t slot) {
    for (size_t i = dead_first_[slot]; i < dead_first_[slot + 1]; i++) {
#ifdef GL_ASAN
      __asan_unpoison_memory_region(at(dead_[i]), dead_[i].bytes);  // it may be dead since the step before
#endif
      fill_nan(at(dead_[i]), dead_[i].bytes);
#ifdef GL_ASAN
      __asan_poison_memory_region(at(dead_[i]), dead_[i].bytes);
#endif
    }
  };
  using Clock = std::chrono::steady_clock;
  if (options.poison && !options.first) dead(0);
  for (size_t i = options.first; i < last; i++) {
    const Op& op = ops_[i];
    if (op.several && given_up(i, options)) return false;
#ifdef GL_ASAN
    if (options.poison)
      for (int a = 0; a < op.call.arg_count; a++) {
        const size_t t = static_cast<size_t>(op.call.args + a - tensors_.data());
        if (written_[t])
          __asan_unpoison_memory_region(tensors_[t].data, tensors_[t].size() * dtype_bytes(tensors_[t].dtype));
      }
#endif
    std::atomic<bool> denormal{false};
    const auto start = Clock::now();
    for (uint32_t phase = 0; phase < op.phases; phase++) {
      Phase job{&op, static_cast<int>(phase), scratch_ ? scratch_->data() : nullptr, scratch_stride_,
                options.poison && scratch_ ? scratch_bytes_ : 0, word_, profiling_ ? &denormal : nullptr};
      if (op.parts[phase] > 1) team.run(run_parts, &job, static_cast<int>(op.parts[phase]), op.joins);
      else run_parts(&job, 0, 1, 0);
    }
    if (profiling_) {
      const int64_t ns = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
      profile_total_[i] += ns;
      profile_denormal_[i] += denormal.load(std::memory_order_relaxed);
      if (!profile_steps_ || ns < profile_min_[i]) profile_min_[i] = ns;
    }
    if (options.check && !status_.stop) {
      for (const ByteRange& g : guards_) {
        const uint8_t* bytes = at(g);
        for (uint64_t b = 0; b < g.bytes; b++)
          if (bytes[b] != kGuardByte) {
            status_.fail(Stop::bounds, static_cast<int64_t>(g.offset + b), bytes[b]);
            break;
          }
      }
      // The workspace, when there is one, is bytes: nothing is looked for in it.
      for (int a = 0; a < op.call.arg_count && !status_.stop; a++) {
        const Tensor& t = op.call.args[a];
        int64_t bits = 0;
        if (!written_[static_cast<size_t>(&t - tensors_.data())]) continue;
        const int64_t where = first_nonfinite(t, bits);
        if (where >= 0) status_.fail(Stop::nonfinite, where, bits);
      }
    }
    if (status_.stop) {
      status_.node = op.node;
      return false;
    }
    if (options.poison) dead(i + 1);
  }
  if (profiling_ && last == ops_.size()) profile_steps_++;
  return true;
}

RunResult Program::run(const RunOptions& options) {
  if (running_.exchange(true)) throw std::runtime_error("run: the program is running already");
  struct Leave {
    Program& program;
    ~Leave() {
      for (Arena* a : program.arenas_) a->mutex().unlock();
      program.running_ = false;
    }
  } leave{*this};
  for (Arena* a : arenas_) a->mutex().lock();
  refresh_arenas();

  word_ = options.flush ? kFlushWord : kPlainWord;
  const FloatMode mode(word_);
  callers_word_ = mode.before();
  const bool debug = options.poison || options.check || profiling_;
  Team team(several_ ? options.threads : 1);  // bytecode of single parts wakes nobody
  if (scratch_bytes_ && scratch_threads_ < team.threads()) {
    scratch_.reset();
    scratch_threads_ = 0;  // until there is memory for more
    scratch_ = std::make_unique<Block>(scratch_stride_ * static_cast<size_t>(team.threads()));
    scratch_threads_ = team.threads();
  }
  const size_t last = std::min(options.last, ops_.size());
  const bool ends = last == ops_.size();
  if (options.first > last || (options.steps != 1 && (options.first || !ends)))
    throw std::invalid_argument("run: instructions " + std::to_string(options.first) + " to " + std::to_string(last) +
                                " of " + std::to_string(ops_.size()) + "; need a range of one step");
  if (options.check && !options.first)
    for (const ByteRange& g : guards_) std::memset(at(g), kGuardByte, g.bytes);

  using Clock = std::chrono::steady_clock;
  const bool timed = options.deadline > 0 && options.deadline < 1e9;
  Clock::time_point until{};
  if (timed) until = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                        std::chrono::duration<double>(options.deadline));
  poll_next_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(kPollSeconds));
  const size_t row = settings_.size() * 8;
  RunResult result;
  status_ = Status{};
  steps_done_ = 0;
  while (result.steps < options.steps) {
    if (options.settings) std::memcpy(settings_.data(), options.settings + row * static_cast<size_t>(result.steps), row);
    const bool done = debug                ? step_debug(team, options, last)
                      : team.threads() > 1 ? step_plain<true>(&team, options, last)
                                           : step_plain<false>(nullptr, options, last);
    if (!done) {
      result.stop = status_.stop;
      result.node = status_.node;
      result.index = status_.index;
      result.value = status_.value;
      break;
    }
    if (!ends) {
      result.steps = 1;
      break;
    }
    if (options.records) {
      uint8_t* to = options.records + record_bytes_ * static_cast<size_t>(result.steps);
      for (const ByteRange& r : records_) {
        std::memcpy(to, at(r), r.bytes);
        to += r.bytes;
      }
    }
    steps_done_ = ++result.steps;
    steps_run_.store(steps_run() + 1, std::memory_order_relaxed);
    if (stop_.load(std::memory_order_relaxed)) {
      stop_.store(false, std::memory_order_relaxed);
      result.stop = kStopRequested;
      break;
    }
    if (timed && result.steps < options.steps && Clock::now() >= until) {
      result.stop = kStopDeadline;
      break;
    }
  }
#ifdef GL_ASAN
  if (options.poison)
    for (const ByteRange& r : dead_) __asan_unpoison_memory_region(at(r), r.bytes);
#endif
  return result;
}

}  // namespace gradloom

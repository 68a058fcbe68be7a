// vm.h: a program is bytecode whose every argument has been checked and turned into an address. Running it allocates
// nothing and decides nothing.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "arena.h"
#include "bytecode.h"
#include "float_mode.h"

#if defined(__SANITIZE_ADDRESS__)
#define GL_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define GL_ASAN 1
#endif
#endif

namespace gradloom {

// In such a build a poisoned run marks dead ranges, so that touching one ends the process with a report.
#ifdef GL_ASAN
constexpr bool kAddressSanitizer = true;
#else
constexpr bool kAddressSanitizer = false;
#endif

// Every instruction set that this machine can run, best first; "scalar" always. Twins of units come last.
std::vector<const KernelTable*> tables();
const KernelTable& find_table(const std::string& isa);  // throws std::invalid_argument
const KernelRow& find_kernel(const KernelTable& table, const std::string& name, const std::string& signature);

// How a kernel wants to run on these shapes. Throws std::invalid_argument for records that no kernel may see.
KernelPlan plan_kernel(const KernelRow& row, const ArgRecord* args, size_t arg_count, const int64_t* attrs,
                       size_t attr_count);

struct Segment {
  enum Kind { memory, readonly, arena, scratch, settings };
  Kind kind;
  uint64_t address = 0;  // memory, readonly
  uint64_t bytes = 0;    // memory, readonly, scratch (per thread), settings
  Arena* from = nullptr; // arena
};

struct ByteRange {  // packed like a NumPy record of (u4, u4, u8, u8)
  uint32_t instruction;  // dead ranges: dead after this instruction; kEachStep: from the start of each step
  uint32_t segment;
  uint64_t offset;
  uint64_t bytes;
};
constexpr uint32_t kEachStep = 0xffffffffu;

// Reasons beyond Stop for which a run ends.
constexpr int32_t kStopRequested = 5;  // Program::stop
constexpr int32_t kStopDeadline = 6;
constexpr double kPollSeconds = 0.1;

struct RunOptions {
  int64_t steps = 1;
  size_t first = 0;        // of one step: the instructions from here on; a step begins with 0
  size_t last = SIZE_MAX;  // to here, exclusively; at most all. A step ends, and is counted, with the last one of all
  const uint8_t* settings = nullptr;  // steps rows of the settings segment's bytes
  uint8_t* records = nullptr;         // steps rows of record_bytes()
  int threads = 1;
  double deadline = 0;  // seconds; 0: none
  bool (*poll)() = nullptr;  // asked every kPollSeconds of a long step; true: give the step up (no state written yet)
  bool poison = false;  // scratch and dead ranges are filled with NaN bytes
  bool check = false;   // every output is searched for non-finite numbers, guard ranges for changes
  bool flush = false;   // denormal numbers are 0 in every thread; the caller's mode is as before when the run ends
};

struct RunResult {
  int64_t steps = 0;
  int32_t stop = 0;  // Stop, kStopRequested, kStopDeadline
  uint32_t node = 0;
  int64_t index = 0, value = 0;
};

class Program {
 public:
  struct Bytecode {
    std::vector<std::pair<std::string, std::string>> kernels;  // (name, signature)
    const InstructionRecord* instructions = nullptr;
    size_t instruction_count = 0;
    const ArgRecord* args = nullptr;
    size_t arg_count = 0;
    const int64_t* attrs = nullptr;
    size_t attr_count = 0;
    std::vector<Segment> segments;
    std::vector<ByteRange> records;  // copied out after each step
    std::vector<ByteRange> dead;     // filled with NaN bytes in a poisoned run
    std::vector<ByteRange> guards;   // filled with a pattern before a checked run and compared after each instruction
  };

  // Copies what it needs; throws std::invalid_argument that names the instruction and the argument at fault.
  Program(const KernelTable& table, const Bytecode& bytecode);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  RunResult run(const RunOptions& options);
  void bind(uint32_t segment, uint64_t address, uint64_t bytes);
  void stop() { stop_.store(true, std::memory_order_relaxed); }

  void profile(bool on);
  size_t instruction_count() const { return ops_.size(); }
  const std::vector<int64_t>& profile_min() const { return profile_min_; }      // ns; 0 before the first run
  const std::vector<int64_t>& profile_total() const { return profile_total_; }  // ns
  // Steps in which some part of the instruction had a denormal operand; always 0 where denormals are flushed.
  const std::vector<int64_t>& profile_denormal() const { return profile_denormal_; }
  // Steps of all runs so far: also of one whose result a signal kept from its caller.
  int64_t steps_run() const { return steps_run_.load(std::memory_order_relaxed); }
  int64_t profile_steps() const { return profile_steps_; }

  uint64_t record_bytes() const { return record_bytes_; }
  uint64_t settings_bytes() const { return settings_.size() * 8; }
  bool has_settings() const { return settings_segment_ >= 0; }

 private:
  struct Op {  // an instruction, resolved
    RunFn run;
    Call call;
    uint32_t parts[kMaxPhases];
    uint32_t phases;
    uint32_t node;
    bool several;  // some phase has several parts
    bool joins;    // neighbouring parts may be run as one
  };
  struct Place {  // a segment, resolved
    Segment said;
    uint8_t* base = nullptr;
    uint64_t bytes = 0;
    uint64_t needed = 0;      // end of the furthest byte that an argument or range touches
    uint64_t align = 1;       // of the base, for the widest element in it
    uint64_t generation = 0;  // of the arena
    std::vector<uint32_t> args;
  };
  struct Phase;

  void read_segments(const Bytecode& bytecode);
  void read_instructions(const KernelTable& table, const Bytecode& bytecode);
  void read_ranges(const Bytecode& bytecode);
  Place& need(uint32_t segment, uint64_t offset, uint64_t bytes, const char* who);
  void resolve(Place& place);
  void refresh_arenas();
  uint8_t* at(const ByteRange& r) const { return places_[r.segment].base + r.offset; }
  bool given_up(size_t i, const RunOptions& options);
  template <bool several> bool step_plain(class Team* team, const RunOptions& options, size_t last);
  bool step_debug(class Team& team, const RunOptions& options, size_t last);
  static void run_parts(void* context, int begin, int count, int thread);

  std::vector<Op> ops_;
  std::vector<Tensor> tensors_;
  std::vector<uint64_t> offsets_;     // of each tensor in its segment
  std::vector<uint8_t> written_;      // of each tensor: is it an output or the workspace
  std::vector<int64_t> attrs_;
  std::vector<Place> places_;
  std::vector<Arena*> arenas_;        // each once, in the order of their addresses: two runs never wait for each other
  std::vector<ByteRange> records_, dead_, guards_;
  std::vector<size_t> dead_first_;    // dead_[dead_first_[i] .. dead_first_[i+1]) die after instruction i - 1
  std::vector<uint64_t> settings_;    // words, 64-byte aligned start not needed: rows are small
  int settings_segment_ = -1;
  uint64_t record_bytes_ = 0;
  uint64_t scratch_bytes_ = 0, scratch_stride_ = 0;
  std::unique_ptr<Block> scratch_;
  int scratch_threads_ = 0;
  bool several_ = false;
  size_t state_first_ = 0;  // the first instruction that writes outside the arena: from there on a step is completed
  std::chrono::steady_clock::time_point poll_next_{};
  int64_t steps_done_ = 0;  // of the run in progress
  std::atomic<int64_t> steps_run_{0};  // written by who runs, read by any thread
  Status status_;
  FloatWord word_ = kPlainWord;         // of every thread of the run in progress
  FloatWord callers_word_ = kPlainWord;  // of the caller, before it
  std::atomic<bool> stop_{false};
  std::atomic<bool> running_{false};
  bool profiling_ = false;
  std::vector<int64_t> profile_min_, profile_total_, profile_denormal_;
  int64_t profile_steps_ = 0;
};

}  // namespace gradloom

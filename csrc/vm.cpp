#include "vm.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <stdexcept>

#include "isa/tables.h"
#include "threads.h"

#ifdef GL_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace gradloom {
namespace {

[[noreturn]] __attribute__((format(printf, 1, 2))) void refuse(const char* format, ...) {
  char text[512];
  va_list list;
  va_start(list, format);
  std::vsnprintf(text, sizeof text, format, list);
  va_end(list);
  throw std::invalid_argument(text);
}

using ull = unsigned long long;

const char* dtype_name(DType t) {
  static const char* const names[] = {"none", "f32", "f16", "bf16", "f64", "u8", "i8", "i32", "i64"};
  static const char* const blocks[] = {"q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k"};
  return t < DType::q4_0 ? names[static_cast<int>(t)] : blocks[static_cast<int>(t) - static_cast<int>(DType::q4_0)];
}
bool is_dtype(uint8_t code) {
  return code <= static_cast<uint8_t>(DType::i64) ||
         (code >= static_cast<uint8_t>(DType::q4_0) && code <= static_cast<uint8_t>(DType::q6_k));
}
// Do whole blocks of neighbours run along one axis, and do all other axes step by whole blocks?
bool whole_blocks(const ArgRecord& r, int64_t block) {
  int along = 0;
  for (int i = 0; i < r.rank; i++) {
    if (r.shape[i] == 1 || r.strides[i] % block == 0) continue;
    if (r.strides[i] != 1 || r.shape[i] % block) return false;
    along++;
  }
  return along == 1;
}

// One record into a tensor without an address. `who` says which instruction and argument, for messages.
Tensor read_arg(const ArgRecord& r, const char* who) {
  if (!is_dtype(r.dtype)) refuse("%s: dtype code %u; 0..8 and 16..25 exist", who, r.dtype);
  if (r.rank > kMaxRank) refuse("%s: rank %u; at most %d is possible", who, r.rank, kMaxRank);
  Tensor t{};
  t.dtype = static_cast<DType>(r.dtype);
  t.rank = r.rank;
  const bool absent = r.segment == kNoSegment;
  if (!absent && t.dtype == DType::none) refuse("%s: has a segment, but no dtype", who);
  unsigned __int128 elements = 1;  // up to and including the last one touched
  bool empty = false;
  for (int i = 0; i < kMaxRank; i++) {
    if (i >= r.rank && (r.shape[i] != 1 || r.strides[i] != 0))
      refuse("%s: unused axis %d has size %lld, stride %lld; need 1, 0", who, i, (long long)r.shape[i],
             (long long)r.strides[i]);
    if (r.shape[i] < 0 || r.strides[i] < 0)
      refuse("%s: axis %d has size %lld, stride %lld; neither may be negative", who, i, (long long)r.shape[i],
             (long long)r.strides[i]);
    t.shape[i] = r.shape[i];
    t.strides[i] = r.strides[i];
    if (r.shape[i] == 0) empty = true;
    else elements += static_cast<unsigned __int128>(r.shape[i] - 1) * static_cast<uint64_t>(r.strides[i]);
  }
  if (empty) elements = 0;
  if (!absent) {
    const size_t size = dtype_bytes(t.dtype);
    const int64_t block = dtype_block(t.dtype);
    if (block > 1 && !empty && !whole_blocks(r, block))
      refuse("%s: its shape and strides cut blocks of %lld of %s", who, (long long)block, dtype_name(t.dtype));
    if (block > 1 && (r.flags & kArgWrite)) refuse("%s: is written, but %s is only read", who, dtype_name(t.dtype));
    if ((elements + block - 1) / block * size > r.bytes)
      refuse("%s: its shape and strides reach %llu elements of %s, but it has %llu bytes", who,
             (ull)(elements > UINT64_MAX ? UINT64_MAX : (uint64_t)elements), dtype_name(t.dtype), (ull)r.bytes);
    if ((r.flags & kArgWrite) && !t.dense()) refuse("%s: is written, but not dense", who);
  }
  return t;
}

// "f32_i32_f32": neighbours that are equal count once.
void add_dtype(std::string& signature, DType t, DType& last) {
  if (t == DType::none || t == last) return;
  if (!signature.empty()) signature += '_';
  signature += dtype_name(t);
  last = t;
}

bool signature_fits(const KernelRow& row, const ArgRecord* args, size_t count) {
  // An optional output that is not wanted has a dtype, but no segment: both ways of reading it are accepted.
  std::string present, all;
  DType last_present = DType::none, last_all = DType::none;
  for (size_t i = 0; i < count; i++) {
    const DType t = static_cast<DType>(args[i].dtype);
    add_dtype(all, t, last_all);
    if (args[i].segment != kNoSegment) add_dtype(present, t, last_present);
  }
  return present == row.signature || all == row.signature;
}

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

// ---- tables -------------------------------------------------------------------------------------------

std::vector<const KernelTable*> tables() {
  std::vector<const KernelTable*> found;
#if defined(__x86_64__)
  __builtin_cpu_init();
#ifdef GL_HAVE_AVX512
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2"))
    found.push_back(&kTable_avx512);
#endif
#ifdef GL_HAVE_AVX2
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) found.push_back(&kTable_avx2);
#endif
#endif
  found.push_back(&kTable_scalar);
  return found;
}

const KernelTable& find_table(const std::string& isa) {
  std::string have;
  for (const KernelTable* t : tables()) {
    if (isa == t->isa) return *t;
    have += have.empty() ? "" : ", ";
    have += t->isa;
  }
  refuse("isa %s: this machine runs %s", isa.c_str(), have.c_str());
}

const KernelRow& find_kernel(const KernelTable& table, const std::string& name, const std::string& signature) {
  std::string have;
  for (size_t i = 0; i < table.count; i++) {
    const KernelRow& row = table.rows[i];
    if (name != row.name) continue;
    if (signature == row.signature) return row;
    have += have.empty() ? "" : ", ";
    have += row.signature;
  }
  if (have.empty()) refuse("kernel %s %s: isa %s has no %s", name.c_str(), signature.c_str(), table.isa, name.c_str());
  refuse("kernel %s %s: isa %s has %s for %s", name.c_str(), signature.c_str(), table.isa, name.c_str(), have.c_str());
}

KernelPlan plan_kernel(const KernelRow& row, const ArgRecord* args, size_t arg_count, const int64_t* attrs,
                       size_t attr_count) {
  std::vector<Tensor> tensors(arg_count);
  for (size_t i = 0; i < arg_count; i++)
    tensors[i] = read_arg(args[i], (std::string(row.name) + ": argument " + std::to_string(i)).c_str());
  KernelPlan plan;
  Status status;
  if (row.plan)
    row.plan({tensors.data(), static_cast<int>(arg_count), attrs, static_cast<int>(attr_count), &status}, plan);
  return plan;
}

// ---- construction --------------------------------------------------------------------------------------

Program::Program(const KernelTable& table, const Tape& tape) {
  if (tape.instruction_count >= kEachStep || tape.arg_count >= UINT32_MAX) refuse("the tape is too long");

  for (size_t i = 0; i < tape.segments.size(); i++) {
    Place p;
    p.said = tape.segments[i];
    if (p.said.kind == Segment::settings) {
      if (settings_segment_ >= 0) refuse("segment %zu: a second settings segment; one is possible", i);
      if (p.said.bytes % 8) refuse("segment %zu: settings of %llu bytes; need whole words of 8", i, (ull)p.said.bytes);
      settings_segment_ = static_cast<int>(i);
      settings_.assign(p.said.bytes / 8, 0);
    } else if (p.said.kind == Segment::scratch) {
      scratch_bytes_ = std::max(scratch_bytes_, p.said.bytes);
    }
    p.bytes = p.said.kind == Segment::arena ? p.said.from->bytes() : p.said.bytes;
    if ((p.said.kind == Segment::memory || p.said.kind == Segment::readonly) && p.said.bytes && !p.said.address)
      refuse("segment %zu: %llu bytes at address 0", i, (ull)p.said.bytes);
    places_.push_back(std::move(p));
  }
  scratch_stride_ = (scratch_bytes_ + 127) / 64 * 64;  // a line apart: threads never share one

  auto need = [&](uint32_t segment, uint64_t offset, uint64_t bytes, const char* who) -> Place& {
    if (segment >= places_.size()) refuse("%s: segment %u; there are %zu", who, segment, places_.size());
    Place& p = places_[segment];
    if (p.said.kind == Segment::scratch) refuse("%s: segment %u is scratch, which has no addresses", who, segment);
    if (offset > p.bytes || bytes > p.bytes - offset)
      refuse("%s: bytes %llu..+%llu lie outside segment %u of %llu bytes", who, (ull)offset, (ull)bytes, segment,
             (ull)p.bytes);
    p.needed = std::max(p.needed, offset + bytes);
    return p;
  };

  attrs_.assign(tape.attrs, tape.attrs + tape.attr_count);
  std::vector<const KernelRow*> rows;
  for (const auto& [name, signature] : tape.kernels) rows.push_back(&find_kernel(table, name, signature));

  // Arguments in the order of the instructions, so that a run reads memory forwards.
  size_t total = 0;
  for (size_t i = 0; i < tape.instruction_count; i++) total += tape.instructions[i].arg_count;
  if (total >= UINT32_MAX) refuse("the tape is too long");
  tensors_.reserve(total);
  ops_.reserve(tape.instruction_count);

  bool stateful = false;  // some instruction so far writes outside the arena
  for (size_t i = 0; i < tape.instruction_count; i++) {
    const InstructionRecord& in = tape.instructions[i];
    if (in.kernel >= rows.size()) refuse("instruction %zu: kernel %u; there are %zu", i, in.kernel, rows.size());
    const KernelRow& row = *rows[in.kernel];
    char who[160];
    std::snprintf(who, sizeof who, "instruction %zu (%s %s, node %u)", i, row.name, row.signature, in.node);
    if (in.arg_first > tape.arg_count || in.arg_count > tape.arg_count - in.arg_first)
      refuse("%s: arguments %u..+%u; the tape has %zu", who, in.arg_first, in.arg_count, tape.arg_count);
    if (in.attr_first > tape.attr_count || in.attr_count > tape.attr_count - in.attr_first)
      refuse("%s: attribute words %u..+%u; the tape has %zu", who, in.attr_first, in.attr_count, tape.attr_count);
    if (in.phases < 1 || in.phases > kMaxPhases) refuse("%s: %u phases; 1..%d are possible", who, in.phases, kMaxPhases);

    const ArgRecord* args = tape.args + in.arg_first;
    const size_t first = tensors_.size();
    for (uint32_t a = 0; a < in.arg_count; a++) {
      char which[200];
      std::snprintf(which, sizeof which, "%s: argument %u", who, a);
      Tensor t = read_arg(args[a], which);
      if (args[a].segment != kNoSegment) {
        Place& p = need(args[a].segment, args[a].offset, args[a].bytes, which);
        const size_t size = dtype_bytes(t.dtype);
        if (args[a].offset % size)
          refuse("%s: offset %llu is no multiple of %zu, the size of %s", which, (ull)args[a].offset, size,
                 dtype_name(t.dtype));
        if ((args[a].flags & kArgWrite) && (p.said.kind == Segment::readonly || p.said.kind == Segment::settings))
          refuse("%s: is written, but segment %u is read only", which, args[a].segment);
        p.align = std::max<uint64_t>(p.align, dtype_align(t.dtype));
        p.args.push_back(static_cast<uint32_t>(tensors_.size()));
      }
      tensors_.push_back(t);
      offsets_.push_back(args[a].offset);
      written_.push_back(args[a].segment != kNoSegment && (args[a].flags & kArgWrite) ? 1 : 0);
    }

    // The kernel's own plan, from the same records, must be the one that the tape was made with.
    KernelPlan plan;
    const Call call{tensors_.data() + first, static_cast<int>(in.arg_count), attrs_.data() + in.attr_first,
                    static_cast<int>(in.attr_count), &status_};
    if (row.plan) row.plan(call, plan);
    if (plan.phases != static_cast<int>(in.phases))
      refuse("%s: %u phases; on isa %s it has %d", who, in.phases, table.isa, plan.phases);
    for (int phase = 0; phase < plan.phases; phase++)
      if (plan.parts[phase] != in.parts[phase] || in.parts[phase] < 1 || in.parts[phase] > kMaxParts)
        refuse("%s: %u parts in phase %d; on isa %s it has %u", who, in.parts[phase], phase, table.isa,
               plan.parts[phase]);
    if (plan.scratch_bytes > scratch_bytes_)
      refuse("%s: needs %zu bytes of scratch; the tape has %llu", who, plan.scratch_bytes, (ull)scratch_bytes_);
    size_t own = in.arg_count;  // arguments without the workspace
    if (plan.workspace_bytes) {
      const ArgRecord* last = in.arg_count ? args + in.arg_count - 1 : nullptr;
      if (!last || last->segment == kNoSegment || !(last->flags & kArgWrite) || last->bytes < plan.workspace_bytes)
        refuse("%s: needs a workspace of %zu bytes as its last argument", who, plan.workspace_bytes);
      own--;
    }
    if (!signature_fits(row, args, own)) refuse("%s: its arguments are of other dtypes", who);

    Op op{};
    op.run = row.run;
    op.call = call;
    op.phases = in.phases;
    op.node = in.node;
    for (uint32_t phase = 0; phase < in.phases; phase++) {
      op.parts[phase] = in.parts[phase];
      op.several |= in.parts[phase] > 1;
    }
    several_ |= op.several;
    for (uint32_t a = 0; a < in.arg_count; a++)
      stateful |= written_[first + a] && places_[args[a].segment].said.kind == Segment::memory;
    ops_.push_back(op);
    if (!stateful) state_first_ = ops_.size();
  }

  records_ = tape.records;
  for (size_t i = 0; i < records_.size(); i++) {
    need(records_[i].segment, records_[i].offset, records_[i].bytes, ("record " + std::to_string(i)).c_str());
    record_bytes_ += records_[i].bytes;
  }
  dead_ = tape.dead;
  auto when = [](const ByteRange& r) { return r.instruction == kEachStep ? size_t{0} : size_t{r.instruction} + 1; };
  std::stable_sort(dead_.begin(), dead_.end(), [&](auto& a, auto& b) { return when(a) < when(b); });
  dead_first_.assign(ops_.size() + 2, 0);
  for (size_t i = 0; i < dead_.size(); i++) {
    const std::string who = "dead range " + std::to_string(i);
    Place& p = need(dead_[i].segment, dead_[i].offset, dead_[i].bytes, who.c_str());
    if (p.said.kind != Segment::arena && p.said.kind != Segment::memory) refuse("%s: lies in no memory", who.c_str());
    if (when(dead_[i]) > ops_.size()) refuse("%s: there is no instruction %u", who.c_str(), dead_[i].instruction);
    dead_first_[when(dead_[i]) + 1]++;
  }
  for (size_t i = 1; i < dead_first_.size(); i++) dead_first_[i] += dead_first_[i - 1];
  guards_ = tape.guards;
  for (size_t i = 0; i < guards_.size(); i++) {
    const std::string who = "guard range " + std::to_string(i);
    Place& p = need(guards_[i].segment, guards_[i].offset, guards_[i].bytes, who.c_str());
    if (p.said.kind != Segment::arena && p.said.kind != Segment::memory) refuse("%s: lies in no memory", who.c_str());
  }

  for (Place& p : places_) {
    if (p.said.kind == Segment::arena) arenas_.push_back(p.said.from);
    resolve(p);
  }
  std::sort(arenas_.begin(), arenas_.end());
  arenas_.erase(std::unique(arenas_.begin(), arenas_.end()), arenas_.end());
}

Program::~Program() = default;

void Program::resolve(Place& p) {
  switch (p.said.kind) {
    case Segment::memory:
    case Segment::readonly:
      p.base = reinterpret_cast<uint8_t*>(static_cast<uintptr_t>(p.said.address));
      break;
    case Segment::arena:
      p.base = p.said.from->data();
      p.bytes = p.said.from->bytes();
      p.generation = p.said.from->generation();
      break;
    case Segment::settings: p.base = reinterpret_cast<uint8_t*>(settings_.data()); break;
    case Segment::scratch: return;
  }
  if (reinterpret_cast<uintptr_t>(p.base) % p.align)
    refuse("segment %zu: its address is no multiple of %llu", static_cast<size_t>(&p - places_.data()), (ull)p.align);
  for (uint32_t i : p.args) tensors_[i].data = p.base + offsets_[i];
}

void Program::refresh_arenas() {
  for (Place& p : places_)
    if (p.said.kind == Segment::arena) p.said.from->grow(p.needed);  // it has no bytes where growing it failed
  for (Place& p : places_)
    if (p.said.kind == Segment::arena && p.generation != p.said.from->generation()) resolve(p);
}

void Program::bind(uint32_t segment, uint64_t address, uint64_t bytes) {
  if (running_.exchange(true)) throw std::runtime_error("bind: the program is running");
  struct Leave {
    std::atomic<bool>& flag;
    ~Leave() { flag = false; }
  } leave{running_};
  if (segment >= places_.size()) refuse("bind: segment %u; there are %zu", segment, places_.size());
  Place& p = places_[segment];
  if (p.said.kind != Segment::memory && p.said.kind != Segment::readonly)
    refuse("bind: segment %u is no memory segment", segment);
  if (bytes < p.needed)
    refuse("bind: segment %u gets %llu bytes; its arguments reach %llu", segment, (ull)bytes, (ull)p.needed);
  if (p.needed && !address) refuse("bind: segment %u gets address 0", segment);
  if (address % p.align) refuse("bind: segment %u gets an address that is no multiple of %llu", segment, (ull)p.align);
  p.said.address = address;
  p.said.bytes = p.bytes = bytes;
  resolve(p);
}

void Program::profile(bool on) {
  profiling_ = false;
  if (!on) return;
  profile_min_.assign(ops_.size(), 0);
  profile_total_.assign(ops_.size(), 0);
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
};

void Program::run_part(void* context, int part, int thread) {
  const Phase& p = *static_cast<const Phase*>(context);
  uint8_t* scratch = p.scratch ? p.scratch + p.stride * static_cast<size_t>(thread) : nullptr;
  if (p.poison) fill_nan(scratch, p.poison);
  p.op->run(p.op->call, p.phase, part, static_cast<int>(p.op->parts[p.phase]), scratch);
}

// Whether the step is to be given up before instruction i. Asked only where that is cheap: before instructions of
// several parts, and while nothing has been written that outlives this call: a step that is given up raises, and a
// caller that gets no number of steps takes it that none was done.
bool Program::given_up(size_t i, const RunOptions& options) {
  using Clock = std::chrono::steady_clock;
  if (!options.poll || i > state_first_ || steps_done_) return false;
  const auto now = Clock::now();
  if (now < poll_next_) return false;
  const bool stop = options.poll();
  poll_next_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(kPollSeconds));
  if (stop) status_.stop = kStopRequested;
  return stop;
}

template <bool several>
bool Program::step_plain(Team* team, const RunOptions& options) {
  uint8_t* const scratch = scratch_ ? scratch_->data() : nullptr;
  for (size_t i = 0; i < ops_.size(); i++) {
    const Op& op = ops_[i];
    if (op.several && given_up(i, options)) return false;
    for (uint32_t phase = 0; phase < op.phases; phase++) {
      const int parts = static_cast<int>(op.parts[phase]);
      if (several && parts > 1) {
        Phase job{&op, static_cast<int>(phase), scratch, scratch_stride_, 0};
        team->run(run_part, &job, parts);
      } else {
        for (int part = 0; part < parts; part++) op.run(op.call, static_cast<int>(phase), part, parts, scratch);
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
bool Program::step_debug(Team& team, const RunOptions& options) {
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
  if (options.poison) dead(0);
  for (size_t i = 0; i < ops_.size(); i++) {
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
    const auto start = Clock::now();
    for (uint32_t phase = 0; phase < op.phases; phase++) {
      Phase job{&op, static_cast<int>(phase), scratch_ ? scratch_->data() : nullptr, scratch_stride_,
                options.poison && scratch_ ? scratch_bytes_ : 0};
      if (op.parts[phase] > 1) team.run(run_part, &job, static_cast<int>(op.parts[phase]));
      else run_part(&job, 0, 0);
    }
    if (profiling_) {
      const int64_t ns = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
      profile_total_[i] += ns;
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
  if (profiling_) profile_steps_++;
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

  const bool debug = options.poison || options.check || profiling_;
  Team team(several_ ? options.threads : 1);  // a tape of single parts wakes nobody
  if (scratch_bytes_ && scratch_threads_ < team.threads()) {
    scratch_.reset();
    scratch_threads_ = 0;  // until there is memory for more
    scratch_ = std::make_unique<Block>(scratch_stride_ * static_cast<size_t>(team.threads()));
    scratch_threads_ = team.threads();
  }
  if (options.check)
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
    const bool done = debug                ? step_debug(team, options)
                      : team.threads() > 1 ? step_plain<true>(&team, options)
                                           : step_plain<false>(nullptr, options);
    if (!done) {
      result.stop = status_.stop;
      result.node = status_.node;
      result.index = status_.index;
      result.value = status_.value;
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

// vm_load.cpp: from the bytecode's records to a Program: every argument checked, its kernel looked up, its address resolved.
//
//   for each segment:       its size and where it lies
//   for each instruction:   for each argument: read_arg, need     shape, strides and bytes; inside its segment
//                           the kernel's own plan                 the phases, parts, scratch and workspace of the bytecode
//   for each range:         need                                  records, dead bytes, guard bytes
//   for each segment:       resolve                               base + offset into each argument
#include <algorithm>

#include "refuse.h"
#include "threads.h"
#include "vm.h"

namespace gradloom {
namespace {

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

}  // namespace

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

Program::Program(const KernelTable& table, const Bytecode& bytecode) {
  if (bytecode.instruction_count >= kEachStep || bytecode.arg_count >= UINT32_MAX) refuse("the bytecode is too long");
  read_segments(bytecode);
  read_instructions(table, bytecode);
  read_ranges(bytecode);
  for (Place& p : places_) {
    if (p.said.kind == Segment::arena) arenas_.push_back(p.said.from);
    resolve(p);
  }
  std::sort(arenas_.begin(), arenas_.end());
  arenas_.erase(std::unique(arenas_.begin(), arenas_.end()), arenas_.end());
}

void Program::read_segments(const Bytecode& bytecode) {
  for (size_t i = 0; i < bytecode.segments.size(); i++) {
    Place p;
    p.said = bytecode.segments[i];
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
}

// The segment that holds these bytes, which `who` touches.
Program::Place& Program::need(uint32_t segment, uint64_t offset, uint64_t bytes, const char* who) {
  if (segment >= places_.size()) refuse("%s: segment %u; there are %zu", who, segment, places_.size());
  Place& p = places_[segment];
  if (p.said.kind == Segment::scratch) refuse("%s: segment %u is scratch, which has no addresses", who, segment);
  if (offset > p.bytes || bytes > p.bytes - offset)
    refuse("%s: bytes %llu..+%llu lie outside segment %u of %llu bytes", who, (ull)offset, (ull)bytes, segment,
           (ull)p.bytes);
  p.needed = std::max(p.needed, offset + bytes);
  return p;
}

void Program::read_instructions(const KernelTable& table, const Bytecode& bytecode) {
  attrs_.assign(bytecode.attrs, bytecode.attrs + bytecode.attr_count);
  std::vector<const KernelRow*> rows;
  for (const auto& [name, signature] : bytecode.kernels) rows.push_back(&find_kernel(table, name, signature));

  // Arguments in the order of the instructions, so that a run reads memory forwards.
  size_t total = 0;
  for (size_t i = 0; i < bytecode.instruction_count; i++) total += bytecode.instructions[i].arg_count;
  if (total >= UINT32_MAX) refuse("the bytecode is too long");
  tensors_.reserve(total);
  ops_.reserve(bytecode.instruction_count);

  bool stateful = false;  // some instruction so far writes outside the arena
  for (size_t i = 0; i < bytecode.instruction_count; i++) {
    const InstructionRecord& in = bytecode.instructions[i];
    if (in.kernel >= rows.size()) refuse("instruction %zu: kernel %u; there are %zu", i, in.kernel, rows.size());
    const KernelRow& row = *rows[in.kernel];
    char who[160];
    std::snprintf(who, sizeof who, "instruction %zu (%s %s, node %u)", i, row.name, row.signature, in.node);
    if (in.arg_first > bytecode.arg_count || in.arg_count > bytecode.arg_count - in.arg_first)
      refuse("%s: arguments %u..+%u; the bytecode has %zu", who, in.arg_first, in.arg_count, bytecode.arg_count);
    if (in.attr_first > bytecode.attr_count || in.attr_count > bytecode.attr_count - in.attr_first)
      refuse("%s: attribute words %u..+%u; the bytecode has %zu", who, in.attr_first, in.attr_count, bytecode.attr_count);
    if (in.phases < 1 || in.phases > kMaxPhases) refuse("%s: %u phases; 1..%d are possible", who, in.phases, kMaxPhases);

    const ArgRecord* args = bytecode.args + in.arg_first;
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

    // The kernel's own plan, from the same records, must be the one that the bytecode was made with.
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
      refuse("%s: needs %zu bytes of scratch; the bytecode has %llu", who, plan.scratch_bytes, (ull)scratch_bytes_);
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
    op.joins = row.joins;
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
}

void Program::read_ranges(const Bytecode& bytecode) {
  records_ = bytecode.records;
  for (size_t i = 0; i < records_.size(); i++) {
    need(records_[i].segment, records_[i].offset, records_[i].bytes, ("record " + std::to_string(i)).c_str());
    record_bytes_ += records_[i].bytes;
  }
  dead_ = bytecode.dead;
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
  guards_ = bytecode.guards;
  for (size_t i = 0; i < guards_.size(); i++) {
    const std::string who = "guard range " + std::to_string(i);
    Place& p = need(guards_[i].segment, guards_[i].offset, guards_[i].bytes, who.c_str());
    if (p.said.kind != Segment::arena && p.said.kind != Segment::memory) refuse("%s: lies in no memory", who.c_str());
  }
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

}  // namespace gradloom

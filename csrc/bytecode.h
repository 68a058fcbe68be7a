// bytecode.h: everything that the native core knows about a program.
//
// Bytecode is three arrays of plain records, made by src/gradloom/plan/bytecode.py and handed over without copying:
// instructions, arguments, attribute words. A pointer is segment + offset; the segment table gives each
// segment's base address. The core has no shape rules, makes no decisions and allocates nothing while it runs.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

// This header is compiled once per instruction set. Whatever it defines is inlined by force: the linker must not
// find a copy compiled for a wider instruction set than the machine has.
#define GL_INLINE inline __attribute__((always_inline))

// A function that is compiled once and called: one whose work is long beside a call, and whose copies in each caller
// would be most of what there is to compile.
#define GL_CALLED inline __attribute__((noinline))

namespace gradloom {

constexpr int kMaxRank = 6;
constexpr int kMaxPhases = 4;
constexpr uint32_t kNoSegment = 0xffffffffu;  // an absent optional argument: data == nullptr
constexpr int64_t kNoAttr = INT64_MIN;        // the word of an optional attribute without a value
constexpr size_t kAlign = 64;                 // every buffer starts on a cache line

// Codes shared with src/gradloom/base/dtypes.py. Quantised types hold blocks of neighbours (kernels/quant.h).
enum class DType : uint8_t {
  none = 0, f32 = 1, f16 = 2, bf16 = 3, f64 = 4, u8 = 5, i8 = 6, i32 = 7, i64 = 8,
  q4_0 = 16, q4_1 = 17, q5_0 = 18, q5_1 = 19, q8_0 = 20, q2_k = 21, q3_k = 22, q4_k = 23, q5_k = 24, q6_k = 25
};

// Elements of a block; 1 for plain types.
GL_INLINE constexpr int64_t dtype_block(DType t) { return t < DType::q4_0 ? 1 : t < DType::q2_k ? 32 : 256; }
// Bytes of a block.
GL_INLINE constexpr size_t dtype_bytes(DType t) {
  switch (t) {
    case DType::q4_0: return 18;
    case DType::q4_1: return 20;
    case DType::q5_0: return 22;
    case DType::q5_1: return 24;
    case DType::q8_0: return 34;
    case DType::q2_k: return 84;
    case DType::q3_k: return 110;
    case DType::q4_k: return 144;
    case DType::q5_k: return 176;
    case DType::q6_k: return 210;
    case DType::u8: case DType::i8: return 1;
    case DType::f16: case DType::bf16: return 2;
    case DType::f32: case DType::i32: return 4;
    case DType::f64: case DType::i64: return 8;
    default: return 0;
  }
}

// What an address must be a multiple of; blocks are read byte by byte.
GL_INLINE constexpr size_t dtype_align(DType t) { return dtype_block(t) == 1 ? dtype_bytes(t) : 1; }

// ---- records of the bytecode: NumPy structured arrays, packed as C lays them out -------------------------

struct ArgRecord {            // 120 bytes
  uint32_t segment;           // index into the segment table, or kNoSegment
  uint8_t dtype;              // DType
  uint8_t rank;
  uint16_t flags;             // kArgWrite
  uint64_t offset;            // bytes from the segment's base
  uint64_t bytes;             // extent of the bytes that may be touched, from offset
  int64_t shape[kMaxRank];    // slowest axis first; unused entries are 1
  int64_t strides[kMaxRank];  // in elements, 0 along broadcast axes; unused entries are 0
};                            // of quantised values, one axis has stride 1 and whole blocks, the others step by blocks
constexpr uint16_t kArgWrite = 1;
static_assert(sizeof(ArgRecord) == 120);

struct InstructionRecord {    // 48 bytes
  uint32_t kernel;            // index into the bytecode's list of (name, signature)
  uint32_t node;              // id of the graph node, for messages
  uint32_t arg_first, arg_count;    // inputs, then outputs, then the workspace if there is one
  uint32_t attr_first, attr_count;  // words
  uint32_t flags;             // kInstructionGuard
  uint32_t phases;
  uint32_t parts[kMaxPhases];
};
constexpr uint32_t kInstructionGuard = 1;  // may ask the run to stop: every thread looks at the status after it
static_assert(sizeof(InstructionRecord) == 48);

// ---- what a kernel sees -------------------------------------------------------------------------------

struct Tensor {
  void* data;  // nullptr for an absent optional argument (and for every argument while planning)
  int64_t shape[kMaxRank];
  int64_t strides[kMaxRank];  // elements
  DType dtype;                // none for an absent optional input
  uint8_t rank;

  template <class T> GL_INLINE T* as() const { return static_cast<T*>(data); }
  GL_INLINE int64_t size() const {
    int64_t n = 1;
    for (int i = 0; i < rank; i++) n *= shape[i];
    return n;
  }
  GL_INLINE bool dense() const {  // row-major without gaps
    int64_t n = 1;
    for (int i = rank - 1; i >= 0; i--) {
      if (shape[i] != 1 && strides[i] != n) return false;
      n *= shape[i];
    }
    return true;
  }
};

// Why a run stopped early. The VM fails only for what a plan could not know.
enum class Stop : int32_t { none = 0, guard = 1 /* loss or gradient not finite */, index = 2 /* id out of range */,
                            nonfinite = 3 /* checked run: first bad output */, bounds = 4 /* guard bytes overwritten */ };

struct Status {
  int32_t stop = 0;   // Stop
  uint32_t node = 0;  // set by the VM: the instruction's node
  int64_t index = 0;  // kernel: which element
  int64_t value = 0;  // kernel: what it held
  int32_t lock = 0;
  // Several parts may fail at once: the smallest index is kept, so that the message does not depend on threads.
  GL_INLINE void fail(Stop why, int64_t at, int64_t seen) {
    while (__atomic_exchange_n(&lock, 1, __ATOMIC_ACQUIRE)) {}
    if (stop == 0 || at < index) { index = at; value = seen; stop = static_cast<int32_t>(why); }
    __atomic_store_n(&lock, 0, __ATOMIC_RELEASE);
  }
};

struct Call {
  const Tensor* args;  // inputs, outputs[, workspace]
  int arg_count;
  const int64_t* attrs;  // words, in the order in which the op declares its attributes; see attr_*
  int attr_count;
  Status* status;

  GL_INLINE const Tensor& operator[](int i) const { return args[i]; }
  GL_INLINE const Tensor& workspace() const { return args[arg_count - 1]; }  // only when KernelPlan::workspace_bytes > 0
  // One word per int, bool, enum (index of the choice) and float (bits of the double);
  // a list of n ints takes n + 1 words, the first of them n.
  GL_INLINE int64_t attr_int(int word) const { return attrs[word]; }
  GL_INLINE double attr_float(int word) const { double d; std::memcpy(&d, attrs + word, 8); return d; }
  // Whether an optional attribute has a value. Absent ones at the end take no word, others hold kNoAttr.
  GL_INLINE bool attr_given(int word) const { return word < attr_count && attrs[word] != kNoAttr; }
};

// How a kernel wants to be run; asked once per instruction while planning, from shapes and attributes alone
// (args[i].data is null then). Parts depend on shapes and ISA, never on the number of threads: a part always
// computes the same numbers in the same order, whoever runs it. All parts of a phase end before the next begins.
struct KernelPlan {
  int phases = 1;
  uint32_t parts[kMaxPhases] = {1, 1, 1, 1};
  size_t scratch_bytes = 0;    // per thread, contents undefined at the start of each part
  size_t workspace_bytes = 0;  // one buffer shared by all parts and phases; becomes the last argument
};

using PlanFn = void (*)(const Call&, KernelPlan&);
using RunFn = void (*)(const Call&, int phase, int part, int parts, void* scratch);

struct KernelRow {
  const char* name;       // the op's name
  const char* signature;  // dtypes of the present inputs and the outputs in order, equal neighbours merged: "f32", "f32_i32_f32"
  PlanFn plan;            // nullptr: one phase, one part, no scratch, no workspace
  RunFn run;
  bool joins = false;     // n neighbouring parts may be run as one: run(part / n, parts / n). Nothing but time depends on it
};

struct KernelTable {
  const char* isa;  // "scalar" "avx2" "avx512" "avx512bf16"
  const KernelRow* rows;
  size_t count;
  const KernelTable* below;  // has the kernels that are not here; or nullptr
  bool unit;                 // its products of bf16 run on a unit of the processor's
};

// Split [0, n) into parts; every boundary is a multiple of `grain`.
struct Range { int64_t begin, end; };
GL_INLINE Range part_range(int64_t n, int part, int parts, int64_t grain = 1) {
  if (parts == 1) return {0, n};
  const int64_t blocks = (n + grain - 1) / grain;
  const int64_t b = blocks * part / parts * grain, e = blocks * (part + 1) / parts * grain;
  return {b < n ? b : n, e < n ? e : n};
}
inline double division = 1;  // multiplies the number of parts: in tests, which so divide small arrays

// Number of parts for work of `cost` units: one below `grain_cost`, at most `most`. Never depends on threads.
GL_INLINE uint32_t parts_for(double cost, double grain_cost, uint32_t most = 16) {
  const double p = cost * division / grain_cost;
  return p <= 1 ? 1u : p >= most ? most : static_cast<uint32_t>(p);
}

}  // namespace gradloom

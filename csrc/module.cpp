// module.cpp: gradloom._core, the native core as Python sees it.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>

#include "faults.h"
#include "peaks.h"
#include "processor.h"
#include "quantise.h"
#include "threads.h"
#include "tuning.h"
#include "vm.h"

namespace nb = nanobind;
using namespace gradloom;

namespace {

// A thread that asks for the GIL while the interpreter is finalised never gets it. Before Python 3.14 the interpreter
// ends such a thread by pthread_exit, which unwinds its stack; the frames of a binding do not allow that, and the process
// would abort. So the thread sleeps until the process has ended, which is what Python 3.14 makes it do.
class NoUnwind {
 public:
  ~NoUnwind() {
    while (armed_) std::this_thread::sleep_for(std::chrono::hours(1));
  }
  void done() { armed_ = false; }

 private:
  bool armed_ = true;
};

// The state of a thread that is inside of without_gil. It is what the GIL is asked for with: unlike PyGILState_Ensure,
// PyEval_RestoreThread may be called when the interpreter is gone.
thread_local PyThreadState* suspended = nullptr;

void take_gil() {
  NoUnwind guard;
  PyEval_RestoreThread(suspended);
  guard.done();
}

// Runs `work` without the GIL; rethrows what it throws once the GIL is back.
template <class F>
void without_gil(F work) {
  std::exception_ptr thrown;
  PyThreadState* const outer = suspended;  // a signal handler may come in between
  suspended = PyEval_SaveThread();
  try {
    work();
  } catch (const std::exception&) {
    thrown = std::current_exception();
  }
  take_gil();
  suspended = outer;
  if (thrown) std::rethrow_exception(thrown);
}

// A C-contiguous buffer, held for as long as this lives.
class Bytes {
 public:
  Bytes(nb::handle object, bool writable, const char* what) {
    if (PyObject_GetBuffer(object.ptr(), &view_, writable ? PyBUF_CONTIG : PyBUF_CONTIG_RO) != 0) {
      PyErr_Clear();
      throw nb::type_error((std::string(what) + ": need a C-contiguous" + (writable ? " writable" : "") +
                            " array").c_str());
    }
  }
  ~Bytes() { PyBuffer_Release(&view_); }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;

  uint8_t* data() const { return static_cast<uint8_t*>(view_.buf); }
  size_t bytes() const { return static_cast<size_t>(view_.len); }
  template <class T> const T* as(const char* what, size_t& count) const {
    if (bytes() % sizeof(T))
      throw std::invalid_argument(std::string(what) + ": " + std::to_string(bytes()) +
                                  " bytes are no whole number of records of " + std::to_string(sizeof(T)));
    if (reinterpret_cast<uintptr_t>(data()) % alignof(T))
      throw std::invalid_argument(std::string(what) + ": not aligned to " + std::to_string(alignof(T)) + " bytes");
    count = bytes() / sizeof(T);
    return reinterpret_cast<const T*>(data());
  }

 private:
  Py_buffer view_{};
};

// Rows for `steps` steps of `row` bytes each: None, or a two-dimensional array.
void check_rows(const Bytes& rows, int64_t steps, uint64_t row, const char* what) {
  if (row == 0 || rows.bytes() / row < static_cast<uint64_t>(steps) || rows.bytes() % row)
    throw std::invalid_argument(std::string(what) + ": " + std::to_string(rows.bytes()) + " bytes; need " +
                                std::to_string(steps) + " rows of " + std::to_string(row));
}

using ByteArray = nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>;

ByteArray arena_view(const Arena& arena) {
  auto held = std::make_unique<std::shared_ptr<Block>>(arena.block());
  nb::capsule owner(held.get(), [](void* p) noexcept { delete static_cast<std::shared_ptr<Block>*>(p); });
  const Block* block = held.release()->get();
  return ByteArray(block ? block->data() : nullptr, {block ? block->bytes() : 0}, owner);
}

// What Python holds: the program and the arenas that it computes in.
struct PyProgram {
  std::vector<nb::object> arenas;
  std::unique_ptr<Program> program;
};

std::vector<ByteRange> ranges(nb::handle list, bool with_instruction, const char* what) {
  std::vector<ByteRange> out;
  for (nb::handle item : list) {
    nb::tuple t = nb::cast<nb::tuple>(item);
    if (t.size() != (with_instruction ? 4u : 3u))
      throw nb::type_error((std::string(what) + ": each is (" + (with_instruction ? "instruction, " : "") +
                            "segment, offset, bytes)").c_str());
    const size_t k = with_instruction ? 1 : 0;
    out.push_back({with_instruction ? static_cast<uint32_t>(nb::cast<int64_t>(t[0])) : 0u, nb::cast<uint32_t>(t[k]),
                   nb::cast<uint64_t>(t[k + 1]), nb::cast<uint64_t>(t[k + 2])});
  }
  return out;
}

void make_program(PyProgram* self, const std::string& isa, nb::handle kernels, nb::handle instructions, nb::handle args,
                  nb::handle attrs, nb::sequence segments, nb::handle records, nb::handle dead, nb::handle guards) {
  PyProgram made;
  Program::Bytecode bytecode;
  for (nb::handle item : kernels) {  // not by nanobind's own reader of lists: it ends the process without memory
    nb::tuple t = nb::cast<nb::tuple>(item);
    if (t.size() != 2) throw nb::type_error("kernels: each is (name, signature)");
    bytecode.kernels.emplace_back(nb::cast<nb::str>(t[0]).c_str(), nb::cast<nb::str>(t[1]).c_str());
  }
  const Bytes b0(instructions, false, "instructions"), b1(args, false, "args"), b2(attrs, false, "attrs");
  bytecode.instructions = b0.as<InstructionRecord>("instructions", bytecode.instruction_count);
  bytecode.args = b1.as<ArgRecord>("args", bytecode.arg_count);
  bytecode.attrs = b2.as<int64_t>("attrs", bytecode.attr_count);
  for (nb::handle item : segments) {
    nb::tuple t = nb::cast<nb::tuple>(item);
    const std::string kind = t.size() ? nb::cast<std::string>(t[0]) : "";
    Segment s{};
    if (kind == "arena" && t.size() == 2) {
      s.kind = Segment::arena;
      s.from = nb::cast<Arena*>(t[1]);
      made.arenas.push_back(nb::borrow(t[1]));
    } else if ((kind == "memory" || kind == "readonly") && t.size() == 3) {
      s.kind = kind == "memory" ? Segment::memory : Segment::readonly;
      s.address = nb::cast<uint64_t>(t[1]);
      s.bytes = nb::cast<uint64_t>(t[2]);
    } else if ((kind == "scratch" || kind == "settings") && t.size() == 2) {
      s.kind = kind == "scratch" ? Segment::scratch : Segment::settings;
      s.bytes = nb::cast<uint64_t>(t[1]);
    } else {
      throw std::invalid_argument("segment " + std::to_string(bytecode.segments.size()) +
                                  ": need (\"arena\", Arena), (\"memory\" or \"readonly\", address, bytes), "
                                  "(\"scratch\", bytes) or (\"settings\", bytes)");
    }
    bytecode.segments.push_back(s);
  }
  bytecode.records = ranges(records, false, "records");
  bytecode.dead = ranges(dead, true, "dead");
  bytecode.guards = ranges(guards, false, "guards");
  made.program = std::make_unique<Program>(find_table(isa), bytecode);
  new (self) PyProgram(std::move(made));
}

thread_local bool handling = false;  // a signal handler runs in the middle of a run of this thread
thread_local PyObject* asked = nullptr;  // tells whether a signal is waiting whose handler will raise after the run

// Handles the signals that have arrived (Ctrl-C); true when a handler raised, or one waits for the end of the run. Only
// the main thread ever sees one.
bool signalled() {
  take_gil();
  handling = true;
  bool raised = PyErr_CheckSignals() != 0;
  if (!raised && asked) {
    PyObject* const answer = PyObject_CallNoArgs(asked);
    raised = !answer || PyObject_IsTrue(answer) == 1;
    Py_XDECREF(answer);
  }
  handling = false;
  suspended = PyEval_SaveThread();
  return raised;
}

// The run that the handler came into holds the arena, and goes on only when the handler has returned.
void refuse_in_handler() {
  if (handling)
    throw std::runtime_error("called by a signal handler that came into another run; need a handler that sets a flag");
}

nb::tuple run_program(PyProgram& self, int64_t steps, nb::handle settings, nb::handle records, int threads,
                      double deadline, bool poison, bool check, bool flush, int64_t first, int64_t last,
                      nb::handle interrupted) {
  refuse_in_handler();
  Program& program = *self.program;
  RunOptions options;
  options.steps = steps;
  options.threads = threads;
  options.deadline = deadline;
  options.poison = poison;
  options.check = check;
  options.flush = flush;
  if (interrupted.ptr() != Py_False) options.poll = signalled;
  if (first < 0 || last < -1)
    throw std::invalid_argument("run: instructions " + std::to_string(first) + " to " + std::to_string(last) +
                                "; need whole numbers of 0 or more, or -1 for the end");
  options.first = static_cast<size_t>(first);
  if (last >= 0) options.last = static_cast<size_t>(last);
  if (steps < 0) throw std::invalid_argument("run: " + std::to_string(steps) + " steps; need 0 or more");
  if (threads < 1) throw std::invalid_argument("run: " + std::to_string(threads) + " threads; need 1 or more");
  // Too cheap to be worth an optional<>: a buffer is held only where one was given.
  alignas(Bytes) unsigned char room[2][sizeof(Bytes)];
  struct Held {
    Bytes* b = nullptr;
    ~Held() { if (b) b->~Bytes(); }
  } rows, out;
  if (!settings.is_none()) {
    rows.b = new (room[0]) Bytes(settings, false, "settings");
    check_rows(*rows.b, steps, program.settings_bytes(), "settings");
    options.settings = rows.b->data();
  }
  if (!records.is_none()) {
    out.b = new (room[1]) Bytes(records, true, "records");
    check_rows(*out.b, steps, program.record_bytes(), "records");
    options.records = out.b->data();
  }
  RunResult r;
  struct Asked {
    PyObject* const outer = asked;
    ~Asked() { asked = outer; }
  } restored;
  asked = PyCallable_Check(interrupted.ptr()) ? interrupted.ptr() : nullptr;
  without_gil([&] { r = program.run(options); });
  if (PyErr_Occurred()) throw nb::python_error();  // what a signal's handler raised
  return nb::make_tuple(r.steps, r.stop, r.node, r.index, r.value);
}

}  // namespace

NB_MODULE(_core, m) {
  m.doc() = "The native core: kernels, arenas, threads and the machine that runs bytecode.";
  nb::set_leak_warnings(false);

  m.attr("ARG_BYTES") = sizeof(ArgRecord);
  m.attr("INSTRUCTION_BYTES") = sizeof(InstructionRecord);
  m.attr("STOP_NAMES") = nb::make_tuple("done", "guard", "index", "nonfinite", "bounds", "requested", "deadline");
  m.attr("EACH_STEP") = kEachStep;
  m.attr("ADDRESS_SANITIZER") = kAddressSanitizer;
  m.attr("FAULTS") = kFaults;
  m.attr("FLUSHES") = kFlushes;

  m.def("isas", [] {
    std::vector<std::string> names;
    for (const KernelTable* t : tables()) names.push_back(t->isa);
    return names;
  }, "Instruction sets that this machine runs, best first; after them the twins of units, in software.");
  m.def("kernels", [](const std::string& isa, bool own) {
    const KernelTable& t = find_table(isa);
    std::vector<std::pair<std::string, std::string>> rows;
    for (const KernelTable* from = &t; from && (from == &t || !own); from = from->below)
      for (size_t i = 0; i < from->count; i++) rows.emplace_back(from->rows[i].name, from->rows[i].signature);
    std::sort(rows.begin(), rows.end());
    rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
    return rows;
  }, nb::arg("isa"), nb::arg("own") = false,
     "(name, signature) of every kernel of an instruction set; own: without those that it takes from another one.");
  m.def("bf16_unit", [](const std::string& isa) { return find_table(isa).unit; }, nb::arg("isa"),
        "Whether products of bf16 run on a unit of the processor's: elsewhere they are f32 products of rounded numbers.");
  m.def("kernel_plan", [](const std::string& isa, const std::string& name, const std::string& signature,
                          nb::handle args, nb::handle attrs) {
    const Bytes b0(args, false, "args"), b1(attrs, false, "attrs");
    size_t arg_count, attr_count;
    const ArgRecord* a = b0.as<ArgRecord>("args", arg_count);
    const int64_t* w = b1.as<int64_t>("attrs", attr_count);
    const KernelPlan plan = plan_kernel(find_kernel(find_table(isa), name, signature), a, arg_count, w, attr_count);
    nb::list parts;
    for (int i = 0; i < plan.phases; i++) parts.append(plan.parts[i]);
    return nb::make_tuple(nb::tuple(parts), plan.scratch_bytes, plan.workspace_bytes);
  }, nb::arg("isa"), nb::arg("name"), nb::arg("signature"), nb::arg("args"), nb::arg("attrs"),
     "(parts of each phase, scratch bytes per thread, workspace bytes) of a kernel on these shapes.");
  m.def("quantise", [](nb::handle values, int type, nb::handle out, int threads) {
    const Bytes b0(values, false, "values"), b1(out, true, "out");
    size_t count;
    const float* x = b0.as<float>("values", count);
    const DType t = static_cast<DType>(type);
    const size_t need = type < 0 || type > 255 ? 0 : count / static_cast<size_t>(dtype_block(t)) * dtype_bytes(t);
    if (b1.bytes() != need)
      throw std::invalid_argument("quantise: out has " + std::to_string(b1.bytes()) + " bytes; need " +
                                  std::to_string(need));
    without_gil([&] { quantise(t, x, count, b1.data(), threads); });
  }, nb::arg("values"), nb::arg("type"), nb::arg("out"), nb::arg("threads") = 1,
     "Write f32 numbers, whole blocks, as blocks of a quantised type; the same bytes for any number of threads.");
  m.def("cores", &cores, "CPUs that this process may use: the most threads that a run gets.");
  m.def("set_cores", &set_cores, nb::arg("n"), "Pretend to have n CPUs (0: ask the system): for tests of the pool.");
  m.def("set_division", [](double times) { division = times; }, nb::arg("times"),
        "Multiply the number of parts of a kernel's work (1: as usual): for tests, whose arrays are small.");
  m.def("processor", [] {
    const Processor cpu = processor();
    return nb::make_tuple(cpu.vendor, cpu.family, cpu.model, cpu.l1, cpu.l2);
  }, "(vendor, family, model, bytes of the first-level data cache, of the second-level cache): \"\" and 0 are unknown.");
  m.def("tuning", [] { return std::string(tuning().name); }, "The row of the table of processors that products use.");
  m.def("tunings", &tunings, "The names of all rows.");
  m.def("use_tuning", &use_tuning, nb::arg("name"),
        "Take another row than this processor's: for tests, before the first product is planned.");
  m.def("fma_peak", [](const std::string& isa, int threads, int repeats) {
    auto rate = decltype(fma_peak(find_table(isa), threads, repeats)){};
    without_gil([&] { rate = fma_peak(find_table(isa), threads, repeats); });
    return rate;
  }, nb::arg("isa"), nb::arg("threads") = 1, nb::arg("repeats") = 9,
     "GFLOP/s of multiply-adds in registers: the median of `repeats` short stretches.");
  m.def("bf16_peak", [](const std::string& isa, int threads, int repeats) {
    auto rate = decltype(bf16_peak(find_table(isa), threads, repeats)){};
    without_gil([&] { rate = bf16_peak(find_table(isa), threads, repeats); });
    return rate;
  }, nb::arg("isa"), nb::arg("threads") = 1, nb::arg("repeats") = 9,
     "The same of what products of bf16 run on.");
  m.def("copy_rate", [](const std::string& isa, int threads, int repeats) {
    auto rate = decltype(copy_rate(find_table(isa), threads, repeats)){};
    without_gil([&] { rate = copy_rate(find_table(isa), threads, repeats); });
    return rate;
  }, nb::arg("isa"), nb::arg("threads") = 1, nb::arg("repeats") = 5,
     "GB/s read and written by a copy of 128 MiB per thread.");
  m.def("pool_threads", &pool_threads, "Threads that the pools have started so far.");

  nb::class_<Arena>(m, "Arena", "One block of memory, 2 MiB aligned, in huge pages where the system has them.")
      .def(nb::init<>())
      .def("ensure", [](Arena& a, size_t bytes) {
        refuse_in_handler();
        without_gil([&] { a.ensure(bytes); });
      }, nb::arg("bytes"), "Grow to at least this many bytes: fresh, zeroed, each page touched once.")
      .def_prop_ro("bytes", &Arena::bytes)
      .def_prop_ro("address", [](const Arena& a) { return reinterpret_cast<uintptr_t>(a.data()); })
      .def_prop_ro("generation", &Arena::generation)
      .def_prop_ro("huge_bytes", [](const Arena& a) { return a.block() ? a.block()->huge_bytes() : 0; })
      .def("view", &arena_view, "The bytes as a writable array; it stays valid, but no longer current, when the arena grows.");

  nb::class_<PyProgram>(m, "Program", "Checked bytecode with its addresses: what runs.")
      .def("__init__", &make_program, nb::arg("isa"), nb::arg("kernels"), nb::arg("instructions"), nb::arg("args"),
           nb::arg("attrs"), nb::arg("segments"), nb::arg("records") = nb::tuple(), nb::arg("dead") = nb::tuple(),
           nb::arg("guards") = nb::tuple())
      .def("run", &run_program, nb::arg("steps") = 1, nb::arg("settings") = nb::none(), nb::arg("records") = nb::none(),
           nb::arg("threads") = 1, nb::arg("deadline") = 0.0, nb::arg("poison") = false, nb::arg("check") = false,
           nb::arg("flush") = false, nb::arg("first") = 0, nb::arg("last") = -1, nb::arg("interrupted") = nb::none())
      .def("bind", [](PyProgram& p, uint32_t segment, uint64_t address, uint64_t bytes) {
        p.program->bind(segment, address, bytes);
      }, nb::arg("segment"), nb::arg("address"), nb::arg("bytes"))
      .def("stop", [](PyProgram& p) { p.program->stop(); })
      .def("profile", [](PyProgram& p, bool on) { p.program->profile(on); }, nb::arg("on"))
      .def("timings", [](PyProgram& p) {
        return nb::make_tuple(p.program->profile_steps(), p.program->profile_min(), p.program->profile_total());
      })
      .def("denormals", [](PyProgram& p) { return p.program->profile_denormal(); },
           "Of each instruction, the profiled steps in which it had a denormal operand.")
      .def_prop_ro("steps_run", [](const PyProgram& p) { return p.program->steps_run(); }, "Of all runs so far.")
      .def_prop_ro("record_bytes", [](const PyProgram& p) { return p.program->record_bytes(); })
      .def_prop_ro("settings_bytes", [](const PyProgram& p) { return p.program->settings_bytes(); })
      .def("__len__", [](const PyProgram& p) { return p.program->instruction_count(); });
}

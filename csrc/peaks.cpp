#include "peaks.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "arena.h"
#include "threads.h"
#include "vm.h"

namespace gradloom {
namespace {

// One kernel call per thread, on tensors of its own.
struct Work {
  RunFn run;
  std::vector<Tensor> tensors;  // per thread
  int per_thread;
  int64_t rounds;
  std::vector<Status> status;

  static void on_thread(void* context, int part, int, int) {
    Work& w = *static_cast<Work*>(context);
    const size_t t = static_cast<size_t>(part);
    const Call call{&w.tensors[t * static_cast<size_t>(w.per_thread)], w.per_thread, &w.rounds, 1, &w.status[t]};
    w.run(call, 0, 0, 1, nullptr);
  }
};

Tensor vector_of(float* data, int64_t n) {
  Tensor t{};
  t.data = data;
  t.dtype = DType::f32;
  t.rank = 1;
  for (int i = 0; i < kMaxRank; i++) t.shape[i] = 1;
  t.shape[0] = n;
  t.strides[0] = 1;
  return t;
}

double median_seconds(Team& team, Work& work, int repeats) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> seconds;
  team.run(Work::on_thread, &work, team.threads());
  for (int r = 0; r < repeats; r++) {
    const auto began = Clock::now();
    team.run(Work::on_thread, &work, team.threads());
    seconds.push_back(std::chrono::duration<double>(Clock::now() - began).count());
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

double peak(const KernelTable& table, const char* kernel, int threads, int repeats) {
  Team team(threads);
  constexpr int64_t room = 64;
  Block out(static_cast<size_t>(team.threads()) * room * 4);
  Work work{find_kernel(table, kernel, "f32").run, {}, 1, 1 << 21, {}};
  for (int t = 0; t < team.threads(); t++)
    work.tensors.push_back(vector_of(reinterpret_cast<float*>(out.data()) + t * room, room));
  work.status.resize(static_cast<size_t>(team.threads()));
  const double seconds = median_seconds(team, work, repeats);
  return static_cast<double>(work.status[0].value) * team.threads() / seconds / 1e9;
}

}  // namespace

double fma_peak(const KernelTable& table, int threads, int repeats) { return peak(table, "limit_fma", threads, repeats); }
double bf16_peak(const KernelTable& table, int threads, int repeats) {
  return peak(table, "limit_bf16", threads, repeats);
}

double copy_rate(const KernelTable& table, int threads, int repeats) {
  Team team(threads);
  constexpr int64_t n = 32 << 20;  // floats per thread: 128 MiB read, 128 MiB written
  Block room(static_cast<size_t>(team.threads()) * n * 8);
  float* const data = reinterpret_cast<float*>(room.data());
  Work work{find_kernel(table, "limit_copy", "f32").run, {}, 2, 0, {}};
  for (int t = 0; t < team.threads(); t++) {
    work.tensors.push_back(vector_of(data + 2 * t * n, n));
    work.tensors.push_back(vector_of(data + (2 * t + 1) * n, n));
  }
  work.status.resize(static_cast<size_t>(team.threads()));
  return 8e-9 * static_cast<double>(n) * team.threads() / median_seconds(team, work, repeats);
}

}  // namespace gradloom

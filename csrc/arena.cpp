#include "arena.h"

#include <cstdio>
#include <cstring>
#include <new>
#include <utility>

#include "faults.h"

#if defined(__unix__) || defined(__APPLE__)
#include <sys/mman.h>
#define GL_MMAP 1
#endif

namespace gradloom {

constexpr size_t kHuge = size_t{2} << 20;

#ifdef GL_MMAP
Block::Block(size_t bytes) {
  if (bytes > SIZE_MAX - 2 * kHuge || fault("arena")) throw std::bad_alloc();
  bytes_ = (bytes + kHuge - 1) / kHuge * kHuge;
  // One huge page more than needed, then the ends outside the aligned range are given back.
  const size_t mapped = bytes_ + kHuge;
  void* raw = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) throw std::bad_alloc();
  uint8_t* start = static_cast<uint8_t*>(raw);
  const size_t head = (kHuge - reinterpret_cast<uintptr_t>(start) % kHuge) % kHuge;
  data_ = start + head;
  if (head) munmap(start, head);
  if (kHuge - head) munmap(data_ + bytes_, kHuge - head);
#ifdef MADV_HUGEPAGE
  madvise(data_, bytes_, MADV_HUGEPAGE);
#endif
  for (size_t at = 0; at < bytes_; at += 4096) static_cast<volatile uint8_t*>(data_)[at] = 0;
}

Block::~Block() { munmap(data_, bytes_); }
#else
Block::Block(size_t bytes) {
  if (bytes > SIZE_MAX - 2 * kHuge || fault("arena")) throw std::bad_alloc();
  bytes_ = (bytes + kHuge - 1) / kHuge * kHuge;
  data_ = static_cast<uint8_t*>(::operator new(bytes_, std::align_val_t(kHuge)));
  std::memset(data_, 0, bytes_);
}

Block::~Block() { ::operator delete(data_, std::align_val_t(kHuge)); }
#endif

size_t Block::huge_bytes() const {
  size_t total = 0;
#ifdef __linux__
  std::FILE* file = std::fopen("/proc/self/smaps", "r");
  if (!file) return 0;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(data_), end = begin + bytes_;
  char line[512];
  bool ours = false;
  while (std::fgets(line, sizeof line, file)) {
    unsigned long long from, to, kib;
    if (std::sscanf(line, "%llx-%llx ", &from, &to) == 2) {
      ours = from < end && to > begin;
    } else if (ours && std::sscanf(line, "AnonHugePages: %llu kB", &kib) == 1) {
      total += static_cast<size_t>(kib) << 10;
    }
  }
  std::fclose(file);
#endif
  return total < bytes_ ? total : bytes_;  // neighbours may share one mapping with us
}

void Arena::ensure(size_t bytes) {
  std::lock_guard<std::mutex> run(mutex_);
  grow(bytes);
}

void Arena::grow(size_t bytes) {
  if (bytes <= this->bytes()) return;
  {
    std::lock_guard<std::mutex> hold(block_mutex_);
    block_.reset();  // first, unless a view holds it: the peak is the new size, not the sum
    generation_.fetch_add(1, std::memory_order_release);
  }
  auto grown = std::make_shared<Block>(bytes);
  std::lock_guard<std::mutex> hold(block_mutex_);
  block_ = std::move(grown);
}

}  // namespace gradloom

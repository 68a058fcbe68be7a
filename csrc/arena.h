// arena.h: one block of memory for everything that a run computes: 2 MiB aligned, in huge pages, touched once.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

namespace gradloom {

// The bytes of an arena at one size. A view holds its block, so growing the arena never pulls memory from under it.
class Block {
 public:
  explicit Block(size_t bytes);  // zeroed; rounded up to whole 2 MiB pages
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  uint8_t* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  size_t huge_bytes() const;  // how much of it lies in huge pages now; 0 where the system does not say

 private:
  uint8_t* data_ = nullptr;
  size_t bytes_ = 0;
};

class Arena {
 public:
  // Grows to at least `bytes`; never shrinks. Growing moves the arena to fresh zeroed memory and waits for a run
  // that is using it.
  void ensure(size_t bytes);
  void grow(size_t bytes);  // the same for who holds mutex(). When it throws, the arena has no bytes until it grows again
  std::shared_ptr<Block> block() const {
    std::lock_guard<std::mutex> hold(block_mutex_);
    return block_;
  }
  uint8_t* data() const {
    const std::shared_ptr<Block> b = block();
    return b ? b->data() : nullptr;
  }
  size_t bytes() const {
    const std::shared_ptr<Block> b = block();
    return b ? b->bytes() : 0;
  }
  uint64_t generation() const { return generation_.load(std::memory_order_acquire); }
  std::mutex& mutex() { return mutex_; }  // held by a run: one at a time of those that share an arena

 private:
  std::shared_ptr<Block> block_;
  std::atomic<uint64_t> generation_{0};
  std::mutex mutex_;
  mutable std::mutex block_mutex_;  // guards block_ alone, for a moment: views are taken while others run
};

}  // namespace gradloom

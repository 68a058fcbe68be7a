// arena.h: one block of memory for everything that a run computes: 2 MiB aligned, in huge pages, touched once.
#pragma once
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
  uint8_t* data() const { return block_ ? block_->data() : nullptr; }
  size_t bytes() const { return block_ ? block_->bytes() : 0; }
  uint64_t generation() const { return generation_; }
  const std::shared_ptr<Block>& block() const { return block_; }
  std::mutex& mutex() { return mutex_; }  // held by a run: runs that share an arena take turns

 private:
  std::shared_ptr<Block> block_;
  uint64_t generation_ = 0;
  std::mutex mutex_;
};

}  // namespace gradloom

// faults.cpp: preloaded into a process, makes the n-th call fail of those that open, write, sync or rename files below
// one folder, and of the allocations that a core built with GRADLOOM_FAULTS asks about. In the manner of SQLite's tests.
//
// faults_arm says which folder, which call and how; nothing is counted before. Each counted call is one line of the log:
// "call path", with " !" behind it when the call failed. Calls on folders and files elsewhere go through untouched.
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>

namespace {

enum Mode {
  kOnce,   // the n-th call fails, those after it do not
  kShort,  // the n-th call, when it writes, writes half
  kFull,   // from the n-th call on the disk is full: nothing grows, nothing new is made; the first write writes half
  kDead,   // from the n-th call on all calls fail
  kKill,   // the process is killed at the n-th call
};
enum Kind { kRead, kRoom, kWrite, kKeep, kMemory };  // kRoom: makes or grows a file. kKeep: sync, rename, lock, mode

char folder[PATH_MAX];
size_t folder_length = 0;
std::atomic<long> counted{0};
long fail_at = 0;
int mode = kOnce, log_file = -1;

template <class F>
F real(F& kept, const char* name) {
  if (!kept) kept = reinterpret_cast<F>(dlsym(RTLD_NEXT, name));
  return kept;
}
#define REAL(name) real(real_##name, #name)
#define DECLARE(result, name, ...) \
  result (*real_##name)(__VA_ARGS__) = nullptr;

DECLARE(int, open, const char*, int, ...)
DECLARE(int, open64, const char*, int, ...)
DECLARE(int, openat, int, const char*, int, ...)
DECLARE(int, openat64, int, const char*, int, ...)
DECLARE(DIR*, opendir, const char*)
DECLARE(FILE*, fopen, const char*, const char*)
DECLARE(FILE*, fopen64, const char*, const char*)
DECLARE(int, mkdir, const char*, mode_t)
DECLARE(int, mkdirat, int, const char*, mode_t)
DECLARE(int, rename, const char*, const char*)
DECLARE(int, renameat, int, const char*, int, const char*)
DECLARE(int, renameat2, int, const char*, int, const char*, unsigned)
DECLARE(int, link, const char*, const char*)
DECLARE(int, linkat, int, const char*, int, const char*, int)
DECLARE(int, symlink, const char*, const char*)
DECLARE(int, chmod, const char*, mode_t)
DECLARE(int, fchmod, int, mode_t)
DECLARE(int, fchmodat, int, const char*, mode_t, int)
DECLARE(ssize_t, read, int, void*, size_t)
DECLARE(ssize_t, pread, int, void*, size_t, off_t)
DECLARE(ssize_t, pread64, int, void*, size_t, off64_t)
DECLARE(ssize_t, readv, int, const iovec*, int)
DECLARE(ssize_t, write, int, const void*, size_t)
DECLARE(ssize_t, pwrite, int, const void*, size_t, off_t)
DECLARE(ssize_t, pwrite64, int, const void*, size_t, off64_t)
DECLARE(ssize_t, writev, int, const iovec*, int)
DECLARE(ssize_t, copy_file_range, int, off64_t*, int, off64_t*, size_t, unsigned)
DECLARE(ssize_t, sendfile, int, int, off_t*, size_t)
DECLARE(ssize_t, sendfile64, int, int, off64_t*, size_t)
DECLARE(int, ftruncate, int, off_t)
DECLARE(int, ftruncate64, int, off64_t)
DECLARE(int, fallocate, int, int, off_t, off_t)
DECLARE(int, fallocate64, int, int, off64_t, off64_t)
DECLARE(int, posix_fallocate, int, off_t, off_t)
DECLARE(int, posix_fallocate64, int, off64_t, off64_t)
DECLARE(void*, mmap, void*, size_t, int, int, int, off_t)
DECLARE(void*, mmap64, void*, size_t, int, int, int, off64_t)
DECLARE(int, flock, int, int)
DECLARE(int, fsync, int)
DECLARE(int, fdatasync, int)

void note(const char* call, const char* path, bool failed) {
  if (log_file < 0) return;
  char line[PATH_MAX + 64];
  const int n = snprintf(line, sizeof line, "%s %s%s\n", call, path, failed ? " !" : "");
  (void)!REAL(write)(log_file, line, static_cast<size_t>(n));
}

// Counts a call. True when it is to fail, with errno set; `half`, when there is one, is set where the call is to write
// half instead.
bool fails(Kind kind, const char* call, const char* path, bool* half = nullptr) {
  const long n = ++counted;
  bool failed = false;
  if (fail_at && n >= fail_at) switch (mode) {
      case kOnce: failed = n == fail_at; break;
      case kShort:
        if (half && n == fail_at) *half = true;
        break;
      case kFull:
        failed = kind == kRoom || kind == kWrite;
        if (half && n == fail_at) *half = true, failed = false;
        break;
      case kDead: failed = true; break;
      case kKill: raise(SIGKILL); break;
    }
  note(call, path, failed || (half && *half));
  if (failed)
    errno = kind == kMemory ? ENOMEM : kind == kRoom || kind == kWrite ? (mode == kDead ? EIO : ENOSPC)
            : kind == kRead && !strncmp(call, "open", 4)               ? EMFILE
            : kind == kRead && !strncmp(call, "mmap", 4)               ? ENOMEM
                                                                       : EIO;
  return failed;
}

// What of a path is below the folder ("" for itself), or nullptr.
const char* inside(const char* path) {
  if (strncmp(path, folder, folder_length) || (path[folder_length] && path[folder_length] != '/')) return nullptr;
  return path + folder_length + (path[folder_length] == '/');
}

// The path below the folder, or nullptr for one that lies elsewhere. `room`: PATH_MAX bytes.
const char* below(const char* path, char* room, int at = AT_FDCWD) {
  const int saved = errno;
  const char* found = nullptr;
  if (folder_length && path) {
    size_t n = 0;
    if (path[0] != '/') {
      if (at == AT_FDCWD) {
        if (getcwd(room, PATH_MAX)) n = strlen(room);
      } else {
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", at);
        const ssize_t got = readlink(link, room, PATH_MAX - 1);
        if (got > 0) n = static_cast<size_t>(got);
      }
      if (n + 1 < PATH_MAX) room[n++] = '/';
    }
    snprintf(room + n, PATH_MAX - n, "%s", path);
    found = inside(room);
  }
  errno = saved;
  return found;
}

const char* below(int fd, char* room) {
  if (!folder_length) return nullptr;
  const int saved = errno;
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t n = readlink(link, room, PATH_MAX - 1);
  errno = saved;
  if (n <= 0) return nullptr;
  room[n] = 0;
  return inside(room);
}

Kind opening(int flags) {
  return flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE ? kRoom : kRead;
}

}  // namespace

extern "C" {

// Below this folder, from the next call on: the `at`-th counted call fails (0: none), as `how` says (Mode). log: a file
// descriptor for the log, or -1.
void faults_arm(const char* below_folder, long at, int how, int log) {
  snprintf(folder, sizeof folder, "%s", below_folder);
  counted = 0;
  fail_at = at;
  mode = how;
  log_file = log;
  folder_length = strlen(folder);
}
long faults_counted() { return counted; }

int gl_fault(const char* call) { return folder_length && fails(kMemory, call, ""); }

#define OPEN(name)                                                    \
  int name(const char* path, int flags, ...) {                        \
    va_list list;                                                     \
    va_start(list, flags);                                            \
    const mode_t bits = va_arg(list, mode_t);                         \
    va_end(list);                                                     \
    char room[PATH_MAX];                                              \
    const char* p = below(path, room);                                \
    if (p && fails(opening(flags), "open", p)) return -1;             \
    return REAL(name)(path, flags, bits);                             \
  }
#define OPENAT(name)                                                  \
  int name(int at, const char* path, int flags, ...) {                \
    va_list list;                                                     \
    va_start(list, flags);                                            \
    const mode_t bits = va_arg(list, mode_t);                         \
    va_end(list);                                                     \
    char room[PATH_MAX];                                              \
    const char* p = below(path, room, at);                            \
    if (p && fails(opening(flags), "open", p)) return -1;             \
    return REAL(name)(at, path, flags, bits);                         \
  }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

DIR* opendir(const char* path) {
  char room[PATH_MAX];
  const char* p = below(path, room);
  if (p && fails(kRead, "open", p)) return nullptr;
  return REAL(opendir)(path);
}
#define FOPEN(name)                                                                        \
  FILE* name(const char* path, const char* how) {                                          \
    char room[PATH_MAX];                                                                   \
    const char* p = below(path, room);                                                     \
    if (p && fails(how[0] == 'r' ? kRead : kRoom, "open", p)) return nullptr;              \
    return REAL(name)(path, how);                                                          \
  }
FOPEN(fopen)
FOPEN(fopen64)

int mkdir(const char* path, mode_t bits) {
  char room[PATH_MAX];
  const char* p = below(path, room);
  if (p && fails(kRoom, "mkdir", p)) return -1;
  return REAL(mkdir)(path, bits);
}
int mkdirat(int at, const char* path, mode_t bits) {
  char room[PATH_MAX];
  const char* p = below(path, room, at);
  if (p && fails(kRoom, "mkdir", p)) return -1;
  return REAL(mkdirat)(at, path, bits);
}
int rename(const char* from, const char* to) {
  char room[PATH_MAX];
  const char* p = below(to, room);
  if (p && fails(kKeep, "rename", p)) return -1;
  return REAL(rename)(from, to);
}
int renameat(int at, const char* from, int at_to, const char* to) {
  char room[PATH_MAX];
  const char* p = below(to, room, at_to);
  if (p && fails(kKeep, "rename", p)) return -1;
  return REAL(renameat)(at, from, at_to, to);
}
int renameat2(int at, const char* from, int at_to, const char* to, unsigned flags) {
  char room[PATH_MAX];
  const char* p = below(to, room, at_to);
  if (p && fails(kKeep, "rename", p)) return -1;
  return REAL(renameat2)(at, from, at_to, to, flags);
}
int link(const char* from, const char* to) {
  char room[PATH_MAX];
  const char* p = below(to, room);
  if (p && fails(kRoom, "link", p)) return -1;
  return REAL(link)(from, to);
}
int linkat(int at, const char* from, int at_to, const char* to, int flags) {
  char room[PATH_MAX];
  const char* p = below(to, room, at_to);
  if (p && fails(kRoom, "link", p)) return -1;
  return REAL(linkat)(at, from, at_to, to, flags);
}
int symlink(const char* what, const char* path) {
  char room[PATH_MAX];
  const char* p = below(path, room);
  if (p && fails(kRoom, "symlink", p)) return -1;
  return REAL(symlink)(what, path);
}
int chmod(const char* path, mode_t bits) {
  char room[PATH_MAX];
  const char* p = below(path, room);
  if (p && fails(kKeep, "chmod", p)) return -1;
  return REAL(chmod)(path, bits);
}
int fchmodat(int at, const char* path, mode_t bits, int flags) {
  char room[PATH_MAX];
  const char* p = below(path, room, at);
  if (p && fails(kKeep, "chmod", p)) return -1;
  return REAL(fchmodat)(at, path, bits, flags);
}
int fchmod(int fd, mode_t bits) {
  char room[PATH_MAX];
  const char* p = below(fd, room);
  if (p && fails(kKeep, "chmod", p)) return -1;
  return REAL(fchmod)(fd, bits);
}

ssize_t read(int fd, void* to, size_t bytes) {
  char room[PATH_MAX];
  const char* p = below(fd, room);
  if (p && fails(kRead, "read", p)) return -1;
  return REAL(read)(fd, to, bytes);
}
#define PREAD(name, offset)                                           \
  ssize_t name(int fd, void* to, size_t bytes, offset at) {           \
    char room[PATH_MAX];                                              \
    const char* p = below(fd, room);                                  \
    if (p && fails(kRead, "read", p)) return -1;                      \
    return REAL(name)(fd, to, bytes, at);                             \
  }
PREAD(pread, off_t)
PREAD(pread64, off64_t)
ssize_t readv(int fd, const iovec* list, int count) {
  char room[PATH_MAX];
  const char* p = below(fd, room);
  if (p && fails(kRead, "read", p)) return -1;
  return REAL(readv)(fd, list, count);
}

ssize_t write(int fd, const void* from, size_t bytes) {
  char room[PATH_MAX];
  bool half = false;
  const char* p = below(fd, room);
  if (p && fails(kWrite, "write", p, &half)) return -1;
  return REAL(write)(fd, from, half ? (bytes + 1) / 2 : bytes);
}
#define PWRITE(name, offset)                                          \
  ssize_t name(int fd, const void* from, size_t bytes, offset at) {   \
    char room[PATH_MAX];                                              \
    bool half = false;                                                \
    const char* p = below(fd, room);                                  \
    if (p && fails(kWrite, "write", p, &half)) return -1;             \
    return REAL(name)(fd, from, half ? (bytes + 1) / 2 : bytes, at);  \
  }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)
ssize_t writev(int fd, const iovec* list, int count) {
  char room[PATH_MAX];
  bool half = false;
  const char* p = below(fd, room);
  if (p && fails(kWrite, "write", p, &half)) return -1;
  if (half && count) return REAL(write)(fd, list[0].iov_base, (list[0].iov_len + 1) / 2);
  return REAL(writev)(fd, list, count);
}
ssize_t copy_file_range(int from, off64_t* at, int to, off64_t* at_to, size_t bytes, unsigned flags) {
  char room[PATH_MAX];
  const char* p = below(to, room);
  if (p && fails(kWrite, "copy", p)) return -1;
  return REAL(copy_file_range)(from, at, to, at_to, bytes, flags);
}
#define SENDFILE(name, offset)                                        \
  ssize_t name(int to, int from, offset* at, size_t bytes) {          \
    char room[PATH_MAX];                                              \
    const char* p = below(to, room);                                  \
    if (p && fails(kWrite, "copy", p)) return -1;                     \
    return REAL(name)(to, from, at, bytes);                           \
  }
SENDFILE(sendfile, off_t)
SENDFILE(sendfile64, off64_t)

#define FTRUNCATE(name, offset)                                       \
  int name(int fd, offset bytes) {                                    \
    char room[PATH_MAX];                                              \
    const char* p = below(fd, room);                                  \
    if (p && fails(kRoom, "ftruncate", p)) return -1;                 \
    return REAL(name)(fd, bytes);                                     \
  }
FTRUNCATE(ftruncate, off_t)
FTRUNCATE(ftruncate64, off64_t)
#define FALLOCATE(name, offset)                                       \
  int name(int fd, int how, offset at, offset bytes) {                \
    char room[PATH_MAX];                                              \
    const char* p = below(fd, room);                                  \
    if (p && fails(kRoom, "fallocate", p)) return -1;                 \
    return REAL(name)(fd, how, at, bytes);                            \
  }
FALLOCATE(fallocate, off_t)
FALLOCATE(fallocate64, off64_t)
#define POSIX_FALLOCATE(name, offset)                                 \
  int name(int fd, offset at, offset bytes) {                         \
    char room[PATH_MAX];                                              \
    const char* p = below(fd, room);                                  \
    if (p && fails(kRoom, "fallocate", p)) return errno;              \
    return REAL(name)(fd, at, bytes);                                 \
  }
POSIX_FALLOCATE(posix_fallocate, off_t)
POSIX_FALLOCATE(posix_fallocate64, off64_t)

#define MMAP(name, offset)                                                              \
  void* name(void* address, size_t bytes, int protect, int flags, int fd, offset at) {  \
    char room[PATH_MAX];                                                                \
    const char* p = fd < 0 ? nullptr : below(fd, room);                                 \
    if (p && fails(kRead, "mmap", p)) return MAP_FAILED;                                \
    return REAL(name)(address, bytes, protect, flags, fd, at);                          \
  }
MMAP(mmap, off_t)
MMAP(mmap64, off64_t)

int flock(int fd, int what) {
  char room[PATH_MAX];
  const char* p = what & LOCK_UN ? nullptr : below(fd, room);
  if (p && fails(kKeep, "flock", p)) {
    errno = ENOLCK;  // no memory for another lock
    return -1;
  }
  return REAL(flock)(fd, what);
}
// A sync that does not fail costs nothing: below the folder no power cut is survived.
#define SYNC(name)                                                    \
  int name(int fd) {                                                  \
    char room[PATH_MAX];                                              \
    const char* p = below(fd, room);                                  \
    if (!p) return REAL(name)(fd);                                    \
    return fails(kKeep, "fsync", p) ? -1 : 0;                         \
  }
SYNC(fsync)
SYNC(fdatasync)

}  // extern "C"

// SPDX-License-Identifier: Apache-2.0
// Stands in for libnccl.so.2: the functions of nccl_api.hpp between threads of one process, with
// NCCL's rules as far as a caller can break them: non-blocking communicators, messages inside
// groups only, no call while one is in progress, both sides of a message of one length. Messages
// travel on threads of their own, after GroupEnd has returned. What tests steer: fake_nccl.hpp.
#include "tests/kernels/fake_nccl.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/nccl_api.hpp"

using namespace switchyard::gpu::nccl;  // NOLINT(google-build-using-namespace): its own names

namespace {

constexpr Result kInternal = 3, kInvalidArgument = 4, kInvalidUsage = 5;

struct World {
  std::size_t joined = 0, finalized = 0, ranks = 0;
  std::map<std::pair<int, int>, std::deque<std::vector<std::byte>>> mail;  // by (from, to)
};
struct FakeComm {
  std::shared_ptr<World> world;
  int rank = 0;
  Result state = kInProgress;
  bool aborted = false, finalized = false;
  bool looked = false;  // the caller has seen that a group is on its way
  std::vector<std::thread> workers;
};
struct Message {
  bool send;
  void* data;
  std::size_t bytes;
  int peer;
  FakeComm* comm;
  Stream stream;
};
struct Fault {
  std::string call;
  int rank;
  Result result;
};

std::mutex mutex;
std::condition_variable changed;
std::map<std::string, std::shared_ptr<World>> worlds;
std::map<Stream, int> busy;
std::map<int, std::string> calls;
std::vector<Fault> faults;
/// Neither destroyed nor aborted; those of earlier tests, which errors left behind, in `forgotten`.
std::set<FakeComm*>& live = *new std::set<FakeComm*>;
std::set<FakeComm*>& forgotten = *new std::set<FakeComm*>;
int ids = 0;
thread_local int depth = 0;
thread_local int version = 22809;
thread_local std::vector<Message> group;
thread_local Result group_error = kSuccess;  // of a call inside; GroupEnd gives it, nothing travels

/// The result that a test wants of this call, once; the mutex is held.
Result asked(const std::string& call, int rank) {
  const auto it = std::find_if(faults.begin(), faults.end(), [&](const Fault& f) {
    return f.call == call && (f.rank == rank || f.rank < 0);
  });
  if (it == faults.end()) {
    return kSuccess;
  }
  const Result result = it->result;
  faults.erase(it);
  return result;
}
void note(int rank, const std::string& call) { calls[rank] += call + "; "; }

/// Waits until `done` or the communicator is aborted (false).
template <class F>
bool wait(std::unique_lock<std::mutex>& lock, const FakeComm& comm, const F& done) {
  changed.wait(lock, [&] { return comm.aborted || done(); });
  return !comm.aborted;
}

/// One group: what it sends lies in the mail when the host may go on, what it receives comes later.
void travel(FakeComm* comm, const std::vector<Message>& messages) {
  std::unique_lock lock(mutex);
  for (const Message& m : messages) {
    if (m.send) {
      const auto* const data = static_cast<const std::byte*>(m.data);
      comm->world->mail[{comm->rank, m.peer}].emplace_back(data, data + m.bytes);
    }
  }
  const Result later = asked("async", comm->rank);
  lock.unlock();
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  lock.lock();
  comm->state = kSuccess;
  comm->looked = false;
  changed.notify_all();
  wait(lock, *comm, [&] { return comm->looked; });  // so that what comes now comes after GroupEnd
  bool whole = later == kSuccess;
  for (const Message& m : messages) {
    auto& mail = comm->world->mail[{m.peer, comm->rank}];
    if (m.send || !wait(lock, *comm, [&] { return !mail.empty(); })) {
      continue;
    }
    whole = whole && mail.front().size() == m.bytes;
    if (whole) {
      std::memcpy(m.data, mail.front().data(), m.bytes);
    }
    mail.pop_front();
  }
  if (!whole) {
    comm->state = later != kSuccess ? later : kInternal;
  } else if (!comm->aborted) {
    --busy[messages.front().stream];
  }
  changed.notify_all();
}

void end(FakeComm* comm) {
  for (std::thread& t : comm->workers) {
    t.join();
  }
  const std::lock_guard lock(mutex);
  live.erase(comm);
  forgotten.erase(comm);
  delete comm;
}

Result queued(bool send, void* data, std::size_t count, int type, int peer, Comm c, Stream stream) {
  auto* const comm = static_cast<FakeComm*>(c);
  const std::lock_guard lock(mutex);
  note(comm->rank,
       std::string(send ? "send " : "recv ") + std::to_string(peer) + ":" + std::to_string(count));
  if (const Result r = asked(send ? "Send" : "Recv", comm->rank); r != kSuccess) {
    return r;
  }
  if (depth != 1 || comm->state != kSuccess) {
    return kInvalidUsage;
  }
  if (type != kUint8 || count == 0 || data == nullptr || peer == comm->rank || peer < 0 ||
      static_cast<std::size_t>(peer) >= comm->world->ranks || stream == nullptr) {
    return kInvalidArgument;
  }
  group.push_back({send, data, count, peer, comm, stream});
  return kSuccess;
}
Result queue(bool send, void* data, std::size_t count, int type, int peer, Comm c, Stream stream) {
  const Result result = queued(send, data, count, type, peer, c, stream);
  group_error = group_error == kSuccess ? result : group_error;
  return result;
}

}  // namespace

extern "C" {

int ncclGetVersion(int* number) {
  *number = version;
  return kSuccess;
}
int ncclGetUniqueId(UniqueId* id) {
  const std::lock_guard lock(mutex);
  const std::string text = "world " + std::to_string(ids++);
  std::memset(id, 0, sizeof *id);  // with zeros inside, as NCCL's ids have
  std::memcpy(id->internal + 1, text.data(), text.size());
  return asked("GetUniqueId", 0);
}
int ncclCommInitRankConfig(Comm* out, int ranks, UniqueId id, int rank, Config* config) {
  const std::lock_guard lock(mutex);
  note(rank, "init");
  if (const Result r = asked("CommInitRankConfig", rank); r != kSuccess) {
    return r;
  }
  if (config->size != sizeof(Config) || config->magic != 0xcafebeef || config->version != 21400 ||
      config->blocking != 0) {
    return kInvalidArgument;
  }
  auto& world = worlds[std::string(id.internal, sizeof id.internal)];
  if (world == nullptr) {
    world = std::make_shared<World>();
    world->ranks = static_cast<std::size_t>(ranks);
  }
  auto* const comm = new FakeComm{world, rank, kInProgress, false, false, false, {}};
  live.insert(comm);
  ++world->joined;
  comm->workers.emplace_back([comm] {
    std::unique_lock lock2(mutex);
    if (wait(lock2, *comm, [&] { return comm->world->joined == comm->world->ranks; })) {
      comm->state = kSuccess;
    }
  });
  changed.notify_all();
  *out = comm;
  return kInProgress;
}
int ncclCommFinalize(Comm c) {
  auto* const comm = static_cast<FakeComm*>(c);
  const std::lock_guard lock(mutex);
  note(comm->rank, "finalize");
  if (comm->state != kSuccess) {
    return kInvalidUsage;
  }
  comm->state = kInProgress;
  comm->finalized = true;
  ++comm->world->finalized;
  comm->workers.emplace_back([comm] {
    std::unique_lock lock2(mutex);
    if (wait(lock2, *comm, [&] { return comm->world->finalized == comm->world->ranks; })) {
      comm->state = kSuccess;
    }
  });
  changed.notify_all();
  return kInProgress;
}
int ncclCommDestroy(Comm c) {
  auto* const comm = static_cast<FakeComm*>(c);
  {
    const std::lock_guard lock(mutex);
    note(comm->rank, "destroy");
    if (!comm->finalized || comm->state != kSuccess) {
      return kInvalidUsage;
    }
  }
  end(comm);
  return kSuccess;
}
int ncclCommAbort(Comm c) {
  auto* const comm = static_cast<FakeComm*>(c);
  {
    const std::lock_guard lock(mutex);
    note(comm->rank, "abort");
    comm->aborted = true;
    changed.notify_all();
  }
  end(comm);
  return kSuccess;
}
int ncclCommGetAsyncError(Comm c, Result* state) {
  const std::lock_guard lock(mutex);
  auto* const comm = static_cast<FakeComm*>(c);
  *state = comm->state;
  comm->looked = comm->looked || comm->state == kSuccess;
  changed.notify_all();
  return kSuccess;
}
const char* ncclGetErrorString(Result result) {
  return result == kInternal          ? "internal error"
         : result == kInvalidArgument ? "invalid argument"
                                      : "invalid usage";
}
const char* ncclGetLastError(Comm) { return "the fake's last words\nsecond line"; }
int ncclSend(const void* data, std::size_t count, int type, int peer, Comm c, Stream stream) {
  return queue(true, const_cast<void*>(data), count, type, peer, c, stream);
}
int ncclRecv(void* data, std::size_t count, int type, int peer, Comm c, Stream stream) {
  return queue(false, data, count, type, peer, c, stream);
}
int ncclGroupStart() {
  ++depth;
  return kSuccess;
}
int ncclGroupEnd() {
  const std::vector<Message> messages = std::exchange(group, {});
  if (--depth != 0) {
    return kInvalidUsage;
  }
  if (const Result error = std::exchange(group_error, kSuccess); error != kSuccess) {
    return error;
  }
  if (messages.empty()) {
    return kSuccess;
  }
  FakeComm* const comm = messages.front().comm;
  const std::lock_guard lock(mutex);
  note(comm->rank, "end");
  comm->state = kInProgress;
  ++busy[messages.front().stream];
  comm->workers.emplace_back(travel, comm, messages);
  return kInProgress;
}

int fake_nccl_busy(void* stream) {
  const std::lock_guard lock(mutex);
  return busy[stream];
}
int fake_nccl_live() {
  const std::lock_guard lock(mutex);
  return static_cast<int>(live.size());
}
const char* fake_nccl_calls(int rank) {
  const std::lock_guard lock(mutex);
  return calls[rank].c_str();
}
void fake_nccl_reset() {
  const std::lock_guard lock(mutex);
  forgotten.merge(live);
  calls.clear();
  faults.clear();
  busy.clear();
}
void fake_nccl_fault(const char* call, int rank, int result) {
  const std::lock_guard lock(mutex);
  faults.push_back({call, rank, result});
}
void fake_nccl_version(int number) { version = number; }

}  // extern "C"

// SPDX-License-Identifier: Apache-2.0
#include "kernels/nccl_communicator.hpp"

#include <fmt/format.h>

#include <cstring>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "engine/base/error.hpp"
#include "kernels/nccl_api.hpp"

namespace switchyard::gpu {
namespace {

using nccl::Result;

/// The texts that the ranks give before they join; the first byte says what follows.
constexpr char kReady = '+';   // GPU, a tab, NCCL's version
constexpr char kCannot = '-';  // the reason

/// Why these ranks cannot use NCCL together, or empty.
std::string obstacle(const std::vector<std::string>& texts) {
  std::map<std::string, std::size_t> gpus;
  for (std::size_t q = 0; q < texts.size(); ++q) {
    if (texts[q].front() != kReady) {
      return fmt::format("rank {}: {}", q, texts[q].substr(1));
    }
    const std::size_t tab = texts[q].find('\t');
    if (texts[q].substr(tab) != texts[0].substr(texts[0].find('\t'))) {
      return fmt::format("rank {} has NCCL {}, rank 0 {}", q, texts[q].substr(tab + 1),
                         texts[0].substr(texts[0].find('\t') + 1));
    }
    const auto [other, alone] = gpus.try_emplace(texts[q].substr(0, tab), q);
    if (!alone) {
      return fmt::format("ranks {} and {} share a GPU", other->second, q);
    }
  }
  return {};
}

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(Communicator& job, Device& device, const nccl::Functions& functions,
                   const nccl::UniqueId& id, std::string version, std::chrono::milliseconds timeout)
      : job_(job), device_(device), f_(functions), version_(std::move(version)), timeout_(timeout) {
    nccl::Config config;
    begun(f_.CommInitRankConfig(&comm_, static_cast<int>(size()), id, static_cast<int>(rank()),
                                &config),
          "ncclCommInitRankConfig");
    settle("ncclCommInitRankConfig");
    done_ = device_.make_event();
    if (done_ == nullptr) {
      fail("an event", device_.error());
    }
  }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;
  // Gives nothing back: after an error the device may be gone. See finish() and fail().
  ~NcclCommunicator() override = default;

  [[nodiscard]] unsigned rank() const override { return job_.rank(); }
  [[nodiscard]] unsigned size() const override { return job_.size(); }
  [[nodiscard]] unsigned local_size() const override { return job_.local_size(); }
  [[nodiscard]] unsigned local_rank() const override { return job_.local_rank(); }
  [[nodiscard]] bool moves_device_memory() const override { return true; }
  [[nodiscard]] std::string transport() const override {
    return "NCCL " + version_ + ", between GPUs";
  }

  void all_to_all(std::span<const std::span<const std::byte>> send,
                  std::span<const std::span<std::byte>> receive) override {
    job_.all_to_all(send, receive);
  }

  void all_to_all_device(std::span<const std::span<const std::byte>> send,
                         std::span<const std::span<std::byte>> receive) override {
    const unsigned me = rank();
    const unsigned ranks = size();
    SWITCHYARD_ASSERT(comm_ != nullptr, "NCCL after an error or the end");
    SWITCHYARD_ASSERT(send.size() == ranks && receive.size() == ranks, "one block a rank");
    SWITCHYARD_ASSERT(send[me].size() == receive[me].size(), "own block");
    bool any = false;
    for (unsigned q = 0; q < ranks; ++q) {
      any = any || (q != me && (!send[q].empty() || !receive[q].empty()));
    }
    if (any) {
      exchange(send, receive);
    }
    if (!send[me].empty() && !device_.copy(receive[me].data(), send[me].data(), send[me].size())) {
      fail("the copy of the own block", device_.error());
    }
    arrive();
  }

  void finish() override {
    SWITCHYARD_ASSERT(comm_ != nullptr, "NCCL after an error or the end");
    begun(f_.CommFinalize(comm_), "ncclCommFinalize");
    settle("ncclCommFinalize");
    begun(f_.CommDestroy(std::exchange(comm_, nullptr)), "ncclCommDestroy");
    device_.give_back_event(std::exchange(done_, nullptr));
    job_.finish();
  }

 private:
  using Clock = std::chrono::steady_clock;

  /// All messages in one group: none waits for another. As in MpiJob each rank starts with its
  /// neighbours, so that not all begin with rank 0.
  void exchange(std::span<const std::span<const std::byte>> send,
                std::span<const std::span<std::byte>> receive) {
    const unsigned me = rank();
    const unsigned ranks = size();
    const nccl::Stream stream = device_.stream();
    begun(f_.GroupStart(), "ncclGroupStart");
    Result worst = nccl::kSuccess;
    const char* where = "";
    const auto take = [&](Result result, const char* what) {
      if (result != nccl::kSuccess && result != nccl::kInProgress && worst == nccl::kSuccess) {
        worst = result;
        where = what;
      }
    };
    for (unsigned i = 1; i < ranks && worst == nccl::kSuccess; ++i) {
      const unsigned from = (me + ranks - i) % ranks;
      const unsigned to = (me + i) % ranks;
      if (!receive[from].empty()) {
        take(f_.Recv(receive[from].data(), receive[from].size(), nccl::kUint8,
                     static_cast<int>(from), comm_, stream),
             "ncclRecv");
      }
      if (!send[to].empty() && worst == nccl::kSuccess) {
        take(f_.Send(send[to].data(), send[to].size(), nccl::kUint8, static_cast<int>(to), comm_,
                     stream),
             "ncclSend");
      }
    }
    take(f_.GroupEnd(), "ncclGroupEnd");  // also after an error: the group is the thread's
    begun(worst, where);
    settle("ncclGroupEnd");
  }

  /// Throws unless `result` is a success or a beginning.
  void begun(Result result, const char* what) {
    if (result != nccl::kSuccess && result != nccl::kInProgress) {
      fail(what, f_.GetErrorString(result));
    }
  }
  /// Whether the communicator has nothing in progress; throws when it failed.
  bool settled(const char* what) {
    Result state = nccl::kSuccess;
    const Result asked = f_.CommGetAsyncError(comm_, &state);
    begun(asked, "ncclCommGetAsyncError");
    begun(state, what);
    return state == nccl::kSuccess;
  }
  void settle(const char* what) {
    wait(what, [&] { return settled(what); });
  }
  /// Waits for what the stream was given.
  void arrive() {
    if (!device_.record(done_, Queue::kCompute)) {
      fail("an event", device_.error());
    }
    wait("the exchange", [&] {
      bool there = false;
      if (!device_.reached(done_, there)) {
        fail("the exchange", device_.error());
      }
      return settled("the exchange") && there;
    });
  }
  /// Looks again and again, at first without a pause.
  template <class F>
  void wait(const char* what, const F& done) {
    const auto begin = Clock::now();
    for (std::uint64_t tries = 0; !done(); ++tries) {
      if (tries < 100) {
        continue;
      }
      const auto waited = Clock::now() - begin;
      if (waited > timeout_) {
        give_up();
        throw InputError(fmt::format("rank {}", rank()),
                         fmt::format("NCCL: {} did not end within {} s", what,
                                     std::chrono::duration<double>(timeout_).count()),
                         "a rank is stuck, or --rank-timeout is too short");
      }
      if (waited < std::chrono::microseconds(200)) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(20));
      }
    }
  }
  void give_up() {
    if (comm_ != nullptr) {
      (void)f_.CommAbort(std::exchange(comm_, nullptr));
    }
  }
  [[noreturn]] void fail(const std::string& what, const std::string& why) {
    const char* const more = comm_ != nullptr ? f_.GetLastError(comm_) : nullptr;
    std::string text = fmt::format("NCCL: {} failed: {}", what, why);
    if (more != nullptr && *more != '\0') {
      const std::string line(more);
      text += "; " + line.substr(0, line.find('\n'));
    }
    give_up();
    throw InputError(fmt::format("rank {}", rank()), text, "another rank may have ended");
  }

  Communicator& job_;
  Device& device_;
  nccl::Functions f_;
  std::string version_;
  std::chrono::milliseconds timeout_;
  nccl::Comm comm_ = nullptr;
  Event done_ = nullptr;
};

}  // namespace

std::unique_ptr<Communicator> join_nccl(Communicator& job, Device& device, const char* file,
                                        std::chrono::milliseconds timeout, std::string& why) {
  why.clear();
  nccl::Functions f;
  int version = 0;
  std::string mine;
  if (nccl::open(file, f, why) && f.GetVersion(&version) != nccl::kSuccess) {
    why = "ncclGetVersion failed";
  }
  mine = why.empty()
             ? fmt::format("{}{}\t{}", kReady, device.identity(), nccl::version_text(version))
             : fmt::format("{}{}", kCannot, why);
  why = obstacle(job.all_gather(mine));
  if (!why.empty()) {
    return nullptr;
  }
  // Rank 0's id, or its reason.
  std::string given;
  if (job.rank() == 0) {
    nccl::UniqueId id{};
    const Result made = f.GetUniqueId(&id);
    given = made == nccl::kSuccess
                ? std::string(1, kReady) + std::string(id.internal, sizeof id.internal)
                : fmt::format("{}ncclGetUniqueId failed: {}", kCannot, f.GetErrorString(made));
  }
  given = job.all_gather(given)[0];
  if (given.front() != kReady) {
    why = "rank 0: " + given.substr(1);
    return nullptr;
  }
  nccl::UniqueId id{};
  SWITCHYARD_ASSERT(given.size() == 1 + sizeof id.internal, "unique id");
  std::memcpy(id.internal, given.data() + 1, sizeof id.internal);
  return std::make_unique<NcclCommunicator>(job, device, f, id, nccl::version_text(version),
                                            timeout);
}

}  // namespace switchyard::gpu

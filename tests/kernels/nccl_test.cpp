// SPDX-License-Identifier: Apache-2.0
// The communicator over NCCL against a stand-in (fake_nccl.cpp): what it calls in which order, what
// arrives, and what a failing, silent or missing rank becomes. Ranks are threads.
#include "kernels/nccl_communicator.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/error.hpp"
#include "engine/nn/session.hpp"
#include "kernels/nccl_api.hpp"
#include "tests/engine/fixture_model.hpp"
#include "tests/kernels/fake_nccl.hpp"
#include "tests/parallel/thread_job.hpp"

namespace switchyard::gpu {
namespace {

using std::chrono::milliseconds;
using testing_support::run_ranks;

/// Ordinary memory; its stream is idle when the stand-in says so.
class TestDevice final : public Device {
 public:
  explicit TestDevice(std::string identity) : identity_(std::move(identity)) {}
  std::string name() const override { return "test"; }
  std::string identity() const override { return identity_; }
  void* take(std::size_t bytes) override { return ::operator new(bytes); }
  void give_back(void* memory) noexcept override { ::operator delete(memory); }
  std::uint64_t free_bytes() const override { return 1; }
  bool copy_in(void* to, const void* from, std::size_t n) override { return copy(to, from, n); }
  bool copy_out(void* to, const void* from, std::size_t n) override { return copy(to, from, n); }
  bool copy(void* to, const void* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
    return !broken;
  }
  Stream stream() override { return reinterpret_cast<Stream>(this); }
  std::string error() override { return "the device broke"; }
  void* take_pinned(std::size_t bytes) override { return take(bytes); }
  void give_back_pinned(void* memory) noexcept override { give_back(memory); }
  Event make_event() override { return &events_; }
  void give_back_event(Event) noexcept override { ++events_; }
  bool record(Event, Queue) override { return true; }
  bool wait(Event, Queue) override { return true; }
  bool finish(Event) override { return true; }
  bool reached(Event, bool& there) override {
    there = fake_nccl_busy(this) == 0;
    return true;
  }
  bool capture(void* to, const void* from, std::size_t n) override { return copy(to, from, n); }
  [[nodiscard]] int events_given_back() const { return events_; }
  bool broken = false;

 private:
  std::string identity_;
  int events_ = 0;
};

using Body = std::function<void(Communicator&, Communicator& job, TestDevice&)>;

/// Joins `ranks` threads and runs `body` on each; what each threw. `quiet`: how long they wait.
std::vector<std::string> run_joined(unsigned ranks, const Body& body,
                                    milliseconds quiet = milliseconds(20000)) {
  fake_nccl_reset();
  return run_ranks(ranks, [&](Communicator& job) {
    TestDevice device("gpu " + std::to_string(job.rank()));
    std::string why;
    const auto joined = join_nccl(job, device, FAKE_NCCL, quiet, why);
    EXPECT_EQ(why, "");
    ASSERT_NE(joined, nullptr);
    body(*joined, job, device);
  });
}

/// Bytes that rank `from` has for rank `to` in a round; some blocks are empty.
std::vector<std::byte> block(unsigned from, unsigned to, unsigned round) {
  std::vector<std::byte> out((from * 5 + to * 3 + round) % 4 * 1000 + (from == to ? 7 : 0));
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<std::byte>(from * 100 + to * 17 + round + i * 3);
  }
  return out;
}

/// One exchange of block(): true where every byte is right.
bool exchange_round(Communicator& ranks, unsigned round) {
  std::vector<std::vector<std::byte>> out, in, right;
  std::vector<std::span<const std::byte>> send;
  std::vector<std::span<std::byte>> receive;
  for (unsigned q = 0; q < ranks.size(); ++q) {
    out.push_back(block(ranks.rank(), q, round));
    right.push_back(block(q, ranks.rank(), round));
    in.emplace_back(right.back().size());
  }
  for (unsigned q = 0; q < ranks.size(); ++q) {
    send.emplace_back(out[q]);
    receive.emplace_back(in[q]);
  }
  ranks.all_to_all_device(send, receive);
  return in == right;
}

TEST(Nccl, BringsEveryBlockWhereItBelongs) {
  for (const unsigned ranks : {1U, 2U, 3U, 4U}) {
    const auto thrown =
        run_joined(ranks, [](Communicator& joined, Communicator& job, TestDevice& device) {
          EXPECT_EQ(joined.rank(), job.rank());
          EXPECT_EQ(joined.size(), job.size());
          EXPECT_TRUE(joined.moves_device_memory());
          EXPECT_FALSE(job.moves_device_memory());
          EXPECT_EQ(joined.transport(), "NCCL 2.28.9, between GPUs");
          for (unsigned round = 0; round < 5; ++round) {
            EXPECT_TRUE(exchange_round(joined, round)) << "round " << round;
          }
          EXPECT_EQ(joined.sum(joined.rank() + 1), job.size() * (job.size() + 1) / 2);
          joined.finish();
          EXPECT_EQ(device.events_given_back(), 1);
        });
    EXPECT_EQ(thrown, std::vector<std::string>(ranks));
    EXPECT_EQ(fake_nccl_live(), 0);
  }
}

// One group per exchange, neighbours first, empty blocks not at all, no group for nothing.
TEST(Nccl, CallsWhatItSays) {
  const auto thrown = run_joined(3, [](Communicator& joined, Communicator&, TestDevice&) {
    const unsigned me = joined.rank();
    std::vector<std::byte> data(100);
    // Rank 0 sends 8 bytes to rank 1 and 3 to rank 2; rank 2 sends 5 to rank 0.
    const std::map<std::pair<unsigned, unsigned>, std::size_t> sizes{
        {{0, 1}, 8}, {{0, 2}, 3}, {{2, 0}, 5}};
    const auto size = [&](unsigned from, unsigned to) {
      const auto it = sizes.find({from, to});
      return it == sizes.end() ? std::size_t{0} : it->second;
    };
    std::vector<std::span<const std::byte>> send;
    std::vector<std::span<std::byte>> receive;
    for (unsigned q = 0; q < 3; ++q) {
      send.emplace_back(std::span(data).first(size(me, q)));
      receive.emplace_back(std::span(data).subspan(20 * (q + 1), size(q, me)));
    }
    joined.all_to_all_device(send, receive);
    const std::vector<std::span<const std::byte>> nothing(3);
    const std::vector<std::span<std::byte>> nowhere(3);
    joined.all_to_all_device(nothing, nowhere);
    joined.finish();
  });
  EXPECT_EQ(thrown, std::vector<std::string>(3));
  EXPECT_STREQ(fake_nccl_calls(0), "init; recv 2:5; send 1:8; send 2:3; end; finalize; destroy; ");
  EXPECT_STREQ(fake_nccl_calls(1), "init; recv 0:8; end; finalize; destroy; ");
  EXPECT_STREQ(fake_nccl_calls(2), "init; send 0:5; recv 0:3; end; finalize; destroy; ");
}

// Host memory does not go through the GPUs.
TEST(Nccl, LeavesHostMemoryToTheJob) {
  const auto thrown = run_joined(2, [](Communicator& joined, Communicator&, TestDevice&) {
    EXPECT_EQ(joined.all_gather(std::string(joined.rank() + 1, 'x')),
              (std::vector<std::string>{"x", "xx"}));
    joined.finish();
  });
  EXPECT_EQ(thrown, std::vector<std::string>(2));
  EXPECT_STREQ(fake_nccl_calls(0), "init; finalize; destroy; ");
}

TEST(Nccl, ACallThatFailsEndsTheCommunicator) {
  for (const char* call : {"Send", "Recv"}) {
    fake_nccl_reset();
    const auto thrown = run_ranks(2, [&](Communicator& job) {
      TestDevice device("gpu " + std::to_string(job.rank()));
      std::string why;
      const auto joined = join_nccl(job, device, FAKE_NCCL, milliseconds(300), why);
      ASSERT_NE(joined, nullptr) << why;
      if (job.rank() == 1) {
        fake_nccl_fault(call, 1, 3);
      }
      (void)exchange_round(*joined, 2);  // both send and receive
    });
    EXPECT_EQ(thrown[1], InputError("rank 1",
                                    fmt::format("NCCL: nccl{} failed: internal error; the fake's "
                                                "last words",
                                                call),
                                    "another rank may have ended")
                             .what());
    EXPECT_NE(thrown[0].find("NCCL: the exchange did not end within 0.3 s"), std::string::npos)
        << thrown[0];
    // Nothing is asked for after the failure.
    EXPECT_STREQ(fake_nccl_calls(1), call == std::string("Recv")
                                         ? "init; recv 0:1000; abort; "
                                         : "init; recv 0:1000; send 0:3000; abort; ");
    EXPECT_NE(std::string(fake_nccl_calls(0)).find("abort"), std::string::npos);
    EXPECT_EQ(fake_nccl_live(), 0);
  }
}

TEST(Nccl, AnErrorOnItsWayIsFoundByPolling) {
  const auto thrown = run_joined(2, [](Communicator& joined, Communicator&, TestDevice&) {
    if (joined.rank() == 0) {
      fake_nccl_fault("async", 0, 3);
    }
    (void)exchange_round(joined, 1);
  });
  EXPECT_NE(thrown[0].find("NCCL: the exchange failed: internal error"), std::string::npos)
      << thrown[0];
  EXPECT_NE(std::string(fake_nccl_calls(0)).find("abort"), std::string::npos);
}

TEST(Nccl, ABlockOfAnotherLengthIsNotTakenForData) {
  const auto thrown = run_joined(2, [](Communicator& joined, Communicator&, TestDevice&) {
    std::vector<std::byte> data(64);
    std::vector<std::span<const std::byte>> send(2);
    std::vector<std::span<std::byte>> receive(2);
    if (joined.rank() == 0) {
      send[1] = std::span(data).first(8);
    } else {
      receive[0] = std::span(data).first(9);
    }
    joined.all_to_all_device(send, receive);
  });
  EXPECT_EQ(thrown[0], "");
  EXPECT_NE(thrown[1].find("NCCL: the exchange failed"), std::string::npos) << thrown[1];
}

TEST(Nccl, ASilentRankEndsTheWait) {
  const auto begin = std::chrono::steady_clock::now();
  const auto thrown = run_joined(
      3,
      [](Communicator& joined, Communicator&, TestDevice&) {
        if (joined.rank() != 2) {
          (void)exchange_round(joined, 1);
        }
      },
      milliseconds(200));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(200));
  for (const unsigned q : {0U, 1U}) {
    EXPECT_NE(thrown[q].find("NCCL: the exchange did not end within 0.2 s"), std::string::npos)
        << thrown[q];
    EXPECT_NE(std::string(fake_nccl_calls(static_cast<int>(q))).find("abort"), std::string::npos);
  }
  EXPECT_EQ(thrown[2], "");
}

TEST(Nccl, ARankThatDoesNotJoinEndsTheWait) {
  fake_nccl_reset();
  fake_nccl_fault("CommInitRankConfig", 1, 4);
  const auto thrown = run_ranks(2, [](Communicator& job) {
    TestDevice device("gpu " + std::to_string(job.rank()));
    std::string why;
    (void)join_nccl(job, device, FAKE_NCCL, milliseconds(200), why);
  });
  EXPECT_NE(thrown[0].find("NCCL: ncclCommInitRankConfig did not end within 0.2 s"),
            std::string::npos)
      << thrown[0];
  EXPECT_NE(thrown[1].find("NCCL: ncclCommInitRankConfig failed: invalid argument"),
            std::string::npos)
      << thrown[1];
}

TEST(Nccl, ADeviceThatFailsSaysSo) {
  const auto thrown = run_joined(1, [](Communicator& joined, Communicator&, TestDevice& device) {
    device.broken = true;
    (void)exchange_round(joined, 1);
  });
  EXPECT_NE(thrown[0].find("NCCL: the copy of the own block failed: the device broke"),
            std::string::npos)
      << thrown[0];
}

/// Every rank's reason for not joining; all are the same.
std::string refusal(unsigned ranks, const std::function<std::string(unsigned rank)>& file,
                    const std::function<std::string(unsigned rank)>& gpu) {
  std::vector<std::string> why(ranks);
  const auto thrown = run_ranks(ranks, [&](Communicator& job) {
    TestDevice device(gpu(job.rank()));
    const auto joined =
        join_nccl(job, device, file(job.rank()).c_str(), milliseconds(5000), why[job.rank()]);
    EXPECT_EQ(joined, nullptr);
    EXPECT_EQ(job.sum(1), ranks) << "the job goes on";
  });
  EXPECT_EQ(thrown, std::vector<std::string>(ranks));
  EXPECT_EQ(why, std::vector<std::string>(ranks, why[0]));
  EXPECT_EQ(fake_nccl_live(), 0);
  return why[0];
}

TEST(Nccl, SaysOnEveryRankWhyItIsNotUsed) {
  fake_nccl_reset();
  const auto fake = [](unsigned) { return std::string(FAKE_NCCL); };
  const auto own = [](unsigned rank) { return "gpu " + std::to_string(rank); };
  EXPECT_EQ(refusal(
                3, [](unsigned rank) { return rank == 1 ? "libno.so.2" : FAKE_NCCL; }, own),
            "rank 1: libno.so.2 is not on this machine");
  EXPECT_EQ(refusal(
                1, [](unsigned) { return "libdl.so.2"; }, own),
            "rank 0: libdl.so.2 has no ncclGetVersion");
  const auto shared = [](unsigned rank) {
    return rank % 3 == 0 ? "one" : "gpu " + std::to_string(rank);
  };
  EXPECT_EQ(refusal(4, fake, shared), "ranks 0 and 3 share a GPU");
  EXPECT_EQ(refusal(2, fake,
                    [](unsigned rank) {
                      fake_nccl_version(rank == 1 ? 22703 : 22809);
                      return "gpu " + std::to_string(rank);
                    }),
            "rank 1 has NCCL 2.27.3, rank 0 2.28.9");
  fake_nccl_fault("GetUniqueId", 0, 3);
  EXPECT_EQ(refusal(2, fake, own), "rank 0: ncclGetUniqueId failed: internal error");
}

TEST(Nccl, ReadsBothFormsOfVersionNumbers) {
  EXPECT_EQ(nccl::version_text(22809), "2.28.9");
  EXPECT_EQ(nccl::version_text(2804), "2.8.4");
}

// The engine's exchange of rows over it: the bits of one process alone.
TEST(Nccl, CarriesTheRowsOfAModel) {
  const auto folder =
      std::filesystem::path(SWITCHYARD_SOURCE_DIR) / "tests/fixtures/family_tiny/qwen3_moe";
  const auto run = [](const Engine& engine) {
    Session session(engine, {});
    std::vector<SequenceTokens> work;
    const std::vector<std::uint32_t> ids{1, 2, 3, 4, 5};
    for (unsigned s = 0; s < 3; ++s) {
      work.push_back({session.add_sequence(), std::span(ids).first(3 + s)});
    }
    std::vector<float> logits = session.step(work, Phase::kPrefill).logits;
    const auto totals = session.exchanged();
    return std::pair{logits, totals ? totals->transport : std::string()};
  };
  const auto alone = run(Engine::load(folder, {.threads = 1}));
  for (const auto& [ranks, tp] : {std::pair{2U, 1U}, {2U, 2U}, {4U, 2U}}) {
    const auto thrown = run_joined(ranks, [&](Communicator& joined, Communicator&, TestDevice&) {
      {
        const Engine engine = Engine::load(folder, {.threads = 1, .job = &joined, .tp = tp});
        const auto got = run(engine);
        ASSERT_EQ(got.first.size(), alone.first.size());
        EXPECT_EQ(
            std::memcmp(got.first.data(), alone.first.data(), alone.first.size() * sizeof(float)),
            0);
        EXPECT_EQ(got.second, "NCCL 2.28.9, between GPUs");
      }
      joined.finish();
    });
    EXPECT_EQ(thrown, std::vector<std::string>(ranks)) << ranks << " ranks, tp " << tp;
    EXPECT_NE(std::string(fake_nccl_calls(0)).find("send 1:"), std::string::npos);
  }
}

}  // namespace
}  // namespace switchyard::gpu

// SPDX-License-Identifier: Apache-2.0
// Ranks over MPI. Point-to-point messages and one waiting loop of our own, because a collective of
// MPI waits for ever when a rank is stuck, and because blocks may exceed the 2^31 bytes of its int
// counts.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <thread>

#include "engine/base/error.hpp"
#include "engine/parallel/communicator.hpp"

namespace switchyard {
namespace {

/// Longest message; longer blocks go in pieces.
constexpr std::size_t kPiece = std::size_t{1} << 30;
/// Tags repeat after this many operations; MPI promises 32767.
constexpr int kTags = 32000;

bool job_is_open() {
  int begun = 0;
  int ended = 0;
  MPI_Initialized(&begun);
  MPI_Finalized(&ended);
  return begun != 0 && ended == 0;
}

class MpiJob final : public Communicator {
 public:
  explicit MpiJob(const JobOptions& options) : options_(options) {
    int provided = 0;
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init");
    check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    int rank = 0;
    int size = 0;
    check(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
    check(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
    rank_ = static_cast<unsigned>(rank);
    size_ = static_cast<unsigned>(size);
    std::array<char, MPI_MAX_PROCESSOR_NAME> name{};
    int length = 0;
    check(MPI_Get_processor_name(name.data(), &length), "MPI_Get_processor_name");
    const std::string here(name.data(), static_cast<std::size_t>(length));
    const auto machines = Communicator::all_gather(here);
    local_size_ = static_cast<unsigned>(std::count(machines.begin(), machines.end(), here));
    local_rank_ =
        static_cast<unsigned>(std::count(machines.begin(), machines.begin() + rank, here));
  }
  MpiJob(const MpiJob&) = delete;
  MpiJob& operator=(const MpiJob&) = delete;
  // No MPI_Finalize here: after an error it would wait for ranks that do not come. See finish().
  ~MpiJob() override = default;

  [[nodiscard]] unsigned rank() const override { return rank_; }
  [[nodiscard]] unsigned size() const override { return size_; }
  [[nodiscard]] unsigned local_size() const override { return local_size_; }
  [[nodiscard]] unsigned local_rank() const override { return local_rank_; }
  [[nodiscard]] std::string transport() const override { return "MPI, through host memory"; }

  void all_to_all(std::span<const std::span<const std::byte>> send,
                  std::span<const std::span<std::byte>> receive) override {
    SWITCHYARD_ASSERT(send.size() == size_ && receive.size() == size_, "one block a rank");
    SWITCHYARD_ASSERT(send[rank_].size() == receive[rank_].size(), "own block");
    tag_ = (tag_ + 1) % kTags;
    requests_.clear();
    messages_.clear();
    // Each rank starts with its right neighbour, so that not all of them begin with rank 0.
    for (unsigned i = 1; i < size_; ++i) {
      const unsigned q = (rank_ + size_ - i) % size_;
      for (std::size_t at = 0; at < receive[q].size(); at += kPiece) {
        const std::size_t n = std::min(kPiece, receive[q].size() - at);
        check(MPI_Irecv(receive[q].data() + at, static_cast<int>(n), MPI_BYTE, static_cast<int>(q),
                        tag_, MPI_COMM_WORLD, &requests_.emplace_back()),
              "MPI_Irecv");
        messages_.push_back({q, n});
      }
    }
    receives_ = messages_.size();
    for (unsigned i = 1; i < size_; ++i) {
      const unsigned q = (rank_ + i) % size_;
      for (std::size_t at = 0; at < send[q].size(); at += kPiece) {
        const std::size_t n = std::min(kPiece, send[q].size() - at);
        check(MPI_Isend(send[q].data() + at, static_cast<int>(n), MPI_BYTE, static_cast<int>(q),
                        tag_, MPI_COMM_WORLD, &requests_.emplace_back()),
              "MPI_Isend");
        messages_.push_back({q, n});
      }
    }
    if (!send[rank_].empty()) {
      std::memcpy(receive[rank_].data(), send[rank_].data(), send[rank_].size());
    }
    wait_for_all();
  }

  void finish() override {
    (void)sum(0);  // All ranks are here: nobody waits in MPI_Finalize for one that failed.
    check(MPI_Finalize(), "MPI_Finalize");
  }

 private:
  struct Message {
    unsigned rank;
    std::size_t bytes;
  };

  void check(int code, const char* what) const {
    if (code == MPI_SUCCESS) {
      return;
    }
    std::array<char, MPI_MAX_ERROR_STRING> text{};
    int length = 0;
    MPI_Error_string(code, text.data(), &length);
    throw InputError(fmt::format("rank {}", rank_),
                     fmt::format("{} failed: {}", what,
                                 std::string_view(text.data(), static_cast<std::size_t>(length))),
                     "another rank may have ended");
  }

  /// Looks again and again, at first without a pause: most answers come within microseconds.
  void wait_for_all() {
    statuses_.resize(requests_.size());
    const auto begin = std::chrono::steady_clock::now();
    for (std::uint64_t tries = 0;; ++tries) {
      int done = 0;
      const int code = MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done,
                                   statuses_.data());
      if (code == MPI_ERR_IN_STATUS) {
        explain_statuses();
      }
      check(code, "MPI_Testall");
      if (done != 0) {
        break;
      }
      if (tries < 100) {
        continue;
      }
      const auto waited = std::chrono::steady_clock::now() - begin;
      if (waited > options_.timeout) {
        give_up();
      }
      if (waited < std::chrono::microseconds(200)) {
        std::this_thread::yield();  // The other ranks may need this core.
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    }
    for (std::size_t i = 0; i < receives_; ++i) {
      int bytes = 0;
      MPI_Get_count(&statuses_[i], MPI_BYTE, &bytes);
      if (static_cast<std::size_t>(bytes) != messages_[i].bytes) {
        throw InputError(fmt::format("rank {}", messages_[i].rank),
                         fmt::format("it sent {} bytes where rank {} expects {}", bytes, rank_,
                                     messages_[i].bytes),
                         "every rank needs the same program, files and options");
      }
    }
  }

  /// Throws for the first message that failed.
  void explain_statuses() const {
    for (std::size_t i = 0; i < statuses_.size(); ++i) {
      const int code = statuses_[i].MPI_ERROR;
      if (code == MPI_ERR_TRUNCATE && i < receives_) {
        throw InputError(fmt::format("rank {}", messages_[i].rank),
                         fmt::format("it sent more bytes than the {} that rank {} expects",
                                     messages_[i].bytes, rank_),
                         "every rank needs the same program, files and options");
      }
      if (code != MPI_SUCCESS && code != MPI_ERR_PENDING) {
        check(code, "a message");
      }
    }
  }

  [[noreturn]] void give_up() {
    std::vector<unsigned> silent;
    for (std::size_t i = 0; i < messages_.size(); ++i) {
      if (requests_[i] != MPI_REQUEST_NULL && !arrived(requests_[i])) {
        silent.push_back(messages_[i].rank);
      }
    }
    std::sort(silent.begin(), silent.end());
    silent.erase(std::unique(silent.begin(), silent.end()), silent.end());
    const double seconds = std::chrono::duration<double>(options_.timeout).count();
    throw InputError(
        fmt::format("rank {}", rank_),
        fmt::format("no answer from rank {} within {} s", fmt::join(silent, ", "), seconds),
        "a rank is stuck, or --rank-timeout is too short");
  }
  static bool arrived(MPI_Request& request) {
    int done = 0;
    return MPI_Request_get_status(request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done != 0;
  }

  JobOptions options_;
  unsigned rank_ = 0, size_ = 1, local_size_ = 1, local_rank_ = 0;
  int tag_ = 0;
  std::vector<MPI_Request> requests_;
  std::vector<MPI_Status> statuses_;
  std::vector<Message> messages_;  // of each request; the first ones receive
  std::size_t receives_ = 0;
};

}  // namespace

std::string mpi_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  const std::string all(text.data(), static_cast<std::size_t>(length));
  return all.substr(0, all.find(','));
}

std::unique_ptr<Communicator> open_job(const JobOptions& options) {
  // libsimgrid has functions of the same names for simulated MPI programs; linked before the real
  // library it would answer here.
  SWITCHYARD_ASSERT(mpi_version().find("SMPI") == std::string::npos, mpi_version());
  return launched_as_job() ? std::make_unique<MpiJob>(options) : nullptr;
}

void end_job(int code) {
  if (job_is_open()) {
    MPI_Abort(MPI_COMM_WORLD, code);
  }
}

}  // namespace switchyard

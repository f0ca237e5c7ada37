// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "engine/base/error.hpp"
#include "sim/loop/simulator.hpp"
#include "sim/run/metrics.hpp"
#include "sim/run/run_file.hpp"

namespace switchyard::sim {
namespace {

class FileSink final : public RunSink {
 public:
  explicit FileSink(std::filesystem::path target) : target_(std::move(target)) {}
  void begin(run::RunMeta meta, run::Inventory inventory) override {
    writer_ = std::make_unique<run::RunWriter>(target_, std::move(meta), std::move(inventory));
  }
  void append(const run::StepRecord& step) override { writer_->append(step); }
  run::RunData& data() override { return writer_->data(); }
  std::vector<run::Violation> finish() override { return writer_->finish(); }

 private:
  std::filesystem::path target_;
  std::unique_ptr<run::RunWriter> writer_;
};

class MemorySink final : public RunSink {
 public:
  void begin(run::RunMeta meta, run::Inventory inventory) override {
    data_ = run::make_run(std::move(meta), std::move(inventory));
  }
  void append(const run::StepRecord& step) override { run::append_step(data_, step); }
  run::RunData& data() override { return data_; }
  std::vector<run::Violation> finish() override {
    std::vector<run::Metric> own = std::move(data_.metrics);
    data_.metrics = run::compute_metrics(data_);
    data_.metrics.insert(data_.metrics.end(), own.begin(), own.end());
    return run::check_conservation(data_);
  }

 private:
  run::RunData data_;
};

}  // namespace

std::unique_ptr<RunSink> file_sink(const std::filesystem::path& target) {
  return std::make_unique<FileSink>(target);
}
std::unique_ptr<RunSink> memory_sink() { return std::make_unique<MemorySink>(); }

}  // namespace switchyard::sim

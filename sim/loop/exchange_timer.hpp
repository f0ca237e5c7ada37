// SPDX-License-Identifier: Apache-2.0
// Times one exchange of the step loop with the scenario's network model and algorithm.
//
// An exchange synchronises its participants, the GPUs that send or receive: it begins when the last
// of them is ready. bottleneck, auto and coflow give all the same end; flow starts and ends each
// pair by itself. A matrix without bytes takes no time and synchronises nobody.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sim/scenario/scenario.hpp"

namespace switchyard::sim {

struct ExchangeTiming {
  std::vector<std::int64_t> end_ps;        ///< [G] on each GPU's clock; own ready time if idle.
  std::vector<std::uint8_t> participates;  ///< [G] sends or receives bytes.
  std::int64_t begin_ps = 0;               ///< The last participant's ready time.
  std::int64_t duration_ps = 0;            ///< Latest end − begin; 0 without bytes.
  std::int64_t floor_ps = 0;               ///< No model may be faster (bytes / bandwidth).
  std::uint32_t last_ready = 0;            ///< GPU that begin_ps is of; lowest index among equals.
  std::int64_t lateness_ps = 0;            ///< Mean wait of the other participants for it.
  std::uint32_t bottleneck_gpu =
      UINT32_MAX;                          ///< Straggler of the transfer itself, if there is one.
  std::vector<std::uint64_t> link_bytes;   ///< [K]
  std::vector<std::int64_t> link_busy_ps;  ///< [K] bytes / bandwidth.
};

/// A directed link of the cluster, for the run's inventory.
struct LinkDescription {
  std::string name, from, to, link_class;
  BytesPerSecond bandwidth;
};

class ExchangeTimer {
 public:
  /// Builds the graph and its routes. InputError: disconnected GPUs.
  explicit ExchangeTimer(const scenario::Scenario& scenario);
  ~ExchangeTimer();
  ExchangeTimer(const ExchangeTimer&) = delete;
  ExchangeTimer& operator=(const ExchangeTimer&) = delete;

  [[nodiscard]] const std::vector<LinkDescription>& links() const;
  /// Times `bytes` ([G][G], row = sender, diagonal ignored) for GPUs ready at `ready_ps` [G].
  void run(std::span<const std::uint64_t> bytes, std::span<const std::int64_t> ready_ps,
           ExchangeTiming& out);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace switchyard::sim

// SPDX-License-Identifier: Apache-2.0
// The build without MPI: one process, and a clear refusal under mpirun.
#include "engine/base/error.hpp"
#include "engine/parallel/communicator.hpp"

namespace switchyard {

std::string mpi_version() { return {}; }

std::unique_ptr<Communicator> open_job(const JobOptions& options) {
  static_cast<void>(options);
  if (!launched_alone()) {
    throw CapabilityError(
        "started under mpirun, but built without MPI: install libopenmpi-dev openmpi-bin and "
        "configure again, or start one process");
  }
  return nullptr;
}

void end_job(int code) { static_cast<void>(code); }

}  // namespace switchyard

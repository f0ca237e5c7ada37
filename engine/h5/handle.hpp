// SPDX-License-Identifier: Apache-2.0
// Internal to engine/h5: owning identifiers of libhdf5 and its error stack as one line.
#pragma once
#include <hdf5.h>

#include <string>
#include <utility>

#include "engine/h5/schema.hpp"

namespace switchyard::h5::internal {

/// Owns one hid_t with the function that closes it. close() reports failure, the destructor cannot.
class Handle {
 public:
  Handle() = default;
  Handle(hid_t id, herr_t (*closer)(hid_t)) : id_(id), closer_(closer) {}
  Handle(Handle&& other) noexcept
      : id_(std::exchange(other.id_, -1)), closer_(std::exchange(other.closer_, nullptr)) {}
  Handle& operator=(Handle&& other) noexcept {
    if (this != &other) {
      (void)close();
      id_ = std::exchange(other.id_, -1);
      closer_ = std::exchange(other.closer_, nullptr);
    }
    return *this;
  }
  ~Handle() { (void)close(); }
  [[nodiscard]] hid_t id() const { return id_; }
  [[nodiscard]] bool valid() const { return id_ >= 0; }
  /// True when there was nothing to close or closing worked.
  bool close() {
    const hid_t id = std::exchange(id_, -1);
    return id < 0 || closer_(id) >= 0;
  }

 private:
  hid_t id_ = -1;
  herr_t (*closer_)(hid_t) = nullptr;
};

/// Once per thread and process: no messages on stderr, no exit handler (everything is closed by its
/// owner, and the handler loops when a full disk made a close fail), no filter plug-ins.
void prepare_library();

/// The system's reason in the current error stack ("No space left on device"), else the deepest
/// description, else "unknown HDF5 error". Clears the stack.
std::string take_error();

/// The little-endian type of a numeric element, in the file and (x86, ARM) in memory.
hid_t element_type(ElementType type);

}  // namespace switchyard::h5::internal

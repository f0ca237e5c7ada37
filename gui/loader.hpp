// SPDX-License-Identifier: Apache-2.0
// Opens run files in a worker thread. A set of files is opened as a whole: either all of them
// arrive together or a message says why none does, so no half of a comparison is ever shown.
// A new load or cancel() drops the one under way at once; its thread ends at the next progress
// report (a block of the hash, a part of the steps).
// Not modelled: a first picture before the file's hash is checked.
#pragma once
#include <atomic>
#include <filesystem>
#include <functional>
#include <list>
#include <memory>
#include <thread>
#include <vector>

#include <QObject>
#include <QString>

#include "gui/core/runstore.hpp"

namespace switchyard::gui {

using RunPointer = std::shared_ptr<const RunStore>;

class RunLoader : public QObject {
  Q_OBJECT
 public:
  /// Opens one file in the worker thread.
  using Open = std::function<RunPointer(const std::filesystem::path&, const LoadProgress&)>;

  /// In the worker thread, on each run before it is handed over; `stop` ends it by throwing.
  using Prepare = std::function<void(const RunStore&, const std::function<void()>& stop)>;

  explicit RunLoader(QObject* parent = nullptr);
  /// Cancels, and waits for the threads.
  ~RunLoader() override;
  void load(const std::vector<std::filesystem::path>& paths);
  /// In place of RunStore's constructor: for tests. Not while a load is under way.
  void setOpen(Open open) { m_open = std::move(open); }
  /// For the load that begins next.
  void setPrepare(Prepare prepare) { m_prepare = std::move(prepare); }
  /// Nothing more is heard of the load under way but cancelled().
  void cancel();
  [[nodiscard]] bool busy() const { return m_current != 0; }
  /// Threads that have not ended yet.
  [[nodiscard]] std::size_t threads() const { return m_jobs.size(); }

 signals:
  /// Share of the whole set, 0 … 1000, never falling.
  void progressed(int permille);
  void loaded(const std::vector<std::shared_ptr<const switchyard::gui::RunStore>>& runs);
  /// "file: reason".
  void failed(const QString& message);
  void cancelled();

 private:
  struct Job {
    int id = 0;
    std::atomic<bool> stop{false};
    std::jthread thread;
  };
  void work(Job& job, std::vector<std::filesystem::path> paths, const Prepare& prepare);
  void ended(int id);

  Open m_open;
  Prepare m_prepare;
  std::list<Job> m_jobs;
  int m_current = 0, m_last = 0;
};

}  // namespace switchyard::gui

// SPDX-License-Identifier: Apache-2.0
// One job at a time in a thread of its own. A new job, or stop(), drops the one under way: its
// result is not heard of, its thread ends by itself, and nothing waits for it but the destructor.
#pragma once
#include <atomic>
#include <exception>
#include <functional>
#include <list>
#include <thread>

#include <QObject>
#include <QString>

namespace switchyard::gui {

class Worker : public QObject {
 public:
  /// Runs in the worker; what it returns runs in the owner's thread if the job is still wanted.
  using Job = std::function<std::function<void()>(const std::atomic<bool>& stop)>;

  explicit Worker(QObject* parent = nullptr) : QObject(parent) {}
  ~Worker() override {
    stop();
    m_tasks.clear();
  }

  /// `failed` gets the text of an exception that the job let through.
  void run(Job job, std::function<void(const QString&)> failed) {
    stop();
    Task& task = m_tasks.emplace_back();
    const int id = task.id = m_current = ++m_last;
    task.thread = std::jthread([this, &task, id, job = std::move(job), failed = std::move(failed)] {
      std::function<void()> done;
      try {
        done = job(task.stop);
      } catch (const std::exception& e) {
        done = [failed, text = QString::fromUtf8(e.what())] { failed(text); };
      }
      QMetaObject::invokeMethod(
          this,
          [this, id, done] {
            m_tasks.remove_if([id](const Task& t) { return t.id == id; });
            if (id != m_current) return;
            m_current = 0;
            if (done) done();
          },
          Qt::QueuedConnection);
    });
  }
  void stop() {
    for (Task& t : m_tasks) t.stop = true;
    m_current = 0;
  }
  [[nodiscard]] bool busy() const { return m_current != 0; }
  /// Threads that have not ended yet.
  [[nodiscard]] std::size_t threads() const { return m_tasks.size(); }

 private:
  struct Task {
    int id = 0;
    std::atomic<bool> stop{false};
    std::jthread thread;
  };
  std::list<Task> m_tasks;
  int m_current = 0, m_last = 0;
};

}  // namespace switchyard::gui

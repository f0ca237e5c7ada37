// SPDX-License-Identifier: Apache-2.0
#include "gui/loader.hpp"

#include <exception>
#include <new>

#include "gui/text.hpp"

namespace switchyard::gui {
namespace {

/// Thrown through the reader, which knows nothing of it.
struct Stopped {};

}  // namespace

RunLoader::RunLoader(QObject* parent)
    : QObject(parent), m_open([](const std::filesystem::path& path, const LoadProgress& progress) {
        return std::make_shared<const RunStore>(path, progress);
      }) {}

RunLoader::~RunLoader() {
  for (Job& job : m_jobs) job.stop = true;
  m_jobs.clear();
}

void RunLoader::load(const std::vector<std::filesystem::path>& paths) {
  for (Job& job : m_jobs) job.stop = true;
  Job& job = m_jobs.emplace_back();
  job.id = m_current = ++m_last;
  job.thread =
      std::jthread([this, &job, paths, prepare = m_prepare] { work(job, paths, prepare); });
}

void RunLoader::cancel() {
  if (m_current == 0) return;
  for (Job& job : m_jobs) job.stop = true;
  m_current = 0;
  emit cancelled();
}

void RunLoader::work(Job& job, std::vector<std::filesystem::path> paths, const Prepare& prepare) {
  // Everything that touches this object happens in its own thread, and only while the job is the
  // current one.
  const int id = job.id;
  const auto post = [this, id](auto&& what) {
    QMetaObject::invokeMethod(
        this,
        [this, id, what = std::forward<decltype(what)>(what)] {
          if (m_current == id) what();
        },
        Qt::QueuedConnection);
  };
  try {
    std::vector<RunPointer> runs;
    int told = -1;
    const std::function<void()> stop = [&job] {
      if (job.stop) throw Stopped{};
    };
    for (std::size_t i = 0; i < paths.size(); ++i) {
      runs.push_back(m_open(paths[i], [&](double share) {
        stop();
        const auto permille = static_cast<int>(1000 * (static_cast<double>(i) + share) /
                                               static_cast<double>(paths.size()));
        if (permille <= told) return;
        told = permille;
        post([this, permille] { emit progressed(permille); });
      }));
      if (prepare) prepare(*runs.back(), stop);
    }
    post([this, runs] {
      m_current = 0;
      emit loaded(runs);
    });
  } catch (const Stopped&) {
  } catch (const std::bad_alloc&) {
    post([this] {
      m_current = 0;
      emit failed(tr("not enough memory for this run"));
    });
  } catch (const std::exception& e) {
    // InputError, and whatever a library throws: a message, never the end of the program.
    post([this, text = QString::fromUtf8(e.what())] {
      m_current = 0;
      emit failed(text);
    });
  }
  QMetaObject::invokeMethod(
      this, [this, id] { ended(id); }, Qt::QueuedConnection);
}

void RunLoader::ended(int id) {
  m_jobs.remove_if([id](const Job& job) { return job.id == id; });
}

}  // namespace switchyard::gui

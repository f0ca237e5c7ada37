// SPDX-License-Identifier: Apache-2.0
#include "gui/childjob.hpp"

#include <algorithm>
#include <csignal>

#include <sys/prctl.h>
#include <unistd.h>

#include <QCoreApplication>
#include <QFileInfo>
#include <QJsonDocument>
#include <QJsonObject>
#include <QStandardPaths>

#include "engine/base/error.hpp"

namespace switchyard::gui {
namespace {

constexpr int kPatienceMs = 1500;  // between the interrupt and the kill

}  // namespace

ChildJob::ChildJob(QObject* parent) : QObject(parent) {
  // However the window ends, the simulation goes with it, and removes its temporary file.
  m_process.setChildProcessModifier([window = ::getpid()] {
    ::prctl(PR_SET_PDEATHSIG, SIGINT);
    if (::getppid() != window) ::_exit(1);  // it went before that
  });
  m_patience.setSingleShot(true);
  m_patience.setInterval(kPatienceMs);
  connect(&m_patience, &QTimer::timeout, &m_process, &QProcess::kill);
  connect(&m_process, &QProcess::readyReadStandardOutput, this, &ChildJob::readLines);
  connect(&m_process, &QProcess::finished, this, &ChildJob::ended);
  connect(&m_process, &QProcess::errorOccurred, this, [this](QProcess::ProcessError error) {
    if (error != QProcess::FailedToStart) return;  // the others end in finished()
    stop(tr("cannot start %1: %2").arg(m_process.program(), m_process.errorString()));
  });
}

ChildJob::~ChildJob() {
  m_process.disconnect(this);
  if (m_process.state() != QProcess::NotRunning) {
    m_process.kill();
    m_process.waitForFinished(2000);
  }
}

QString ChildJob::program() {
  const QString named = qEnvironmentVariable("SWITCHYARD_CLI");
  if (!named.isEmpty()) return named;
  const QString beside = QCoreApplication::applicationDirPath() + QStringLiteral("/switchyard");
  if (QFileInfo(beside).isExecutable()) return beside;
  return QStandardPaths::findExecutable(QStringLiteral("switchyard"));
}

void ChildJob::start(std::vector<Step> steps) {
  SWITCHYARD_ASSERT(!m_busy && !steps.empty(), "a job is running, or there is none");
  m_steps = std::move(steps);
  m_at = 0;
  m_busy = true;
  m_cancelling = false;
  next();
}

void ChildJob::next() {
  const QString name = program();
  if (name.isEmpty()) {
    stop(
        tr("the program switchyard is neither beside this one nor in PATH; build it, or name it "
           "in SWITCHYARD_CLI"));
    return;
  }
  const Step& step = m_steps[m_at];
  m_rest.clear();
  m_error.clear();
  m_process.setProgram(name);
  m_process.setArguments(step.words +
                         QStringList{QStringLiteral("--progress"), QStringLiteral("json")});
  m_process.setWorkingDirectory(step.folder);
  emit progressed(step.what, 0);
  m_process.start(QIODevice::ReadOnly);
}

void ChildJob::readLines() {
  m_rest += m_process.readAllStandardOutput();
  for (qsizetype end = m_rest.indexOf('\n'); end >= 0; end = m_rest.indexOf('\n')) {
    const QJsonObject line = QJsonDocument::fromJson(m_rest.left(end)).object();
    m_rest.remove(0, end + 1);
    const QString event = line[QLatin1String("event")].toString();
    if (event == QLatin1String("progress")) {
      const double total = line[QLatin1String("total")].toDouble();
      const double done = line[QLatin1String("done")].toDouble();
      if (total > 0) {
        emit progressed(m_steps[m_at].what,
                        static_cast<int>(std::clamp(done / total, 0.0, 1.0) * 1000));
      }
    } else if (event == QLatin1String("error")) {
      m_error = line[QLatin1String("message")].toString();
      const QString file = line[QLatin1String("file")].toString();
      const int number = line[QLatin1String("line")].toInt();
      if (number > 0) {
        m_error = QStringLiteral("%1:%2: %3").arg(file).arg(number).arg(m_error);
      } else if (!file.isEmpty()) {
        m_error = QStringLiteral("%1: %2").arg(file, m_error);
      }
    }
  }
}

void ChildJob::ended(int code, QProcess::ExitStatus status) {
  m_patience.stop();
  readLines();
  if (!m_busy) return;
  if (m_cancelling) {
    m_busy = false;
    emit cancelled();
    return;
  }
  if (status == QProcess::CrashExit) {
    stop(tr("%1: the program ended by a signal before it was done").arg(m_steps[m_at].what));
    return;
  }
  if (code != 0) {
    const QStringList lines = QString::fromUtf8(m_process.readAllStandardError())
                                  .split(QLatin1Char('\n'), Qt::SkipEmptyParts);
    const QString why = !m_error.isEmpty() ? m_error
                        : !lines.isEmpty() ? lines.last()
                                           : tr("no message");
    stop(tr("%1 failed: %2").arg(m_steps[m_at].what, why));
    return;
  }
  if (++m_at < m_steps.size()) {
    next();
    return;
  }
  m_busy = false;
  emit finished();
}

void ChildJob::stop(const QString& message) {
  m_patience.stop();  // it was for this process
  m_busy = false;
  if (m_cancelling) {
    emit cancelled();
  } else {
    emit failed(message);
  }
}

void ChildJob::cancel() {
  if (!m_busy || m_cancelling) return;
  m_cancelling = true;
  if (m_process.processId() > 0) ::kill(static_cast<pid_t>(m_process.processId()), SIGINT);
  m_patience.start();
}

}  // namespace switchyard::gui

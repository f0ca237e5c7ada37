// SPDX-License-Identifier: Apache-2.0
// Runs `switchyard` verbs one after another in child processes, with their progress and Cancel. A
// crash of the child is a message here, never more. Exit code, the error event of --progress json
// and the last line of stderr make up the message.
#pragma once
#include <vector>

#include <QByteArray>
#include <QObject>
#include <QProcess>
#include <QString>
#include <QStringList>
#include <QTimer>

namespace switchyard::gui {

class ChildJob : public QObject {
  Q_OBJECT
 public:
  struct Step {
    QString what;       ///< For people: "simulating demo".
    QStringList words;  ///< Verb and options; --progress json is added.
    QString folder;     ///< Working folder; empty: the caller's.
  };
  explicit ChildJob(QObject* parent = nullptr);
  ~ChildJob() override;

  /// $SWITCHYARD_CLI, else the program beside this one, else the one in PATH; empty: none.
  static QString program();

  /// Must not be busy (asserted). failed() if there is no program.
  void start(std::vector<Step> steps);
  /// Interrupts the child, kills it if it does not end; cancelled() when it is gone.
  void cancel();
  [[nodiscard]] bool busy() const { return m_busy; }
  [[nodiscard]] qint64 processId() const { return m_process.processId(); }

 signals:
  /// Of the step under way, 0 … 1000.
  void progressed(const QString& what, int permille);
  void finished();
  void failed(const QString& message);
  void cancelled();

 private:
  void next();
  void readLines();
  void ended(int code, QProcess::ExitStatus status);
  void stop(const QString& message);

  QProcess m_process;
  QTimer m_patience;
  std::vector<Step> m_steps;
  std::size_t m_at = 0;
  bool m_busy = false, m_cancelling = false;
  QByteArray m_rest;
  QString m_error;
};

}  // namespace switchyard::gui

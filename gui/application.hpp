// SPDX-License-Identifier: Apache-2.0
// The application object: an exception that a slot or an event handler lets through becomes an
// inline message in place of the end of the program. The event that threw has no further effect;
// what was shown before stays.
#pragma once
#include <exception>
#include <functional>

#include <QApplication>
#include <QString>

namespace switchyard::gui {

class Application : public QApplication {
 public:
  using QApplication::QApplication;
  /// Shows a message to the person; without one, exceptions pass through as in QApplication.
  void setProblem(std::function<void(const QString& message)> show) { m_show = std::move(show); }

  bool notify(QObject* receiver, QEvent* event) override {
    if (!m_show) return QApplication::notify(receiver, event);
    try {
      return QApplication::notify(receiver, event);
    } catch (const std::exception& e) {
      m_show(QString::fromUtf8(e.what()));
      return false;
    }
  }

 private:
  std::function<void(const QString&)> m_show;
};

}  // namespace switchyard::gui

// SPDX-License-Identifier: Apache-2.0
// How far something that is read in the background has come, with a button that stops it, and one
// that starts it again.
#pragma once
#include <atomic>
#include <memory>

#include <QHBoxLayout>
#include <QProgressBar>
#include <QPushButton>
#include <QTimer>
#include <QWidget>

namespace switchyard::gui {

/// Thousandths of the work that are done; written by the thread that does it.
using Permille = std::shared_ptr<std::atomic<int>>;

class ReadingBar : public QWidget {
  Q_OBJECT
 public:
  explicit ReadingBar(QWidget* parent)
      : QWidget(parent), m_bar(new QProgressBar(this)), m_button(new QPushButton(this)) {
    auto* row = new QHBoxLayout(this);
    row->setContentsMargins(2, 0, 2, 0);
    m_bar->setRange(0, 1000);
    m_bar->setFormat(QStringLiteral("%p %"));
    m_bar->setAccessibleName(tr("Read so far"));
    m_button->setFocusPolicy(Qt::TabFocus);
    row->addWidget(m_bar, 1);
    row->addWidget(m_button);
    m_timer.setInterval(50);
    connect(&m_timer, &QTimer::timeout, this, [this] { m_bar->setValue(m_permille->load()); });
    connect(m_button, &QPushButton::clicked, this, [this] {
      if (m_permille != nullptr) {
        emit cancelled();
      } else {
        emit wanted();
      }
    });
    hide();
  }
  void setReading(Permille permille) {
    m_permille = std::move(permille);
    m_bar->setValue(m_permille->load());
    m_bar->show();
    m_button->setText(tr("Cancel"));
    m_timer.start();
    show();
  }
  void setStopped() {
    end();
    m_bar->hide();
    m_button->setText(tr("Read"));
    show();
  }
  void setDone() {
    end();
    hide();
  }
  [[nodiscard]] QPushButton* button() const { return m_button; }
  [[nodiscard]] QProgressBar* bar() const { return m_bar; }

 signals:
  void cancelled();
  void wanted();

 private:
  void end() {
    m_timer.stop();
    m_permille.reset();
  }
  Permille m_permille;
  QTimer m_timer;
  QProgressBar* m_bar;
  QPushButton* m_button;
};

}  // namespace switchyard::gui

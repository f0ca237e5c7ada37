// SPDX-License-Identifier: Apache-2.0
// Requests of a run: a table with TTFT, TPOT and outcome, and how the times are distributed.
// Choosing a request selects the steps it lived in.
// Not modelled: what a request did in single steps (detail "tokens" has its tokens; the panes show
// the steps).
#pragma once
#include <optional>
#include <vector>

#include <QAbstractTableModel>
#include <QWidget>

#include "gui/core/views.hpp"
#include "gui/tableview.hpp"

class QBoxLayout;
class QLabel;

namespace switchyard::gui {

class RequestsModel : public QAbstractTableModel {
  Q_OBJECT
 public:
  enum Column {
    kId,
    kArrival,
    kWait,
    kTtft,
    kTpot,
    kWhole,
    kPrompt,
    kOutput,
    kTier,
    kReplica,
    kPreempted,
    kSlo,
    kOutcome,
    kColumns
  };
  explicit RequestsModel(ViewState* state, QObject* parent = nullptr);
  int rowCount(const QModelIndex& parent = {}) const override;
  int columnCount(const QModelIndex& parent = {}) const override;
  QVariant data(const QModelIndex& index, int role) const override;
  QVariant headerData(int section, Qt::Orientation orientation, int role) const override;
  /// Whether the column tells requests apart: one tier, one replica, no preemption say nothing.
  [[nodiscard]] bool says(int column) const;

 private:
  void refresh();
  ViewState* m_state;
  std::vector<run::RequestRecord> m_rows;
};

/// One request from its arrival to its last token: how long it waited, until its first token, and
/// when each token came. Not modelled: the steps it shared with others (they are selected in the
/// panes).
class LifeView : public QWidget {
  Q_OBJECT
 public:
  explicit LifeView(ViewState* state, QWidget* parent = nullptr);
  /// nullptr: none is chosen. `tokens`: times in ps of its tokens, ascending.
  void setRequest(const run::RequestRecord* request, std::vector<std::int64_t> tokens);
  [[nodiscard]] QString caption() const { return m_caption; }
  /// [begin, end) of waiting, prefill and decode in pixels; empty where it has no such part.
  [[nodiscard]] const std::vector<QRect>& parts() const { return m_parts; }
  [[nodiscard]] QSize sizeHint() const override;

 protected:
  void changeEvent(QEvent* event) override;
  void paintEvent(QPaintEvent* event) override;
  void resizeEvent(QResizeEvent* event) override;

 private:
  /// The caption in one line, or in two where it is too long for one.
  void fitCaption();
  ViewState* m_state;
  std::optional<run::RequestRecord> m_request;
  std::vector<std::int64_t> m_tokens;
  QString m_caption;
  QStringList m_words;  // of the caption, where it may break
  QStringList m_lines;  // as drawn
  std::vector<QRect> m_parts;
};

/// Bars of one time over all requests, with p50 and p99.
class HistogramView : public QWidget {
  Q_OBJECT
 public:
  HistogramView(ViewState* state, const QString& title, QWidget* parent = nullptr);
  /// ps; negative values are left out.
  void setValues(std::vector<double> values);
  [[nodiscard]] QString caption() const { return m_caption; }
  [[nodiscard]] QSize sizeHint() const override { return {240, 100}; }

 protected:
  void paintEvent(QPaintEvent* event) override;

 private:
  ViewState* m_state;
  QString m_title, m_caption;
  QStringList m_words;  // of the caption, where it may break
  std::vector<std::uint32_t> m_bins;
  double m_top = 0, m_p50 = 0, m_p99 = 0;
};

class RequestsView : public QWidget {
  Q_OBJECT
 public:
  explicit RequestsView(ViewState* state, QWidget* parent = nullptr);
  [[nodiscard]] TableView* table() const { return m_table; }
  [[nodiscard]] HistogramView* ttft() const { return m_ttft; }
  [[nodiscard]] HistogramView* tpot() const { return m_tpot; }
  [[nodiscard]] LifeView* life() const { return m_life; }
  [[nodiscard]] QSize minimumSizeHint() const override;

 protected:
  void changeEvent(QEvent* event) override;
  /// In little height the charts stand side by side.
  void resizeEvent(QResizeEvent* event) override;

 private:
  void fitText();
  void refresh();
  ViewState* m_state;
  TableView* m_table;
  HistogramView *m_ttft, *m_tpot;
  LifeView* m_life;
  QLabel* m_hint;
  QWidget* m_content;
  QBoxLayout* m_charts;
};

}  // namespace switchyard::gui

// SPDX-License-Identifier: Apache-2.0
// Requests of a run: a table with TTFT, TPOT and outcome, and how the times are distributed.
// Choosing a request selects the steps it lived in.
// Not modelled: what a request did in single steps (detail "tokens" has its tokens; the panes show
// the steps).
#pragma once
#include <vector>

#include <QAbstractTableModel>
#include <QWidget>

#include "gui/core/views.hpp"
#include "gui/tableview.hpp"

class QLabel;

namespace switchyard::gui {

class RequestsModel : public QAbstractTableModel {
  Q_OBJECT
 public:
  enum Column { kId, kArrival, kTtft, kTpot, kWhole, kPrompt, kOutput, kOutcome, kColumns };
  explicit RequestsModel(ViewState* state, QObject* parent = nullptr);
  int rowCount(const QModelIndex& parent = {}) const override;
  int columnCount(const QModelIndex& parent = {}) const override;
  QVariant data(const QModelIndex& index, int role) const override;
  QVariant headerData(int section, Qt::Orientation orientation, int role) const override;

 private:
  void refresh();
  ViewState* m_state;
  std::vector<run::RequestRecord> m_rows;
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

 private:
  void refresh();
  ViewState* m_state;
  TableView* m_table;
  HistogramView *m_ttft, *m_tpot;
  QLabel* m_hint;
  QWidget* m_content;
};

}  // namespace switchyard::gui

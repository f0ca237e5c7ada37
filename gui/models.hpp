// SPDX-License-Identifier: Apache-2.0
// Item models of the tables: experts, events, inspector. Numbers stand under kSortRole as numbers,
// so that 9.5 sorts below 10. Rows are computed on demand; there are no per-row objects.
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include <QAbstractTableModel>
#include <QSortFilterProxyModel>

#include "engine/base/table.hpp"
#include "gui/core/views.hpp"
#include "gui/viewstate.hpp"

namespace switchyard::gui {

inline constexpr int kSortRole = Qt::UserRole + 1;
/// Number of the expert or of the event behind a row.
inline constexpr int kIdRole = Qt::UserRole + 2;

/// Largest load over the run, QList<float>, of a column that is a picture; true in the header of a
/// column that copies leave out.
inline constexpr int kSparkRole = Qt::UserRole + 3;
/// Panel behind an inspector's value: "pane:NAME", "dock:NAME", "link:3", "gpu:3", "expert:3".
inline constexpr int kTargetRole = Qt::UserRole + 4;

/// One row per expert of the shown layer (or of the sum over layers), whole run without warm-up.
class ExpertsModel : public QAbstractTableModel {
  Q_OBJECT
 public:
  enum Column {
    kExpert,
    kGpu,
    kMean,
    kP99,
    kOverflowShare,
    kRerouted,
    kDropped,
    kCopies,
    kMin,
    kMax,
    kStd,
    kSpark,  ///< Drawn by SparkDelegate from kSparkRole; no text.
    kColumns
  };
  explicit ExpertsModel(ViewState* state, QObject* parent = nullptr);
  int rowCount(const QModelIndex& parent = {}) const override;
  int columnCount(const QModelIndex& parent = {}) const override;
  QVariant data(const QModelIndex& index, int role) const override;
  QVariant headerData(int section, Qt::Orientation orientation, int role) const override;
  /// Whether the column tells experts apart: nothing moved, nothing lost, one copy of each say
  /// nothing.
  [[nodiscard]] bool says(int column) const;

 private:
  struct Row {
    std::uint32_t gpu = run::kNone;
    double mean = 0, overflowShare = 0;
    std::uint64_t overflow = 0, rerouted = 0;
    std::uint32_t copies = 0;
  };
  void refresh();
  /// Read when a cell first asks for it.
  [[nodiscard]] const ExpertNumbers& numbers() const;
  ViewState* m_state;
  std::vector<Row> m_rows;
  mutable std::optional<ExpertNumbers> m_numbers;
};

/// The run's events, in the file's order.
class EventsModel : public QAbstractTableModel {
  Q_OBJECT
 public:
  enum Column { kStep, kTime, kKind, kLayer, kGpu, kExpert, kLink, kText, kColumns };
  explicit EventsModel(ViewState* state, QObject* parent = nullptr);
  int rowCount(const QModelIndex& parent = {}) const override;
  int columnCount(const QModelIndex& parent = {}) const override;
  QVariant data(const QModelIndex& index, int role) const override;
  QVariant headerData(int section, Qt::Orientation orientation, int role) const override;

 private:
  ViewState* m_state;
  /// Kept until the next reset, so that rows stay valid while the state already has another run.
  std::vector<run::Event> m_events;
};

/// Numbers at the cursor; over the selection if there is one; of the whole run otherwise.
class InspectorModel : public QAbstractTableModel {
  Q_OBJECT
 public:
  struct Row {
    QString name, value, tip;
    QString target = {};  ///< As kTargetRole; empty: no link.
  };
  explicit InspectorModel(ViewState* state, QObject* parent = nullptr);
  int rowCount(const QModelIndex& parent = {}) const override;
  int columnCount(const QModelIndex& parent = {}) const override;
  QVariant data(const QModelIndex& index, int role) const override;
  QVariant headerData(int section, Qt::Orientation orientation, int role) const override;
  /// "At step 231", "Steps 200–259", "Whole run".
  [[nodiscard]] const QString& heading() const { return m_heading; }

 private:
  void refresh();
  [[nodiscard]] std::vector<Row> rows(QString& heading) const;
  ViewState* m_state;
  QString m_heading;
  std::vector<Row> m_rows;
};

/// Events whose text matches the filter of the proxy and whose step is in the range.
class EventsFilter : public QSortFilterProxyModel {
  Q_OBJECT
 public:
  using QSortFilterProxyModel::QSortFilterProxyModel;
  /// nullopt: all steps. Events without a step are in no range.
  void setRange(std::optional<StepRange> range);
  [[nodiscard]] std::optional<StepRange> range() const { return m_range; }

 protected:
  [[nodiscard]] bool filterAcceptsRow(int row, const QModelIndex& parent) const override;

 private:
  std::optional<StepRange> m_range;
};

/// Size of a change from a to b, 0 (equal) to 1 (half or double, and beyond; other sign, from 0).
[[nodiscard]] double changeSize(double a, double b);
/// "▼ 48 % less", "▲ more: × 12", "= equal"; empty where one of the two is no number.
[[nodiscard]] QString changeWords(double a, double b);

/// Run A beside run B of the state: the rows and texts of `switchyard diff A B`, cell by cell; or,
/// per token, those of perToken() of both.
class CompareModel : public QAbstractTableModel {
  Q_OBJECT
 public:
  enum Column {
    kKind,
    kName,
    kUnit,
    kA,
    kB,
    kDifference,
    kRatio,
    kBetter,
    /// "less", "more" or "equal" in words, for the eye: copies leave it out, as diff has no such
    /// column. Coloured by the size of the change, from grey (equal) to the full colour (half or
    /// double, and beyond): that of better or of worse, or of plain text where neither is.
    kChange,
    kColumns
  };
  explicit CompareModel(ViewState* state, QObject* parent = nullptr);
  void setPerToken(bool on);
  /// Runs of A's scenario and of B's with other seeds, A and B among them: metrics whose ranges
  /// touch stand back, and tool tips name the ranges.
  void setSeeds(std::vector<std::shared_ptr<const RunStore>> a,
                std::vector<std::shared_ptr<const RunStore>> b);
  /// Whether the seeds explain the difference of this row.
  [[nodiscard]] bool noise(int row) const;
  int rowCount(const QModelIndex& parent = {}) const override;
  int columnCount(const QModelIndex& parent = {}) const override;
  QVariant data(const QModelIndex& index, int role) const override;
  QVariant headerData(int section, Qt::Orientation orientation, int role) const override;

 private:
  void refresh();
  bool m_perToken = false;
  ViewState* m_state;
  Table m_table;
  std::vector<std::shared_ptr<const RunStore>> m_seedsA, m_seedsB;
  struct Seeds {
    bool noise = false;
    QString ranges;  ///< Empty where only one run of each side has the value.
  };
  std::vector<Seeds> m_rowSeeds;  // by row of m_table
};

/// Rows of any model as text: header line first. Markdown is a pipe table.
enum class TableText { kTsv, kCsv, kMarkdown };
QString tableText(const QAbstractItemModel& model, const std::vector<int>& rows, TableText format);

}  // namespace switchyard::gui

// SPDX-License-Identifier: Apache-2.0
// Item models of the tables: experts, events, inspector. Numbers stand under kSortRole as numbers,
// so that 9.5 sorts below 10. Rows are computed on demand; there are no per-row objects.
#pragma once
#include <array>
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
    std::vector<std::uint32_t> places;  // GPUs that hold it, the first replica first
  };
  void refresh();
  /// Read when a cell first asks for it.
  [[nodiscard]] const ExpertNumbers& numbers() const;
  ViewState* m_state;
  std::vector<Row> m_rows;
  mutable std::optional<ExpertNumbers> m_numbers;
};

/// The run's events, in the run's order.
class EventsModel : public QAbstractTableModel {
  Q_OBJECT
 public:
  enum Column { kStep, kTime, kKind, kLayer, kGpu, kExpert, kLink, kText, kColumns };
  explicit EventsModel(ViewState* state, QObject* parent = nullptr);
  int rowCount(const QModelIndex& parent = {}) const override;
  int columnCount(const QModelIndex& parent = {}) const override;
  QVariant data(const QModelIndex& index, int role) const override;
  QVariant headerData(int section, Qt::Orientation orientation, int role) const override;

  /// Null: no run. The run of the last reset, so that rows stay valid while the state already has
  /// another one.
  [[nodiscard]] const RunStore* run() const { return m_run.get(); }
  /// Whether any event has something in that column; true of a run without events. The first call
  /// after a reset looks at all of them.
  [[nodiscard]] bool says(int column) const;

 private:
  std::shared_ptr<const RunStore> m_run;
  mutable std::array<bool, kColumns> m_says{};
  mutable bool m_saysKnown = false;
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

/// Events that have the text in a column and whose step is in the range, by time or by what a
/// person chose. A run may have millions: the order is made when a header is clicked (never by a
/// letter of the text), a longer text looks only at what the shorter one left, and what is shown
/// changes at once, not row by row.
class EventsFilter : public QAbstractTableModel {
  Q_OBJECT
 public:
  explicit EventsFilter(EventsModel* events, QObject* parent = nullptr);
  /// nullopt: all steps. Events without a step are in no range.
  void setRange(std::optional<StepRange> range);
  [[nodiscard]] std::optional<StepRange> range() const { return m_range; }
  /// Empty: all events. Capitals do not matter. Steps and times are looked at only if the text has
  /// a digit.
  void setText(const QString& text);
  /// Row of an event (kIdRole); -1 where it is not shown.
  [[nodiscard]] int rowOf(int event) const;
  int rowCount(const QModelIndex& parent = {}) const override;
  int columnCount(const QModelIndex& parent = {}) const override;
  QVariant data(const QModelIndex& index, int role) const override;
  QVariant headerData(int section, Qt::Orientation orientation, int role) const override;
  void sort(int column, Qt::SortOrder order) override;
  /// Work so far: events compared with the text or the range, and orders made.
  [[nodiscard]] std::uint64_t eventsCompared() const { return m_compared; }
  [[nodiscard]] std::uint64_t sorts() const { return m_sorts; }

 private:
  void makeOrder();
  void filter(std::vector<std::uint32_t> from);
  [[nodiscard]] std::vector<std::uint32_t> allInOrder() const;
  EventsModel* m_events;
  std::vector<std::uint32_t> m_rows;
  std::vector<std::uint32_t> m_order;  ///< Of all events; empty: the run's order.
  int m_column = EventsModel::kTime;
  Qt::SortOrder m_direction = Qt::AscendingOrder;
  std::optional<StepRange> m_range;
  QString m_text;
  std::uint64_t m_compared = 0, m_sorts = 0;
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

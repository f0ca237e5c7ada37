// SPDX-License-Identifier: Apache-2.0
// The panes over steps, one above the other with lined-up plots, and the axis under them.
//
// The heat map comes first: where there is too little height for all panes, the others are folded
// to a line each, the least telling one first, until its plot is kHeatPlot pixels high. What a
// person folded or opened stays so while there is room for it at all.
#pragma once
#include <map>
#include <vector>

#include <QStringList>
#include <QWidget>

#include "gui/panes.hpp"

class QScrollBar;
class QSplitter;

namespace switchyard::gui {

class PaneStack : public QWidget {
  Q_OBJECT
 public:
  /// Panels that --panel knows besides "all".
  static const QStringList& panelNames();
  /// Those of them that the window shows only when asked to.
  static const QStringList& hiddenAtFirst();

  /// `panels`: which panes (ids), from top to bottom; empty = all, with the minimap. Each must be
  /// in panelNames() (asserted).
  explicit PaneStack(ViewState* state, const QStringList& panels = {}, QWidget* parent = nullptr);

  /// Null if that pane is not in this stack.
  [[nodiscard]] TimePane* pane(const QString& id) const;
  [[nodiscard]] const std::vector<TimePane*>& panes() const { return m_panes; }
  void focusFirst();
  /// Least height in pixels of the heat map's plot before other panes are folded for it.
  static constexpr int kHeatPlot = 140;
  /// kAuto: as the height of the window asks.
  enum class Fold { kAuto, kOpen, kFolded };
  [[nodiscard]] Fold fold(const QString& id) const;
  /// `id` is a pane of the splitter; others are ignored. Only a stack of all panes folds; the last
  /// open pane stays open.
  void setFold(const QString& id, Fold fold);
  /// Of every pane; the heat map is never folded by kFolded here.
  void setAllFolds(Fold fold);
  /// The pane that has the focus becomes folded or open; false if none has it.
  bool toggleFocused();
  /// Names of the panes that a person folded (kFolded) or opened (kOpen).
  [[nodiscard]] QStringList foldsByHand(Fold fold) const;

  /// Heights of the panes; an unknown or empty state gives the shipped ones.
  [[nodiscard]] QByteArray sizesState() const;
  void restoreSizes(const QByteArray& state);
  /// Under the axis: which part of the run is on screen. Null unless this stack shows all panes.
  [[nodiscard]] QScrollBar* scrollBar() const { return m_scroll; }
  /// Shares the gutter; called when run, options or font change.
  void alignGutters();

 signals:
  void hovered(const QString& text);
  void rangeSelected(const QPoint& globalPosition);

 protected:
  bool eventFilter(QObject* watched, QEvent* event) override;
  void changeEvent(QEvent* event) override;
  void showEvent(QShowEvent* event) override;

 private:
  /// The part of the run on screen, on either axis, to the scroll bar and back.
  void showWindow();
  void scrolledTo(int value);
  /// One pane of the splitter.
  struct Slot {
    TimePane* pane = nullptr;
    int weight = 20;  // of the height beyond the least
    Fold fold = Fold::kAuto;
    int dragged = 0;  // height that a person gave it, while it is open; 0: none
  };
  [[nodiscard]] Slot* slot(const QString& id);
  [[nodiscard]] const Slot* slot(const QString& id) const;
  void toggle(const QString& id);
  /// Least height of an open pane, and what it should have.
  [[nodiscard]] static int leastOf(const Slot& slot);
  [[nodiscard]] static int goalOf(const Slot& slot);
  /// Folds for the splitter's height and shares out what is left.
  void fit();
  /// [slot] whether it is folded.
  [[nodiscard]] std::vector<bool> chooseFolds(int room) const;
  void shareOut(int room);
  ViewState* m_state;
  QSplitter* m_splitter;
  bool m_foldable = false;  // all panes
  bool m_fitting = false;
  std::vector<Slot> m_slots;
  QWidget* m_scrollRow = nullptr;
  QScrollBar* m_scroll = nullptr;
  bool m_scrolling = false;
  AxisPane* m_axis;
  std::vector<TimePane*> m_panes;  // minimap and axis included
};

}  // namespace switchyard::gui

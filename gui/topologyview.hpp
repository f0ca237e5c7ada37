// SPDX-License-Identifier: Apache-2.0
// Devices by tier (GPUs below, then what is one link away from them, and so on; a row per kind of
// device, named at the left) and the links
// between them, coloured and widened by use: over the selection, else at the cursor, else mean over
// the run. A click on a link chooses the busier direction (the link pane draws it, the events are
// those of it), one on a GPU its lane. Both directions of a link are one line; the busier one
// counts, the tooltip has both. Not modelled: positions of nodes in a rack; labels that find no
// room are left out (the tooltip has them).
#pragma once
#include <vector>

#include <QWidget>

#include "gui/viewstate.hpp"

namespace switchyard::gui {

class TopologyView : public QWidget {
  Q_OBJECT
 public:
  struct Label {
    QRect rect;
    QString text;
  };
  explicit TopologyView(ViewState* state, QWidget* parent = nullptr);
  [[nodiscard]] QSize sizeHint() const override { return {270, 240}; }
  /// Texts of the last paint.
  [[nodiscard]] const std::vector<Label>& labels() const { return m_labels; }
  /// What the colours stand for now: "at step 12", "steps 3–9", "mean of the run".
  [[nodiscard]] QString when() const;

 protected:
  void paintEvent(QPaintEvent* event) override;
  bool event(QEvent* event) override;
  void mousePressEvent(QMouseEvent* event) override;

 public:
  /// A place on the line that holds the link, a quarter of the way; for tests.
  [[nodiscard]] QPoint pointOnLink(std::size_t link) const;

 private:
  struct Node {
    QString name;
    int tier = 0;  ///< Links from the nearest GPU.
    int row = 0;   ///< From below; a tier has one row per kind of device.
    double x = 0;  ///< 0 … 1
    bool gpu = false;
  };
  struct Edge {
    std::size_t a = 0, b = 0;
    std::vector<std::size_t> forward, backward;  ///< Links; several cables may join two devices.
  };
  void rebuild();
  void refresh();
  [[nodiscard]] int captionWidth() const;
  [[nodiscard]] QPointF place(const Node& node) const;
  /// Pixels between neighbours of a row.
  [[nodiscard]] double spacing(std::size_t row) const;
  /// Lines of numbers below the GPUs, 0 where each number fits into its box, and every how many
  /// GPUs have one.
  struct Numbers {
    int lines = 0;
    std::size_t every = 1;
  };
  [[nodiscard]] Numbers numbers() const;
  /// Nearest device under the mouse; null if none.
  [[nodiscard]] const Node* nodeAt(const QPoint& position) const;
  /// Nearest line within a few pixels; null if none.
  [[nodiscard]] const Edge* edgeAt(const QPoint& position) const;
  /// As drawn: a line, or an arc between nodes of one row.
  [[nodiscard]] QPainterPath pathOf(const Edge& edge) const;
  [[nodiscard]] double useOf(const Edge& edge) const;
  [[nodiscard]] QString tip(const QPoint& position) const;

  ViewState* m_state;
  std::vector<Node> m_nodes;
  std::vector<Edge> m_edges;
  std::vector<QString> m_rows;  ///< Kind of device of each row.
  std::vector<std::size_t> m_perRow;
  std::vector<double> m_use;  ///< [K]
  std::vector<Label> m_labels;
};

}  // namespace switchyard::gui

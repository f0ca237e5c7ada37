// SPDX-License-Identifier: Apache-2.0
// Every text that a widget and its children paint, with its place and what it was clipped to: for
// tests that no text is cut or lies on another one. Nothing but texts is recorded; the widgets draw
// as onto any vector device.
#pragma once
#include <vector>

#include <QColor>
#include <QPaintDevice>
#include <QPaintEngine>
#include <QPainter>
#include <QWidget>

namespace switchyard::gui::testing {

struct PaintedText {
  QRectF rect;  ///< Advance x (ascent + descent), in pixels of the widget that was rendered.
  QRectF clip;  ///< What could be seen there.
  QString text;
  QColor color;
};

class TextEngine : public QPaintEngine {
 public:
  TextEngine() : QPaintEngine(QPaintEngine::AllFeatures) {}
  bool begin(QPaintDevice*) override { return true; }
  bool end() override { return true; }
  void updateState(const QPaintEngineState&) override {}
  void drawPixmap(const QRectF&, const QPixmap&, const QRectF&) override {}
  void drawImage(const QRectF&, const QImage&, const QRectF&, Qt::ImageConversionFlags) override {}
  void drawPath(const QPainterPath&) override {}
  void drawPolygon(const QPointF*, int, PolygonDrawMode) override {}
  // Panes keep pictures for a screen; for vectors they draw everything again.
  [[nodiscard]] Type type() const override { return QPaintEngine::SVG; }
  void drawTextItem(const QPointF& at, const QTextItem& item) override {
    const QTransform t = state->transform();
    PaintedText p;
    p.rect = t.mapRect(
        QRectF(at.x(), at.y() - item.ascent(), item.width(), item.ascent() + item.descent()));
    p.clip = QRectF(systemClip().boundingRect());
    if (painter()->hasClipping()) {
      p.clip = p.clip.intersected(t.mapRect(painter()->clipBoundingRect()));
    }
    p.text = item.text();
    p.color = state->pen().color();
    if (!p.text.trimmed().isEmpty() && !p.rect.intersected(p.clip).isEmpty()) texts.push_back(p);
  }
  std::vector<PaintedText> texts;
};

class TextDevice : public QPaintDevice {
 public:
  explicit TextDevice(const QSize& size) : m_size(size) {}
  [[nodiscard]] QPaintEngine* paintEngine() const override { return &m_engine; }
  [[nodiscard]] const std::vector<PaintedText>& texts() const { return m_engine.texts; }

 protected:
  [[nodiscard]] int metric(PaintDeviceMetric what) const override {
    switch (what) {
      case PdmWidth:
        return m_size.width();
      case PdmHeight:
        return m_size.height();
      case PdmDpiX:
      case PdmDpiY:
      case PdmPhysicalDpiX:
      case PdmPhysicalDpiY:
        return 96;
      case PdmDepth:
        return 32;
      case PdmNumColors:
        return 1 << 24;
      case PdmDevicePixelRatio:
        return 1;
      case PdmDevicePixelRatioScaled:
        return static_cast<int>(devicePixelRatioFScale());
      default:
        return 0;
    }
  }

 private:
  QSize m_size;
  mutable TextEngine m_engine;
};

/// Of a widget that is laid out.
inline std::vector<PaintedText> textsOf(QWidget& widget) {
  TextDevice device(widget.size());
  widget.render(&device);
  return device.texts();
}

}  // namespace switchyard::gui::testing

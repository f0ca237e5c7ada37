// SPDX-License-Identifier: Apache-2.0
// Acceptance check 9: in every size of the window and both themes no text is cut and none lies on
// another one, in the panes, the docks, the form, the welcome page and the dialogs. CTest runs it
// at QT_SCALE_FACTOR 1, 1.5 and 2.
#include <QApplication>
#include <QDialog>
#include <QDockWidget>
#include <QLabel>
#include <QListWidget>

#include <gtest/gtest.h>

#include "gui/core/gallery.hpp"
#include "gui/mainwindow.hpp"
#include "gui/text.hpp"
#include "tests/gui/demo_run.hpp"
#include "tests/gui/gui_fixture.hpp"
#include "tests/gui/text_faults.hpp"

namespace switchyard::gui {
namespace {

using testing::faults;
using testing::fullRun;
using testing::stored;

constexpr std::array kSizes = {QSize(1280, 800), QSize(1680, 1050), QSize(1920, 1080),
                               QSize(3840, 2160)};

class LabelsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    window.setAttribute(Qt::WA_DontShowOnScreen);
    window.show();
    settle();
  }
  static void settle() {
    QApplication::sendPostedEvents();
    QApplication::processEvents();
  }
  /// The window at `size` with the shipped layout.
  void layOut(const QSize& size, bool dark) {
    window.setDark(dark);
    window.resize(size);
    settle();
    window.restoreDefaultLayout();
    settle();
    ASSERT_EQ(window.size(), size) << "the window does not fit";
  }
  static std::string named(const QSize& size, bool dark, const std::string& what) {
    return fmt::format("{}x{} {} {}", size.width(), size.height(), dark ? "dark" : "light", what);
  }
  MainWindow window{false};
};

TEST_F(LabelsTest, TheTestSeesATextThatIsCutAndOneThatLiesOnAnother) {
  QWidget box;
  box.setAttribute(Qt::WA_DontShowOnScreen);
  box.resize(300, 60);
  auto* a = new QLabel(QStringLiteral("a label of some length"), &box);
  auto* b = new QLabel(QStringLiteral("another"), &box);
  a->setGeometry(10, 10, 200, 20);
  b->setGeometry(10, 35, 200, 20);
  box.show();
  std::size_t seen = 0;
  EXPECT_EQ(faults(box, &seen), std::vector<std::string>());
  EXPECT_EQ(seen, 2U);
  a->resize(60, 20);
  EXPECT_EQ(faults(box).size(), 1U);
  a->resize(200, 20);
  b->move(40, 12);
  EXPECT_EQ(faults(box).size(), 1U);
}

TEST_F(LabelsTest, OfPanesAndDocksStandClearInEverySize) {
  run::RunData second = fullRun(260);
  second.meta.scenario_text += "network.algorithm = \"hierarchical\"\n";
  second.metrics = run::compute_metrics(second);
  window.showRun(stored(fullRun(300), "first_run_with_a_long_name.h5"));
  window.compareWith(stored(std::move(second), "second.h5"));
  window.health()->setJudge([](const RunStore& run, const std::atomic<bool>&) {
    return healthOf(run.data(), run.name());
  });
  ViewState& state = *window.state();
  for (const QSize& size : kSizes) {
    for (const bool dark : {false, true}) {
      // The letters of both themes are as wide: once is enough where there are more pixels.
      if (dark && (window.devicePixelRatioF() > 1 || size.width() == 1920)) continue;
      layOut(size, dark);
      std::size_t seen = 0;
      for (const TimeWindow w : {TimeWindow{0, 300}, TimeWindow{240, 262}, TimeWindow{296, 300}}) {
        if (dark && w.first > 0) continue;
        state.setWindow(w, ViewState::Move::kJump);
        state.setCursor(static_cast<std::uint64_t>(w.first) + 2);
        settle();
        (void)faults(window, &seen);
        EXPECT_GT(seen, 250U);
        EXPECT_CLEAR(window, named(size, dark, fmt::format("from step {}", w.first)));
      }
      for (const char* name : {"compare", "capacity", "requests", "health", "reroutes"}) {
        if (dark && size != kSizes.front()) continue;
        QDockWidget* dock = window.dock(QLatin1String(name));
        dock->raise();
        settle();
        if (QLatin1String(name) == QLatin1String("health")) {
          ASSERT_TRUE(testing::wait(
              [&] { return window.health()->table(0)->model()->rowCount() > 5; }, 20000));
        }
        (void)faults(*dock->widget(), &seen);
        EXPECT_GT(seen, 3U) << name;
        EXPECT_CLEAR(*dock->widget(), named(size, dark, name));
      }
      for (int tab = 1; tab < window.health()->count(); ++tab) {
        window.health()->setCurrentIndex(tab);
        settle();
        EXPECT_CLEAR(*window.health(), named(size, dark, fmt::format("health, tab {}", tab)));
      }
      window.health()->setCurrentIndex(0);
    }
  }
}

TEST_F(LabelsTest, OfTheWelcomePageTheFormAndTheDialogsStandClear) {
  for (const QSize& size : kSizes) {
    layOut(size, size.width() == 1680);
    window.showPage(MainWindow::Page::kWelcome);
    settle();
    std::size_t seen = 0;
    (void)faults(window, &seen);
    EXPECT_GT(seen, 40U);
    EXPECT_CLEAR(window, named(size, false, "welcome"));
  }
  for (const QSize& size : {kSizes.front(), kSizes.back()}) {
    window.resize(size);
    window.openScenario(qs((scenariosFolder() / "gpu_failure.toml").string()));
    settle();
    auto* sections = window.form()->findChild<QListWidget*>();
    ASSERT_NE(sections, nullptr);
    for (int i = 0; i < sections->count(); ++i) {
      sections->setCurrentRow(i);
      settle();
      EXPECT_CLEAR(*window.form(), named(size, false, sections->item(i)->text().toStdString()));
    }
  }
  window.showPalette();
  window.showKeys();
  window.showTour();
  settle();
  int dialogs = 0;
  for (auto* dialog : window.findChildren<QDialog*>()) {
    if (!dialog->isVisible()) continue;
    ++dialogs;
    EXPECT_CLEAR(*dialog, dialog->objectName().toStdString());
    dialog->close();
  }
  EXPECT_EQ(dialogs, 3);
}

}  // namespace
}  // namespace switchyard::gui

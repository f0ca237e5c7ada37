// SPDX-License-Identifier: Apache-2.0
// Draws what `switchyard-gui --render` does not: every dock on top in the window, the pages of the
// window and its dialogs, as PNG files in a folder, to be looked at by a person. Used by hand and
// by the test that draws all of them.
//   QT_QPA_PLATFORM=offscreen draw_docks FOLDER light|dark WxH RUN.h5 [B.h5 …]
#include <cstdio>
#include <filesystem>
#include <memory>

#include <QApplication>
#include <QDialog>
#include <QDockWidget>
#include <QListWidget>
#include <QTabBar>

#include "engine/base/error.hpp"
#include "gui/application.hpp"
#include "gui/core/gallery.hpp"
#include "gui/mainwindow.hpp"
#include "gui/render.hpp"
#include "gui/text.hpp"

namespace {

using namespace std::chrono_literals;
using switchyard::gui::MainWindow;
using switchyard::gui::qs;

void settle() {
  for (int i = 0; i < 30; ++i) {
    QApplication::processEvents(QEventLoop::AllEvents, 20);
    QApplication::sendPostedEvents();
  }
}

int draw(int argc, char** argv) {
  switchyard::gui::Application app(argc, argv);
  if (argc < 5) {
    std::fputs("draw_docks FOLDER light|dark WxH RUN.h5 [B.h5 ...]\n", stderr);
    return 2;
  }
  const QString folder = QString::fromLocal8Bit(argv[1]);
  std::filesystem::create_directories(argv[1]);
  const bool dark = std::string_view(argv[2]) == "dark";
  const QSize size = switchyard::gui::parseSize(QString::fromLocal8Bit(argv[3]));
  switchyard::gui::applyTheme(dark);
  MainWindow window(false);
  window.setDark(dark);
  window.resize(size);
  window.show();
  settle();
  int n = 0;
  const auto save = [&](QWidget& what, const QString& name) {
    settle();
    const QString file =
        QStringLiteral("%1/%2-%3.png").arg(folder).arg(n++, 2, 10, QLatin1Char('0')).arg(name);
    if (!what.grab().save(file)) throw switchyard::InputError(file.toStdString(), "cannot write");
  };
  save(window, QStringLiteral("welcome"));
  std::vector<std::shared_ptr<const switchyard::gui::RunStore>> runs;
  for (int i = 4; i < argc; ++i) {
    runs.push_back(
        std::make_shared<const switchyard::gui::RunStore>(std::filesystem::path(argv[i])));
  }
  window.showRun(runs[0]);
  for (std::size_t i = runs.size(); i-- > 1;) window.compareWith(runs[i]);
  settle();
  window.restoreDefaultLayout();
  window.state()->setCursor(window.state()->steps() / 2);
  window.state()->setExpert(0);
  settle();
  for (QDockWidget* dock : window.findChildren<QDockWidget*>()) {
    dock->raise();
    settle();
    save(window, QStringLiteral("window-") + dock->objectName());
    save(*dock, QStringLiteral("dock-") + dock->objectName());
  }
  const auto dialog = [&](const QString& name) {
    settle();
    for (auto* d : window.findChildren<QDialog*>()) {
      if (!d->isVisible()) continue;
      save(*d, name);
      d->close();
      settle();
    }
  };
  window.showPalette();
  dialog(QStringLiteral("palette"));
  window.showKeys();
  dialog(QStringLiteral("keys"));
  window.showTour();
  dialog(QStringLiteral("tour"));
  for (const char* file : {"gpu_failure.toml", "normative.toml"}) {
    window.openScenario(qs((switchyard::gui::scenariosFolder() / file).string()));
    settle();
    auto* sections = window.form()->findChild<QListWidget*>();
    for (int i = 0; i < sections->count(); ++i) {
      sections->setCurrentRow(i);
      save(window,
           QStringLiteral("form-%1-%2")
               .arg(QString::fromLatin1(file).section('.', 0, 0), sections->item(i)->text()));
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return draw(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 2;
  }
}

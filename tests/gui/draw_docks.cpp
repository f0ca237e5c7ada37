// SPDX-License-Identifier: Apache-2.0
// Draws what `switchyard-gui --render` does not: every dock, pane, page and dialog of the window,
// as PNG files in a folder, to be looked at by a person (gui_places_test judges the same places).
// Letters of another size as the window has them; QT_SCALE_FACTOR=2 for a screen with more pixels.
//   QT_QPA_PLATFORM=offscreen draw_docks FOLDER light|dark WxH[@POINTS] RUN.h5 [B.h5 …]
#include <cstdio>
#include <filesystem>
#include <memory>

#include "engine/base/error.hpp"
#include "gui/application.hpp"
#include "gui/render.hpp"
#include "tests/gui/every_place.hpp"

namespace {

using switchyard::gui::MainWindow;

int draw(int argc, char** argv) {
  switchyard::gui::Application app(argc, argv);
  if (argc < 5) {
    std::fputs("draw_docks FOLDER light|dark WxH[@POINTS] RUN.h5 [B.h5 ...]\n", stderr);
    return 2;
  }
  const QString folder = QString::fromLocal8Bit(argv[1]);
  std::filesystem::create_directories(argv[1]);
  const bool dark = std::string_view(argv[2]) == "dark";
  const QString shape = QString::fromLocal8Bit(argv[3]);
  switchyard::gui::applyTheme(dark);
  MainWindow window(false);
  window.setDark(dark);
  if (shape.contains('@')) window.setTextSize(shape.section('@', 1).toDouble());
  window.resize(switchyard::gui::parseSize(shape.section('@', 0, 0)));
  window.show();
  std::vector<std::shared_ptr<const switchyard::gui::RunStore>> runs;
  for (int i = 4; i < argc; ++i) {
    runs.push_back(
        std::make_shared<const switchyard::gui::RunStore>(std::filesystem::path(argv[i])));
  }
  window.showRun(runs[0]);
  for (std::size_t i = runs.size(); i-- > 1;) window.compareWith(runs[i]);
  int n = 0;
  switchyard::gui::testing::seeEveryPlace(window, [&](QWidget& what, const QString& name) {
    const QString file =
        QStringLiteral("%1/%2-%3.png").arg(folder).arg(n++, 2, 10, QLatin1Char('0')).arg(name);
    if (!what.grab().save(file)) throw switchyard::InputError(file.toStdString(), "cannot write");
  });
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

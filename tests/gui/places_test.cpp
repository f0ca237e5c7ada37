// SPDX-License-Identifier: Apache-2.0
// Every dock, pane, page and dialog in both themes: texts clear of their ground and of each other,
// none cut, and none of them empty without a word. draw_docks draws the same places of any run.
#include <QLabel>

#include <gtest/gtest.h>

#include "tests/gui/every_place.hpp"
#include "tests/gui/text_faults.hpp"

namespace switchyard::gui {
namespace {

using testing::faults;
using testing::fullRun;
using testing::paleTexts;
using testing::settle;
using testing::stored;
using testing::textsOf;

TEST(PaleTexts, AreFound) {
  QWidget box;
  box.setAttribute(Qt::WA_DontShowOnScreen);
  box.resize(300, 60);
  auto* label = new QLabel(QStringLiteral("a label of some length"), &box);
  label->setGeometry(10, 10, 200, 20);
  box.show();
  EXPECT_EQ(paleTexts(box), std::vector<std::string>());
  QPalette grey = label->palette();
  grey.setColor(QPalette::WindowText, QColor(150, 150, 150));
  label->setPalette(grey);
  ASSERT_EQ(paleTexts(box).size(), 1U);
  EXPECT_NE(paleTexts(box)[0].find("#969696 on "), std::string::npos);
  // What is disabled may be paler, but not as pale as that.
  label->setEnabled(false);
  grey.setColor(QPalette::Disabled, QPalette::WindowText, QColor(112, 117, 124));
  label->setPalette(grey);
  EXPECT_EQ(paleTexts(box), std::vector<std::string>());
}

class PlacesTest : public ::testing::TestWithParam<bool> {};

TEST_P(PlacesTest, AreLegibleAndNoneIsEmpty) {
  run::RunData second = fullRun(40);
  second.meta.scenario_text += "network.algorithm = \"hierarchical\"\n";
  second.metrics = run::compute_metrics(second);
  MainWindow window(false);
  window.setAttribute(Qt::WA_DontShowOnScreen);
  window.setDark(GetParam());
  window.resize(1280, 800);
  window.show();
  window.health()->setJudge([](const RunStore& run, const std::atomic<bool>&) {
    return healthOf(run.data(), run.name());
  });
  window.showRun(stored(fullRun(60), "first_run_with_a_long_name.h5"));
  for (const bool compared : {false, true}) {
    if (compared) window.compareWith(stored(second, "second.h5"));
    int seen = 0;
    const auto judge = [&](QWidget& what, const QString& name) {
      ++seen;
      const std::string where = name.toStdString() + (compared ? ", compared" : "");
      EXPECT_GT(textsOf(what).size(), 1U) << where << " says nothing";
      EXPECT_CLEAR(what, where);
      for (const std::string& fault : paleTexts(what)) ADD_FAILURE() << where << ": " << fault;
    };
    testing::seeDocks(window, judge);
    testing::seePanes(window, judge);
    EXPECT_GT(seen, 18);
    if (!compared) continue;
    testing::seePages(window, judge);
    EXPECT_GT(seen, 45);
  }
}

TEST_P(PlacesTest, WithoutRequestsEventsAndReroutesSaySo) {
  run::RunData data;
  {
    data = testing::demoRun(20);
    data.events.clear();
    data.requests.clear();
    data.tokens.clear();
  }
  MainWindow window(false);
  window.setAttribute(Qt::WA_DontShowOnScreen);
  window.setDark(GetParam());
  window.resize(1280, 800);
  window.show();
  window.showRun(stored(std::move(data)));
  const auto says = [&](const char* dock, const QString& words) {
    window.dock(QLatin1String(dock))->raise();
    settle();
    QWidget& widget = *window.dock(QLatin1String(dock));
    QString all;
    for (const auto& t : textsOf(widget)) all += t.text + QLatin1Char(' ');
    EXPECT_TRUE(all.contains(words)) << dock << ": " << all.toStdString();
    for (const std::string& fault : paleTexts(widget)) ADD_FAILURE() << dock << ": " << fault;
  };
  says("events", QStringLiteral("This run has no events."));
  says("requests", QStringLiteral("This run has no requests"));
  says("compare", QStringLiteral("Open a second run to compare"));
}

INSTANTIATE_TEST_SUITE_P(Themes, PlacesTest, ::testing::Bool(), [](const auto& theme) {
  return std::string(theme.param ? "dark" : "light");
});

}  // namespace
}  // namespace switchyard::gui

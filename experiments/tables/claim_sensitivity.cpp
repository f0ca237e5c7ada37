// SPDX-License-Identifier: Apache-2.0
#include "experiments/tables/claim_sensitivity.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "engine/base/error.hpp"
#include "sim/scenario/scenario.hpp"

namespace switchyard::tables {
namespace {

using claims::Judged;
using claims::Relation;
using claims::Verdict;

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
constexpr double kStep = 1.3;                // of the grid: 18 steps to kWidest
constexpr int kDigits = 4, kMostDigits = 8;  // significant digits of a value that is not whole
constexpr std::size_t kOthers = 3;           // cures that are shown beside the first
constexpr double kAlike = 1.01;              // factors that count as equal

/// Values of some rows at one point; NaN: no sense there.
using Values = std::vector<double>;

/// The contradicted rows of a table as functions of one assumption.
class Rows {
 public:
  explicit Rows(const Sensible& of) : of_(of) {
    // The first assumption at its own value: all as it is.
    SWITCHYARD_ASSERT(!of.assumptions.empty(), "no assumption");
    const auto as_is = of.measure(0, of.assumptions[0].value);
    SWITCHYARD_ASSERT(as_is.has_value(), of.assumptions[0].name);
    for (Judged& j : claims::judge(of.claims, *as_is)) {
      if (j.verdict == Verdict::kContradicted) {
        SWITCHYARD_ASSERT(j.claim.sign == claims::Sign::kNone && !j.claim.at, j.claim.row);
        base_.push_back(*j.measured.value);
        judged_.push_back(std::move(j));
      }
    }
  }
  [[nodiscard]] const std::vector<Judged>& judged() const { return judged_; }
  [[nodiscard]] const Values& base() const { return base_; }
  [[nodiscard]] Values at(std::size_t assumption, double value) const {
    Values out(judged_.size(), kNone);
    if (const auto measured = of_.measure(assumption, value)) {
      for (std::size_t r = 0; r < out.size(); ++r) {
        out[r] = measured->value(judged_[r].claim.quantity);
      }
    }
    return out;
  }
  [[nodiscard]] double at(std::size_t assumption, double value, std::size_t row) const {
    const auto measured = of_.measure(assumption, value);
    return measured ? measured->value(judged_[row].claim.quantity) : kNone;
  }

 private:
  const Sensible& of_;
  std::vector<Judged> judged_;
  Values base_;
};

/// −1: ours is too small, 1: too large, 0: the row is not contradicted.
int side(const claims::Claim& claim, double ours) {
  claims::Measured measured;
  measured.value = ours;
  if (claims::verdict(claim, measured) != Verdict::kContradicted) {
    return 0;
  }
  return ours < claim.value ? -1 : 1;
}

/// The claimed value itself is a goal only where the claim is an equation.
bool equation(const claims::Claim& claim) {
  return claim.relation == Relation::kEqual && !claim.yes_no();
}

/// Ours has reached the claimed value, coming from side `from` of it. NaN has not.
bool passes(const claims::Claim& claim, double ours, int from) {
  return from < 0 ? ours >= claim.value : ours <= claim.value;
}

/// What is shown of a value > 0 with so many significant digits.
double rounded(double value, int digits) {
  return std::stod(fmt::format("{:.{}g}", value, digits));
}

std::string number_text(const Assumption& a, double value) {
  return a.whole ? fmt::format("{:.0f}", value) : fmt::format("{:.{}g}", value, kMostDigits);
}

class Search {
 public:
  Search(const Rows& rows, const Assumption& assumption, std::size_t index, std::size_t row)
      : rows_(rows), a_(assumption), index_(index), row_(row), claim_(rows.judged()[row].claim) {}

  /// Between `near` (contradicted) and `far` (another side): the value next to `near` whose side is
  /// not `near`'s, or nothing when that is contradicted, too (the row jumps over the claim).
  [[nodiscard]] std::optional<double> edge(double near, double far) const {
    const int from = side_at(near);
    return confirm(bisect(near, far, [&](double v) { return side_at(v) != from; }), far > near);
  }
  /// Between the edge and `far`, where ours has reached the claimed value coming from side `from`:
  /// where it does. The edge where that does not make the row true.
  [[nodiscard]] double exact(double edge, double far, int from) const {
    const auto beyond = [&](double v) { return passes(claim_, rows_.at(index_, v, row_), from); };
    if (beyond(edge)) {
      return edge;
    }
    double x = bisect(edge, far, beyond);
    if (a_.whole) {  // the nearer of the two whole numbers around it
      const double before = x + (far > edge ? -1 : 1);
      const auto miss = [&](double v) {
        return std::abs(rows_.at(index_, v, row_) - claim_.value);
      };
      x = miss(before) < miss(x) ? before : x;
    } else {
      x = rounded(x, kDigits);
    }
    return side_at(x) == 0 ? x : edge;
  }

 private:
  [[nodiscard]] int side_at(double value) const {
    const double ours = rows_.at(index_, value, row_);
    return std::isnan(ours) ? 2 : side(claim_, ours);
  }
  /// `no` does not fulfil `is`, `yes` does: a value that does, close to one that does not (the next
  /// whole number).
  template <typename Is>
  [[nodiscard]] double bisect(double no, double yes, const Is& is) const {
    while (a_.whole ? std::abs(yes - no) > 1 : std::abs(std::log(yes / no)) > 1e-6) {
      double middle = std::sqrt(no * yes);
      if (a_.whole) {
        middle = std::floor((no + yes) / 2);
      }
      (is(middle) ? yes : no) = middle;
    }
    return yes;
  }
  /// `x` or, with few digits, the nearest value of those and the next one further away (`up` or
  /// down): the first that makes the row true.
  [[nodiscard]] std::optional<double> confirm(double x, bool up) const {
    if (a_.whole) {
      return side_at(x) == 0 ? std::optional(x) : std::nullopt;
    }
    for (int digits = kDigits; digits < kMostDigits; ++digits) {
      const double nearest = rounded(x, digits);
      const double unit = std::pow(10.0, std::floor(std::log10(x)) + 1 - digits);
      for (const double shown : {nearest, rounded(nearest + (up ? unit : -unit), digits)}) {
        if (side_at(shown) == 0) {
          return shown;
        }
      }
    }
    return std::nullopt;
  }

  const Rows& rows_;
  const Assumption& a_;
  std::size_t index_, row_;
  const claims::Claim& claim_;
};

/// value · kStep^i, i = 0 …, and value · kWidest; whole numbers, each once; from 1 on.
std::vector<double> grid(const Assumption& a, bool up) {
  std::vector<double> out = {a.value};
  for (double factor = kStep;; factor *= kStep) {
    const double f = std::min(factor, kWidest);
    double x = up ? std::min(a.value * f, a.most) : a.value / f;
    if (a.whole) {
      x = up ? std::floor(x) : std::max(1.0, std::ceil(x));
    }
    if (x != out.back()) {
      out.push_back(x);
    }
    if (f == kWidest) {
      return out;
    }
  }
}

/// Cures by one assumption, at most one in each direction, appended to `out`.
void cure_by(const Sensible& of, const Rows& rows, std::size_t index,
             std::vector<Sensitivity>& out) {
  const Assumption& a = of.assumptions[index];
  for (const bool up : {true, false}) {
    const std::vector<double> points = grid(a, up);
    std::vector<Values> values;
    values.reserve(points.size());
    for (const double x : points) {
      values.push_back(rows.at(index, x));
    }
    for (std::size_t r = 0; r < out.size(); ++r) {
      const claims::Claim& claim = out[r].row.claim;
      const Search search(rows, a, index, r);
      int before = side(claim, rows.base()[r]);
      for (std::size_t i = 1; i < points.size() && !std::isnan(values[i][r]); ++i) {
        out[r].depends = out[r].depends || values[i][r] != rows.base()[r];
        const int now = side(claim, values[i][r]);
        if (now == before) {
          continue;
        }
        if (const auto edge = search.edge(points[i - 1], points[i])) {
          const auto reaches =
              std::find_if(values.begin() + static_cast<std::ptrdiff_t>(i), values.end(),
                           [&](const Values& v) { return passes(claim, v[r], before); });
          const double needed =
              equation(claim) && reaches != values.end()
                  ? search.exact(*edge, points[static_cast<std::size_t>(reaches - values.begin())],
                                 before)
                  : *edge;
          out[r].cures.push_back({index, needed, *edge});
          break;
        }
        before = now;
      }
    }
  }
}

/// Cells from "assumption" on.
std::vector<std::string> answer(const Sensible& of, const Sensitivity& s) {
  if (s.cures.empty()) {
    return {s.depends ? fmt::format("none in x 1/{0} to x {0}", kWidest) : "none enters it",
            "",
            "",
            "",
            "",
            ""};
  }
  const Cure& first = s.cures.front();
  const Assumption& a = of.assumptions[first.assumption];
  std::vector<std::string> others;
  for (std::size_t i = 1; i < s.cures.size() && i <= kOthers; ++i) {
    others.push_back(fmt::format("{} x {:.4g}", of.assumptions[s.cures[i].assumption].name,
                                 s.cures[i].factor(of)));
  }
  if (s.cures.size() > kOthers + 1) {
    others.push_back(fmt::format("{} more", s.cures.size() - kOthers - 1));
  }
  return {a.name,
          number_text(a, a.value),
          number_text(a, first.needed),
          fmt::format("{:.4g}", first.factor(of)),
          number_text(a, first.enough),
          fmt::format("{}", fmt::join(others, "; "))};
}

/// Claims with a row that we decide and that is not in `covered`, by table.
std::string others_than(const std::set<std::string>& covered) {
  std::vector<std::string> out;
  for (const TableEntry& entry : table_entries()) {
    std::vector<std::string> ids;
    if (entry.judges) {
      for (const claims::Claim& claim : claims::claims_of(entry.name)) {
        const bool ours = claim.decided_by != claims::DecidedBy::kHuman &&
                          claim.decided_by != claims::DecidedBy::kSilicon;
        if (ours && !covered.contains(claim.row) && (ids.empty() || ids.back() != claim.id)) {
          ids.push_back(claim.id);
        }
      }
    }
    if (!ids.empty()) {
      out.push_back(fmt::format("{} ({})", fmt::join(ids, ", "), entry.name));
    }
  }
  return fmt::format("{}", fmt::join(out, "; "));
}

}  // namespace

std::vector<Sensitivity> sensitivities(const Sensible& of) {
  const Rows rows(of);
  std::vector<Sensitivity> out;
  for (const Judged& j : rows.judged()) {
    out.push_back({j, false, {}});
  }
  for (std::size_t index = 0; index < of.assumptions.size(); ++index) {
    cure_by(of, rows, index, out);
  }
  for (Sensitivity& s : out) {
    const auto far = [&](const Cure& c) { return std::abs(std::log(c.factor(of))); };
    std::stable_sort(s.cures.begin(), s.cures.end(),
                     [&](const Cure& a, const Cure& b) { return far(a) < far(b); });
    // Those alike in their own order, group by group.
    for (auto begin = s.cures.begin(); begin != s.cures.end();) {
      const auto end = std::find_if(begin, s.cures.end(), [&](const Cure& c) {
        return far(c) > far(*begin) + std::log(kAlike);
      });
      std::stable_sort(begin, end,
                       [](const Cure& a, const Cure& b) { return a.assumption < b.assumption; });
      begin = end;
    }
  }
  return out;
}

Table claim_sensitivity_table(const std::vector<Sensible>& all) {
  Table t;
  t.name = "claim-sensitivity";
  t.title = "contradicted claims: the one assumption which, changed to x, makes each true";
  t.columns = {"row",
               "source",
               "claim",
               "read as",
               "unit",
               "claimed",
               "ours",
               "assumption",
               "is",
               "needed",
               "factor",
               "enough",
               "others, with their factors"};
  std::size_t without = 0;
  std::set<std::string> covered;
  for (const Sensible& of : all) {
    for (const claims::Claim& claim : of.claims) {
      covered.insert(claim.row);
    }
    for (const Sensitivity& s : sensitivities(of)) {
      const claims::Claim& claim = s.row.claim;
      std::vector<std::string> row = {claim.row,       claim.source, claim.text,
                                      claim.reading,   claim.unit,   claimed_text(claim),
                                      ours_text(s.row)};
      for (std::string& cell : answer(of, s)) {
        row.push_back(std::move(cell));
      }
      without += s.cures.empty() ? 1U : 0U;
      t.rows.push_back(std::move(row));
    }
  }
  t.notes.push_back(fmt::format(
      "{} rows: {} are true with one assumption changed, {} with none in x 1/{} to x {}",
      t.rows.size(), t.rows.size() - without, without, kWidest, kWidest));
  t.notes.push_back(fmt::format(
      "needed: ours equals the claimed value (bounds and yes/no: the row becomes true); factor: "
      "needed / is; enough: the first value within the verdict's tolerance. First the smallest "
      "change by factor; of those within 1 % of each other first shapes of models, then hardware, "
      "figures of articles, stated totals; beside it up to {} others",
      kOthers));
  t.notes.emplace_back(
      "all else stays as it is, so real models and cards are changed, too; what counts things is "
      "whole: a row has none where only a fraction would do; layers: of each kind in proportion; "
      "\"C04c, ...\": that claim's own value, on which the row builds");
  t.notes.push_back("not covered: " + others_than(covered));
  return t;
}

std::vector<Table> make_claim_sensitivity(const TableContext& context) {
  const auto& root = context.scenarios;
  const double watermark = scenario::MemorySpec{}.watermark;
  return {claim_sensitivity_table(
      {sensible_account(account_inputs(root), claims::claims_of("account")),
       sensible_arithmetic(arithmetic_inputs(root), claims::claims_of("arithmetic")),
       sensible_fits(fits_inputs(root, watermark), claims::claims_of("fits"))})};
}

}  // namespace switchyard::tables

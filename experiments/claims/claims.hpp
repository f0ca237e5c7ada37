// SPDX-License-Identifier: Apache-2.0
// What the articles claim, as data (experiments/claims/*.toml), and the one function that judges
// it. A verdict is computed, never written: it follows from the claim, the tolerance of its class
// and our own value.
//
//   value test   relation "=":  |ours - claimed| <= tolerance
//                   arithmetic  max(half a unit of the last printed digit, 2 % of claimed)
//                   ratio       20 % of claimed (ratios and percentages from runs)
//                   absolute    25 % of claimed (times, rates, bytes from runs)
//                relation "<=", ">=": ours on that side of claimed, no slack
//                `to`        claimed <= ours <= to, no slack: "35 to 40 %"
//   sign test    sign "+" or "-" of the trend: for a series Spearman's rank correlation of ours
//   over
//                the points, for a single value ours - reference. A zero trend fails.
//   verdict      no sign: value test -> reproduced, else contradicted.
//                with sign: both -> reproduced; sign only -> direction; else contradicted;
//                a series that is the same at every point has no trend -> not-decided.
//                A quantity the run cannot tell (Measurements::add_undecided) -> not-decided.
//                decided_by human -> out-of-scope; silicon without a device result ->
//                needs-silicon.
//
// A claim file is a list of [[claim]]: id, row, source, text, quantity, value, unit, tolerance,
// decided_by; optional to, reading, readings, sign, reference, relation, at, at_name. `value` is
// text as the article prints it (its digits give half a unit), "yes"/"no" for a yes/no claim; a
// list with `at` makes one atomic row per point ("C06a@4"); `readings` repeats the claim for each
// measurement "quantity.reading" ("C06a-expert_fraction@4"). No two rows have one name.
//
// Not modelled: claims about text quality, which people decide (listed as out-of-scope).
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard::claims {

enum class Verdict : std::uint8_t {
  kReproduced,
  kDirection,
  kContradicted,
  kNeedsSilicon,
  kOutOfScope,
  kNotDecided
};
inline constexpr std::size_t kVerdictCount = 6;
[[nodiscard]] std::string_view name_of(Verdict verdict);

enum class DecidedBy : std::uint8_t {
  kArithmetic,
  kEngine,
  kReplay,
  kCoupled,
  kSimulation,
  kSilicon,
  kHuman
};
[[nodiscard]] std::string_view name_of(DecidedBy decided_by);

enum class Tolerance : std::uint8_t { kArithmetic, kRatio, kAbsolute };
[[nodiscard]] std::string_view name_of(Tolerance tolerance);

enum class Sign : std::uint8_t { kNone, kUp, kDown };
enum class Relation : std::uint8_t { kEqual, kAtMost, kAtLeast, kWithin };  ///< kWithin: `to`.

/// One atomic row.
struct Claim {
  std::string id;                   ///< "C06"
  std::string row;                  ///< "C06a", or "C06a@4" for a point of a series.
  std::string source;               ///< "S0 3.2"
  std::string text;                 ///< The claim restated.
  std::string reading;              ///< How an ambiguous claim is read here; may be empty.
  std::string quantity;             ///< Name of the measurement that answers it.
  std::string printed;              ///< "42.3", as the article prints it, or "yes".
  std::string unit;                 ///< Of `value` and of the measurement.
  double value = 0;                 ///< yes = 1, no = 0.
  double to = 0;                    ///< Upper end of a range that begins at `value`.
  double half_unit = 0;             ///< Half a unit of the last printed digit.
  std::optional<double> at;         ///< Point of a series.
  std::string at_name;              ///< What `at` counts, e.g. "B".
  std::optional<double> reference;  ///< For the sign of a single value.
  Sign sign = Sign::kNone;
  Relation relation = Relation::kEqual;
  Tolerance tolerance = Tolerance::kArithmetic;
  DecidedBy decided_by = DecidedBy::kArithmetic;
  [[nodiscard]] bool yes_no() const { return unit == "yes/no"; }
};

/// Our answer to one atomic row.
struct Measured {
  std::optional<double> value;
  std::optional<double> trend;  ///< See the sign test; no value when it is undefined.
  bool on_silicon = false;      ///< A device result decided the value.
};

/// The one rule above. A claim that neither people nor silicon decide needs a value (asserted).
[[nodiscard]] Verdict verdict(const Claim& claim, const Measured& measured);
/// Largest |ours - claimed| that passes, in the claim's unit.
[[nodiscard]] double allowed_deviation(const Claim& claim);

/// Rank correlation in [-1, 1] with average ranks for ties; no value for fewer than two points or a
/// constant side. Both of one length.
[[nodiscard]] std::optional<double> spearman(const std::vector<double>& x,
                                             const std::vector<double>& y);

/// What a table computed, by quantity name.
class Measurements {
 public:
  struct Point {
    std::optional<double> at;
    double value;
  };
  struct Quantity {
    std::vector<Point> points;
    std::string how;         ///< One line: the arithmetic or the run.
    bool undecided = false;  ///< No value; `how` says why. Its rows are not-decided.
    bool no_trend = false;   ///< Its points differ by noise only: no sign holds.
  };
  void add(const std::string& quantity, double value, std::string how);
  void add_series(const std::string& quantity, const std::vector<double>& at,
                  const std::vector<double>& values, std::string how);
  /// A quantity that this run cannot tell, e.g. of a coupled run that did not settle.
  void add_undecided(const std::string& quantity, std::string why);
  /// The points of a series differ by noise only, e.g. its seeds disagree on the direction: the
  /// trend counts as 0, whatever the medians do; `why` is added to how it was measured.
  void no_trend(const std::string& quantity, const std::string& why);
  /// Null when there is none.
  [[nodiscard]] const Quantity* find(const std::string& quantity) const;
  /// The single value; InputError when there is none.
  [[nodiscard]] double value(const std::string& quantity) const;
  [[nodiscard]] const std::map<std::string, Quantity>& all() const { return quantities_; }

 private:
  std::map<std::string, Quantity> quantities_;
};

struct Judged {
  Claim claim;
  Measured measured;
  Verdict verdict = Verdict::kContradicted;
  std::string how;
};

/// Judges each claim against its quantity, in order. A point of a series that was not measured is
/// left out (quick runs). A claim without a measurement is an InputError that names both.
[[nodiscard]] std::vector<Judged> judge(const std::vector<Claim>& claims,
                                        const Measurements& measurements);

/// Parses a claim file; `name` stands for it in messages. InputError with file:line:column.
[[nodiscard]] std::vector<Claim> parse_claims(std::string_view toml, const std::string& name);
/// The claims of a table ("mixed-fabric" -> experiments/claims/mixed_fabric.toml), which are part
/// of the program. InputError when there is no such file.
[[nodiscard]] std::vector<Claim> claims_of(const std::string& table);
/// The row's claim; InputError when there is none.
[[nodiscard]] const Claim& claim_by_row(const std::vector<Claim>& claims, std::string_view row);

/// A claim file as built in.
struct EmbeddedFile {
  const char* name;  ///< "mixed_fabric"
  const char* text;
};
/// Generated by CMake from experiments/claims/*.toml, ordered by name.
[[nodiscard]] const std::vector<EmbeddedFile>& embedded_files();

}  // namespace switchyard::claims

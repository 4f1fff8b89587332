#pragma once
#include "apps/sgactor/job_spec.h"

#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace sgactor::apps {

using KeyField = std::variant<int64_t*, double*, bool*, std::string*, std::vector<std::string>*>;

/// What a key accepts beyond its type.
struct KeyLimits {
  double low = 0;
  double high = 0;
  bool low_open = false;   ///< low itself is not allowed
  bool high_open = false;  ///< high itself is not allowed
  bool ranged = false;
  std::string_view choices;  ///< "a|b|c"; empty: any text
  bool is_path = false;      ///< made absolute
  bool auto_ok = false;      ///< an integer, or "auto": then the field is kAutoInteger
};

/// What "auto" is in an integer field until parse_job() has resolved it.
inline constexpr int64_t kAutoInteger = std::numeric_limits<int64_t>::min();

/// One row of the table of job keys. It drives parsing, messages, `init` and job.resolved.toml.
struct JobKey {
  std::string_view section;
  std::string_view name;
  KeyField (*field)(JobSpec&);
  KeyLimits limits;
  std::string_view help;

  [[nodiscard]] std::string full_name() const {
    return std::string(section) + "." + std::string(name);
  }
};

/// All keys, in the order in which files show them.
std::span<const JobKey> job_keys();
struct JobSection {
  std::string_view name;
  std::string_view help;
};
std::span<const JobSection> job_sections();

/// Row of "section.name"; null if there is none.
const JobKey* find_job_key(std::string_view full_name);
/// "; did you mean training.steps?", or "" if nothing is near. `full_name` may lack its section.
/// Knows names that other trainers have ("learning_rate"); else guesses nothing below three
/// letters.
std::string nearest_key_hint(std::string_view full_name);
/// What the key expects, for messages: "an integer from 1 to 1000000", "one of text, mock".
std::string expectation(const JobKey& key);
/// Checks a value that has been stored in `job` against the row's limits. Errors: kInvalidArgument
/// with the expectation and the value, without place or key.
Status check_limits(const JobKey& key, JobSpec& job);
/// Parses text of the command line into the field. Errors: as check_limits; kInvalidArgument if
/// `text` is not UTF-8.
Status set_from_text(const JobKey& key, JobSpec& job, std::string_view text);
/// The field's value as TOML.
std::string value_as_toml(const JobKey& key, const JobSpec& job);

}  // namespace sgactor::apps

#pragma once
#include "graph/base/status.h"
#include "graph/compiler/cost_model.h"
#include "graph/plan/plan.h"

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sgactor::graph {

/// Times that a run measured, for the next compilation. Plain data; the same profile gives the same
/// plan.
struct Profile {
  struct Time {
    int64_t median_ns = 0;
    int64_t count = 0;  ///< firings that the median is of
    friend bool operator==(const Time&, const Time&) = default;
  };
  /// A collective or receive: its time depends on what it moves and between how many.
  struct Collective {
    LaunchKind kind = LaunchKind::kAllReduce;
    int64_t bytes = 0;  ///< communication_bytes()
    int32_t members = 1;
    friend auto operator<=>(const Collective&, const Collective&) = default;
  };

  std::string backend;                 ///< that ran it: "cpu"
  std::string device;                  ///< kind of device, as the backend describes it
  std::map<uint64_t, Time> subgraphs;  ///< by Subgraph::structure_hash
  std::map<Collective, Time> collectives;
  friend bool operator==(const Profile&, const Profile&) = default;
};

/// As JSON, sorted: equal profiles are equal texts.
std::string write_profile(const Profile& profile);
/// Safe on hostile text. Errors: kInvalidArgument, one line.
Result<Profile> parse_profile(std::string_view text);

/// The key of what a launch of a group does. Pre: it is no subgraph.
Profile::Collective collective_key(const Plan& plan, const RankProgram& program,
                                   const Launch& launch);

/// Seconds of a plan's launches: measured where a profile knows them, by the cost model elsewhere.
/// Where some subgraphs are measured, the model is scaled so that its sum over those is the
/// measured one: the two can be compared. So it is for communication, over what the profile has
/// measured, whether or not the plan does it: for each kind and number of members, where one size
/// of it is measured, and over all that is for kinds without any. Where two or more sizes are
/// measured, others of the kind take what a line through those says: a time of its own and a time a
/// byte. Borrows plan and profile.
class LaunchTimes {
 public:
  /// `profile` and `cluster` may be null: the model alone, of CostModel's default machine.
  LaunchTimes(const Plan& plan, const Profile* profile, const ClusterSpec* cluster = nullptr);

  /// Of a launch of the plan, or of one that bucket_collectives made of its launches.
  [[nodiscard]] double seconds(const RankProgram& program, const Launch& launch) const;
  /// By SubgraphId.
  [[nodiscard]] const std::vector<double>& subgraph_seconds() const { return subgraphs_; }
  [[nodiscard]] bool is_measured() const { return profile_ != nullptr; }
  /// "12 of 14 subgraphs measured", for the record of a pass.
  [[nodiscard]] std::string describe_subgraphs() const;
  [[nodiscard]] std::string describe_communication() const;

 private:
  /// Seconds of one kind between as many members: fixed_s + bytes * byte_s.
  struct Line {
    double fixed_s = 0;
    double byte_s = 0;
  };

  void time_subgraphs();
  void count_communication();
  void scale_communication();
  void fit_lines();

  const Plan& plan_;
  const Profile* profile_;
  CostModel model_;
  std::vector<double> subgraphs_;
  std::map<std::pair<LaunchKind, int32_t>, Line> lines_;     // by kind and members
  std::map<std::pair<LaunchKind, int32_t>, double> scales_;  // of the model, by the same
  double communication_scale_ = 1;                           // of kinds without any
  size_t num_measured_subgraphs_ = 0;
  size_t num_communications_ = 0, num_measured_communications_ = 0;  // distinct ones
};

}  // namespace sgactor::graph

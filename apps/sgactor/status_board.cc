#include "apps/sgactor/status_board.h"

#include <algorithm>
#include <array>
#include <utility>

namespace sgactor::apps {
namespace {

constexpr size_t kMostRecoveries = 20;
using Recoveries = std::vector<nlohmann::ordered_json>;

}  // namespace

std::string_view to_string(RunState state) {
  constexpr std::array<std::string_view, kNumRunStates> kNames = {
      "ready", "running", "frozen", "migrating", "draining", "done", "failed"};
  return kNames[static_cast<size_t>(state)];
}

StatusBoard::StatusBoard(RunFacts facts, const std::atomic<bool>* stopping) : stopping_(stopping) {
  now_.step.step = now_.checkpoint_step = facts.first_step - 1;
  now_.run = std::make_shared<const RunFacts>(std::move(facts));
  now_.members = std::make_shared<const MemberFacts>();
  now_.recoveries = std::make_shared<const Recoveries>();
}

void StatusBoard::set_step(const StepFacts& step) {
  const std::lock_guard lock(mutex_);
  now_.step = step;
}

void StatusBoard::set_checkpoint(int64_t step) {
  const std::lock_guard lock(mutex_);
  now_.checkpoint_step = std::max(now_.checkpoint_step, step);
}

void StatusBoard::set_validation(int64_t step, double loss) {
  const std::lock_guard lock(mutex_);
  now_.validation_step = step;
  now_.validation_loss = loss;
}

void StatusBoard::set_members(MemberFacts members) {
  auto made = std::make_shared<const MemberFacts>(std::move(members));
  {
    const std::lock_guard lock(mutex_);
    now_.members.swap(made);
  }
  // What it was goes here, outside of the lock.
}

void StatusBoard::add_recovery(const std::string& line) {
  auto json = nlohmann::ordered_json::parse(line, nullptr, /*allow_exceptions=*/false);
  const std::lock_guard lock(mutex_);
  ++now_.num_recoveries;
  if (!json.is_object()) return;
  Recoveries newest = *now_.recoveries;
  newest.push_back(std::move(json));
  if (newest.size() > kMostRecoveries) newest.erase(newest.begin());
  now_.recoveries = std::make_shared<const Recoveries>(std::move(newest));
}

void StatusBoard::end(RunState state) {
  const std::lock_guard lock(mutex_);
  ended_ = true;
  now_.state = state;
}

StatusSnapshot StatusBoard::read() const {
  const std::lock_guard lock(mutex_);
  StatusSnapshot out = now_;
  if (ended_) return out;
  out.state = out.members->state;
  const bool stops = stopping_ != nullptr && stopping_->load();
  if (stops && out.state == RunState::kRunning) out.state = RunState::kDraining;
  return out;
}

}  // namespace sgactor::apps

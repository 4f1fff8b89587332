#include "apps/sgactor/profile_request.h"

#include "actors/runtime/trace.h"
#include "transport/storage/run_files.h"

#include <nlohmann/json.hpp>

#include <utility>
#include <vector>

namespace sgactor::apps {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

std::string encode_answer(const ProfileAnswer& answer) {
  const Json json = {{"file", answer.file},
                     {"backend", answer.backend},
                     {"device", answer.device},
                     {"error", answer.error}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<ProfileAnswer> parse_answer(std::string_view text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  ProfileAnswer answer;
  for (const auto& [key, field] : {std::pair{"file", &answer.file},
                                   {"backend", &answer.backend},
                                   {"device", &answer.device},
                                   {"error", &answer.error}}) {
    if (!json.is_object() || !json.contains(key) || !json[key].is_string())
      return corruption("a worker's answer about its profile is not understood");
    *field = json[key].get<std::string>();
  }
  return answer;
}

std::optional<int64_t> ProfileRequest::parse(std::string_view request) {
  const Json json = Json::parse(request, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("profile") || !json["profile"].is_number_integer())
    return std::nullopt;
  const auto steps = json["profile"].get<int64_t>();
  if (steps < 1 || steps > kMostProfileSteps) return std::nullopt;
  return steps;
}

void ProfileRequest::begin(std::set<int32_t> workers) {
  waiting_ = std::move(workers);
  answers_.clear();
}

bool ProfileRequest::answer(int32_t worker, ProfileAnswer answer) {
  if (waiting_.erase(worker) == 0) return false;
  answers_[worker] = std::move(answer);
  return waiting_.empty();
}

bool ProfileRequest::forget(int32_t worker) {
  return waiting_.erase(worker) != 0 && waiting_.empty() && !answers_.empty();
}

Status ProfileRequest::write(const graph::Plan& plan, const RunDirectory& run) const {
  std::vector<std::string> files;
  for (const auto& [worker, answer] : answers_) {
    if (!answer.error.empty()) return internal_error(answer.error);
    files.push_back(answer.file);
  }
  if (files.empty()) return internal_error("no worker has recorded anything");
  SGA_ASSIGN(graph::Profile profile, profile_of_traces(plan, files, /*warm=*/true));
  if (profile.subgraphs.empty()) return internal_error("the traces hold no launch of this plan");
  profile.backend = answers_.begin()->second.backend;
  profile.device = answers_.begin()->second.device;
  return transport::write_file_atomic(run.profile(), graph::write_profile(profile));
}

std::optional<ProfileAnswer> finish_recording(actors::Tracer& tracer, int32_t rank, bool ended,
                                              const std::string& file,
                                              const kernels::DeviceInfo& device) {
  std::string json;
  if (!tracer.take_recorded(rank, ended, &json)) return std::nullopt;
  const Status written = actors::Tracer::write_text(file, json);
  return ProfileAnswer{file, device.backend, device.description,
                       written.ok() ? "" : written.message()};
}

}  // namespace sgactor::apps

#include "apps/sgactor/status_view.h"

#include "apps/sgactor/float_bits.h"
#include "apps/sgactor/json_lines.h"
#include "apps/sgactor/printable.h"
#include "graph/base/units.h"
#include "graph/compiler/explain_html.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

namespace sgactor::apps {
namespace {

using Json = nlohmann::ordered_json;

/// Null until this process has measured a step.
template <class T>
Json measured(const StepFacts& step, T value) {
  return step.measured ? Json(value) : Json();
}

int64_t age_ms(int64_t then_ms, int64_t now_ms) { return std::max<int64_t>(0, now_ms - then_ms); }

int64_t num_in_state(const MemberFacts& members, std::string_view state) {
  return std::count_if(members.workers.begin(), members.workers.end(),
                       [state](const WorkerFacts& w) { return w.state == state; });
}

int64_t generation_of(const StatusSnapshot& s) {
  return std::max(s.members->generation, s.step.generation);
}

Json json_of(const WorkerFacts& w, int64_t now_ms) {
  Json out;
  out["index"] = w.index;
  out["host"] = w.host;
  out["pid"] = w.pid;
  out["device"] = w.device;
  out["ranks"] = w.ranks;
  out["state"] = w.state;
  out["heartbeat_age_ms"] = w.heard_ms > 0 ? Json(age_ms(w.heard_ms, now_ms)) : Json();
  return out;
}

// --- Prometheus ---

/// A label's value: backslash, quote and newline are escaped; what is not UTF-8 is replaced.
std::string label_value(std::string_view text) {
  std::string out;
  for (const char c : printable(text)) {
    if (c == '\\' || c == '"') out += '\\';
    out += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return out;
}

std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}
std::string number(int64_t value) { return std::to_string(value); }

class Metrics {
 public:
  using Labels = std::vector<std::pair<std::string_view, std::string>>;

  /// The lines before a metric's samples.
  void begin(std::string_view name, std::string_view type, std::string_view help) {
    name_ = name;
    text_ += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
  }
  template <class T>
  void sample(T value, const Labels& labels = {}) {
    text_ += name_;
    for (size_t i = 0; i < labels.size(); ++i) {
      text_ += fmt::format("{}{}=\"{}\"", i == 0 ? '{' : ',', labels[i].first,
                           label_value(labels[i].second));
    }
    text_ += fmt::format("{} {}\n", labels.empty() ? "" : "}", number(value));
  }
  template <class T>
  void gauge(std::string_view name, T value, std::string_view help) {
    begin(name, "gauge", help);
    sample(value);
  }
  template <class T>
  void counter(std::string_view name, T value, std::string_view help) {
    begin(name, "counter", help);
    sample(value);
  }
  [[nodiscard]] std::string take() { return std::move(text_); }

 private:
  std::string_view name_;
  std::string text_;
};

void add_step(const StatusSnapshot& s, int64_t now_ms, Metrics& out) {
  const StepFacts& step = s.step;
  out.gauge("sgactor_training_step", step.step, "Step committed last.");
  out.gauge("sgactor_training_steps", s.run->num_steps, "Steps of the job.");
  if (step.measured) {
    out.gauge("sgactor_training_loss", double{step.loss}, "Mean loss of the step in nats a token.");
    out.gauge("sgactor_training_gradient_norm", double{step.grad_norm},
              "Global norm before clipping.");
    out.gauge("sgactor_training_learning_rate", double{step.lr}, "Learning rate of the step.");
    out.gauge("sgactor_training_tokens_per_second", step.tokens_per_second,
              "Tokens a second in the step.");
    out.counter("sgactor_training_tokens_total", step.all_tokens,
                "Tokens of all steps since this process began.");
    out.gauge("sgactor_training_step_seconds", step.step_ms / 1e3, "Wall time of the step.");
    if (!std::isnan(step.mfu)) {
      out.gauge("sgactor_training_mfu", step.mfu, "Share of what the devices reach in products.");
    }
    out.gauge("sgactor_training_memory_bytes", step.memory_bytes, "Planned arena of a rank.");
    out.gauge("sgactor_training_time_left_seconds", step.seconds_left,
              "Guess for the steps that are left.");
    out.gauge("sgactor_training_last_step_age_seconds",
              static_cast<double>(age_ms(step.done_ms, now_ms)) / 1e3,
              "Time since the step was committed.");
  }
  if (s.validation_step > 0) {
    out.gauge("sgactor_training_validation_step", s.validation_step,
              "Step behind which was validated.");
    out.gauge("sgactor_training_validation_loss", s.validation_loss, "Mean loss of held-out data.");
  }
  out.gauge("sgactor_training_checkpoint_step", s.checkpoint_step, "Newest checkpoint; 0: none.");
}

void add_members(const StatusSnapshot& s, int64_t now_ms, Metrics& out) {
  out.gauge("sgactor_training_generation", generation_of(s), "Number of the current membership.");
  out.begin("sgactor_training_workers", "gauge", "Worker processes.");
  for (const std::string_view state : kWorkerStates) {
    out.sample(num_in_state(*s.members, state), {{"state", std::string(state)}});
  }
  out.counter("sgactor_training_recoveries_total", s.num_recoveries, "Lines of recoveries.jsonl.");
  out.counter("sgactor_training_faults_total", s.members->num_faults,
              "Faults since this process began.");
  out.begin("sgactor_training_last_heartbeat_age_seconds", "gauge",
            "Time since a worker was heard.");
  for (const WorkerFacts& w : s.members->workers) {
    if (w.heard_ms == 0) continue;
    out.sample(static_cast<double>(age_ms(w.heard_ms, now_ms)) / 1e3,
               {{"worker", std::to_string(w.index)}, {"host", w.host}});
  }
}

// --- HTML ---

std::string escaped(std::string_view text) { return graph::html_escape(one_line(text)); }

std::string row(const std::vector<std::string>& cells, const char* cell = "td") {
  std::string out = "<tr>";
  for (const std::string& text : cells) {
    out += fmt::format("<{0}>{1}</{0}>", cell, escaped(text));
  }
  return out + "</tr>\n";
}

std::string ranks_text(const std::vector<int32_t>& ranks) {
  return fmt::format("{}", fmt::join(ranks, ", "));
}

std::string seconds_text(int64_t ms) { return format_seconds(static_cast<double>(ms) * 1e-3); }

std::string facts_html(const StatusSnapshot& s, int64_t now_ms) {
  const StepFacts& step = s.step;
  std::string out = "<table>\n";
  const auto add = [&out](const char* name, const std::string& value) {
    out += row({name, value});
  };
  add("state", std::string(to_string(s.state)) +
                   (s.members->trouble.empty() ? "" : ": " + s.members->trouble));
  add("step", fmt::format("{} of {}", step.step, s.run->num_steps));
  if (step.measured) {
    add("committed", seconds_text(age_ms(step.done_ms, now_ms)) + " ago");
    add("loss", fmt::format("{:.4f} ({})", step.loss, float_bits(step.loss)));
    add("gradient norm", fmt::format("{:.3g}", step.grad_norm));
    add("learning rate", fmt::format("{:.3g}", step.lr));
    add("rate", fmt::format("{} tokens/s, {} a step", format_count(step.tokens_per_second),
                            format_seconds(step.step_ms * 1e-3)));
    if (!std::isnan(step.mfu)) add("MFU", fmt::format("{:.1f} %", step.mfu * 100));
    add("memory", format_bytes(step.memory_bytes) + " planned for a rank");
    add("left", format_seconds(step.seconds_left));
  }
  if (s.validation_step > 0) {
    add("validation", fmt::format("{:.4f} behind step {}", s.validation_loss, s.validation_step));
  }
  add("checkpoint", s.checkpoint_step > 0 ? fmt::format("step {}", s.checkpoint_step) : "none yet");
  add("generation", std::to_string(generation_of(s)));
  const RunFacts& run = *s.run;
  add("mesh", fmt::format("pp {}, dp {}, tp {}; ZeRO {}", run.pipeline_parallel, run.data_parallel,
                          run.tensor_parallel, run.zero_stage));
  add("run", run.run);
  add("process", fmt::format("{} on {}, sgactor {}", run.pid, run.host, run.version));
  return out + "</table>\n";
}

std::string workers_html(const StatusSnapshot& s, int64_t now_ms) {
  if (s.members->workers.empty()) return "";
  std::string out = "<h2>Workers</h2>\n<table>\n";
  out += row({"worker", "host", "pid", "device", "ranks", "heard", "state"}, "th");
  for (const WorkerFacts& w : s.members->workers) {
    out += row({std::to_string(w.index), w.host, w.pid > 0 ? std::to_string(w.pid) : "-", w.device,
                ranks_text(w.ranks),
                w.heard_ms > 0 ? seconds_text(age_ms(w.heard_ms, now_ms)) + " ago" : "-", w.state});
  }
  return out + "</table>\n";
}

std::string recoveries_html(const StatusSnapshot& s) {
  if (s.recoveries->empty()) return "";
  std::string out = "<h2>Recoveries</h2>\n<table>\n";
  out += row({"after step", "fault", "culprit", "fenced ms", "placed ms", "loaded ms",
              "restored ms", "next step ms"},
             "th");
  for (auto it = s.recoveries->rbegin(); it != s.recoveries->rend(); ++it) {
    const auto ms = [&it](const char* key) {
      const auto value = field_or<double>(*it, key, StepFacts::kUnknown);
      return std::isnan(value) ? std::string("-") : fmt::format("{:.0f}", value);
    };
    out += row({std::to_string(field_or<int64_t>(*it, "step", 0)),
                field_or<std::string>(*it, "fault", ""), field_or<std::string>(*it, "culprit", ""),
                ms("fenced_ms"), ms("placed_ms"), ms("loaded_ms"), ms("restored_ms"),
                ms("first_new_step_ms")});
  }
  return out + "</table>\n";
}

}  // namespace

std::string status_json(const StatusSnapshot& s, int64_t now_ms) {
  const RunFacts& run = *s.run;
  const StepFacts& step = s.step;
  Json out;
  out["state"] = to_string(s.state);
  out["trouble"] = s.members->trouble;
  out["job"] = run.job;
  out["run"] = run.run;
  out["version"] = run.version;
  out["host"] = run.host;
  out["pid"] = run.pid;
  out["step"] = step.step;
  out["steps"] = run.num_steps;
  out["loss"] = measured(step, step.loss);
  out["loss_bits"] = measured(step, float_bits(step.loss));
  out["grad_norm"] = measured(step, step.grad_norm);
  out["lr"] = measured(step, step.lr);
  out["tokens"] = measured(step, step.tokens);
  out["tok_s"] = measured(step, step.tokens_per_second);
  out["step_ms"] = measured(step, step.step_ms);
  out["tflops"] = measured(step, step.tflops);
  out["mfu"] = measured(step, step.mfu);
  out["mem_gib"] =
      measured(step, static_cast<double>(step.memory_bytes) / static_cast<double>(kGiB));
  out["step_age_ms"] = measured(step, age_ms(step.done_ms, now_ms));
  out["seconds_left"] = measured(step, step.seconds_left);
  out["checkpoint_step"] = s.checkpoint_step;
  out["validation_step"] = s.validation_step;
  out["validation_loss"] = s.validation_step > 0 ? Json(s.validation_loss) : Json();
  out["generation"] = generation_of(s);
  out["mesh"] = {{"pp", run.pipeline_parallel},
                 {"dp", run.data_parallel},
                 {"tp", run.tensor_parallel},
                 {"logical_dp", run.logical_data_parallel},
                 {"zero_stage", run.zero_stage}};
  out["workers"] = Json::array();
  for (const WorkerFacts& w : s.members->workers) out["workers"].push_back(json_of(w, now_ms));
  out["spares"] = num_in_state(*s.members, "spare");
  out["num_faults"] = s.members->num_faults;
  out["num_recoveries"] = s.num_recoveries;
  out["recoveries"] = *s.recoveries;
  return out.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string status_metrics(const StatusSnapshot& s, int64_t now_ms) {
  Metrics out;
  out.begin("sgactor_training_info", "gauge", "The run; always 1.");
  out.sample(int64_t{1}, {{"job", s.run->job}, {"run", s.run->run}, {"version", s.run->version}});
  out.begin("sgactor_training_state", "gauge", "1 for the state that the run is in.");
  for (int i = 0; i < kNumRunStates; ++i) {
    const auto state = static_cast<RunState>(i);
    out.sample(int64_t{state == s.state}, {{"state", std::string(to_string(state))}});
  }
  add_step(s, now_ms, out);
  add_members(s, now_ms, out);
  return out.take();
}

std::string status_html(const StatusSnapshot& s, int64_t now_ms) {
  const double share = s.run->num_steps > 0 ? static_cast<double>(s.step.step) /
                                                  static_cast<double>(s.run->num_steps)
                                            : 0;
  std::string out = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"refresh\" content=\"2\">\n<title>{0}: step {1} - sgactor</title>\n"
      "<style>\n"
      "body {{ font: 15px/1.5 sans-serif; margin: 2em; color: #222; background: #fff; }}\n"
      "table {{ border-collapse: collapse; }}\n"
      "td, th {{ padding: 0.1em 1.5em 0.1em 0; text-align: left; vertical-align: top; }}\n"
      "h2 {{ font-size: 1.1em; }}\n"
      ".bar {{ width: 30em; height: 0.8em; margin-bottom: 1em; background: #ddd; }}\n"
      ".bar div {{ height: 100%; background: #2a7; }}\n"
      "</style></head>\n<body>\n<h1>{0}</h1>\n"
      "<div class=\"bar\"><div style=\"width: {2:.1f}%\"></div></div>\n",
      escaped(s.run->job), s.step.step, std::clamp(share, 0.0, 1.0) * 100);
  out += facts_html(s, now_ms) + workers_html(s, now_ms) + recoveries_html(s);
  return out +
         "<p><a href=\"status\">JSON</a> <a href=\"metrics\">Prometheus</a></p>\n"
         "</body></html>\n";
}

std::string status_trouble(const StatusSnapshot& s) {
  const std::string& trouble = s.members->trouble;
  switch (s.state) {
    case RunState::kReady:
      return "no step has begun";
    case RunState::kFrozen:
    case RunState::kMigrating:
      return "recovers from " + one_line(trouble.empty() ? "a fault" : trouble);
    case RunState::kFailed:
      return "the run has failed";
    case RunState::kRunning:
    case RunState::kDraining:
      return one_line(trouble);
    case RunState::kDone:
      break;
  }
  return "";
}

}  // namespace sgactor::apps

// The page and its tables; drawings are in explain_layers.cc, explain_memory.cc and
// explain_lanes.cc.
#include "graph/compiler/explain_html.h"

#include "graph/base/hash.h"
#include "graph/base/units.h"
#include "graph/compiler/explain_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace sgactor::graph {
namespace {

// Nothing is fetched: the page says so to the browser too.
constexpr std::string_view kHead = R"(<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root { color-scheme: light dark; --line: #8886; --muted: #888; }
body { font: 14px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 1240px; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
p, summary { max-width: 75ch; } .muted { color: var(--muted); }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .2rem .7rem .2rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
svg { display: block; width: 100%; height: auto; } .scroll { overflow: auto; max-height: 46rem; }
svg text { font: 11px system-ui, sans-serif; fill: currentColor; }
rect { stroke: #fff8; stroke-width: .4; } rect:hover { stroke: #000; stroke-width: 1; }
path { fill: none; stroke: #8887; stroke-width: .6; } .frame { fill: none; stroke: var(--line); }
.parameter, .forward { fill: #4878cf; } .moment, .update { fill: #8c6bb1; }
.accumulator, .backward { fill: #d8793b; } .scalar, .metric, .reduce { fill: #8a8a8a; }
.batch { fill: #c9a227; } .activation, .prepare { fill: #4aa564; } .workspace { fill: #c25b7c; }
.key { display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em; vertical-align: -1px; }
</style>
)";

std::string fact(std::string_view name, const std::string& value) {
  return fmt::format("<tr><td>{}</td><td class=\"n\">{}</td></tr>\n", name, html_escape(value));
}

std::string facts_section(const Plan& plan) {
  const MemoryStats& m = plan.memory;
  const RankProgram& program = plan.programs[0];
  std::string out = "<h2>At a glance</h2>\n<table>\n";
  out += fact("parameters",
              fmt::format("{} ({})", format_count(static_cast<double>(plan.num_parameters)),
                          plan.num_parameters));
  out += fact("FLOPs a token", format_count(plan.flops_per_token));
  out += fact("mesh",
              fmt::format("pp {} x dp {} x tp {}; {} logical ranks, {} programs", plan.mesh.pp,
                          plan.mesh.dp, plan.mesh.tp, plan.ranks.size(), plan.programs.size()));
  out += fact("ops before and after the passes",
              fmt::format("{} / {}", plan.ops_before, plan.ops_after));
  out += fact("subgraphs, launches, micro-batches",
              fmt::format("{} / {} / {}", plan.subgraphs.size(), program.launches.size(),
                          program.num_micro_batches));
  out += fact("arena", format_bytes(m.planned_bytes));
  out += fact("without reuse", format_bytes(m.naive_bytes));
  out += fact("lower bound", format_bytes(m.lower_bound_bytes));
  out += fact("activations and workspaces", format_bytes(m.activation_peak_bytes));
  out += fact("compiled in", format_seconds(plan.compile_ms * 1e-3));
  out += fact("schema_hash", hex64(plan.schema_hash));
  return out + "</table>\n";
}

}  // namespace

std::string html_escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else if (c == '\'') {
      out += "&#39;";
    } else if (byte < 0x20 || byte == 0x7f) {
      out += "&#xFFFD;";
    } else {
      out += c;
    }
  }
  return out;
}

std::string explain_html(const Compiled& compiled, const ExplainOptions& options) {
  const Plan& plan = compiled.plan;
  const std::string title = html_escape(options.title);
  std::string out = "<!doctype html>\n<html lang=\"en\">\n<head>\n";
  out += fmt::format("<title>sgactor plan: {}</title>\n{}</head>\n<body>\n", title, kHead);
  out +=
      fmt::format("<h1>{}</h1>\n<p class=\"muted\">{}</p>\n", title, html_escape(options.subject));
  out += facts_section(plan);
  out += explain::passes_section(compiled);
  out += explain::memory_section(plan);
  out += explain::schedule_section(plan, options.device);
  out += explain::cost_section(plan, options.device);
  out += explain::layers_section(plan);
  return out + "</body>\n</html>\n";
}

namespace explain {

std::string rect(double x, double y, double width, double height, std::string_view css_class,
                 std::string_view title) {
  return fmt::format(
      "<rect class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"><title>{}"
      "</title></rect>\n",
      css_class, x, y, std::max(width, 0.5), std::max(height, 0.5), html_escape(title));
}

std::string passes_section(const Compiled& compiled) {
  std::string out =
      "<h2>Passes</h2>\n<table>\n<tr><th>pass</th><th class=\"n\">time</th><th class=\"n\">ops</th>"
      "<th>what changed and why</th></tr>\n";
  for (const PassRecord& pass : compiled.passes) {
    out +=
        fmt::format("<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{} &rarr; {}</td><td>{}",
                    html_escape(pass.name), format_seconds(pass.ms * 1e-3), pass.ops_before,
                    pass.ops_after, html_escape(pass.note));
    if (!pass.details.empty()) {
      out += fmt::format("<details><summary>{} decisions</summary>\n", pass.details.size());
      for (const std::string& line : pass.details) out += html_escape(line) + "<br>\n";
      out += "</details>";
    }
    out += "</td></tr>\n";
  }
  return out + "</table>\n";
}

std::string cost_section(const Plan& plan, const DeviceModel& device) {
  const RankProgram& program = plan.programs[0];
  std::vector<double> firings(plan.subgraphs.size(), 0);
  for (const Lane& lane : program.lanes) {
    for (const Firing& f : lane.order) {
      const Launch& launch = program.launches[static_cast<size_t>(f.launch)];
      if (launch.kind == LaunchKind::kSubgraph) ++firings[static_cast<size_t>(launch.subgraph)];
    }
  }
  std::vector<size_t> order(plan.subgraphs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto flops = [&](size_t i) { return plan.subgraphs[i].flops * firings[i]; };
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return flops(a) > flops(b); });
  double all = 0;
  for (size_t i : order) all += flops(i);
  const double ridge = device.flops_per_s / device.bytes_per_s;
  std::string out = fmt::format(
      "<h2>Cost by subgraph</h2>\n<p>Of one firing, and of a step. Bytes are operands and results "
      "of every op. Above {:.0f} FLOPs a byte the modelled device is bound by its arithmetic.</p>\n"
      "<table>\n<tr><th>subgraph</th><th class=\"n\">ops</th><th class=\"n\">firings a step</th>"
      "<th class=\"n\">FLOPs</th><th class=\"n\">bytes</th><th class=\"n\">FLOPs a byte</th>"
      "<th class=\"n\">share of FLOPs</th><th>bound by</th></tr>\n",
      ridge);
  for (size_t i : order) {
    const Subgraph& s = plan.subgraphs[i];
    const double intensity = s.bytes_moved > 0 ? s.flops / static_cast<double>(s.bytes_moved) : 0;
    out += fmt::format(
        "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{:.0f}</td><td class=\"n\">{}</td>"
        "<td class=\"n\">{}</td><td class=\"n\">{:.2f}</td><td class=\"n\">{:.1f} %</td><td>{}</td>"
        "</tr>\n",
        html_escape(s.name), s.body.ops().size(), firings[i], format_count(s.flops),
        format_bytes(s.bytes_moved), intensity, all > 0 ? 100 * flops(i) / all : 0,
        intensity > ridge ? "arithmetic" : "memory");
  }
  return out + "</table>\n";
}

}  // namespace explain
}  // namespace sgactor::graph
